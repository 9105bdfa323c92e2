//! Reservations: ranges of addresses, and the index that finds them by address.

use super::AddressRange;
use super::mappings::{Mappings, reject};
use crate::address::Address;
use crate::error::{Argument, ErrorKind, Problem, Quarantined};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Ordered, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::sync::{lock, may_lock, read, thread_local, write};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, TryLockError};

/// A reservation. After the reservation is freed, threads can still have references to it; [`lock`](Self::lock) then
/// returns `None`.
// Padded, so that two threads that use different reservations share no cache line. Padding is faster than
// `repr(align)`, because the allocator has a slow path for large alignments.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ReservationRecord {
    _before: [u64; 8],
    pub base: usize,
    pub size: usize,
    /// Unique in the process, unlike the address.
    pub serial: u64,
    next_serial: AtomicU64,
    /// The identifier of the index ([`Reservations`]) that contains this reservation.
    index_id: u64,
    /// Whether the reservation was freed, or is being freed. If set, another reservation may have its addresses.
    freed: AtomicBool,
    /// The reason, if the reservation is quarantined: no operation uses or frees it.
    quarantined: OnceLock<Arc<Quarantined>>,
    writer: Mutex<()>,
    mappings: RwLock<Mappings>,
    _behind: [u64; 8],
}

impl ReservationRecord {
    pub fn range(&self) -> AddressRange {
        AddressRange { start: self.base, size: self.size }
    }

    /// Returns whether the reservation contains an address.
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.size
    }

    /// Returns whether the reservation contains all of a range.
    pub fn contains_range(&self, range: AddressRange) -> bool {
        self.contains(range.start) && range.size <= self.size - (range.start - self.base)
    }

    /// Locks the reservation against other operations that change its mappings. Returns `None` if the reservation was
    /// freed or quarantined before.
    pub fn lock(&self) -> Option<ReservationGuard<'_>> {
        let guard = self.lock_unchecked();
        let usable = !self.is_freed() && self.quarantined().is_none();
        usable.then_some(guard)
    }

    /// Locks the reservation as [`lock`](Self::lock) does, even if it was freed or quarantined.
    pub fn lock_unchecked(&self) -> ReservationGuard<'_> {
        let writer = Ordered::take(Rank::Reservation, self.base, || lock(&self.writer));
        ReservationGuard { reservation: self, _writer: writer }
    }

    /// Fails if locking the reservation would panic while this thread already panics, in the caller's closure. The
    /// second panic would end the process.
    pub fn check_lockable(&self) -> Result<(), ErrorKind> {
        match std::thread::panicking() && !may_lock(self.base) {
            true => Err(ErrorKind::of_system("pthread_mutex_lock", Errno::DEADLK)),
            false => Ok(()),
        }
    }

    /// Locks the reservation's mutex without waiting. Returns `None` if another operation holds the mutex.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.writer.try_lock() {
            Ok(guard) => Some(guard),
            // A closure of the caller has panicked (see `lock` in `sync`); no operation holds the mutex.
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub fn is_freed(&self) -> bool {
        self.freed.load(Ordering::Acquire)
    }

    /// Returns the reason of the quarantine; `None` if the reservation is not quarantined.
    pub fn quarantined(&self) -> Option<&Arc<Quarantined>> {
        self.quarantined.get()
    }

    /// Rejects a quarantined reservation.
    pub fn check_usable(&self) -> Result<(), ErrorKind> {
        reject(self.quarantined())
    }

    /// Returns a serial for a new mapping. Called only while the reservation is locked.
    pub fn new_serial(&self) -> u64 {
        let next = self.next_serial.load(Ordering::Relaxed);
        let serial = match next.is_multiple_of(BLOCK_SIZE) {
            true => NEXT_BLOCK_START.fetch_add(BLOCK_SIZE, Ordering::Relaxed),
            false => next,
        };
        self.next_serial.store(serial + 1, Ordering::Relaxed);
        serial
    }

    /// Quarantines the reservation: every later operation on its mappings fails, and it is never freed.
    pub fn mark_quarantined(&self, reason: Arc<Quarantined>) {
        let _ = self.quarantined.set(reason);
    }

    /// Locks the mappings for reading.
    pub fn mappings(&self) -> Ordered<RwLockReadGuard<'_, Mappings>> {
        Ordered::take(Rank::Mappings, self.base, || read(&self.mappings))
    }

    /// Locks the mappings for writing. Other threads observe all changes under this lock as a single step. The caller
    /// also holds the reservation's mutex ([`lock`](Self::lock)), unless it only sets a name, or no other thread can
    /// use the ledger any more.
    pub fn mappings_mut(&self) -> Ordered<RwLockWriteGuard<'_, Mappings>> {
        Ordered::take(Rank::Mappings, self.base, || write(&self.mappings))
    }
}

