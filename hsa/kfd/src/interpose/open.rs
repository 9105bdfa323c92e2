//! `open` and its forms.

use super::guarded;
use crate::descriptors::{self, Device};
use crate::drm::DrmFile;
use crate::memory_file::MemoryFile;
use crate::paths::{self, Place};
use crate::real::next;
use libc::{c_char, c_int, mode_t};

/// Opens what a path leads to; `plain` opens a file that is the machine's own, or the tree's.
pub(super) fn redirect(
    path: *const c_char,
    flags: c_int,
    plain: impl Fn(*const c_char) -> c_int,
) -> c_int {
    let place = guarded(|| paths::resolve(path), None);
    match place {
        None => plain(path),
        Some(Place::Tree(path)) => plain(path.as_ptr()),
        // SAFETY: asks for a number and touches no memory.
        Some(Place::Kfd) => guarded(|| device(Device::Kfd(unsafe { libc::getpid() }), flags), -1),
        Some(Place::Render(gpu)) => {
            guarded(|| device(Device::Render(DrmFile::new(gpu)), flags), -1)
        }
    }
}

/// A descriptor that stands for a device: that of an empty memory file.
fn device(device: Device, flags: c_int) -> c_int {
    let name = match &device {
        Device::Kfd(_) => "hsa-kfd /dev/kfd".to_owned(),
        Device::Render(file) => format!("hsa-kfd render {}", file.gpu),
    };
    match MemoryFile::plain(&name, 0) {
        Ok(file) => {
            let descriptor = file.into_descriptor();
            if flags & libc::O_CLOEXEC == 0 {
                // SAFETY: sets a flag of a descriptor and touches no memory.
                unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_SETFD, 0) };
            }
            descriptors::insert(descriptor, device);
            descriptor
        }
        Err(error) => error.leave(),
    }
}

/// Defines `open` forms that take a path first.
macro_rules! opens {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            redirect(path, flags, |path| {
                next!($text, fn(*const c_char, c_int, mode_t) -> c_int, path, flags, mode)
                    .unwrap_or(-1)
            })
        }
    )*};
}

opens!(open "open", open64 "open64");

/// Defines the checked forms, which take no mode.
macro_rules! checked_opens {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            redirect(path, flags, |path| {
                next!($text, fn(*const c_char, c_int) -> c_int, path, flags).unwrap_or(-1)
            })
        }
    )*};
}

checked_opens!(__open_2 "__open_2", __open64_2 "__open64_2");

/// Defines `openat` forms. A path of the driver is absolute, so the folder does not matter.
macro_rules! openats {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            redirect(path, flags, |path| {
                next!(
                    $text, fn(c_int, *const c_char, c_int, mode_t) -> c_int,
                    folder, path, flags, mode
                )
                .unwrap_or(-1)
            })
        }
    )*};
}

openats!(openat "openat", openat64 "openat64");
