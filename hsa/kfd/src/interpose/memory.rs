//! `mmap`.

use super::guarded;
use crate::descriptors::{self, Device};
use crate::real::{Mapping, next};
use crate::{driver, drm, kfd};
use libc::{c_int, c_void, off_t, size_t};

/// Maps a device if the descriptor is one.
fn device(mapping: Mapping, descriptor: c_int, offset: off_t) -> Option<*mut c_void> {
    let device = descriptors::get(descriptor)?;
    let (driver, offset) = (driver::get(), offset as u64);
    // SAFETY: the caller of `mmap` answers for the address it gives.
    let mapped = unsafe {
        match &device {
            Device::Kfd(_) => kfd::map(driver, mapping, offset),
            Device::Render(file) => drm::map(driver, file, mapping, offset),
        }
    };
    let name = if matches!(device, Device::Kfd(_)) { "kfd" } else { "drm" };
    driver.log.line(format_args!("{name} mmap {mapping:?} offset {offset:#x} = {mapped:?}"));
    Some(mapped.unwrap_or_else(|error| {
        error.leave();
        libc::MAP_FAILED
    }))
}

/// Defines `mmap` forms.
macro_rules! maps {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            address: *mut c_void,
            length: size_t,
            protection: c_int,
            flags: c_int,
            descriptor: c_int,
            offset: off_t,
        ) -> *mut c_void {
            if flags & libc::MAP_ANONYMOUS == 0 {
                let mapping = Mapping { address, length, protection, flags };
                let mapped = guarded(
                    || device(mapping, descriptor, offset),
                    Some(libc::MAP_FAILED),
                );
                if let Some(mapped) = mapped {
                    return mapped;
                }
            }
            next!(
                $text,
                fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void,
                address, length, protection, flags, descriptor, offset
            )
            .unwrap_or(libc::MAP_FAILED)
        }
    )*};
}

maps!(mmap "mmap", mmap64 "mmap64");
