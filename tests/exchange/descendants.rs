//! Memory shared between a parent, its child and its grandchild.

use super::{MappedMemory, OpenLibrary, expect_word, send_word};
use crate::process::{Child, End};
use hsa_vmm::ErrorKind;
use hsa_vmm::transport::Channel;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Creates the memory that is sent to the child and the grandchild.
    Parent,
    /// Forwards received memory in both directions.
    Child,
    /// Creates the memory that is sent to the child and the parent.
    Grandchild,
}

const ROLES: [Role; 3] = [Role::Parent, Role::Child, Role::Grandchild];
/// The offset at which each process writes its word.
const OFFSETS: [usize; 3] = [0, 4096, 8192];
/// The offset at which the surviving processes write.
const SURVIVORS_OFFSET: usize = 12288;
const WORDS: [&str; 3] = ["parent", "child", "grandchild"];
const TIMEOUT: Duration = Duration::from_secs(120);

/// A process's ends of its channels to the other processes. The entry of the process itself is empty.
type Ends = [Option<Channel>; 3];

fn connect_all() -> [Option<Ends>; 3] {
    let mut ends: [Ends; 3] = Default::default();
    for (first, second) in [(0, 1), (1, 2), (0, 2)] {
        let (first_channel, second_channel) = Channel::pair().unwrap();
        ends[first][second] = Some(first_channel.with_timeout(TIMEOUT));
        ends[second][first] = Some(second_channel.with_timeout(TIMEOUT));
    }
    ends.map(Some)
}

/// Sends memory ("down") from the parent to the grandchild, and other memory ("up") from the grandchild to the parent.
/// Every process writes and reads both memories. Then one process is killed, and the other two processes continue to
/// use both memories.
pub fn share_with_descendants(open: OpenLibrary<'_>, killed: Role) {
    let (mut report_reader, report_writer) = UnixStream::pair().unwrap();
    report_reader.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut ends = connect_all();
    let parent = Child::start(|| run_process(0, &mut ends, &report_writer, open, killed));
    drop((ends, report_writer));
    let killed_end = End::Signal(libc::SIGKILL);
    let expected = if killed == Role::Parent { killed_end } else { End::Success };
    assert_eq!(parent.wait(), expected, "{killed:?} is killed: the parent");
    // No process waits for an orphan, so each process reports its success itself.
    let mut succeeded = Vec::new();
    report_reader.read_to_end(&mut succeeded).unwrap();
    succeeded.sort_unstable();
    let survivors: Vec<u8> = (0..3).filter(|&role| ROLES[usize::from(role)] != killed).collect();
    assert_eq!(succeeded, survivors, "{killed:?} is killed");
}

/// Runs the process with this index. The process first starts its child.
fn run_process(
    index: usize,
    all_ends: &mut [Option<Ends>; 3],
    mut report: &UnixStream,
    open: OpenLibrary<'_>,
    killed: Role,
) -> i32 {
    let child = (index < 2)
        .then(|| Child::start(|| run_process(index + 1, all_ends, report, open, killed)));
    let ends = all_ends[index].take().unwrap();
    // Drops the other processes' ends. Otherwise, this process would not notice that another process has ended.
    *all_ends = Default::default();
    let channel_with = |role: usize| ends[role].as_ref().unwrap();

    let library = open();
    let (down, up) = match index {
        0 => {
            let down = MappedMemory::create(&library, 0);
            down.write(OFFSETS[0], WORDS[0]);
            down.send(channel_with(1), "down");
            let up = MappedMemory::receive(&library, channel_with(1), "up");
            up.write(OFFSETS[0], WORDS[0]);
            send_word(channel_with(1), "written");
            (down, up)
        }
        1 => {
            let down = MappedMemory::receive(&library, channel_with(0), "down");
            down.assert_text(OFFSETS[0], WORDS[0]);
            down.write(OFFSETS[1], WORDS[1]);
            down.send(channel_with(2), "down");
            let up = MappedMemory::receive(&library, channel_with(2), "up");
            up.assert_text(OFFSETS[2], WORDS[2]);
            up.write(OFFSETS[1], WORDS[1]);
            up.send(channel_with(0), "up");
            expect_word(channel_with(0), "written");
            send_word(channel_with(2), "written");
            (down, up)
        }
        _ => {
            let down = MappedMemory::receive(&library, channel_with(1), "down");
            down.write(OFFSETS[2], WORDS[2]);
            let up = MappedMemory::create(&library, 1);
            up.write(OFFSETS[2], WORDS[2]);
            up.send(channel_with(1), "up");
            expect_word(channel_with(1), "written");
            (down, up)
        }
    };
    for mapped in [&down, &up] {
        for (offset, word) in OFFSETS.into_iter().zip(WORDS) {
            mapped.assert_text(offset, word);
        }
    }

    if ROLES[index] == killed {
        // Waits until the other processes have read everything.
        for peer in (0..3).filter(|&peer| peer != index) {
            expect_word(channel_with(peer), "seen");
        }
        // SAFETY: the call accesses no memory; it kills this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let killed_index = ROLES.iter().position(|&role| role == killed).unwrap();
    send_word(channel_with(killed_index), "seen");
    let error = channel_with(killed_index).receive_descriptor().map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Disconnected(_)), "{error}");
    let peer = 3 - index - killed_index;
    for mapped in [&down, &up] {
        if index < peer {
            mapped.write(SURVIVORS_OFFSET, "after");
            send_word(channel_with(peer), "written");
            expect_word(channel_with(peer), "returned");
            mapped.assert_text(SURVIVORS_OFFSET, "again");
        } else {
            expect_word(channel_with(peer), "written");
            mapped.assert_text(SURVIVORS_OFFSET, "after");
            mapped.write(SURVIVORS_OFFSET, "again");
            send_word(channel_with(peer), "returned");
        }
    }
    drop((down, up));
    library.assert_everything_freed();
    if let Some(child) = child {
        let killed_end = End::Signal(libc::SIGKILL);
        let expected = if killed_index == index + 1 { killed_end } else { End::Success };
        assert_eq!(child.wait(), expected, "the child of {}", WORDS[index]);
    }
    report.write_all(&[index as u8]).unwrap();
    0
}
