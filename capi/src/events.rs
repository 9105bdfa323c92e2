//! Events. An event is complete as soon as it is recorded, because every earlier copy is complete.

use crate::devices::current_device;
use crate::errors;
use crate::objects::{Object, lock};
use crate::pointers::{not_null, write_out};
use crate::process::process;
use crate::status::{Failure, run};
use crate::streams::stream;
use crate::types::{hipError_t, hipEvent_t, hipStream_t};
use core::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[derive(Debug)]
pub struct Event {
    pub device: c_int,
    has_time: bool,
    recorded: Mutex<Option<Instant>>,
}

const DISABLE_TIMING: c_uint = 0x2;
const INTERPROCESS: c_uint = 0x4;
/// No fence, and the release fences for the device and the system. An event has at most one of these flags.
const RELEASE_FLAGS: c_uint = 0x2000_0000 | 0x4000_0000 | 0x8000_0000;
/// The valid flags: blocking, no timing, interprocess, and the release flags.
const FLAGS: c_uint = 0x7 | RELEASE_FLAGS;

fn create(result: *mut hipEvent_t, flags: c_uint) -> Result<(), Failure> {
    not_null("event", result)?;
    let is_shared_with_time = flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS;
    if flags & !FLAGS != 0 || (flags & RELEASE_FLAGS).count_ones() > 1 || is_shared_with_time {
        return Err(Failure::invalid_argument("flags", format_args!("({flags:#x}) are invalid")));
    }
    if flags & INTERPROCESS != 0 {
        return Err(Failure::not_supported("sharing events with other processes"));
    }
    let process = process()?;
    let device = current_device();
    process.devices.agent(device)?;
    let event = Event { device, has_time: flags & DISABLE_TIMING == 0, recorded: Mutex::default() };
    let number = process.objects.insert(Object::Event(Arc::new(event)));
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("event", result, number) }
}

/// Finds an event. Fails if there is no device.
fn event(raw: hipEvent_t) -> Result<Arc<Event>, Failure> {
    let process = process()?;
    process.devices.require()?;
    process.objects.event(raw)
}

#[unsafe(no_mangle)]
extern "C" fn hipEventCreate(result: *mut hipEvent_t) -> hipError_t {
    run("hipEventCreate", || create(result, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipEventCreateWithFlags(result: *mut hipEvent_t, flags: c_uint) -> hipError_t {
    run("hipEventCreateWithFlags", || create(result, flags))
}

/// As in HIP, only this function returns `hipErrorContextIsDestroyed` for a destroyed event.
#[unsafe(no_mangle)]
extern "C" fn hipEventDestroy(raw: hipEvent_t) -> hipError_t {
    run("hipEventDestroy", || {
        event(raw).map_err(|failure| match failure.code {
            errors::INVALID_HANDLE if !raw.is_null() => {
                Failure { code: errors::CONTEXT_IS_DESTROYED, ..failure }
            }
            _ => failure,
        })?;
        process()?.objects.remove(raw).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventRecord(raw: hipEvent_t, raw_stream: hipStream_t) -> hipError_t {
    run("hipEventRecord", || {
        let event = event(raw)?;
        let stream = stream(raw_stream)?;
        if stream.device != event.device {
            let message = "the event and the stream are of different devices";
            return Err(Failure::new(errors::INVALID_HANDLE, message));
        }
        *lock(&event.recorded) = Some(Instant::now());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventQuery(raw: hipEvent_t) -> hipError_t {
    run("hipEventQuery", || event(raw).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn hipEventSynchronize(raw: hipEvent_t) -> hipError_t {
    run("hipEventSynchronize", || event(raw).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipEventElapsedTime(
    milliseconds: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    run("hipEventElapsedTime", || {
        not_null("milliseconds", milliseconds)?;
        let (start, stop) = (event(start)?, event(stop)?);
        if start.device != stop.device {
            let message = "`start` and `stop` are events of different devices";
            return Err(Failure::new(errors::INVALID_HANDLE, message));
        }
        let time = |event: &Event, argument| {
            let failure = |problem: &str| {
                Failure::new(errors::INVALID_HANDLE, format_args!("`{argument}` {problem}"))
            };
            if !event.has_time {
                return Err(failure("was created with hipEventDisableTiming"));
            }
            let recorded = *lock(&event.recorded);
            recorded.ok_or_else(|| failure("was never recorded"))
        };
        let (started, stopped) = (time(&start, "start")?, time(&stop, "stop")?);
        // Negative if `stop` was recorded first.
        let seconds = match stopped.checked_duration_since(started) {
            Some(passed) => passed.as_secs_f64(),
            None => -started.duration_since(stopped).as_secs_f64(),
        };
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("milliseconds", milliseconds, (seconds * 1e3) as f32) }
    })
}
