//! Events that GPUs and threads signal, and for which threads wait.

use super::abi::{CreateEvent, EventData, EventId, WaitEvents};
use super::memory::split_handle;
use super::mmap::{self, Window};
use crate::driver::Driver;
use crate::errno::{EACCES, EINVAL, EIO, ENOMEM, ENOSPC, Errno, Result};
use crate::id_table::IdTable;
use crate::user;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of events that a GPU can signal (`KFD_SIGNAL_EVENT_LIMIT`).
const MAX_SIGNALS: u32 = 4096;
/// The size of the event page, which has a mailbox of eight bytes for each event that a GPU can signal.
pub(crate) const EVENT_PAGE_SIZE: u64 = MAX_SIGNALS as u64 * 8;
/// The bit that marks the identifiers of events that a GPU cannot signal.
const NON_SIGNAL: u32 = 1 << 31;

// Kinds of events (`KFD_IOC_EVENT_*`).
const KIND_SIGNAL: u32 = 0;
const KIND_DEBUG: u32 = 5;
const KIND_MEMORY: u32 = 8;
const KIND_COUNT: u32 = 9;

// Results of a wait (`KFD_IOC_WAIT_RESULT_*`).
const COMPLETE: u32 = 0;
const TIMEOUT: u32 = 1;
const FAILED: u32 = 2;
/// The timeout of a wait without a time limit.
const NO_TIMEOUT: u32 = u32::MAX;
/// A wait without a time limit checks its events again at least this often.
const UNLIMITED_WAIT_STEP: Duration = Duration::from_secs(3600);

#[derive(Debug)]
struct Event {
    /// Distinguishes the event from later events with the same identifier. [`State::insert`] sets this number.
    serial: u64,
    kind: u32,
    auto_reset: bool,
    signalled: bool,
    /// Increases with each signal. A wait with an older age returns at once. Never 0.
    age: u64,
    waiters: u32,
    /// The last fault of a memory-fault event: two words of failure flags, and the address.
    fault: Option<[u64; 3]>,
    fault_gpu: u32,
}

impl Event {
    fn signal(&mut self) {
        self.signalled = !self.auto_reset || self.waiters == 0;
        self.age = self.age.wrapping_add(1).max(2);
    }
}

#[derive(Debug, Default)]
struct State {
    /// The events that a GPU can signal.
    signals: IdTable<Event>,
    /// The other events.
    non_signals: IdTable<Event>,
    /// The number of events that were ever created.
    created: u64,
}

impl State {
    fn event(&mut self, id: u32) -> Result<&mut Event> {
        let found = match id & NON_SIGNAL {
            0 => self.signals.get_mut(id),
            _ => self.non_signals.get_mut(id & !NON_SIGNAL),
        };
        found.ok_or(EINVAL)
    }

    /// Returns the event that a caller waits for. Fails if the event was destroyed.
    fn awaited(&mut self, awaited: &AwaitedEvent) -> Result<&mut Event> {
        let event = self.event(awaited.id)?;
        if event.serial == awaited.serial { Ok(event) } else { Err(EINVAL) }
    }

