//! A server for this process's own runtime, which passes it the descriptor of memory to map.
//!
//! It listens under a random name that is no process's, answers this process only, and has the
//! descriptor already: no other process can make the runtime wait.

use super::server::address;
use super::table::random;
use crate::native::{NativeIpc, peer_of, send};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, bind, listen as start_listening,
    shutdown, socket_with,
};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Linux numbers processes below this (`PID_MAX_LIMIT`). The runtime prints the number as a signed
/// one, so that all above it are names of no process.
const PROCESSES: u32 = 1 << 22;
/// How many names are tried. A user who took a million of the four thousand million names would make
/// one attempt of 4,000 fail.
const ATTEMPTS: usize = 64;
/// How many connections may wait to be accepted. Any user may connect, and they are dropped as fast as
/// they come.
const QUEUE: i32 = 128;
/// How long to wait where a descriptor is missing that another thread may close.
const PAUSE: Duration = Duration::from_millis(1);

/// Runs `attach` with a handle for which the runtime is given the descriptor.
pub(super) fn hand_over<T>(
    native: NativeIpc,
    descriptor: &OwnedFd,
    attach: impl FnOnce(NativeIpc) -> T,
) -> Result<T, Errno> {
    let (number, listener) = listen()?;
    let mut ours = native;
    ours[2] = number;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = std::thread::Builder::new()
            .name("hsa-vmm ipc".to_owned())
            .spawn_scoped(scope, || serve(&listener, descriptor, &over));
        let server = server.map_err(|_| Errno::AGAIN)?;
        let attached = attach(ours);
        over.store(true, Ordering::Relaxed);
        let _ = shutdown(&listener, Shutdown::Both);
        // The runtime has written to its connection for the last time, which may end now.
        drop(server.join());
        Ok(attached)
    })
}

/// Listens under a random name that no process has.
pub(super) fn listen() -> Result<(u32, OwnedFd), Errno> {
    for _ in 0..ATTEMPTS {
        let number = random()? as u32;
        if number < PROCESSES {
            continue;
        }
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match bind(&listener, &address(number)?) {
            Ok(()) => {
                start_listening(&listener, QUEUE)?;
                return Ok((number, listener));
            }
            Err(Errno::ADDRINUSE) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ADDRINUSE)
}

/// Sends the descriptor to the first connection of this process, and returns that connection. It has to
/// stay open until the runtime is done: AMD's runtime reads for ever from one that was closed, and is
/// ended by `SIGPIPE` if it writes to it.
///
/// Ends without a connection when the listener is shut down after `over` was set.
pub(super) fn serve(
    listener: &OwnedFd,
    descriptor: impl AsFd,
    over: &AtomicBool,
) -> Option<OwnedFd> {
    let mut has_warned = false;
    while !over.load(Ordering::Relaxed) {
        let stream = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(stream) => stream,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(_) => return None,
        };
        let asking = peer_of(&stream).map(|peer| peer.process.map(NonZero::get));
        if asking == Ok(Some(std::process::id() as i32)) {
            hand(&stream, &descriptor, over);
            return Some(stream);
        }
        if !has_warned {
            crate::log::warning!(?asking, "another process connected to this process's relay");
            has_warned = true;
        }
    }
    None
}

/// Sends the descriptor. The runtime's request is not read: there is only one answer.
fn hand(stream: &OwnedFd, descriptor: impl AsFd, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        match send(stream.as_fd(), b"y", Some(descriptor.as_fd())) {
            Ok(_) => return,
            Err(Errno::INTR) => {}
            // This user has as many descriptors under way as a process may have open.
            Err(Errno::TOOMANYREFS | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                std::thread::sleep(PAUSE);
            }
            // The runtime gives up after ten seconds.
            Err(errno) => {
                crate::log::warning!(%errno, "the runtime was not given the memory");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::server::{fetch, tests::tempfile};
    use crate::trust::Trust;
    use rustix::fs::fstat;
    use std::time::Instant;

    const NATIVE: NativeIpc = [0x2000, 0x7f00, 77, 0, 3, 0, 5, 6];

    #[test]
    fn relay_passes_the_descriptor_and_the_rest_unchanged() {
        let memory = OwnedFd::from(tempfile());
        let identity = |file: &OwnedFd| fstat(file).map(|status| (status.st_dev, status.st_ino));
        let given = hand_over(NATIVE, &memory, |native| {
            assert_eq!((native[0], native[1], &native[3..]), (0x2000, 0x7f00, &NATIVE[3..]));
            assert!(native[2] >= PROCESSES, "{} may be a process", native[2]);
            fetch(native, std::process::id() as i32, Trust::SameUser).unwrap()
        });
        assert_eq!(identity(&given.unwrap()), identity(&memory));
    }

    #[test]
    fn relay_ends_when_the_runtime_does_not_connect() {
        let memory = OwnedFd::from(tempfile());
        let begun = Instant::now();
        assert_eq!(hand_over(NATIVE, &memory, |_| 7), Ok(7));
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn relay_names_do_not_follow_one_another() {
        let names: Vec<u32> = (0..8).map(|_| listen().unwrap().0).collect();
        let apart = |pair: &[u32]| pair[0].abs_diff(pair[1]) > 1 << 10;
        assert!(names.windows(2).any(apart), "{names:x?}");
    }
}
