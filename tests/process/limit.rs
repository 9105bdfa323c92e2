//! Limits the file descriptors and files of this process. The process must not run another test at the same time.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Allows this process to open only `descriptors` further descriptors.
pub fn limit_free_descriptors(descriptors: u64) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    // The limit applies to the number of a new descriptor, not to the count. Opening files uses up the free lower
    // numbers.
    let mut files = Vec::new();
    loop {
        let file = File::open("/dev/null").unwrap();
        let is_high = file.as_raw_fd() as u64 > open + 64;
        files.push(file);
        if is_high {
            break;
        }
    }
    let last = files.last().unwrap().as_raw_fd() as u64;
    set_soft_limit(last + 1 + descriptors);
    std::mem::forget(files);
}

/// Sets the soft limit of this process's descriptors to `descriptors`, or to the hard limit if this is lower.
pub fn set_soft_limit(descriptors: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes only to `limit`.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
    limit.rlim_cur = descriptors.min(limit.rlim_max);
    // SAFETY: the kernel only reads `limit`.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// Sets the soft limit of this process's descriptors to the hard limit.
pub fn raise_limit() {
    set_soft_limit(u64::MAX);
}

/// Sets the hard limit of this process's descriptors to the soft limit.
pub fn lower_hard_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel only writes and reads `limit`.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_max = limit.rlim_cur;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// Forbids this process to write to files and to enlarge them. If it tries, the kernel sends `SIGXFSZ`.
pub fn forbid_writing() {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel only reads `limit`.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}
