//! Processes that run AMD's runtime send each other memory with its description.

use crate::amd_runtime::on_each;
use crate::exchange::{self, Role};
use crate::machine::Library;
use crate::process::namespaces::{Need, has_privilege};
use crate::process::{Child, End, descriptors, regions};
use hsa_rocr::Emulation;
use hsa_rocr::test::run_on_releases;
use hsa_vmm::transport::{Channel, Offer, Ticket, Trust};
use hsa_vmm::{Access, Allocation, Mapping, Reservation};
use std::io::{Read, Write};

const SIZE: usize = 256 << 10;

/// Maps the memory for the CPU and all GPUs.
fn map_for_all(library: &Library, memory: &Allocation) -> Mapping {
    let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
    let mapping = reservation.map(0, memory).unwrap();
    let agents: Vec<_> = library.runtime.agents().iter().map(|agent| agent.id()).collect();
    mapping.grant(&agents, Access::ReadWrite).unwrap();
    mapping
}

fn word(mapping: &Mapping) -> [u8; 4] {
    let mut word = [0; 4];
    mapping.read(0, &mut word).unwrap();
    word
}

#[test]
fn received_memory_outlives_its_sender() {
    let name = "transport::received_memory_outlives_its_sender";
    run_on_releases(name, &Emulation::with_gpus(2), |fixture| {
        let (sending, receiving) = Channel::pair().unwrap();
        let (reply_sending, reply_receiving) = Channel::pair().unwrap();
        // A fork copies all channels. Each child closes its copies of the other child's channels. Otherwise,
        // `receive` would not notice that the other child has ended.
        let (mut sender_channels, mut receiver_channels) =
            (Some((sending, reply_receiving)), Some((receiving, reply_sending)));
        let sender = Child::start(|| {
            drop(receiver_channels.take());
            let (sending, reply_receiving) = sender_channels.take().unwrap();
            let library = Library::load(fixture.runtime());
            let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(1)).unwrap();
            let mapping = map_for_all(&library, &memory);
            mapping.write(0, b"here").unwrap();
            sending.send(&memory, "mine").unwrap();
            let (_, description) = reply_receiving.receive(&library.vmm).unwrap();
            assert_eq!(description.name, "yours");
            assert_eq!(&word(&mapping), b"back");
            0
        });
        let receiver = Child::start(|| {
            drop(sender_channels.take());
            let (receiving, reply_sending) = receiver_channels.take().unwrap();
            let library = Library::load(fixture.runtime());
            let (memory, description) = receiving.receive(&library.vmm).unwrap();
            assert_eq!((description.name.as_str(), description.size), ("mine", SIZE as u64));
            let owner = library.runtime.gpus().nth(1).and_then(|gpu| gpu.pci);
            assert_eq!(description.owner, owner);
            let mapping = map_for_all(&library, &memory);
            assert_eq!(&word(&mapping), b"here");
            // Received memory can be sent again.
            mapping.write(0, b"back").unwrap();
            reply_sending.send(&memory, "yours").unwrap();
            // Receiving fails once the sender has ended.
            let error = receiving.receive(&library.vmm).unwrap_err();
            assert!(matches!(error.kind(), hsa_vmm::ErrorKind::Disconnected(_)), "{error}");
            mapping.fill(0, 7, mapping.size()).unwrap();
            assert_eq!(word(&mapping), 7u32.to_ne_bytes());
            0
        });
        drop((sender_channels, receiver_channels));
        assert_eq!(sender.wait(), End::Success, "{}: sender", fixture.release());
        assert_eq!(receiver.wait(), End::Success, "{}: receiver", fixture.release());
    });
}

#[test]
fn child_and_grandchild_share_memory() {
    let name = "transport::child_and_grandchild_share_memory";
    run_on_releases(name, &Emulation::with_gpus(2), |fixture| {
        for killed in [Role::Parent, Role::Child, Role::Grandchild] {
            exchange::share_with_descendants(&|| Library::load(fixture.runtime()), killed);
        }
    });
}

#[test]
fn another_user_is_rejected_until_trusted() {
    let name = "transport::another_user_is_rejected_until_trusted";
    if !has_privilege(Need::OtherUser, name) {
        return;
    }
    run_on_releases(name, &Emulation::with_gpus(2), |fixture| {
        exchange::share_with_another_user(&|| Library::load(fixture.runtime()));
    });
}

#[test]
fn channels_cross_pid_namespaces() {
    let name = "transport::channels_cross_pid_namespaces";
    if !has_privilege(Need::PidNamespace, name) {
        return;
    }
    run_on_releases(name, &Emulation::with_gpus(2), |fixture| {
        exchange::share_with_another_namespace(&|| Library::load(fixture.runtime()));
    });
}

#[test]
fn ticket_fetches_memory_of_another_process() {
    run_on_releases(
        "transport::ticket_fetches_memory_of_another_process",
        &Emulation::with_gpus(2),
        |fixture| {
            let (mut importer_socket, mut exporter_socket) =
                std::os::unix::net::UnixStream::pair().unwrap();
            let exporter = Child::start(|| {
                let library = Library::load(fixture.runtime());
                let memory =
                    Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
                let mapping = map_for_all(&library, &memory);
                mapping.write(0, b"here").unwrap();
                let offer = Offer::of(&memory).unwrap();
                // The ticket is padded to 100 bytes, so that the importer knows how many bytes to read.
                writeln!(exporter_socket, "{:100}", offer.ticket().to_string()).unwrap();
                exporter_socket.read_exact(&mut [0]).unwrap();
                assert_eq!(&word(&mapping), b"back");
                0
            });
            let importer = Child::start(|| {
                let library = Library::load(fixture.runtime());
                let mut text = [0; 100 + "\n".len()];
                importer_socket.read_exact(&mut text).unwrap();
                let ticket: Ticket = std::str::from_utf8(&text).unwrap().trim().parse().unwrap();
                let memory = ticket.fetch(&library.vmm, Trust::SameUser).unwrap();
                let mapping = map_for_all(&library, &memory);
                assert_eq!(&word(&mapping), b"here");
                mapping.write(0, b"back").unwrap();
                importer_socket.write_all(b"!").unwrap();
                0
            });
            assert_eq!(importer.wait(), End::Success, "{}: importer", fixture.release());
            assert_eq!(exporter.wait(), End::Success, "{}: exporter", fixture.release());
        },
    );
}

#[test]
fn ten_thousand_rounds_leak_nothing() {
    on_each("transport::ten_thousand_rounds_leak_nothing", |fixture| {
        let library = Library::load(fixture.runtime());
        let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
        let (sender, receiver) = Channel::pair().unwrap();
        let round = || {
            sender.send(&memory, "again").unwrap();
            drop(receiver.receive(&library.vmm).unwrap());
        };
        round();
        let counts = || {
            let page_tables = "/sys/kernel/debug/dri/128/amdgpu_vm_info";
            let page_tables = std::fs::read_to_string(page_tables).unwrap();
            // The memory of GPUs is in shared regions. Private regions, such as the heap, may have grown.
            let shared =
                regions().iter().filter(|region| region.permissions.ends_with('s')).count();
            (descriptors(), shared, page_tables.lines().last().unwrap().to_owned())
        };
        let before = counts();
        for _ in 0..10_000 {
            round();
        }
        assert_eq!(counts(), before);
    });
}