/// A locked reservation: only this thread changes its mappings.
#[derive(Debug)]
pub(crate) struct ReservationGuard<'a> {
    pub reservation: &'a ReservationRecord,
    _writer: Ordered<MutexGuard<'a, ()>>,
}

thread_local! {
    /// The reservation that this thread used last, and will most likely use next. A look-up that finds the
    /// reservation here takes no lock of the index, so that threads do not wait for each other.
    static LAST: Cell<Option<Arc<ReservationRecord>>> = const { Cell::new(None) };
}

/// The number of serials that a reservation takes at a time, so that threads seldom contend for
/// [`NEXT_BLOCK_START`].
const BLOCK_SIZE: u64 = 1 << 16;

/// The first serial of the next unused block. Serials are unique in the process, among indexes, reservations and
/// mappings.
static NEXT_BLOCK_START: AtomicU64 = AtomicU64::new(BLOCK_SIZE);

type Tree = BTreeMap<usize, Arc<ReservationRecord>>;

/// All reservations of one `Vmm`, by address.
#[derive(Debug)]
pub(crate) struct Reservations {
    id: u64,
    tree: RwLock<Tree>,
}

impl Default for Reservations {
    fn default() -> Self {
        let id = NEXT_BLOCK_START.fetch_add(BLOCK_SIZE, Ordering::Relaxed);
        Self { id, tree: RwLock::default() }
    }
}

