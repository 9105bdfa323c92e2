//! Limits the descriptors of a child.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Limits this process to `more` further descriptors.
pub fn allow_more(descriptors: u64) {
    let highest = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    // Uses up every lower number, because the limit is a number.
    let mut fill = Vec::new();
    loop {
        let file = File::open("/dev/null").unwrap();
        let high = file.as_raw_fd() as u64 > highest + 64;
        fill.push(file);
        if high {
            break;
        }
    }
    let last = fill.last().unwrap().as_raw_fd() as u64;
    limit(last + 1 + descriptors);
    std::mem::forget(fill);
}

/// Sets the descriptor limit of this child, up to the hard limit.
pub fn limit(descriptors: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is writable.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    limit.rlim_cur = descriptors.min(limit.rlim_max);
    // SAFETY: a valid limit of this child's.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

pub fn no_limit() {
    limit(u64::MAX);
}
