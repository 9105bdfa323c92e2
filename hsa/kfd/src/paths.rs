//! Which paths belong to the driver, and where they lead.

use crate::driver::{self, FIRST_RENDER};
use std::ffi::{CStr, CString};

/// Where a path leads.
#[derive(Debug)]
pub(crate) enum Place {
    /// `/dev/kfd`.
    Kfd,
    /// The render node of a GPU, counted from 0.
    Render(usize),
    /// A file or folder of the written tree.
    Tree(CString),
}

/// What the kernel serves of the driver. Everything else is the machine's own.
const OURS: [&str; 7] = [
    "/dev/kfd",
    "/dev/dri",
    "/sys/devices/virtual/kfd",
    "/sys/class/kfd",
    "/sys/class/drm",
    "/sys/dev/char/226:",
    "/sys/module/amdgpu",
];

/// Where a path leads if it belongs to the driver. A path of anybody else costs a comparison
/// and starts nothing.
pub(crate) fn resolve(path: *const libc::c_char) -> Option<Place> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a caller of libc gives a path that ends with a zero and lives during the call.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    if !belongs(path) {
        return None;
    }
    let driver = driver::get();
    if path == "/dev/kfd" {
        return Some(Place::Kfd);
    }
    if let Some(minor) = path.strip_prefix("/dev/dri/renderD") {
        let gpu = minor.parse::<usize>().ok().and_then(|minor| minor.checked_sub(FIRST_RENDER));
        if let Some(gpu) = gpu.filter(|gpu| *gpu < driver.gpus.len()) {
            return Some(Place::Render(gpu));
        }
    }
    CString::new(format!("{}{path}", driver.tree)).ok().map(Place::Tree)
}

/// The file that stands for a path of the driver; a device's is empty.
pub(crate) fn stand_in(path: *const libc::c_char) -> Option<CString> {
    let in_tree = |path: &str| CString::new(format!("{}{path}", driver::get().tree)).ok();
    match resolve(path)? {
        Place::Kfd => in_tree("/dev/kfd"),
        Place::Render(gpu) => in_tree(&format!("/dev/dri/renderD{}", FIRST_RENDER + gpu)),
        Place::Tree(path) => Some(path),
    }
}

fn belongs(path: &str) -> bool {
    OURS.iter().any(|ours| {
        path.strip_prefix(ours)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || ours.ends_with(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_paths_belong() {
        for path in ["/dev/kfd", "/dev/dri", "/dev/dri/card0", "/sys/dev/char/226:128/device"] {
            assert!(belongs(path), "{path}");
        }
        for path in ["/dev/kfd2", "/dev/null", "/sys/dev/char/1:3", "kfd", ""] {
            assert!(!belongs(path), "{path}");
        }
    }
}
