//! Handles: physical memory, counted by references (create, import, retain) and by mappings.

use crate::error::{Argument, ErrorKind, Problem};
use crate::handle::{Handle, HandleType};
use crate::native::NativeHandle;
use crate::sync::{Mutex, MutexGuard, Ordered, Rank, lock};
use crate::vmm::properties::AllocationProperties;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Physical memory, alive while it is referenced, mapped or used.
///
/// The record owns the runtime's handle. Only code that has removed the record from [`Handles`] releases the
/// runtime's handle.
#[derive(Debug)]
pub(crate) struct HandleRecord {
    pub size: usize,
    /// The unit of sizes and addresses of the memory's mappings, in bytes.
    pub granule: usize,
    pub properties: AllocationProperties,
    /// The index of the agent that owns the memory, if known: a CPU for memory of the host.
    pub owner: Option<u8>,
    /// The runtime's handle.
    pub native: NativeHandle,
    pub imported: bool,
    /// Whether the memory may have been exported, so that other processes may use it.
    pub exported: bool,
    /// Whether the memory is the zero page of a buffer.
    pub is_zero_page: bool,
    /// The library's copy of an imported descriptor, if the runtime needs it later or cannot export the
    /// memory again.
    pub descriptor: Option<OwnedFd>,
    pub name: Option<Arc<str>>,
    /// The number of the caller's references: one for create or import, one for each retain.
    pub references: u32,
    /// The number of mappings, including those that are being created.
    pub mappings: u32,
    /// The number of operations in progress that need the memory.
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
            owner: properties.owner(),
            native,
            imported: false,
            exported: false,
            is_zero_page: false,
            descriptor: None,
            name: None,
            references: 1,
            mappings: 0,
            uses: 0,
        }
    }

    /// Returns whether the runtime can export the memory as a dma-buf. Memory that was imported over the fabric has
    /// none.
    pub fn has_dma_buf(&self) -> bool {
        !(self.imported && self.properties.handle_types == HandleType::FABRIC)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.references == 0 && self.mappings == 0 && self.uses == 0
    }
}

type Records = FxHashMap<Handle, HandleRecord>;

/// A part of the table with its own lock, in its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Records>);

const SHARD_COUNT: usize = 16;

/// The number of handle numbers in a block. A table takes one block at a time.
const BLOCK_SIZE: u64 = 1 << 24;

/// The index of the next unused block in this process. Block 0 is not used, because its first number is the
/// null handle.
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(1);

/// The generator of the numbers of one table's handles. Each number is unique in the process.
#[derive(Debug, Default)]
struct HandleNumbers {
    blocks: Vec<u64>,
    next: u64,
}

impl HandleNumbers {
    fn next(&mut self) -> u64 {
        if self.next.is_multiple_of(BLOCK_SIZE) {
            let block = NEXT_BLOCK.fetch_add(1, Ordering::Relaxed);
            self.blocks.push(block);
            self.next = block * BLOCK_SIZE;
        }
        self.next += 1;
        self.next - 1
    }

    /// Returns the reason why no live handle has this number.
    fn problem_with(&self, number: u64) -> Problem {
        let block = number / BLOCK_SIZE;
        if number == 0 {
            Problem::Null
        } else if self.blocks.contains(&block) {
            // Blocks are taken in ascending order, and all blocks but the last are used completely.
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
    shards: [Shard; SHARD_COUNT],
    numbers: Mutex<HandleNumbers>,
    /// Records without a handle, whose memory the runtime failed to release.
    unreleased: Mutex<Vec<HandleRecord>>,
}

impl Handles {
    fn shard(&self, handle: Handle) -> Ordered<MutexGuard<'_, Records>> {
        let Shard(records) = &self.shards[handle.0 as usize % SHARD_COUNT];
        Ordered::take(Rank::Handles, 0, || lock(records))
    }

    fn shards(&self) -> impl Iterator<Item = Ordered<MutexGuard<'_, Records>>> {
        self.shards
            .iter()
            .enumerate()
            .map(|(key, Shard(records))| Ordered::take(Rank::Handles, key, || lock(records)))
    }

    /// Returns the number of live handles.
    pub fn len(&self) -> usize {
        self.shards().map(|records| records.len()).sum()
    }

    /// Adds physical memory, and returns its new handle.
    pub fn insert(&self, record: HandleRecord) -> Handle {
        let handle = Handle(lock(&self.numbers).next());
        self.shard(handle).insert(handle, record);
        handle
    }

    /// Calls `act` with the record of a handle. Fails if the caller has no reference to the handle.
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

