//! A parent, its child and its grandchild.

use super::{Open, View, receive_word, send_word};
use crate::process::{Child, End};
use hsa_vmm::ErrorKind;
use hsa_vmm::transport::Channel;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Creates the memory that is sent to the children.
    Parent,
    /// Forwards received memory in both directions.
    Child,
    /// Creates the memory that is sent to the parents.
    Grandchild,
}

const ALL: [Role; 3] = [Role::Parent, Role::Child, Role::Grandchild];
/// The offset at which each process writes.
const PLACES: [usize; 3] = [0, 4096, 8192];
const LAST: usize = 12288;
const WORDS: [&str; 3] = ["parent", "child", "grandchild"];
const TIMEOUT: Duration = Duration::from_secs(120);

/// A process's ends of its channels to the others. Its own entry is empty.
type Ends = [Option<Channel>; 3];

fn connected() -> [Option<Ends>; 3] {
    let mut ends: [Ends; 3] = Default::default();
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        let (here, there) = Channel::pair().unwrap();
        ends[one][other] = Some(here.with_timeout(TIMEOUT));
        ends[other][one] = Some(there.with_timeout(TIMEOUT));
    }
    ends.map(Some)
}

/// Sends memory from the parent to the grandchild, and other memory back. All write, and all read it. Then one
/// process is killed, and the other two continue to use both.
pub fn share_among_generations(open: Open<'_>, killed: Role) {
    let (mut reported, report) = UnixStream::pair().unwrap();
    reported.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut ends = connected();
    let parent = Child::start(|| be(0, &mut ends, &report, open, killed));
    drop((ends, report));
    let dies = End::Signal(libc::SIGKILL);
    let expected = if killed == Role::Parent { dies } else { End::Success };
    assert_eq!(parent.wait(), expected, "{killed:?} is killed: the parent");
    // No process waits for an orphan, so it reports success itself.
    let mut well = Vec::new();
    reported.read_to_end(&mut well).unwrap();
    well.sort_unstable();
    let left: Vec<u8> = (0..3).filter(|&role| ALL[usize::from(role)] != killed).collect();
    assert_eq!(well, left, "{killed:?} is killed");
}

/// Runs one of the processes.
fn be(
    own: usize,
    all: &mut [Option<Ends>; 3],
    mut report: &UnixStream,
    open: Open<'_>,
    killed: Role,
) -> i32 {
    let child = (own < 2).then(|| Child::start(|| be(own + 1, all, report, open, killed)));
    let ends = all[own].take().unwrap();
    // Only its own process may hold an end, so that the others detect its end.
    *all = Default::default();
    let to = |role: usize| ends[role].as_ref().unwrap();

    let library = open();
    let (down, up) = match own {
        0 => {
            let down = View::make(&library, 0);
            down.write(PLACES[0], WORDS[0]);
            down.send(&library, to(1), "down");
            let up = View::receive(&library, to(1), "up");
            up.write(PLACES[0], WORDS[0]);
            send_word(to(1), "written");
            (down, up)
        }
        1 => {
            let down = View::receive(&library, to(0), "down");
            down.holds(PLACES[0], WORDS[0]);
            down.write(PLACES[1], WORDS[1]);
            down.send(&library, to(2), "down");
            let up = View::receive(&library, to(2), "up");
            up.holds(PLACES[2], WORDS[2]);
            up.write(PLACES[1], WORDS[1]);
            up.send(&library, to(0), "up");
            receive_word(to(0), "written");
            send_word(to(2), "written");
            (down, up)
        }
        _ => {
            let down = View::receive(&library, to(1), "down");
            down.write(PLACES[2], WORDS[2]);
            let up = View::make(&library, 1);
            up.write(PLACES[2], WORDS[2]);
            up.send(&library, to(1), "up");
            receive_word(to(1), "written");
            (down, up)
        }
    };
    for view in [&down, &up] {
        for (place, word) in PLACES.into_iter().zip(WORDS) {
            view.holds(place, word);
        }
    }

    if ALL[own] == killed {
        // After the others have read everything.
        for other in (0..3).filter(|&other| other != own) {
            receive_word(to(other), "seen");
        }
        // SAFETY: kills this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let killed = ALL.iter().position(|&role| role == killed).unwrap();
    send_word(to(killed), "seen");
    let gone = to(killed).receive_descriptor().map(drop).unwrap_err();
    assert!(matches!(gone.kind(), ErrorKind::Disconnected(_)), "{gone}");
    let other = 3 - own - killed;
    for view in [&down, &up] {
        if own < other {
            view.write(LAST, "after");
            send_word(to(other), "written");
            receive_word(to(other), "returned");
            view.holds(LAST, "again");
        } else {
            receive_word(to(other), "written");
            view.holds(LAST, "after");
            view.write(LAST, "again");
            send_word(to(other), "returned");
        }
    }
    drop((down, up));
    library.assert_nothing_held();
    if let Some(child) = child {
        let dies = End::Signal(libc::SIGKILL);
        let expected = if killed == own + 1 { dies } else { End::Success };
        assert_eq!(child.wait(), expected, "the child of {}", WORDS[own]);
    }
    report.write_all(&[own as u8]).unwrap();
    0
}
