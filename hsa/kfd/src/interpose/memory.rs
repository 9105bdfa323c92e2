//! `mmap` and `munmap`.

use super::catch_panic;
use crate::descriptors::{self, Device};
use crate::real::{self, Mapping, next};
use crate::{driver, drm, kfd};
use hsa_faults::{FaultKind, with_fault};
use libc::{c_int, c_void, off_t, size_t};
use std::time::Instant;

/// Maps a device. Returns `None` if the descriptor is not a device.
fn map_device(mapping: Mapping, descriptor: c_int, offset: off_t) -> Option<*mut c_void> {
    let device = descriptors::get(descriptor)?;
    let (driver, offset, began) = (driver::get(), offset as u64, Instant::now());
    let map = || {
        // SAFETY: with `MAP_FIXED`, the caller of `mmap` owns the range.
        unsafe {
            match &device {
                Device::Kfd(opener) => kfd::map(driver, *opener, mapping, offset),
                Device::Render(file) => drm::map(driver, file, mapping, offset),
            }
        }
    };
    let log_unfinished = |reason: &str| {
        driver.log.unfinished(
            format_args!("{device}"),
            format_args!("MMAP length={:#x} offset={offset:#x}", mapping.length),
            reason,
        );
    };
    let mapped = driver.config.faults.begin("MMAP", log_unfinished).and_then(|fault| match fault {
        None => map(),
        // Map anonymous memory instead of the device's.
        Some(FaultKind::Lost) => {
            let flags = mapping.flags & libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: with `MAP_FIXED`, the caller of `mmap` owns the range.
            unsafe { real::map(Mapping { flags, ..mapping }, -1, 0) }
        }
        Some(_) => with_fault(fault, map),
    });
    driver.log.map(format_args!("{device}"), mapping, offset, mapped, began);
    Some(mapped.unwrap_or_else(|error| {
        error.set_errno();
        libc::MAP_FAILED
    }))
}

/// Unmaps a range. Logs each mapping of a device in the range.
#[unsafe(no_mangle)]
extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    if let Some(driver) = driver::current()
        && driver.log.is_enabled()
    {
        catch_panic(|| driver.log.unmap(address as u64, length as u64), ());
    }
    next!("munmap", fn(*mut c_void, size_t) -> c_int, address, length).unwrap_or(-1)
}

/// Defines `mmap` variants.
macro_rules! define_mmap {
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
                let mapped = catch_panic(
                    || map_device(mapping, descriptor, offset),
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

define_mmap!(mmap "mmap", mmap64 "mmap64");
