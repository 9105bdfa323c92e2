//! Areas and buffers of a C program, by numbers that are never used twice.

use crate::answer::Refusal;
use crate::errors;
use core::ffi::c_void;
use hsa_vmm::{Area, AreaMemory, GrowableBuffer, PagedBuffer, PausableBuffer, RingBuffer};
use std::collections::BTreeMap;
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

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    object: Option<Object>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Objects {
    slots: Mutex<Vec<Slot>>,
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
        let mut slots = lock(&self.slots);
        let index = match slots.iter().position(|slot| slot.object.is_none()) {
            Some(index) => index,
            None => {
                slots.push(Slot::default());
                slots.len() - 1
            }
        };
        let slot = &mut slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.object = Some(object);
        ((u64::from(slot.generation) << 32) | (index as u64 + 1)) as *mut c_void
    }

    /// What a number names.
    pub fn get(&self, number: *mut c_void) -> Result<Object, Refusal> {
        let slots = lock(&self.slots);
        let (index, generation) = split(number)?;
        let slot = slots.get(index).filter(|slot| slot.generation == generation);
        slot.and_then(|slot| slot.object.clone()).ok_or_else(none_such)
    }

    /// Forgets what a number names, and returns it.
    pub fn remove(&self, number: *mut c_void) -> Result<Object, Refusal> {
        let mut slots = lock(&self.slots);
        let (index, generation) = split(number)?;
        let slot = slots.get_mut(index).filter(|slot| slot.generation == generation);
        slot.and_then(|slot| slot.object.take()).ok_or_else(none_such)
    }
}

fn split(number: *mut c_void) -> Result<(usize, u32), Refusal> {
    let number = number as u64;
    let index = (number & u64::from(u32::MAX)).checked_sub(1).ok_or_else(none_such)?;
    Ok((index as usize, (number >> 32) as u32))
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
