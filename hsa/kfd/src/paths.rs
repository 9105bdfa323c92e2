//! Paths of the driver.

use crate::driver::{self, Driver, FIRST_RENDER_MINOR};
use crate::observe;
use crate::sysfs::GeneratedFile;
use libc::{c_char, c_int};
use std::borrow::Cow;
use std::ffi::{CStr, CString};

#[derive(Debug)]
pub(crate) enum DriverPath {
    /// `/dev/kfd`.
    Kfd,
    /// The render node of a GPU, counted from 0.
    Render(usize),
    /// A file whose contents are generated on open.
    Generated(GeneratedFile),
    /// A file or folder in the tree that `sysfs` wrote.
    Tree(CString),
}

/// The paths that the driver serves. All other paths pass through to the system.
const DRIVER_PATHS: [&str; 8] = [
    "/dev/kfd",
    "/dev/dri",
    "/sys/devices/virtual/kfd",
    "/sys/class/kfd",
    "/sys/class/drm",
    "/sys/dev/char/226:",
    "/sys/module/amdgpu",
    "/sys/kernel/debug/dri",
];

/// Resolves a path of the driver. For other paths, only compares strings and does not start the
/// driver.
pub(crate) fn resolve(path: *const c_char) -> Option<DriverPath> {
    driver_path(text(path)?)
}

/// Resolves a path that may be relative to a folder's descriptor.
pub(crate) fn resolve_at(folder: c_int, path: *const c_char) -> Option<DriverPath> {
    let path = text(path)?;
    if path.starts_with('/') || folder == libc::AT_FDCWD || path.is_empty() {
        return driver_path(path);
    }
    // Only folders in the tree contain driver paths.
    let folder = crate::memory_file::link_target(folder, &driver::current()?.tree)?;
    driver_path(&format!("{folder}/{path}"))
}

fn text<'a>(path: *const c_char) -> Option<&'a str> {
    if path.is_null() {
        return None;
    }
    // SAFETY: a caller of libc passes a path that ends with a zero and lives during the call.
    unsafe { CStr::from_ptr(path) }.to_str().ok()
}

fn driver_path(path: &str) -> Option<DriverPath> {
    let path = normalise(path)?;
    if !is_driver_path(&path) || observe::current().is_some() {
        return None;
    }
    let driver = driver::get();
    if path == "/dev/kfd" {
        return Some(DriverPath::Kfd);
    }
    if let Some(minor) = path.strip_prefix("/dev/dri/renderD") {
        let gpu =
            minor.parse::<usize>().ok().and_then(|minor| minor.checked_sub(FIRST_RENDER_MINOR));
        if let Some(gpu) = gpu.filter(|gpu| *gpu < driver.gpus.len()) {
            return Some(DriverPath::Render(gpu));
        }
    }
    if let Some(file) = GeneratedFile::at_path(driver, &path) {
        return Some(DriverPath::Generated(file));
    }
    join_tree(driver, &path).map(DriverPath::Tree)
}

fn join_tree(driver: &Driver, path: &str) -> Option<CString> {
    CString::new(format!("{}{path}", driver.tree)).ok()
}

/// Returns the file in the tree for a driver path. The files for devices and generated files are empty.
pub(crate) fn tree_path(driver_path: DriverPath) -> Option<CString> {
    let driver = driver::get();
    match driver_path {
        DriverPath::Kfd => join_tree(driver, "/dev/kfd"),
        DriverPath::Render(gpu) => {
            join_tree(driver, &format!("/dev/dri/renderD{}", FIRST_RENDER_MINOR + gpu))
        }
        DriverPath::Generated(_) => join_tree(driver, "/generated"),
        DriverPath::Tree(path) => Some(path),
    }
}

/// Returns whether a file of the tree is in `/sys`. All processes of one configuration share these files, so programs
/// must not change them.
pub(crate) fn is_in_sysfs(tree_path: &CStr) -> bool {
    let path = tree_path.to_bytes().strip_prefix(driver::get().tree.as_bytes());
    path.is_some_and(|path| path.starts_with(b"/sys/"))
}

/// Removes `.`, `..` and empty names from an absolute path. Returns `None` for a relative path, which is not
/// recognised as the driver's.
fn normalise(path: &str) -> Option<Cow<'_, str>> {
    if !path.starts_with('/') {
        return None;
    }
    if !path.contains("//") && !path.contains("/.") && !path.ends_with('/') {
        return Some(Cow::Borrowed(path));
    }
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    Some(Cow::Owned(format!("/{}", names.join("/"))))
}

fn is_driver_path(path: &str) -> bool {
    DRIVER_PATHS.iter().any(|prefix| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || prefix.ends_with(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_driver_paths_are_recognised() {
        for path in ["/dev/kfd", "/dev/dri", "/dev/dri/card0", "/sys/dev/char/226:128/device"] {
            assert!(is_driver_path(path), "{path}");
        }
        for path in ["/dev/kfd2", "/dev/null", "/sys/dev/char/1:3", "kfd", ""] {
            assert!(!is_driver_path(path), "{path}");
        }
    }

    #[test]
    fn path_forms_are_normalised() {
        for path in ["/dev/kfd", "/dev//kfd", "//dev/./kfd", "/dev/dri/../kfd", "/dev/kfd/"] {
            assert_eq!(normalise(path).as_deref(), Some("/dev/kfd"), "{path}");
        }
        assert_eq!(normalise("dev/kfd"), None);
        assert_eq!(normalise("/../.."), Some(Cow::Borrowed("/")));
    }
}
