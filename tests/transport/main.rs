//! Channels and tickets transport memory with its description. Tests the received memory, rejected messages and leaks.

#[path = "../exchange/mod.rs"]
mod exchange;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;

mod no_thread;
mod processes;
mod slow_files;

use exchange::Role;
use hsa_vmm::error::{Argument, MalformedMessage, Operation, Problem, UnavailableReason};
use hsa_vmm::simulation::Config;
use hsa_vmm::transport::{Channel, Description, Offer, Ticket, Trust, UntrustedUser};
use hsa_vmm::{Access, Allocation, AllocationProperties, Error, ErrorKind, Reservation};
use machine::{Library, MIB, Machine};
use process::namespaces::{NOBODY_UID, Need, has_privilege, new_user_namespace, set_real_user};
use process::{Child, End};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const SIZE: usize = 2 * MIB;
const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Creates shareable memory.
fn new_memory(library: &Library) -> Allocation {
    Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap()
}

/// Maps memory, and grants the CPU access.
fn map_view(library: &Library, memory: &Allocation) -> hsa_vmm::Mapping {
    let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
    let mapping = reservation.map(0, memory).unwrap();
    mapping.grant(&[library.cpu(0)], Access::ReadWrite).unwrap();
    mapping
}

fn first_bytes(mapping: &hsa_vmm::Mapping) -> [u8; 4] {
    let mut bytes = [0; 4];
    mapping.read(0, &mut bytes).unwrap();
    bytes
}

/// Sends bytes in one message. The descriptors arrive with the first byte.
fn send_raw(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    assert_eq!(
        sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()),
        Ok(bytes.len())
    );
}

#[track_caller]
fn error_kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).unwrap_err().into_kind()
}

fn example_description() -> Description {
    Description { name: "x".to_owned(), size: SIZE as u64, granule: 4096, owner: None }
}

#[test]
fn receive_returns_the_memory_and_its_description() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let before = process::descriptors();
        let (sender, receiver) = Channel::pair().unwrap();
        let memory = new_memory(&machine);
        sender.send(&memory, "weights ✓").unwrap();
        let (received, description) = receiver.receive(&machine.vmm).unwrap();
        assert_eq!((description.name.as_str(), description.size), ("weights ✓", SIZE as u64));
        assert_eq!(description.granule, machine.granule() as u64, "{release}");
        let gpu = machine.runtime.gpus().next().unwrap();
        assert_eq!(description.owner, gpu.pci, "{release}");
        let [original_view, received_view] =
            [&memory, &received].map(|memory| map_view(&machine, memory));
        original_view.write(0, b"here").unwrap();
        assert_eq!(&first_bytes(&received_view), b"here", "{release}");
        drop((original_view, received_view, memory, received, sender, receiver));
        assert_eq!(process::descriptors(), before, "{release}");
        machine.assert_empty();
    }
}

#[test]
fn receive_accepts_messages_in_parts() {
    if process::rerun_in_own_process() {
        return;
    }
    let (sender, receiver) = UnixStream::pair().unwrap();
    let receiver = Channel::over(receiver);
    let null = File::open("/dev/null").unwrap();
    let mut bytes = example_description().encode().unwrap();
    for part in bytes.chunks(7) {
        send_raw(&sender, part, &[]);
    }
    // No descriptor came with the message.
    assert_eq!(error_kind(receiver.receive_descriptor()), ErrorKind::UnexpectedDescriptors(0));
    bytes.extend(Description { name: "y".repeat(255), ..example_description() }.encode().unwrap());
    let (first, rest) = bytes.split_at(30);
    send_raw(&sender, first, &[null.as_fd()]);
    // A part must not contain bytes of two messages, because its descriptor could belong to either message.
    let (end, next) = rest.split_at(example_description().encode().unwrap().len() - 30);
    send_raw(&sender, end, &[]);
    assert_eq!(receiver.receive_descriptor().unwrap().1, example_description());
    send_raw(&sender, next, &[null.as_fd()]);
    assert_eq!(receiver.receive_descriptor().unwrap().1.name.len(), 255);
}

