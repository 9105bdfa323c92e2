//! The resources that a simulation uses.

use crate::handles::{Content, Handle};
use crate::instance::Instance;
use crate::physical::{Memory, Owner};
use std::collections::HashSet;
use std::sync::Arc;

/// The resources that a simulation uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Reserved ranges of addresses that were not freed.
    pub reservations: usize,
    /// Handles of physical memory that are referenced or mapped.
    pub handles: usize,
    /// Mappings of handles at addresses.
    pub mappings: usize,
    /// Allocations from pools, and attached and locked memory.
    pub allocations: usize,
    /// Used bytes of each GPU's video memory.
    pub vram_used: Vec<u64>,
    /// The part of `vram_used` that only former mappings keep in use. In generation B, such memory
    /// stays in use until the addresses are freed, or until other code replaces the mappings that
    /// the runtime has left there.
    pub vram_lingering: Vec<u64>,
    /// Open file descriptors that the simulation owns, except those of leaked memory.
    pub descriptors: usize,
}

impl Usage {
    pub(crate) fn of(instance: &Instance) -> Self {
        let mut state = instance.lock();
        state.drop_replaced_memory();
        let mut files = HashSet::new();
        let mut other_descriptors = 0;
        let mut count_file = |memory: &Arc<Memory>| {
            if memory.existing_file().is_some() {
                files.insert(Arc::as_ptr(memory));
            }
        };
        for handle in state.handles.iter() {
            other_descriptors += usize::from(handle.exported.is_some());
            match &handle.content {
                Content::Memory(memory) => count_file(memory),
                Content::Unresolved(_) => other_descriptors += 1,
                Content::Borrowed(_) | Content::Missing => {}
            }
        }
        state
            .allocations
            .values()
            .filter_map(|allocation| allocation.memory.as_ref())
            .for_each(&mut count_file);
        for reservation in state.reservations.values() {
            reservation.lingering.values().for_each(&mut count_file);
        }
        let mut vram_lingering = vec![0; instance.video_memory.len()];
        let mut counted: HashSet<_> =
            state.handles.iter().filter_map(Handle::memory).map(Arc::as_ptr).collect();
        counted.extend(state.leaked_memory.iter().map(Arc::as_ptr));
        for memory in
            state.reservations.values().flat_map(|reservation| reservation.lingering.values())
        {
            if let (Owner::Gpu(gpu), true) = (memory.owner, counted.insert(Arc::as_ptr(memory))) {
                vram_lingering[gpu] += memory.claimed();
            }
        }
        Self {
            reservations: state.reservations.len(),
            handles: state.handles.len(),
            mappings: state.mappings.len(),
            allocations: state.allocations.len(),
            vram_used: instance.video_memory.iter().map(|account| account.used()).collect(),
            vram_lingering,
            descriptors: files.len() + other_descriptors,
        }
    }
}
