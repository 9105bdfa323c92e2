//! The areas, buffers, retire queues, streams and events of a C program, identified by numbers that are never reused in
//! a process.

use crate::errors;
use crate::events::Event;
use crate::status::Failure;
use crate::streams::Stream;
use core::ffi::c_void;
use core::ops::Range;
use hsa_vmm::area::{AreaFlags, AreaMemory};
use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, RingBuffer};
use hsa_vmm::vmm::RetireQueue;
use hsa_vmm::{Address, Area, GrowableBuffer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// An area and its memory.
#[derive(Debug)]
pub struct OpenArea {
    pub area: Area,
    mapped: RwLock<MappedByArea>,
}

/// The memory that an area has mapped, by address.
#[derive(Debug, Default)]
pub struct MappedByArea {
    pub memory: BTreeMap<usize, AreaMemory<'static>>,
    /// Set by `hsavmm_area_destroy`: a call of `hsavmm_area_mmap` that has already looked up the area must then fail.
    pub destroyed: bool,
}

/// The position of an address in the memory of an area.
#[derive(Clone, Debug)]
pub struct AreaPosition {
    pub area: Arc<OpenArea>,
    /// The key of the memory in [`MappedByArea::memory`].
    pub start: usize,
    /// The offset of the address in the memory, in bytes.
    pub offset: usize,
    /// The size of the memory in bytes.
    pub size: usize,
    /// Whether the address is a host address in existing memory of the program. Such memory can continue before and
    /// after the mapped range.
    pub is_program_memory: bool,
}

impl OpenArea {
    pub fn new(area: Area) -> Self {
        Self { area, mapped: RwLock::default() }
    }

    /// Locks the memory for look-ups and copies. A thread must not hold this lock twice.
    pub fn mapped(&self) -> RwLockReadGuard<'_, MappedByArea> {
        self.mapped.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the memory for `mmap`, `munmap` and `destroy`. Waits for copies.
    pub fn mapped_mut(&self) -> RwLockWriteGuard<'_, MappedByArea> {
        self.mapped.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether both the host and a device can use the memory.
    pub fn is_shared_with_host(&self) -> bool {
        self.area.flags().intersects(AreaFlags::HOST | AreaFlags::UNIFIED | AreaFlags::MAPPED)
    }

    /// Returns whether a range overlaps memory of the area, except memory of the program that the area maps.
    fn overlaps(&self, range: &Range<usize>) -> bool {
        let maps_existing = self.area.flags().maps_existing_memory();
        self.mapped().memory.values().any(|memory| {
            let start = memory.device_address();
            // If the device uses the host's address, the memory of the program is at this address.
            let is_own = !maps_existing || start != memory.address();
            let end = start.get().saturating_add(memory.allocated_size());
            is_own && start.get() < range.end && range.start < end
        })
    }

    /// Finds the memory that contains an address of the host or of the device.
    fn find(self: &Arc<Self>, at: Address) -> Option<AreaPosition> {
        let mapped = self.mapped();
        let maps_existing = self.area.flags().maps_existing_memory();
        let position = |first: Address, start, memory: &AreaMemory<'_>, is_program_memory| {
            let offset = at.get().checked_sub(first.get())?;
            let (area, size) = (self.clone(), memory.size());
            (offset < memory.allocated_size()).then_some(AreaPosition {
                area,
                start,
                offset,
                size,
                is_program_memory,
            })
        };
        let nearest = mapped.memory.range(..=at.get()).next_back();
        let by_host_address = nearest
            .and_then(|(&start, memory)| position(memory.address(), start, memory, maps_existing));
        // Only memory of the program can have different addresses on the host and on the device.
        if by_host_address.is_some() || !maps_existing {
            return by_host_address;
        }
        mapped
            .memory
            .iter()
            .find_map(|(&start, memory)| position(memory.device_address(), start, memory, false))
    }
}

#[derive(Clone, Debug)]
pub enum Object {
    Area(Arc<OpenArea>),
    /// The area of memory that `hipHostRegister` has registered. C programs do not know its number.
    Registered(Arc<OpenArea>),
    Growable(Arc<Mutex<GrowableBuffer>>),
    Paged(Arc<PagedBuffer>),
    Pausable(Arc<Mutex<PausableBuffer>>),
    Ring(Arc<RingBuffer>),
    RetireQueue(Arc<RetireQueue>),
    Stream(Arc<Stream>),
    Event(Arc<Event>),
}

/// The number of the next object. A shut-down does not reset the counter, so numbers from before the shut-down stay
/// invalid. HIP uses 1 and 2 for default streams.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(16);

/// All objects of one runtime.
#[derive(Debug, Default)]
pub struct Objects {
    by_number: Mutex<BTreeMap<u64, Object>>,
}

/// Locks a mutex, ignoring poisoning.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error for an invalid number of an object.
pub fn invalid_number() -> Failure {
    let message = "invalid handle of a stream, an event or another object: it was destroyed, is of another kind, or \
                   was never returned";
    Failure::new(errors::INVALID_HANDLE, message)
}

impl Objects {
    /// Stores an object and returns its number, which is never 0.
    pub fn insert(&self, object: Object) -> *mut c_void {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        lock(&self.by_number).insert(number, object);
        number as *mut c_void
    }

    /// Finds the object that a number identifies.
    pub fn get(&self, number: *mut c_void) -> Result<Object, Failure> {
        lock(&self.by_number).get(&(number as u64)).cloned().ok_or_else(invalid_number)
    }

    /// Finds the area whose memory contains an address of the host or of a device.
    pub fn area_at(&self, at: Address) -> Option<AreaPosition> {
        self.areas().iter().find_map(|area| area.find(at))
    }

    /// Returns all areas. The caller locks an area only after `by_number` was unlocked, because `hsavmm_area_destroy`
    /// locks the area first.
    fn areas(&self) -> Vec<Arc<OpenArea>> {
        lock(&self.by_number)
            .values()
            .filter_map(|object| match object {
                Object::Area(area) | Object::Registered(area) => Some(area.clone()),
                _ => None,
            })
            .collect()
    }

    /// Returns whether a range overlaps memory of an area, except memory of the program that an area maps.
    pub fn overlap_area(&self, range: &Range<usize>) -> bool {
        self.areas().iter().any(|area| area.overlaps(range))
    }

    /// Removes the objects for which `selects` returns true.
    pub fn remove_all(&self, selects: impl Fn(&Object) -> bool) {
        lock(&self.by_number).retain(|_, object| !selects(object));
    }

    pub fn remove(&self, number: *mut c_void) -> Result<Object, Failure> {
        lock(&self.by_number).remove(&(number as u64)).ok_or_else(invalid_number)
    }

    /// Destroys an object. `find` fails if the object is not of the expected type.
    pub fn destroy<T>(
        &self,
        number: *mut c_void,
        find: impl FnOnce(&Self, *mut c_void) -> Result<T, Failure>,
    ) -> Result<(), Failure> {
        find(self, number)?;
        self.remove(number).map(drop)
    }
}

macro_rules! kinds {
    ($($method:ident: $variant:ident($kind:ty);)+) => {
        impl Objects {
            $(pub fn $method(&self, number: *mut c_void) -> Result<Arc<$kind>, Failure> {
                match self.get(number)? {
                    Object::$variant(object) => Ok(object),
                    _ => Err(invalid_number()),
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
    retire_queue: RetireQueue(RetireQueue);
    stream: Stream(Stream);
    event: Event(Event);
}