#[test]
fn malformed_messages_are_rejected_without_leaks() {
    if process::rerun_in_own_process() {
        return;
    }
    let null = File::open("/dev/null").unwrap();
    // 64 bytes of fields, and a name of one byte.
    let valid = example_description().encode().unwrap();
    let with_byte = |index: usize, byte: u8| {
        let mut bytes = valid.clone();
        bytes[index] = byte;
        bytes
    };
    let before = process::descriptors();
    let receive_error = |bytes: &[u8], count: usize| {
        let (sender, receiver) = UnixStream::pair().unwrap();
        send_raw(&sender, bytes, &vec![null.as_fd(); count]);
        drop(sender);
        let error = Channel::over(receiver).receive_descriptor().map(drop).unwrap_err();
        assert_eq!(error.operation(), Operation::Receive);
        assert_eq!(process::descriptors(), before, "{error}");
        error.into_kind()
    };
    let malformed = ErrorKind::Malformed;
    assert_eq!(receive_error(&with_byte(0, b'H'), 1), malformed(MalformedMessage::WrongMagic));
    assert_eq!(receive_error(&with_byte(7, 9), 1), malformed(MalformedMessage::Version(9)));
    assert_eq!(receive_error(&with_byte(8, 63), 1), malformed(MalformedMessage::Length(63)));
    assert_eq!(
        receive_error(&with_byte(10, 1), 1),
        malformed(MalformedMessage::Length(65 + (1 << 16)))
    );
    assert_eq!(receive_error(&with_byte(12, 2), 1), malformed(MalformedMessage::HandleType(2)));
    assert_eq!(receive_error(&with_byte(50, 1), 1), malformed(MalformedMessage::Reserved));
    assert_eq!(receive_error(&with_byte(64, 0xff), 1), malformed(MalformedMessage::NotUtf8));
    for count in [0, 2, 3, 4] {
        assert_eq!(receive_error(&valid, count), ErrorKind::UnexpectedDescriptors(count));
    }
    for count in [5, 100, 250] {
        assert!(
            matches!(receive_error(&valid, count), ErrorKind::UnexpectedDescriptors(n) if n > 1)
        );
    }
    for end in [1, 63, 64] {
        let disconnected = ErrorKind::Disconnected(end);
        assert_eq!(receive_error(&valid[..end], 1), disconnected);
    }
}

#[test]
fn memory_of_another_size_is_rejected() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let (sender, receiver) = Channel::pair().unwrap();
    let memory = new_memory(&machine);
    let wrong_size = Description { size: 2 * SIZE as u64, ..example_description() };
    sender.send_descriptor(memory.export().unwrap(), &wrong_size).unwrap();
    let (described, found) = (2 * SIZE as u64, SIZE as u64);
    assert_eq!(
        error_kind(receiver.receive(&machine.vmm)),
        ErrorKind::SizeMismatch { described, found }
    );
    // A descriptor that is not memory is also rejected.
    sender.send_descriptor(File::open("/dev/null").unwrap(), &example_description()).unwrap();
    let error = receiver.receive(&machine.vmm).unwrap_err();
    assert_eq!(error.operation(), Operation::Receive);
    assert_eq!(error.argument(), Some(Argument::Descriptor));
    drop(memory);
    machine.assert_empty();
}

#[test]
fn private_memory_is_not_sent() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let (sender, receiver) = Channel::pair().unwrap();
    let not_shareable = AllocationProperties::on(machine.gpu(0));
    let memory = Allocation::create(&machine.vmm, SIZE, &not_shareable).unwrap();
    let error = sender.send(&memory, "").unwrap_err();
    assert!(matches!(error.problem(), Some(Problem::NotRequested)), "{error}");
    assert_eq!(error.operation(), Operation::Send);
    let error = Offer::of(&memory).unwrap_err();
    assert!(matches!(error.problem(), Some(Problem::NotRequested)), "{error}");
    assert_eq!(error.operation(), Operation::Offer);
    let error = sender.send(&new_memory(&machine), &"n".repeat(256)).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::TooLong(255)));
    let receiver = receiver.with_timeout(Duration::ZERO);
    assert_eq!(error_kind(receiver.receive(&machine.vmm)), ErrorKind::TimedOut(Duration::ZERO));
}

