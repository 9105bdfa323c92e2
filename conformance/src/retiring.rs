//! A retire queue and its signals, for cases. The queue unmaps memory when signals fire.

use crate::{Context, NotPassed, TestResult};
use hsa_vmm::buffer::PagedBuffer;
use hsa_vmm::hsa_sys::{
    HSA_STATUS_SUCCESS, hsa_signal_create_fn, hsa_signal_destroy_fn, hsa_signal_store_screlease_fn,
    hsa_signal_t,
};
use hsa_vmm::vmm::{RetireQueue, RetireReport, SignalCondition};
use hsa_vmm::{Address, Error, Runtime};
use std::ffi::CStr;
use std::mem::transmute_copy;
use std::ops::Range;

/// The runtime's functions for signals.
#[derive(Clone, Copy, Debug)]
struct SignalFunctions {
    create: hsa_signal_create_fn,
    store: hsa_signal_store_screlease_fn,
    destroy: hsa_signal_destroy_fn,
}

impl SignalFunctions {
    fn of(runtime: &Runtime) -> TestResult<Self> {
        if let Some(simulation) = runtime.simulation() {
            let core = &simulation.table().core;
            return Ok(Self {
                create: core.hsa_signal_create,
                store: core.hsa_signal_store_screlease,
                destroy: core.hsa_signal_destroy,
            });
        }
        let find = |name: &CStr| {
            let missing = || NotPassed::Skipped(format!("the runtime does not export {name:?}"));
            runtime.function(name).ok_or_else(missing)
        };
        // SAFETY: hsa.h declares these functions with the types of the fields. A non-null function pointer and the
        // field, an `Option` of such a pointer, have the same representation.
        unsafe {
            Ok(Self {
                create: transmute_copy(&find(c"hsa_signal_create")?),
                store: transmute_copy(&find(c"hsa_signal_store_screlease")?),
                destroy: transmute_copy(&find(c"hsa_signal_destroy")?),
            })
        }
    }
}

/// A retire queue that a case polls, and two completion signals with the value 1.
#[derive(Debug)]
pub(crate) struct RetireFixture {
    /// Reads the signals, so it is dropped before them.
    queue: RetireQueue,
    store: hsa_signal_store_screlease_fn,
    signals: Vec<Signal>,
}

/// A signal, which is destroyed on drop.
#[derive(Debug)]
struct Signal {
    signal: hsa_signal_t,
    destroy: hsa_signal_destroy_fn,
}

impl RetireFixture {
    pub fn new(context: &Context, capacity: usize) -> TestResult<Self> {
        let functions = SignalFunctions::of(context.runtime())?;
        let queue = RetireQueue::builder(capacity).without_thread().open(context.vmm())?;
        let mut fixture = Self { queue, store: functions.store, signals: Vec::new() };
        let missing = NotPassed::Skipped("the runtime has no signals".to_owned());
        let create = functions.create.ok_or(missing)?;
        for _ in 0..2 {
            let mut signal = hsa_signal_t { handle: 0 };
            // SAFETY: no consumers are named, and `signal` is writable.
            let status = unsafe { create(1, 0, std::ptr::null(), &mut signal) };
            if status != HSA_STATUS_SUCCESS {
                return Err(NotPassed::Failed(format!("hsa_signal_create returned {status:#x}")));
            }
            fixture.signals.push(Signal { signal, destroy: functions.destroy });
        }
        Ok(fixture)
    }

    fn conditions(&self, count: usize) -> Vec<(hsa_signal_t, SignalCondition)> {
        self.signals.iter().take(count).map(|it| (it.signal, SignalCondition::AtMost(0))).collect()
    }

    /// Submits a range, which is unmapped after the first `count` signals have fired.
    pub fn submit(&self, at: Address, size: usize, count: usize) -> Result<(), Error> {
        // SAFETY: the queue is dropped before the signals are destroyed. No agent uses the range.
        unsafe { self.queue.submit_range(at, size, &self.conditions(count)) }
    }

    /// Submits pages, which are unmapped after the first signal has fired.
    pub fn submit_pages(&self, buffer: &PagedBuffer, pages: Range<usize>) -> TestResult {
        // SAFETY: the queue is dropped before the signals are destroyed. No agent uses the pages.
        Ok(unsafe { buffer.retire(pages, &self.queue, &self.conditions(1)) }?)
    }

    pub fn poll(&self) -> TestResult<RetireReport> {
        Ok(self.queue.poll()?)
    }

    /// Sets a signal to 0.
    pub fn fire(&self, index: usize) {
        if let (Some(store), Some(signal)) = (self.store, self.signals.get(index)) {
            // SAFETY: the signal exists until this value is dropped.
            unsafe { store(signal.signal, 0) };
        }
    }
}

impl Drop for RetireFixture {
    fn drop(&mut self) {
        // Fire the signals, so that the queue does not wait for its time limit after a failure.
        (0..self.signals.len()).for_each(|index| self.fire(index));
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the queue, which alone read the signal, was dropped before.
            unsafe { destroy(self.signal) };
        }
    }
}
