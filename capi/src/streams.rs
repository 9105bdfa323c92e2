//! Streams. Every operation is complete when the call returns, so a stream never waits.

use crate::devices::current_device;
use crate::errors;
use crate::objects::Object;
use crate::pointers::{not_null, read, write_out, write_unless_null};
use crate::process::{process, profile};
use crate::status::{Failure, run};
use crate::types::{hipDevice_t, hipError_t, hipEvent_t, hipStream_t};
use core::ffi::{c_int, c_uint};
use hsa_vmm::hip::HipProfile;
use std::cell::Cell;
use std::sync::Arc;

#[derive(Debug)]
pub struct Stream {
    pub device: c_int,
    flags: c_uint,
    /// Has no effect: no call waits for another.
    priority: c_int,
}

/// The priorities of streams, as in HIP.
const HIGHEST_PRIORITY: c_int = -1;
const LOWEST_PRIORITY: c_int = 1;

const NON_BLOCKING: c_uint = 1;

/// The flag of `hipStreamWaitEvent` by which a captured graph waits for an event outside the graph.
const WAIT_EXTERNAL: c_uint = 1;

/// Returns whether a stream is one of HIP's default streams: null, `hipStreamLegacy`, `hipStreamPerThread`.
fn is_default_stream(stream: hipStream_t) -> bool {
    (stream as usize) <= 2
}

/// Finds a stream, as [`find`] does. For an unknown or destroyed stream, the error is `hipErrorContextIsDestroyed`, as
/// in most functions of HIP 6 (`hip::isValid` in ROCm/clr). In HIP 6.4.3, `hipMemcpy2DAsync` returns
/// `hipErrorInvalidValue`. HIP 7 crashes.
pub fn stream(raw: hipStream_t) -> Result<Arc<Stream>, Failure> {
    find(raw).map_err(|failure| match failure.code {
        errors::INVALID_HANDLE => Failure { code: errors::CONTEXT_IS_DESTROYED, ..failure },
        _ => failure,
    })
}

/// Finds a stream. A default stream belongs to the current device. For an unknown or destroyed stream, the error is
/// `hipErrorInvalidHandle`.
pub fn find(stream: hipStream_t) -> Result<Arc<Stream>, Failure> {
    let process = process()?;
    process.devices.require()?;
    match is_default_stream(stream) {
        true => Ok(Arc::new(Stream { device: current_device(), flags: 0, priority: 0 })),
        false => process.objects.stream(stream),
    }
}

fn create(result: *mut hipStream_t, flags: c_uint, priority: c_int) -> Result<(), Failure> {
    not_null("stream", result)?;
    if flags & !NON_BLOCKING != 0 {
        return Err(Failure::invalid_argument("flags", format_args!("({flags:#x}) are invalid")));
    }
    let process = process()?;
    let device = current_device();
    process.devices.agent(device)?;
    // As in HIP, a priority outside the range is not an error.
    let priority = priority.clamp(HIGHEST_PRIORITY, LOWEST_PRIORITY);
    let stream = Arc::new(Stream { device, flags, priority });
    let number = process.objects.insert(Object::Stream(stream));
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("stream", result, number) }
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreate(result: *mut hipStream_t) -> hipError_t {
    run("hipStreamCreate", || create(result, 0, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreateWithFlags(result: *mut hipStream_t, flags: c_uint) -> hipError_t {
    run("hipStreamCreateWithFlags", || create(result, flags, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreateWithPriority(
    result: *mut hipStream_t,
    flags: c_uint,
    priority: c_int,
) -> hipError_t {
    run("hipStreamCreateWithPriority", || create(result, flags, priority))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamDestroy(raw: hipStream_t) -> hipError_t {
    run("hipStreamDestroy", || {
        if is_default_stream(raw) {
            let message = "a default stream cannot be destroyed";
            return Err(Failure::new(errors::INVALID_HANDLE, message));
        }
        stream(raw)?;
        process()?.objects.remove(raw).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamSynchronize(raw: hipStream_t) -> hipError_t {
    run("hipStreamSynchronize", || stream(raw).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamQuery(raw: hipStream_t) -> hipError_t {
    run("hipStreamQuery", || stream(raw).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamGetFlags(raw: hipStream_t, flags: *mut c_uint) -> hipError_t {
    run("hipStreamGetFlags", || {
        let stream = stream(raw)?;
        // As in HIP, the null stream is invalid here. The other default streams are valid.
        not_null("stream", raw)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("flags", flags, stream.flags) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamGetPriority(raw: hipStream_t, priority: *mut c_int) -> hipError_t {
    run("hipStreamGetPriority", || {
        let stream = stream(raw)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("priority", priority, stream.priority) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> hipError_t {
    run("hipDeviceGetStreamPriorityRange", || {
        process()?.devices.require()?;
        // Either pointer may be null, as in HIP.
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe {
            write_unless_null(least, LOWEST_PRIORITY);
            write_unless_null(greatest, HIGHEST_PRIORITY);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamGetDevice(raw: hipStream_t, device: *mut hipDevice_t) -> hipError_t {
    run("hipStreamGetDevice", || {
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("device", device, stream(raw)?.device) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamWaitEvent(raw: hipStream_t, event: hipEvent_t, flags: c_uint) -> hipError_t {
    run("hipStreamWaitEvent", || {
        // Only the last release of HIP 6, 6.4.2, has the flag.
        let is_external = flags == WAIT_EXTERNAL && profile() != HipProfile::Hip6;
        if flags != 0 && !is_external {
            return Err(Failure::invalid_argument(
                "flags",
                format_args!("({flags:#x}) are invalid"),
            ));
        }
        find(raw)?;
        process()?.objects.event(event)?;
        // No stream captures. Current HIP returns this error. The first releases of HIP 7 crash.
        if is_external {
            let message = "hipEventWaitExternal is valid only for a stream that captures";
            return Err(Failure::new(errors::INVALID_HANDLE, message));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamIsCapturing(raw: hipStream_t, status: *mut c_int) -> hipError_t {
    run("hipStreamIsCapturing", || {
        stream(raw)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("status", status, 0) }
    })
}

thread_local! {
    /// The capture mode of this thread, initially `hipStreamCaptureModeGlobal` as in HIP.
    static CAPTURE_MODE: Cell<c_uint> = const { Cell::new(0) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> hipError_t {
    run("hipThreadExchangeStreamCaptureMode", || {
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let next = unsafe { read("mode", mode) }?;
        if next > 2 {
            return Err(Failure::invalid_argument("mode", format_args!("({next}) is invalid")));
        }
        process()?.devices.require()?;
        let before = CAPTURE_MODE.try_with(|mode| mode.replace(next)).unwrap_or(0);
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("mode", mode, before) }
    })
}