impl Reservations {
    fn tree(&self) -> Ordered<RwLockReadGuard<'_, Tree>> {
        Ordered::take(Rank::Index, 0, || read(&self.tree))
    }

    fn tree_mut(&self) -> Ordered<RwLockWriteGuard<'_, Tree>> {
        Ordered::take(Rank::Index, 0, || write(&self.tree))
    }

    /// Returns the reservation that contains an address. Empties this thread's cache: after use, the caller may pass
    /// the reservation to [`cache_reservation`].
    pub fn find(&self, address: usize) -> Option<Arc<ReservationRecord>> {
        let matches = |it: &Arc<ReservationRecord>| {
            it.contains(address) && it.index_id == self.id && !it.is_freed()
        };
        match LAST.try_with(Cell::take) {
            Ok(Some(last)) if matches(&last) => Some(last),
            _ => {
                let tree = self.tree();
                let (_, found) = tree.range(..=address).next_back()?;
                found.contains(address).then(|| found.clone())
            }
        }
    }

    /// Returns the reservation that contains all of a range.
    pub fn containing(&self, range: AddressRange) -> Result<Arc<ReservationRecord>, ErrorKind> {
        let found = self.find(range.start).filter(|it| it.contains_range(range));
        found.ok_or_else(|| range.invalid(Problem::NotReserved))
    }

    /// Calls `act` with the reservation that contains an address, if any.
    pub fn at<T>(&self, address: usize, act: impl FnOnce(&ReservationRecord) -> T) -> Option<T> {
        let found = self.find(address)?;
        let result = act(&found);
        cache_reservation(found);
        Some(result)
    }

    /// Adds a reservation, and returns it. If another reservation overlaps the range, the error is the start of the
    /// overlap.
    pub fn insert(&self, range: AddressRange) -> Result<Arc<ReservationRecord>, usize> {
        let mut tree = self.tree_mut();
        // If any reservation overlaps the range, the last reservation that begins before the range's end overlaps it.
        if let Some((&base, last)) = tree.range(..range.end()).next_back()
            && base + last.size > range.start
        {
            return Err(base.max(range.start));
        }
        let serial = NEXT_BLOCK_START.fetch_add(BLOCK_SIZE, Ordering::Relaxed);
        let reservation = Arc::new(ReservationRecord {
            _before: [0; 8],
            base: range.start,
            size: range.size,
            serial,
            next_serial: AtomicU64::new(serial + 1),
            index_id: self.id,
            freed: AtomicBool::new(false),
            quarantined: OnceLock::new(),
            writer: Mutex::new(()),
            mappings: RwLock::default(),
            _behind: [0; 8],
        });
        tree.insert(range.start, reservation.clone());
        Ok(reservation)
    }

    /// Removes an empty reservation, and marks it as freed for threads that wait for its mutex.
    pub fn remove(&self, guard: &ReservationGuard<'_>) {
        guard.reservation.freed.store(true, Ordering::Release);
        self.tree_mut().remove(&guard.reservation.base);
    }

    /// Undoes [`remove`](Self::remove).
    pub fn restore(&self, reservation: Arc<ReservationRecord>) {
        let mut tree = self.tree_mut();
        reservation.freed.store(false, Ordering::Release);
        tree.insert(reservation.base, reservation);
    }

    /// Calls `act` with all reservations, by address, with their mappings locked for reading. `act` may also
    /// lock handles, but no other part of the ledger.
    pub fn snapshot<T>(&self, act: impl FnOnce(&[ReservationSnapshot<'_>]) -> T) -> T {
        let tree = self.tree();
        let locked =
            |it| ReservationSnapshot { reservation: it, mappings: ReservationRecord::mappings(it) };
        let all: Vec<ReservationSnapshot<'_>> = tree.values().map(locked).collect();
        act(&all)
    }
}

/// Caches a reservation for this thread's next look-up.
pub(crate) fn cache_reservation(reservation: Arc<ReservationRecord>) {
    // Fails only while the thread exits.
    let _ = LAST.try_with(|last| last.set(Some(reservation)));
}

/// A reservation whose mappings are locked for reading.
#[derive(Debug)]
pub(crate) struct ReservationSnapshot<'a> {
    pub reservation: &'a Arc<ReservationRecord>,
    pub mappings: Ordered<RwLockReadGuard<'a, Mappings>>,
}

/// The reservations that one operation has locked, by address.
pub(crate) type Guards<'a> = SmallVec<[ReservationGuard<'a>; 1]>;

/// Returns the index of the guard whose reservation contains all of a range.
pub(crate) fn guard_index(
    guards: &[ReservationGuard<'_>],
    range: AddressRange,
) -> Result<usize, ErrorKind> {
    let next = guards.partition_point(|guard| guard.reservation.base <= range.start);
    let found = next.checked_sub(1).filter(|&it| guards[it].reservation.contains_range(range));
    found.ok_or_else(|| range.invalid(Problem::NotReserved))
}

/// Returns the locked reservation that contains all of a range.
pub(crate) fn locked_containing<'a>(
    guards: &[ReservationGuard<'a>],
    range: AddressRange,
) -> Result<&'a ReservationRecord, ErrorKind> {
    guard_index(guards, range).map(|index| guards[index].reservation)
}

impl ReservationGuard<'_> {
    /// Checks that the range equals the reservation's range, and that nothing is mapped in the reservation. If a
    /// mapping is quarantined, returns that quarantine as the error, because the caller cannot unmap the mapping.
    pub fn check_free(&self, range: AddressRange) -> Result<(), ErrorKind> {
        let ReservationRecord { base, size: expected, .. } = *self.reservation;
        let invalid = |problem| {
            Err(ErrorKind::invalid(Argument::Address, Address::new(range.start), problem))
        };
        if base != range.start {
            return invalid(Problem::NotAReservation);
        }
        if expected != range.size {
            let problem = Problem::WrongSize(expected);
            return Err(ErrorKind::invalid(Argument::Size, range.size, problem));
        }
        let mappings = self.reservation.mappings();
        mappings.check_none_quarantined()?;
        match mappings.len() {
            0 => Ok(()),
            count => invalid(Problem::StillMapped(count)),
        }
    }
}