#[test]
fn waits_end_at_the_time_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    let (peer, socket) = UnixStream::pair().unwrap();
    let silent = Channel::over(socket).with_timeout(SHORT_TIMEOUT);
    let begun = Instant::now();
    let timed_out = ErrorKind::TimedOut(SHORT_TIMEOUT);
    assert_eq!(error_kind(silent.receive_descriptor()), timed_out);
    // A part of a message does not extend the time limit.
    send_raw(&peer, b"hsavmm", &[]);
    assert_eq!(error_kind(silent.receive_descriptor()), timed_out);
    // The other end reads nothing, so its socket buffer becomes full.
    let (peer, socket) = UnixStream::pair().unwrap();
    let silent = Channel::over(socket).with_timeout(SHORT_TIMEOUT);
    let null = File::open("/dev/null").unwrap();
    let error = loop {
        match silent.send_descriptor(&null, &example_description()) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!((error.operation(), error.kind()), (Operation::Send, &timed_out));
    assert!(
        begun.elapsed() >= 3 * SHORT_TIMEOUT && begun.elapsed() < 60 * SHORT_TIMEOUT,
        "{:?}",
        begun.elapsed()
    );
    drop(peer);
    let kind = error_kind(silent.send_descriptor(&null, &example_description()));
    assert!(matches!(kind, ErrorKind::Disconnected(_)), "{kind}");
}

/// Returns a pipe. The pipe's reader gets the end of file when all descriptors of the writer are closed. Descriptors in
/// other processes and in messages also keep the writer open.
fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

/// Fails unless all other descriptors of the writer are closed.
#[track_caller]
fn assert_all_closed(mut reader: std::io::PipeReader, writer: std::io::PipeWriter) {
    drop(writer);
    let (result_sender, results) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let result = reader.read(&mut [0]);
        // The reader is closed before the caller continues and counts the descriptors.
        drop(reader);
        result_sender.send(result)
    });
    let read = results.recv_timeout(Duration::from_secs(5)).expect("a descriptor is still open");
    assert_eq!(read.unwrap(), 0);
}

#[test]
fn channel_closes_at_the_second_descriptor() {
    if process::rerun_in_own_process() {
        return;
    }
    let message = example_description().encode().unwrap();
    for descriptors_per_byte in [1, 2, 4] {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let (reader, writer) = pipe();
        let before = process::descriptors();
        for byte in &message[..10] {
            send_raw(&sender, &[*byte], &vec![writer.as_fd(); descriptors_per_byte]);
        }
        let receiver = Channel::over(receiver);
        let begun = Instant::now();
        let rejected = error_kind(receiver.receive_descriptor());
        let count = descriptors_per_byte.max(2);
        assert_eq!(
            rejected,
            ErrorKind::UnexpectedDescriptors(count),
            "{descriptors_per_byte} descriptors a byte"
        );
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(process::descriptors(), before, "{descriptors_per_byte} descriptors a byte");
        let kind = error_kind(receiver.receive_descriptor());
        assert!(matches!(kind, ErrorKind::Disconnected(_)), "{kind}");
        let bytes = [IoSlice::new(&message)];
        let none = &mut SendAncillaryBuffer::default();
        let sent = sendmsg(&sender, &bytes, none, SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(rustix::io::Errno::PIPE), "the sender gets an error");
        drop(receiver);
        assert_all_closed(reader, writer);
    }
}