    /// Inserts an event that a GPU can signal if `can_signal` is true. Returns its identifier.
    fn insert(&mut self, mut event: Event, can_signal: bool) -> u32 {
        self.created += 1;
        event.serial = self.created;
        if can_signal {
            self.signals.insert(event)
        } else {
            self.non_signals.insert(event) | NON_SIGNAL
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Events {
    state: Mutex<State>,
    changed: Condvar,
}

impl Events {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals an event and wakes its waiters.
    pub(crate) fn signal(&self, id: u32) -> Result<()> {
        let mut state = self.state();
        state.event(id)?.signal();
        self.changed.notify_all();
        Ok(())
    }

    /// Reports a GPU's access to an invalid address through every memory-fault event.
    pub(crate) fn report_fault(&self, gpu_id: u32, address: u64, error: Errno) {
        // The upper half says that the page is read-only, the lower half that the page is not present.
        let flags = if error == EACCES { 1 << 32 } else { 1 };
        let mut state = self.state();
        for event in state.non_signals.iter_mut().filter(|event| event.kind == KIND_MEMORY) {
            event.fault = Some([flags, 0, address]);
            event.fault_gpu = gpu_id;
            event.signal();
        }
        self.changed.notify_all();
    }
}

pub(crate) fn create(driver: &Driver, create: &mut CreateEvent) -> Result<()> {
    if create.kind >= KIND_COUNT {
        return Err(EINVAL);
    }
    if create.page_offset != 0 {
        let (gpu, number) = split_handle(driver, create.page_offset)?;
        driver.process.state().memory(gpu, number)?;
    }
    let event = Event {
        serial: 0,
        kind: create.kind,
        auto_reset: create.auto_reset != 0,
        signalled: false,
        age: 1,
        waiters: 0,
        fault: None,
        fault_gpu: 0,
    };
    let mut state = driver.process.events.state();
    if matches!(create.kind, KIND_SIGNAL | KIND_DEBUG) {
        let id = state.insert(event, true);
        if id >= MAX_SIGNALS {
            state.signals.remove(id);
            return Err(ENOSPC);
        }
        create.event_id = id;
        create.slot = id;
        create.page_offset = mmap::offset(Window::Events, 0);
    } else {
        create.event_id = state.insert(event, false);
    }
    create.trigger_data = create.event_id;
    Ok(())
}

pub(crate) fn destroy(driver: &Driver, destroy: &mut EventId) -> Result<()> {
    let events = &driver.process.events;
    let mut state = events.state();
    let removed = match destroy.event_id & NON_SIGNAL {
        0 => state.signals.remove(destroy.event_id),
        _ => state.non_signals.remove(destroy.event_id & !NON_SIGNAL),
    };
    // Calls that wait for the event fail.
    events.changed.notify_all();
    removed.map(drop).ok_or(EINVAL)
}

pub(crate) fn set(driver: &Driver, set: &mut EventId) -> Result<()> {
    driver.process.events.signal(set.event_id)
}

pub(crate) fn reset(driver: &Driver, reset: &mut EventId) -> Result<()> {
    driver.process.events.state().event(reset.event_id)?.signalled = false;
    Ok(())
}

/// One event that a caller waits for.
#[derive(Debug)]
struct AwaitedEvent {
    id: u32,
    serial: u64,
    /// The age when the wait began. A different age means that the event was signalled.
    age: u64,
    activated: bool,
    /// Whether the caller compares ages. Such a caller receives the new age.
    compares_age: bool,
}

fn begin_wait(state: &mut State, data: &EventData) -> Result<AwaitedEvent> {
    let event = state.event(data.event_id)?;
    let compares_age = event.kind == KIND_SIGNAL && data.age != 0;
    let activated = event.signalled || compares_age && event.age != data.age;
    if event.auto_reset {
        event.signalled = false;
    }
    event.waiters += 1;
    let (id, serial, age) = (data.event_id, event.serial, event.age);
    Ok(AwaitedEvent { id, serial, age, activated, compares_age })
}

/// Marks the signalled events. Returns whether the wait is over. Fails if an event was destroyed.
fn poll(state: &mut State, awaited: &mut [AwaitedEvent], all: bool) -> Result<bool> {
    for awaited_event in awaited.iter_mut() {
        awaited_event.activated |= state.awaited(awaited_event)?.age != awaited_event.age;
    }
    if awaited.is_empty() {
        return Ok(true);
    }
    let mut activated = awaited.iter().map(|awaited_event| awaited_event.activated);
    Ok(if all { activated.all(|done| done) } else { activated.any(|done| done) })
}

const MAX_EVENTS: u32 = 1 << 16;

pub(crate) fn wait(driver: &Driver, wait: &mut WaitEvents) -> Result<()> {
    if wait.count > MAX_EVENTS {
        return Err(ENOMEM);
    }
    let address = |index: usize| wait.events.wrapping_add((index * size_of::<EventData>()) as u64);
    let inputs = (0..wait.count as usize).map(|index| user::read_value(address(index)));
    let mut data = inputs.collect::<Result<Vec<EventData>>>()?;
    let deadline = (wait.timeout != NO_TIMEOUT)
        .then(|| Instant::now() + Duration::from_millis(u64::from(wait.timeout)));
    let (result, signalled) = driver.process.events.wait(&mut data, wait.all != 0, deadline);
    wait.result = result.unwrap_or(FAILED);
    for index in signalled {
        user::write_struct(address(index), size_of::<EventData>(), &data[index])?;
    }
    match result {
        Ok(FAILED) => Err(EIO),
        result => result.map(drop),
    }
}

impl Events {
    /// Waits for events. Returns the result and the indices of the events whose data changed.
    fn wait(
        &self,
        data: &mut [EventData],
        all: bool,
        deadline: Option<Instant>,
    ) -> (Result<u32>, Vec<usize>) {
        let mut state = self.state();
        let mut awaited = Vec::new();
        let mut result = Ok(COMPLETE);
        for data in data.iter() {
            match begin_wait(&mut state, data) {
                Ok(awaited_event) => awaited.push(awaited_event),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        while result.is_ok() {
            match poll(&mut state, &mut awaited, all) {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => {
                    result = Ok(FAILED);
                    break;
                }
            }
            let remaining = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => UNLIMITED_WAIT_STEP,
            };
            if remaining.is_zero() {
                result = Ok(TIMEOUT);
                break;
            }
            let woken = self.changed.wait_timeout(state, remaining);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut signalled = Vec::new();
        for (index, awaited_event) in awaited.iter().enumerate() {
            let Ok(event) = state.awaited(awaited_event) else { continue };
            event.waiters = event.waiters.saturating_sub(1);
            if result.is_err() || !awaited_event.activated {
                continue;
            }
            if let Some([flags, more_flags, address]) = event.fault {
                data[index].age = flags;
                data[index].fault = [more_flags, address, u64::from(event.fault_gpu)];
                signalled.push(index);
            } else if awaited_event.compares_age {
                data[index].age = event.age;
                signalled.push(index);
            }
        }
        (result, signalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::EFAULT;

    fn event(kind: u32, auto_reset: bool) -> Event {
        let (serial, signalled, age, waiters, fault, fault_gpu) = (0, false, 1, 0, None, 0);
        Event { serial, kind, auto_reset, signalled, age, waiters, fault, fault_gpu }
    }

    fn input(event_id: u32, age: u64) -> EventData {
        EventData { age, fault: [0; 3], extension: 0, event_id, pad: 0 }
    }

    fn short_deadline() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(5))
    }

    #[test]
    fn fault_signals_memory_fault_events() {
        let events = Events::default();
        let id = events.state().insert(event(KIND_MEMORY, false), false);
        assert_eq!(events.wait(&mut [input(id, 0)], false, short_deadline()).0, Ok(TIMEOUT));
        events.report_fault(0x1001, 0xabc000, EFAULT);
        let mut data = [input(id, 0)];
        assert_eq!(events.wait(&mut data, false, short_deadline()), (Ok(COMPLETE), vec![0]));
        assert_eq!((data[0].age, data[0].fault), (1, [0, 0xabc000, 0x1001]));
    }

    #[test]
    fn auto_reset_signal_completes_one_later_wait() {
        let events = Events::default();
        let id = events.state().insert(event(KIND_SIGNAL, true), true);
        events.signal(id).unwrap();
        assert_eq!(events.wait(&mut [input(id, 0)], true, short_deadline()).0, Ok(COMPLETE));
        assert_eq!(events.wait(&mut [input(id, 0)], true, short_deadline()).0, Ok(TIMEOUT));
        // A wait with an older age has missed a signal.
        let mut data = [input(id, 1)];
        assert_eq!(events.wait(&mut data, false, short_deadline()), (Ok(COMPLETE), vec![0]));
        assert_eq!(data[0].age, 2);
    }

    #[test]
    fn wait_fails_if_the_identifier_is_used_again() {
        let events = Events::default();
        let id = events.state().insert(event(KIND_SIGNAL, false), true);
        let deadline = Some(Instant::now() + Duration::from_secs(10));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| events.wait(&mut [input(id, 0)], true, deadline).0);
            while events.state().event(id).unwrap().waiters == 0 {
                std::thread::yield_now();
            }
            let mut state = events.state();
            state.signals.remove(id).unwrap();
            assert_eq!(state.insert(event(KIND_SIGNAL, false), true), id);
            drop(state);
            events.changed.notify_all();
            assert_eq!(waiter.join().unwrap(), Ok(FAILED));
        });
        assert_eq!(events.state().event(id).unwrap().waiters, 0);
    }

    #[test]
    fn wait_completes_on_all_or_any_event() {
        let events = Events::default();
        let ids = [(); 2].map(|()| events.state().insert(event(KIND_SIGNAL, false), true));
        events.signal(ids[1]).unwrap();
        let mut both = ids.map(|id| input(id, 0));
        assert_eq!(events.wait(&mut both, false, short_deadline()).0, Ok(COMPLETE));
        assert_eq!(events.wait(&mut both, true, short_deadline()).0, Ok(TIMEOUT));
        assert_eq!(events.wait(&mut [input(99, 0)], true, None).0, Err(EINVAL));
        assert_eq!(events.wait(&mut [], false, None).0, Ok(COMPLETE));
    }
}
