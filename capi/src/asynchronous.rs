//! HIP's copies and fills in a stream. Each of them is complete when the call returns.

use crate::process::process;
use crate::status::run;
use crate::streams::stream;
use crate::transfer::{copy, copy_rows, direction, fill};
use crate::types::{hipError_t, hipStream_t, memcpy_kind};
use core::ffi::{c_int, c_uchar, c_ushort, c_void};

macro_rules! copies {
    ($($function:ident: $kind:ident;)+) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $function(
            destination: *mut c_void,
            source: *const c_void,
            size: usize,
            raw: hipStream_t,
        ) -> hipError_t {
            run(stringify!($function), || {
                stream(raw)?;
                // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
                unsafe { copy(destination, source, size, memcpy_kind::$kind) }
            })
        })+
    };
}

copies! {
    hipMemcpyHtoDAsync: HOST_TO_DEVICE;
    hipMemcpyDtoHAsync: DEVICE_TO_HOST;
    hipMemcpyDtoDAsync: DEVICE_TO_DEVICE;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyAsync(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
    kind: c_int,
    raw: hipStream_t,
) -> hipError_t {
    run("hipMemcpyAsync", || {
        // As in HIP, an invalid kind is an error even if there are no bytes to copy. `hipMemcpy` ignores it then.
        direction(kind)?;
        stream(raw)?;
        // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
        unsafe { copy(destination, source, size, kind) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyWithStream(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
    kind: c_int,
    raw: hipStream_t,
) -> hipError_t {
    run("hipMemcpyWithStream", || {
        stream(raw)?;
        // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
        unsafe { copy(destination, source, size, kind) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyPeerAsync(
    destination: *mut c_void,
    destination_device: c_int,
    source: *const c_void,
    source_device: c_int,
    size: usize,
    raw: hipStream_t,
) -> hipError_t {
    run("hipMemcpyPeerAsync", || {
        stream(raw)?;
        let process = process()?;
        process.devices.agent(destination_device)?;
        process.devices.agent(source_device)?;
        // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
        unsafe { copy(destination, source, size, memcpy_kind::DEVICE_TO_DEVICE) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemsetAsync(
    destination: *mut c_void,
    value: c_int,
    size: usize,
    raw: hipStream_t,
) -> hipError_t {
    run("hipMemsetAsync", || {
        stream(raw)?;
        // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
        unsafe { fill(destination, &[value as u8], size) }
    })
}

macro_rules! fills {
    ($($function:ident: $value:ty;)+) => {
        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $function(
            destination: *mut c_void,
            value: $value,
            count: usize,
            raw: hipStream_t,
        ) -> hipError_t {
            run(stringify!($function), || {
                stream(raw)?;
                // SAFETY: the C caller passes a pointer that is valid for `count` values (lib.rs).
                unsafe { fill(destination, &value.to_ne_bytes(), count) }
            })
        })+
    };
}

fills! {
    hipMemsetD8Async: c_uchar;
    hipMemsetD16Async: c_ushort;
    hipMemsetD32Async: c_int;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpy2DAsync(
    destination: *mut c_void,
    destination_pitch: usize,
    source: *const c_void,
    source_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    raw: hipStream_t,
) -> hipError_t {
    run("hipMemcpy2DAsync", || {
        direction(kind)?;
        stream(raw)?;
        let (destination, source) = ((destination, destination_pitch), (source, source_pitch));
        // SAFETY: the C caller passes pointers that are valid for all rows (lib.rs).
        unsafe { copy_rows(destination, source, (width, height), kind) }
    })
}
