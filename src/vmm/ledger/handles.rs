//! Handles: physical memory, counted by references (create, import, retain) and by mappings.

use crate::error::{Argument, ErrorKind, Problem};
use crate::handle::Handle;
use crate::native::NativeHandle;
use crate::sync::{Mutex, MutexGuard, Ordered, Rank, lock};
use crate::vmm::properties::AllocationProperties;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Physical memory. It is alive while it is referenced, mapped or used.
#[derive(Debug)]
pub(crate) struct HandleRecord {
    pub size: usize,
    /// The unit of sizes and addresses of its mappings.
    pub granule: usize,
    pub properties: AllocationProperties,
    /// The runtime's handle.
    pub native: NativeHandle,
    pub imported: bool,
    /// The library's copy of an imported descriptor, if the runtime needs it later or cannot export the
    /// memory again.
    pub descriptor: Option<OwnedFd>,
    pub name: Option<Arc<str>>,
    /// References of the caller: one for create or import, one for each retain.
    pub references: u32,
    /// The mappings that exist, and those that are being created.
    pub mappings: u32,
    /// Operations in progress that need it to stay alive.
    pub uses: u32,
}

impl HandleRecord {
    /// Creates the record of new memory, with one reference.
    pub fn new(
        size: usize,
        granule: usize,
        properties: AllocationProperties,
        native: NativeHandle,
    ) -> Self {
        Self {
            size,
            granule,
            properties,
            native,
            imported: false,
            descriptor: None,
            name: None,
            references: 1,
            mappings: 0,
            uses: 0,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.references == 0 && self.mappings == 0 && self.uses == 0
    }
}

type Records = FxHashMap<Handle, HandleRecord>;

/// A part of the table with a lock of its own, in cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Records>);

const SHARDS: usize = 16;

/// The number of handle numbers that a table takes at a time.
const BLOCK: u64 = 1 << 24;

/// The next block of numbers in this process. The first is left out, as 0 is the null handle.
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(1);

/// Generates the numbers of one table's handles, each unique in the process.
#[derive(Debug, Default)]
struct HandleNumbers {
    blocks: Vec<u64>,
    next: u64,
}

impl HandleNumbers {
    fn next(&mut self) -> u64 {
        if self.next.is_multiple_of(BLOCK) {
            let block = NEXT_BLOCK.fetch_add(1, Ordering::Relaxed);
            self.blocks.push(block);
            self.next = block * BLOCK;
        }
        self.next += 1;
        self.next - 1
    }

    /// Returns why no handle with this number is found.
    fn problem_with(&self, number: u64) -> Problem {
        let block = number / BLOCK;
        if number == 0 {
            Problem::Null
        } else if self.blocks.contains(&block) {
            // Blocks are taken in ascending order, and each but the last is used up.
            if number < self.next { Problem::Released } else { Problem::UnknownHandle }
        } else if (1..NEXT_BLOCK.load(Ordering::Relaxed)).contains(&block) {
            Problem::ForeignHandle
        } else {
            Problem::UnknownHandle
        }
    }
}

/// All handles of one `Vmm`. Threads that use different handles mostly lock different shards.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    shards: [Shard; SHARDS],
    numbers: Mutex<HandleNumbers>,
}

