//! Events. They are complete as soon as they are recorded, because every copy before them is.

use crate::answer::{Refusal, answer};
use crate::devices::current;
use crate::errors;
use crate::objects::{Object, lock};
use crate::pointers::{not_null, write_out};
use crate::process::process;
use crate::streams::stream;
use crate::types::{hipError_t, hipEvent_t, hipStream_t};
use core::ffi::{c_int, c_uint};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// An event of a C program.
#[derive(Debug)]
pub struct Event {
    pub device: c_int,
    has_time: bool,
    recorded: Mutex<Option<Instant>>,
}

const DISABLE_TIMING: c_uint = 0x2;
const INTERPROCESS: c_uint = 0x4;
/// HIP's flags: the first three, no fence, and the two kinds of release.
const FLAGS: c_uint = 0x7 | 0x2000_0000 | 0x4000_0000 | 0x8000_0000;

fn create(to: *mut hipEvent_t, flags: c_uint) -> Result<(), Refusal> {
    not_null("event", to)?;
    if flags & !FLAGS != 0 {
        return Err(Refusal::value("flags", format_args!("({flags:#x}) are invalid")));
    }
    if flags & INTERPROCESS != 0 {
        return Err(Refusal::not_supported("events of several processes"));
    }
    let process = process()?;
    let device = current();
    process.devices.agent(device)?;
    let event = Event { device, has_time: flags & DISABLE_TIMING == 0, recorded: Mutex::default() };
    let made = process.objects.insert(Object::Event(Arc::new(event)));
    // SAFETY: as lib.rs says of pointers for results.
    unsafe { write_out("event", to, made) }
}

fn event(which: hipEvent_t) -> Result<Arc<Event>, Refusal> {
    let process = process()?;
    process.devices.any()?;
    process.objects.event(which)
}

#[unsafe(no_mangle)]
extern "C" fn hipEventCreate(to: *mut hipEvent_t) -> hipError_t {
    answer("hipEventCreate", || create(to, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipEventCreateWithFlags(to: *mut hipEvent_t, flags: c_uint) -> hipError_t {
    answer("hipEventCreateWithFlags", || create(to, flags))
}

#[unsafe(no_mangle)]
extern "C" fn hipEventDestroy(which: hipEvent_t) -> hipError_t {
    answer("hipEventDestroy", || {
        event(which)?;
        process()?.objects.remove(which).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventRecord(which: hipEvent_t, on: hipStream_t) -> hipError_t {
    answer("hipEventRecord", || {
        let event = event(which)?;
        let on = stream(on)?;
        if on.device != event.device {
            let words = "the event and the stream are of different devices";
            return Err(Refusal::new(errors::INVALID_HANDLE, words));
        }
        *lock(&event.recorded) = Some(Instant::now());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventQuery(which: hipEvent_t) -> hipError_t {
    answer("hipEventQuery", || event(which).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn hipEventSynchronize(which: hipEvent_t) -> hipError_t {
    answer("hipEventSynchronize", || event(which).map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipEventElapsedTime(
    milliseconds: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    answer("hipEventElapsedTime", || {
        not_null("milliseconds", milliseconds)?;
        let time = |which, argument| {
            let event = event(which)?;
            let refused = |problem: &str| {
                Refusal::new(errors::INVALID_HANDLE, format_args!("`{argument}` {problem}"))
            };
            if !event.has_time {
                return Err(refused("was created with hipEventDisableTiming"));
            }
            let recorded = *lock(&event.recorded);
            recorded.ok_or_else(|| refused("was never recorded"))
        };
        let (from, to) = (time(start, "start")?, time(stop, "stop")?);
        // Negative if `stop` was recorded first.
        let seconds = match to.checked_duration_since(from) {
            Some(passed) => passed.as_secs_f64(),
            None => -from.duration_since(to).as_secs_f64(),
        };
        // SAFETY: as lib.rs says of pointers for results.
        unsafe { write_out("milliseconds", milliseconds, (seconds * 1e3) as f32) }
    })
}
