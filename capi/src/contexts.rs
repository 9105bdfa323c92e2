//! Contexts: each device has one, its primary context. What holds for a device as a whole.

use crate::answer::{Refusal, answer};
use crate::devices::{current, make_current};
use crate::errors;
use crate::objects::{Object, lock};
use crate::pointers::write_out;
use crate::process::process;
use crate::types::{hipCtx_t, hipDevice_t, hipError_t};
use core::ffi::{c_int, c_uint};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The device's context: its number, counted from 1.
fn context(device: c_int) -> hipCtx_t {
    (device as usize + 1) as hipCtx_t
}

/// Returns the device of a context that [`context`] returned.
fn device(context: hipCtx_t) -> Result<c_int, Refusal> {
    let refused = || Refusal::new(errors::INVALID_CONTEXT, "`context` is not a device's context");
    let number = (context as usize).checked_sub(1).ok_or_else(refused)?;
    let device = c_int::try_from(number).map_err(|_| refused())?;
    process()?.devices.agent(device).map_err(|_| refused())?;
    Ok(device)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDevicePrimaryCtxRetain(
    to: *mut hipCtx_t,
    device: hipDevice_t,
) -> hipError_t {
    answer("hipDevicePrimaryCtxRetain", || {
        process()?.devices.agent(device)?;
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("context", to, context(device)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDevicePrimaryCtxRelease(device: hipDevice_t) -> hipError_t {
    // The context exists as long as the runtime is open.
    answer("hipDevicePrimaryCtxRelease", || process()?.devices.agent(device).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipCtxGetCurrent(to: *mut hipCtx_t) -> hipError_t {
    answer("hipCtxGetCurrent", || {
        process()?.devices.any()?;
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("context", to, context(current())) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipCtxSetCurrent(context: hipCtx_t) -> hipError_t {
    answer("hipCtxSetCurrent", || {
        process()?.devices.any()?;
        if !context.is_null() {
            make_current(device(context)?);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipCtxGetDevice(to: *mut hipDevice_t) -> hipError_t {
    answer("hipCtxGetDevice", || {
        process()?.devices.any()?;
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("device", to, current()) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipCtxSynchronize() -> hipError_t {
    answer("hipCtxSynchronize", || process()?.devices.any())
}

/// The flags of each device. Kept, as in HIP, from before the runtime is open.
static FLAGS: Mutex<BTreeMap<c_int, c_uint>> = Mutex::new(BTreeMap::new());

#[unsafe(no_mangle)]
extern "C" fn hipSetDeviceFlags(flags: c_uint) -> hipError_t {
    answer("hipSetDeviceFlags", || {
        process()?.devices.any()?;
        // At most one way to wait, hipDeviceMapHost, hipDeviceLmemResizeToMax.
        if flags & !0x1f != 0 || !matches!(flags & 0x7, 0 | 1 | 2 | 4) {
            return Err(Refusal::value("flags", format_args!("({flags:#x}) are invalid")));
        }
        lock(&FLAGS).insert(current(), flags);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceFlags(flags: *mut c_uint) -> hipError_t {
    answer("hipGetDeviceFlags", || {
        process()?.devices.any()?;
        let set = lock(&FLAGS).get(&current()).copied().unwrap_or(0);
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("flags", flags, set) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceReset() -> hipError_t {
    answer("hipDeviceReset", || {
        let process = process()?;
        let device = current();
        process.devices.agent(device)?;
        process.objects.remove_all(|object| match object {
            Object::Stream(stream) => stream.device == device,
            Object::Event(event) => event.device == device,
            _ => false,
        });
        process.allocations.free_all_of(device)
    })
}
