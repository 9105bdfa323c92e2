//! Retire queues (`hsavmm_retire_…`).

use crate::names::with_c_names;
use crate::objects::Object;
use crate::pointers::{address, not_null, read, to_char_array, write_out};
use crate::process::process;
use crate::status::{Failure, run};
use crate::types::hipError_t;
use core::ffi::{c_char, c_int, c_uint, c_void};
use hsa_vmm::error::Problem;
use hsa_vmm::hsa_sys::hsa_signal_t;
use hsa_vmm::vmm::{RetireQueue, RetireReport, SignalCondition};
use std::sync::Arc;
use std::time::Duration;

/// `HSAVMM_RETIRE_NO_THREAD`.
const NO_THREAD: c_uint = 1;

/// The time that `hsavmm_retire_destroy` waits before it looks again whether the queue is empty.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The largest capacity of a queue.
const MAX_CAPACITY: usize = 1 << 24;

/// `hsavmm_signal`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    handle: u64,
    value: i64,
    condition: c_int,
}

impl Signal {
    fn condition(self) -> Result<(hsa_signal_t, SignalCondition), Failure> {
        let condition = match self.condition {
            0 => SignalCondition::AtMost(self.value),
            1 => SignalCondition::AtLeast(self.value),
            other => {
                return Err(Failure::invalid_argument(
                    "signals",
                    format_args!("has the invalid condition {other}; valid conditions are 0 and 1"),
                ));
            }
        };
        Ok((hsa_signal_t { handle: self.handle }, condition))
    }
}

/// The signals of a submission, with their conditions: an array on the stack, because a submission must not allocate.
#[derive(Debug)]
pub struct Conditions {
    all: [(hsa_signal_t, SignalCondition); RetireQueue::MAX_SIGNALS],
    count: usize,
}

impl Conditions {
    /// Reads the signals of a C program.
    ///
    /// # Safety
    /// `signals` is null or points to `count` readable elements.
    pub unsafe fn read(signals: *const Signal, count: usize) -> Result<Self, Failure> {
        if count > RetireQueue::MAX_SIGNALS {
            let problem =
                format!("has {count} elements, which is more than {}", RetireQueue::MAX_SIGNALS);
            return Err(Failure::invalid_argument("signals", problem));
        }
        let none = (hsa_signal_t { handle: 0 }, SignalCondition::AtMost(0));
        let mut all = [none; RetireQueue::MAX_SIGNALS];
        for (index, condition) in all[..count].iter_mut().enumerate() {
            not_null("signals", signals)?;
            // SAFETY: not null, so the caller guarantees `count` elements.
            *condition = unsafe { read("signals", signals.add(index)) }?.condition()?;
        }
        Ok(Self { all, count })
    }

    pub fn as_slice(&self) -> &[(hsa_signal_t, SignalCondition)] {
        &self.all[..self.count]
    }
}

/// `hsavmm_retire_report`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Report {
    retired: usize,
    pending: usize,
    failed: usize,
    address: *mut c_void,
    size: usize,
    reason: [c_char; 240],
}

impl From<RetireReport> for Report {
    fn from(report: RetireReport) -> Self {
        let RetireReport { retired, pending, failures, .. } = report;
        let (address, size, reason) = match failures.first() {
            Some(first) => {
                (first.address.as_ptr(), first.size, to_char_array(&with_c_names(&first.error)))
            }
            None => (core::ptr::null_mut(), 0, [0; 240]),
        };
        Self { retired, pending, failed: failures.len(), address, size, reason }
    }
}

/// Unmaps a queue's mappings whose signals have fired. Waits at most `milliseconds` for the signals of the other
/// mappings. Writes the report.
///
/// # Safety
/// The rules for result pointers in lib.rs apply.
unsafe fn drain(
    queue: *mut c_void,
    milliseconds: c_uint,
    report: *mut Report,
) -> Result<(), Failure> {
    // Checked first: the queue reports each mapping only once, and the report must not be lost.
    not_null("report", report)?;
    let queue = process()?.objects.retire_queue(queue)?;
    let drained = queue.drain(Duration::from_millis(milliseconds.into()))?;
    // SAFETY: the caller guarantees a valid result pointer.
    unsafe { write_out("report", report, drained.into()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_retire_create(
    queue: *mut *mut c_void,
    capacity: usize,
    limit: c_uint,
    flags: c_uint,
) -> hipError_t {
    run("hsavmm_retire_create", || {
        not_null("queue", queue)?;
        if flags & !NO_THREAD != 0 {
            return Err(Failure::invalid_argument(
                "flags",
                format_args!("({flags:#x}) are invalid"),
            ));
        }
        if capacity == 0 {
            return Err(Failure::invalid_argument("capacity", Problem::Zero));
        }
        if capacity > MAX_CAPACITY {
            return Err(Failure::invalid_argument(
                "capacity",
                format_args!("({capacity}) is too large: the maximum is {MAX_CAPACITY}"),
            ));
        }
        let process = process()?;
        let mut builder = RetireQueue::builder(capacity);
        if limit != 0 {
            builder = builder.with_time_limit(Duration::from_millis(limit.into()));
        }
        if flags & NO_THREAD != 0 {
            builder = builder.without_thread();
        }
        let new_queue = Object::RetireQueue(Arc::new(builder.open(process.vmm()?)?));
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("queue", queue, process.objects.insert(new_queue)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_retire_submit(
    queue: *mut c_void,
    ptr: *mut c_void,
    size: usize,
    signals: *const Signal,
    count: usize,
) -> hipError_t {
    run("hsavmm_retire_submit", || {
        let queue = process()?.objects.retire_queue(queue)?;
        // SAFETY: the header requires `count` signals that exist until the range is unmapped.
        unsafe {
            let conditions = Conditions::read(signals, count)?;
            Ok(queue.submit_range(address(ptr), size, conditions.as_slice())?)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_retire_poll(queue: *mut c_void, report: *mut Report) -> hipError_t {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    run("hsavmm_retire_poll", || unsafe { drain(queue, 0, report) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_retire_drain(
    queue: *mut c_void,
    limit: c_uint,
    report: *mut Report,
) -> hipError_t {
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    run("hsavmm_retire_drain", || unsafe { drain(queue, limit, report) })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_retire_destroy(queue: *mut c_void) -> hipError_t {
    run("hsavmm_retire_destroy", || {
        let process = process()?;
        let removed = process.objects.retire_queue(queue)?;
        process.objects.remove(queue)?;
        // Dropping `removed` waits only if no other thread uses the queue.
        while removed.pending() > 0 {
            // The report is lost, as when a queue is dropped. `hsavmm_quarantine` lists the mappings that stay mapped.
            let _ = removed.drain(MAX_WAIT)?;
        }
        Ok(())
    })
}