impl Handles {
    fn shard(&self, handle: Handle) -> Ordered<MutexGuard<'_, Records>> {
        let Shard(records) = &self.shards[handle.0 as usize % SHARDS];
        Ordered::take(Rank::Handles, 0, || lock(records))
    }

    fn shards(&self) -> impl Iterator<Item = Ordered<MutexGuard<'_, Records>>> {
        self.shards.iter().map(|Shard(records)| Ordered::take(Rank::Handles, 0, || lock(records)))
    }

    /// Counts live handles.
    pub fn len(&self) -> usize {
        self.shards().map(|records| records.len()).sum()
    }

    /// Adds physical memory.
    pub fn insert(&self, record: HandleRecord) -> Handle {
        let handle = Handle(lock(&self.numbers).next());
        self.shard(handle).insert(handle, record);
        handle
    }

    /// Calls `act` with a handle that the caller still has a reference to.
    pub fn with<T>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut HandleRecord) -> T,
    ) -> Result<T, ErrorKind> {
        if let Some(record) = self.shard(handle).get_mut(&handle)
            && record.references > 0
        {
            return Ok(act(record));
        }
        Err(self.invalid(handle))
    }

    fn invalid(&self, handle: Handle) -> ErrorKind {
        let problem = lock(&self.numbers).problem_with(handle.0);
        ErrorKind::invalid(Argument::Handle, handle, problem)
    }

    /// Calls `act` with a handle that is alive, with references or without.
    pub fn with_live<T>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut HandleRecord) -> T,
    ) -> Option<T> {
        self.shard(handle).get_mut(&handle).map(act)
    }

    /// Calls `act` with every live handle, in the order in which they were created.
    pub fn each<T>(&self, mut act: impl FnMut(Handle, &HandleRecord) -> T) -> Vec<T> {
        let mut all = Vec::new();
        for records in self.shards() {
            all.extend(records.iter().map(|(&handle, record)| (handle, act(handle, record))));
        }
        all.sort_by_key(|(handle, _)| *handle);
        all.into_iter().map(|(_, value)| value).collect()
    }

    /// Lets `count` decrement a counter. Returns the record if nothing keeps the memory alive any more: the
    /// caller then releases the memory.
    #[must_use = "the memory is to be released"]
    pub fn end(
        &self,
        handle: Handle,
        count: impl FnOnce(&mut HandleRecord),
    ) -> Option<HandleRecord> {
        let mut records = self.shard(handle);
        let record = records.get_mut(&handle)?;
        count(record);
        if record.is_dead() { records.remove(&handle) } else { None }
    }

    /// Drops a reference; otherwise as [`end`](Self::end). After the last reference the handle is invalid;
    /// [`restore`](Self::restore) undoes that.
    pub fn release(&self, handle: Handle) -> Result<Option<HandleRecord>, ErrorKind> {
        let mut is_referenced = false;
        let ended = self.end(handle, |record| {
            is_referenced = record.references > 0;
            record.references -= u32::from(is_referenced);
        });
        if is_referenced { Ok(ended) } else { Err(self.invalid(handle)) }
    }

    /// Undoes the release of the last reference, where the memory could not be released.
    pub fn restore(&self, handle: Handle, record: HandleRecord) {
        self.shard(handle).insert(handle, HandleRecord { references: 1, ..record });
    }

    /// Adds a reference to memory that is mapped.
    pub(super) fn retain(&self, handle: Handle) -> bool {
        let more = |record: &mut HandleRecord| {
            let more = record.references.checked_add(1);
            record.references = more.unwrap_or(record.references);
            more.is_some()
        };
        self.with_live(handle, more).unwrap_or_default()
    }

    /// Removes every handle, for the end of the `Vmm`.
    pub fn drain(&self) -> Vec<HandleRecord> {
        self.shards().flat_map(|mut records| std::mem::take(&mut *records).into_values()).collect()
    }

    /// Checks the counts against the existing mappings of each handle; more may be in progress.
    pub(super) fn check(
        &self,
        mapped: &HashMap<Handle, u32>,
        may_be_more: bool,
    ) -> Result<(), String> {
        let mut live = 0;
        for records in self.shards() {
            live += records.keys().filter(|handle| mapped.contains_key(handle)).count();
            for (handle, record) in &*records {
                let found = mapped.get(handle).copied().unwrap_or_default();
                let counted = record.mappings;
                if counted < found || counted > found && !may_be_more {
                    return Err(format!("{handle:?} counts {counted} mappings and has {found}"));
                }
                if record.is_dead() {
                    return Err(format!("nothing keeps {handle:?} alive"));
                }
            }
        }
        if live != mapped.len() {
            return Err("a mapping has no handle".into());
        }
        Ok(())
    }
}
