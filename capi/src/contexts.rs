//! Contexts (each device has one, its primary context), the flags of devices, and the reset of a device.

use crate::devices::{current_device, make_current};
use crate::errors;
use crate::objects::{Object, lock};
use crate::pointers::write_out;
use crate::process::process;
use crate::status::{Failure, run};
use crate::types::{hipCtx_t, hipDevice_t, hipError_t};
use core::ffi::{c_int, c_uint};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Returns a device's context, which is the device's number, counted from 1.
pub fn context(device: c_int) -> hipCtx_t {
    (device as usize + 1) as hipCtx_t
}

/// Returns the device of a context that [`context`] returned.
fn device(context: hipCtx_t) -> Result<c_int, Failure> {
    let invalid = || Failure::new(errors::INVALID_CONTEXT, "`context` is not a device's context");
    let number = (context as usize).checked_sub(1).ok_or_else(invalid)?;
    let device = c_int::try_from(number).map_err(|_| invalid())?;
    process()?.devices.agent(device).map_err(|_| invalid())?;
    Ok(device)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDevicePrimaryCtxRetain(
    result: *mut hipCtx_t,
    device: hipDevice_t,
) -> hipError_t {
    run("hipDevicePrimaryCtxRetain", || {
        process()?.devices.agent(device)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("context", result, context(device)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDevicePrimaryCtxRelease(device: hipDevice_t) -> hipError_t {
    // The context exists as long as the runtime is open.
    run("hipDevicePrimaryCtxRelease", || process()?.devices.agent(device).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipCtxGetCurrent(result: *mut hipCtx_t) -> hipError_t {
    run("hipCtxGetCurrent", || {
        process()?.devices.require()?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("context", result, context(current_device())) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipCtxSetCurrent(context: hipCtx_t) -> hipError_t {
    run("hipCtxSetCurrent", || {
        process()?.devices.require()?;
        if !context.is_null() {
            make_current(device(context)?);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipCtxGetDevice(result: *mut hipDevice_t) -> hipError_t {
    run("hipCtxGetDevice", || {
        process()?.devices.require()?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("device", result, current_device()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipCtxSynchronize() -> hipError_t {
    run("hipCtxSynchronize", || process()?.devices.require())
}

/// `hipDeviceScheduleSpin`, the initial flag of each device in HIP.
const SCHEDULE_SPIN: c_uint = 0x1;
const SCHEDULE_MASK: c_uint = 0x7;

/// The flags that were set for each device: as in HIP, only those in [`SCHEDULE_MASK`].
static FLAGS: Mutex<BTreeMap<c_int, c_uint>> = Mutex::new(BTreeMap::new());

/// Resets the flags of each device.
pub fn reset_flags() {
    lock(&FLAGS).clear();
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDeviceFlags(flags: c_uint) -> hipError_t {
    run("hipSetDeviceFlags", || {
        process()?.devices.require()?;
        // The valid flags are at most one waiting mode (of hipDeviceScheduleMask, 0x7), hipDeviceMapHost (0x8) and
        // hipDeviceLmemResizeToMax (0x10).
        if flags & !0x1f != 0 || !matches!(flags & SCHEDULE_MASK, 0 | 1 | 2 | 4) {
            return Err(Failure::invalid_argument(
                "flags",
                format_args!("({flags:#x}) are invalid"),
            ));
        }
        lock(&FLAGS).insert(current_device(), flags & SCHEDULE_MASK);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceFlags(flags: *mut c_uint) -> hipError_t {
    run("hipGetDeviceFlags", || {
        process()?.devices.require()?;
        let stored = lock(&FLAGS).get(&current_device()).copied().unwrap_or(SCHEDULE_SPIN);
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("flags", flags, stored) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceReset() -> hipError_t {
    run("hipDeviceReset", || {
        let process = process()?;
        let device = current_device();
        process.devices.agent(device)?;
        process.objects.remove_all(|object| match object {
            Object::Stream(stream) => stream.device == device,
            Object::Event(event) => event.device == device,
            _ => false,
        });
        lock(&FLAGS).remove(&device);
        process.allocations.free_all_of(device, process.devices.iter().count() == 1)
    })
}
