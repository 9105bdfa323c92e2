//! Streams. Every call is complete when it returns, so that a stream has nothing to wait for.

use crate::answer::{Refusal, answer};
use crate::devices::current;
use crate::errors;
use crate::objects::Object;
use crate::pointers::{not_null, take, write_out};
use crate::process::process;
use crate::types::{hipDevice_t, hipError_t, hipEvent_t, hipStream_t};
use core::ffi::{c_int, c_uint};
use std::cell::Cell;
use std::sync::Arc;

/// A stream of a C program.
#[derive(Debug)]
pub struct Stream {
    pub device: c_int,
    flags: c_uint,
}

const NON_BLOCKING: c_uint = 1;

/// Whether it is one of HIP's values of the null stream: null, `hipStreamLegacy`,
/// `hipStreamPerThread`.
fn is_null(stream: hipStream_t) -> bool {
    (stream as usize) <= 2
}

/// Finds a stream; the null stream is one of the current device.
pub fn stream(stream: hipStream_t) -> Result<Arc<Stream>, Refusal> {
    let process = process()?;
    process.devices.any()?;
    match is_null(stream) {
        true => Ok(Arc::new(Stream { device: current(), flags: 0 })),
        false => process.objects.stream(stream),
    }
}

fn create(to: *mut hipStream_t, flags: c_uint) -> Result<(), Refusal> {
    not_null("stream", to)?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Refusal::value("flags", format_args!("({flags:#x}) are invalid")));
    }
    let process = process()?;
    let device = current();
    process.devices.agent(device)?;
    let made = process.objects.insert(Object::Stream(Arc::new(Stream { device, flags })));
    // SAFETY: as lib.rs says of pointers for results.
    unsafe { write_out("stream", to, made) }
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreate(to: *mut hipStream_t) -> hipError_t {
    answer("hipStreamCreate", || create(to, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreateWithFlags(to: *mut hipStream_t, flags: c_uint) -> hipError_t {
    answer("hipStreamCreateWithFlags", || create(to, flags))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreateWithPriority(
    to: *mut hipStream_t,
    flags: c_uint,
    _priority: c_int,
) -> hipError_t {
    answer("hipStreamCreateWithPriority", || create(to, flags))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamDestroy(which: hipStream_t) -> hipError_t {
    answer("hipStreamDestroy", || {
        if is_null(which) {
            let words = "the null stream cannot be destroyed";
            return Err(Refusal::new(errors::INVALID_HANDLE, words));
        }
        stream(which)?;
        process()?.objects.remove(which).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamSynchronize(which: hipStream_t) -> hipError_t {
    answer("hipStreamSynchronize", || stream(which).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamQuery(which: hipStream_t) -> hipError_t {
    answer("hipStreamQuery", || stream(which).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamGetFlags(which: hipStream_t, flags: *mut c_uint) -> hipError_t {
    answer("hipStreamGetFlags", || {
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("flags", flags, stream(which)?.flags) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamGetPriority(which: hipStream_t, priority: *mut c_int) -> hipError_t {
    answer("hipStreamGetPriority", || {
        stream(which)?;
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("priority", priority, 0) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> hipError_t {
    answer("hipDeviceGetStreamPriorityRange", || {
        process()?.devices.any()?;
        // Either may be null, as in HIP.
        for to in [least, greatest].into_iter().filter(|to| !to.is_null()) {
            // SAFETY: as lib.rs says of pointers for results.
            unsafe { write_out("range", to, 0) }?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamGetDevice(
    which: hipStream_t,
    device: *mut hipDevice_t,
) -> hipError_t {
    answer("hipStreamGetDevice", || {
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("device", device, stream(which)?.device) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamWaitEvent(
    which: hipStream_t,
    event: hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    answer("hipStreamWaitEvent", || {
        stream(which)?;
        process()?.objects.event(event)?;
        if flags > 1 {
            return Err(Refusal::value("flags", format_args!("({flags:#x}) are invalid")));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamIsCapturing(which: hipStream_t, status: *mut c_int) -> hipError_t {
    answer("hipStreamIsCapturing", || {
        stream(which)?;
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("status", status, 0) }
    })
}

thread_local! {
    /// The capture mode of this thread; HIP's first is `hipStreamCaptureModeGlobal`.
    static CAPTURE_MODE: Cell<c_uint> = const { Cell::new(0) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> hipError_t {
    answer("hipThreadExchangeStreamCaptureMode", || {
        // SAFETY: as lib.rs says of pointers.
        let next = unsafe { take("mode", mode) }?;
        if next > 2 {
            return Err(Refusal::value("mode", format_args!("({next}) is invalid")));
        }
        process()?.devices.any()?;
        let before = CAPTURE_MODE.try_with(|mode| mode.replace(next)).unwrap_or(0);
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("mode", mode, before) }
    })
}
