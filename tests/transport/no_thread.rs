//! Channels in a process that cannot create threads.

use super::*;
use std::thread;

/// Limits this process's address space, so that no memory for the stack of another thread is left. Small allocations
/// still succeed.
fn use_up_threads() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes only to `limit`.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) }, 0);
    limit.rlim_cur = used + MIB as u64;
    // SAFETY: the kernel only reads `limit`.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    // The C library keeps the stacks of ended threads for new threads.
    let sleeping = || thread::Builder::new().spawn(|| thread::sleep(Duration::from_secs(3600)));
    let count = (0..100).take_while(|_| sleeping().is_ok()).count();
    assert!(count < 100, "the limit has no effect");
}

/// Closing the socket in the calling thread could block forever.
#[test]
fn socket_stays_open_if_no_thread_can_close_it() {
    if process::rerun_in_own_process() {
        return;
    }
    let (sender, receiver) = UnixStream::pair().unwrap();
    sender.set_nonblocking(true).unwrap();
    let before = process::descriptors();
    let channel = Channel::over(receiver);
    use_up_threads();
    drop(channel);
    assert_eq!(process::descriptors(), before);
    let error = (&sender).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the other end is open");
}