    /// Calls `act` with the record of a live handle, with or without references.
    pub fn with_live<T>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut HandleRecord) -> T,
    ) -> Option<T> {
        self.shard(handle).get_mut(&handle).map(act)
    }

    /// Calls `act` with each handle that is live at one moment. Returns the results in the order in which the handles
    /// were created.
    pub fn for_each_live<T>(&self, mut act: impl FnMut(Handle, &HandleRecord) -> T) -> Vec<T> {
        let mut all = Vec::new();
        // Locks all shards first. Otherwise a handle could be listed that was created after another was released.
        for records in self.shards().collect::<Vec<_>>() {
            all.extend(records.iter().map(|(&handle, record)| (handle, act(handle, record))));
        }
        all.sort_by_key(|(handle, _)| *handle);
        all.into_iter().map(|(_, value)| value).collect()
    }

    /// Calls `act`, which decrements a counter of the record. If all counters are then 0, removes and returns
    /// the record. The caller must release the memory.
    #[must_use = "the caller must release the memory"]
    pub fn decrement(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut HandleRecord),
    ) -> Option<HandleRecord> {
        let mut records = self.shard(handle);
        let record = records.get_mut(&handle)?;
        act(record);
        if record.is_dead() { records.remove(&handle) } else { None }
    }

    /// Drops a reference. If all counters are then 0, removes and returns the record, as
    /// [`decrement`](Self::decrement) does. Fails if the handle has no reference.
    pub fn release(&self, handle: Handle) -> Result<Option<HandleRecord>, ErrorKind> {
        let mut is_referenced = false;
        let removed = self.decrement(handle, |record| {
            is_referenced = record.references > 0;
            record.references -= u32::from(is_referenced);
        });
        if is_referenced { Ok(removed) } else { Err(self.invalid(handle)) }
    }

    /// Undoes the release of the last reference, after the runtime failed to release the memory.
    pub fn restore(&self, handle: Handle, record: HandleRecord) {
        self.shard(handle).insert(handle, HandleRecord { references: 1, ..record });
    }

    /// Gives memory that nothing else uses a new handle, and removes its name, so that calls with the old handle fail.
    /// Returns `None`, and changes nothing, if the memory may have been exported, or has other references, mappings or
    /// operations in progress.
    pub fn renew(&self, handle: Handle) -> Option<Handle> {
        let mut records = self.shard(handle);
        let HandleRecord { references, mappings, uses, exported, .. } = *records.get(&handle)?;
        if references != 1 || mappings > 0 || uses > 0 || exported {
            return None;
        }
        let record = records.remove(&handle)?;
        drop(records);
        Some(self.insert(HandleRecord { name: None, ..record }))
    }

    /// Adds a reference to a live handle. Returns `false`, and adds nothing, if the handle is not live or the counter
    /// would overflow.
    pub(super) fn retain(&self, handle: Handle) -> bool {
        let increment = |record: &mut HandleRecord| {
            let references = record.references.checked_add(1);
            record.references = references.unwrap_or(record.references);
            references.is_some()
        };
        self.with_live(handle, increment).unwrap_or_default()
    }

    /// Keeps a removed record, whose memory could not be released, until [`drain`](Self::drain).
    pub fn keep_unreleased(&self, record: HandleRecord) {
        lock(&self.unreleased).push(record);
    }

    /// Removes and returns all records. Called when the `Vmm` is dropped.
    pub fn drain(&self) -> Vec<HandleRecord> {
        let mut all = std::mem::take(&mut *lock(&self.unreleased));
        for mut records in self.shards() {
            all.extend(std::mem::take(&mut *records).into_values());
        }
        all
    }

    /// Compares the count of mappings in each handle with `mapped`, the number of the handle's existing mappings. If
    /// `in_progress`, an operation is running, and a handle may also count mappings that the operation creates.
    pub(super) fn check(
        &self,
        mapped: &HashMap<Handle, u32>,
        in_progress: bool,
    ) -> Result<(), String> {
        let mut handles_with_mappings = 0;
        for records in self.shards() {
            handles_with_mappings +=
                records.keys().filter(|handle| mapped.contains_key(handle)).count();
            for (handle, record) in &*records {
                let found = mapped.get(handle).copied().unwrap_or_default();
                let counted = record.mappings;
                if counted < found || counted > found && !in_progress {
                    return Err(format!("{handle:?} counts {counted} mappings and has {found}"));
                }
                if record.is_dead() {
                    return Err(format!("nothing keeps {handle:?} alive"));
                }
            }
        }
        if handles_with_mappings != mapped.len() {
            return Err("a mapping has no handle".into());
        }
        Ok(())
    }
}
