//! Areas and buffers of a C program, by numbers that are never used twice in a process.

use crate::answer::Refusal;
use crate::errors;
use core::ffi::c_void;
use hsa_vmm::{Area, AreaMemory, GrowableBuffer, PagedBuffer, PausableBuffer, RingBuffer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An area and what it has given, by address.
#[derive(Debug)]
pub struct OpenArea {
    pub area: Area,
    pub memory: Mutex<BTreeMap<usize, AreaMemory<'static>>>,
}

/// What a number names.
#[derive(Clone, Debug)]
pub enum Object {
    Area(Arc<OpenArea>),
    Growable(Arc<Mutex<GrowableBuffer>>),
    Paged(Arc<PagedBuffer>),
    Pausable(Arc<Mutex<PausableBuffer>>),
    Ring(Arc<RingBuffer>),
}

/// The next number: of the process, so that one from before a shut-down names nothing afterwards.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// All objects of one runtime.
#[derive(Debug, Default)]
pub struct Objects {
    by_number: Mutex<BTreeMap<u64, Object>>,
}

/// Locks, whatever became of a thread that held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn none_such() -> Refusal {
    let words = "the number names no such object: it was destroyed, or is another's, or invented";
    Refusal::new(errors::INVALID_HANDLE, words)
}

impl Objects {
    /// Keeps an object and gives it a number, which is never 0.
    pub fn insert(&self, object: Object) -> *mut c_void {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&self.by_number).insert(number, object);
        number as *mut c_void
    }

    /// What a number names.
    pub fn get(&self, number: *mut c_void) -> Result<Object, Refusal> {
        lock(&self.by_number).get(&(number as u64)).cloned().ok_or_else(none_such)
    }

    /// Forgets what a number names, and returns it.
    pub fn remove(&self, number: *mut c_void) -> Result<Object, Refusal> {
        lock(&self.by_number).remove(&(number as u64)).ok_or_else(none_such)
    }
}

macro_rules! kinds {
    ($($method:ident: $variant:ident($kind:ty);)+) => {
        impl Objects {
            $(pub fn $method(&self, number: *mut c_void) -> Result<Arc<$kind>, Refusal> {
                match self.get(number)? {
                    Object::$variant(object) => Ok(object),
                    _ => Err(none_such()),
                }
            })+
        }
    };
}

kinds! {
    area: Area(OpenArea);
    growable: Growable(Mutex<GrowableBuffer>);
    paged: Paged(PagedBuffer);
    pausable: Pausable(Mutex<PausableBuffer>);
    ring: Ring(RingBuffer);
}
