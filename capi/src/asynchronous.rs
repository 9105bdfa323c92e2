//! HIP's copies and fills in a stream, and its copies of rectangles. Each of them is complete when the call returns.

use crate::process::process;
use crate::status::{Failure, run};
use crate::streams::stream;
use crate::transfer::{copy, fill, prepare};
use crate::types::{hipError_t, hipStream_t, memcpy_kind};
use core::ffi::{c_int, c_void};

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

/// Rows of bytes: the address of the first row, and the distance from each row's start to the next (pitch).
type Rows<P> = (P, usize);

/// Copies `height` rows of `width` bytes.
///
/// # Safety
/// Rows in the program's own memory must be readable at the source, and writable at the destination.
unsafe fn copy_rows(
    (destination, destination_pitch): Rows<*mut c_void>,
    (source, source_pitch): Rows<*const c_void>,
    (width, height): (usize, usize),
    kind: c_int,
) -> Result<(), Failure> {
    for (argument, pitch) in
        [("destination_pitch", destination_pitch), ("source_pitch", source_pitch)]
    {
        if pitch < width {
            let problem = format!("({pitch}) is less than the width ({width})");
            return Err(Failure {
                code: crate::errors::INVALID_PITCH_VALUE,
                ..Failure::invalid_argument(argument, problem)
            });
        }
        // Checked here, so that the multiplications below cannot overflow.
        if pitch.checked_mul(height).is_none_or(|size| size > isize::MAX as usize) {
            return Err(Failure::invalid_argument(
                argument,
                "times the height exceeds the address space",
            ));
        }
    }
    if width == 0 || (width == destination_pitch && width == source_pitch) {
        // SAFETY: the rows are contiguous or empty, and the caller guarantees that all of them are valid.
        return unsafe { copy(destination, source, width * height, kind) };
    }
    let rows = (0..height).map(|row| {
        let destination = destination.wrapping_byte_add(row * destination_pitch);
        (destination, source.wrapping_byte_add(row * source_pitch))
    });
    // Checks all rows first, so that an invalid row changes no memory.
    for (destination, source) in rows.clone() {
        prepare(destination, source, width, kind)?;
    }
    for (destination, source) in rows {
        // SAFETY: the caller guarantees that each row is valid.
        unsafe { copy(destination, source, width, kind) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpy2D(
    destination: *mut c_void,
    destination_pitch: usize,
    source: *const c_void,
    source_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> hipError_t {
    run("hipMemcpy2D", || {
        let (destination, source) = ((destination, destination_pitch), (source, source_pitch));
        // SAFETY: the C caller passes pointers that are valid for all rows (lib.rs).
        unsafe { copy_rows(destination, source, (width, height), kind) }
    })
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
        stream(raw)?;
        let (destination, source) = ((destination, destination_pitch), (source, source_pitch));
        // SAFETY: the C caller passes pointers that are valid for all rows (lib.rs).
        unsafe { copy_rows(destination, source, (width, height), kind) }
    })
}