#[test]
fn channel_closes_after_part_of_a_message() {
    if process::rerun_in_own_process() {
        return;
    }
    let (sender, receiver) = UnixStream::pair().unwrap();
    let (reader, writer) = pipe();
    let message = example_description().encode().unwrap();
    let receiver = Channel::over(receiver).with_timeout(3 * SHORT_TIMEOUT);
    let slow_sender = std::thread::spawn({
        let writer = writer.try_clone().unwrap();
        move || {
            let begun = Instant::now();
            // Sends one byte at a time, each within the channel's time limit.
            for (index, byte) in message.iter().enumerate() {
                let descriptors = [writer.as_fd()];
                let descriptors = &descriptors[..usize::from(index == 0)];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if !descriptors.is_empty() {
                    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
                }
                let flags = SendFlags::NOSIGNAL;
                if sendmsg(&sender, &[IoSlice::new(&[*byte])], &mut ancillary, flags).is_err() {
                    break;
                }
                std::thread::sleep(SHORT_TIMEOUT);
            }
            begun.elapsed()
        }
    });
    assert_eq!(error_kind(receiver.receive_descriptor()), ErrorKind::TimedOut(3 * SHORT_TIMEOUT));
    // The sender gets an error soon after the time limit.
    let sent_for = slow_sender.join().unwrap();
    assert!(sent_for < Duration::from_secs(3), "{sent_for:?}");
    assert_all_closed(reader, writer);
    let kind = error_kind(receiver.receive_descriptor());
    assert!(matches!(kind, ErrorKind::Disconnected(_)), "{kind}");
    assert!(kind.to_string().contains("or this end shut the connection down"), "{kind}");
}

#[test]
fn missing_descriptors_are_reported() {
    if process::rerun_in_own_process() {
        return;
    }
    let end = process::in_child(|| {
        let machine = Machine::new(Config::mi300x(1));
        let (sender, receiver) = Channel::pair().unwrap();
        let memory = new_memory(&machine);
        sender.send(&memory, "one").unwrap();
        sender.send(&memory, "two").unwrap();
        let before = process::descriptors();
        for _ in 0..2 {
            let result =
                process::with_free_descriptors(0, || receiver.receive_descriptor().map(drop));
            assert_eq!(error_kind(result), ErrorKind::OutOfDescriptors);
        }
        // The failed calls have left the messages.
        for name in ["one", "two"] {
            assert_eq!(receiver.receive(&machine.vmm).unwrap().1.name, name);
        }
        let result = process::with_free_descriptors(0, || sender.send(&memory, "three"));
        assert_eq!(error_kind(result), ErrorKind::OutOfDescriptors);
        let result = process::with_free_descriptors(0, || Channel::pair().map(drop));
        assert_eq!(result.as_ref().unwrap_err().operation(), Operation::Connect);
        assert_eq!(error_kind(result), ErrorKind::OutOfDescriptors);
        assert_eq!(process::descriptors(), before);
    });
    assert_eq!(end, End::Success);
}

#[test]
fn ten_thousand_rounds_leak_nothing() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(2));
    let memory = new_memory(&machine);
    let (sender, receiver) = Channel::pair().unwrap();
    let round = || {
        sender.send(&memory, "again").unwrap();
        drop(receiver.receive(&machine.vmm).unwrap());
    };
    round();
    // Counts shared mappings only, because the allocator and threads add private mappings.
    let shared =
        || process::regions().iter().filter(|region| region.permissions.ends_with('s')).count();
    let count = || (process::descriptors(), shared(), machine.simulation.usage());
    let before = count();
    for _ in 0..10_000 {
        round();
    }
    assert_eq!(count(), before);
}

/// Threads that share a channel send and receive whole messages.
#[test]
fn threads_share_a_channel() {
    let (sender, receiver) = Channel::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    let rounds = 2000;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let description = example_description();
                (0..rounds).for_each(|_| sender.send_descriptor(&null, &description).unwrap());
            });
            scope.spawn(|| {
                for _ in 0..rounds {
                    let (_, description) = receiver.receive_descriptor().unwrap();
                    assert_eq!(description, example_description());
                }
            });
        }
    });
    // The time limit includes the wait for another thread's message.
    let receiver = receiver.with_timeout(3 * SHORT_TIMEOUT);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let kind = error_kind(receiver.receive_descriptor());
                assert_eq!(kind, ErrorKind::TimedOut(3 * SHORT_TIMEOUT));
            });
        }
    });
    assert!(begun.elapsed() < 30 * SHORT_TIMEOUT, "{:?}", begun.elapsed());
}
