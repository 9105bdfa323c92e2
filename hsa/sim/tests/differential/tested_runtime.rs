//! One of the two runtimes of a comparison: a runtime, its agents and pools, and its values for the
//! names in sequences.
// The unsafe blocks call functions of the runtime's table, and system calls on descriptors that this module owns. The
// pointers refer to locals of the right type. All other addresses are in an area that no other code uses.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::calls::{self, Call, Descriptor, Handle, Hint, Location, Name};
use crate::setup::{self, OK};
use core::ffi::c_void;
use core::ptr::{null, null_mut, without_provenance, without_provenance_mut};
use hsa_sys::*;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// The size of an area. A sequence on one runtime uses only the addresses of one area.
pub const AREA_SIZE: u64 = 1 << 28;
/// A handle that no runtime returns.
const GARBAGE: u64 = 0xdead_beef_0000;
/// The time limit of an asynchronous copy.
const COPY_TIMEOUT: Duration = Duration::from_secs(60);
/// The timeout of one wait, in ticks of the runtime's clock. A tick is at least a nanosecond long, so the timeout is at
/// least 0.1 seconds.
const WAIT_TICKS: u64 = 100_000_000;
/// A descriptor number that no process has.
const CLOSED_DESCRIPTOR: i32 = 0x7fff_fff0;

/// The result of a call, in a form that can be compared between runtimes.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub status: hsa_status_t,
    pub values: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(u64),
    /// An offset from the start of the area.
    InArea(u64),
    /// An address outside of the area. The test has freed the reservation at once, and `freed` is the status of that
    /// call.
    Elsewhere {
        aligned: bool,
        freed: hsa_status_t,
    },
    Handle(Name),
    /// The index of an agent or a pool. `None` if the runtime does not list it.
    Index(Option<usize>),
}

impl From<hsa_status_t> for Outcome {
    fn from(status: hsa_status_t) -> Self {
        Self { status, values: vec![] }
    }
}

/// A started runtime, and its objects in the current sequence.
#[derive(Debug)]
pub struct TestedRuntime {
    core: Core,
    pub vmem: Vmem,
    pub agents: Vec<hsa_agent_t>,
    pub gpus: Vec<hsa_agent_t>,
    pools: Vec<hsa_amd_memory_pool_t>,
    /// The start of this sequence's area.
    pub area: u64,
    reservations: BTreeMap<Name, u64>,
    handles: BTreeMap<Name, u64>,
    descriptors: BTreeMap<Name, OwnedFd>,
    has_imported: bool,
    memory_file: OwnedFd,
    dev_null: std::fs::File,
}

impl TestedRuntime {
    /// Starts a runtime. The area of its first sequence begins at `area`.
    pub fn start(table: &Table, area: u64) -> Self {
        let (core, vmem) = (table.core, table.vmem.expect("virtual memory"));
        assert_eq!(unsafe { (core.hsa_init)() }, OK, "hsa_init");
        let agents = setup::agents(&core);
        let kind = |agent| setup::agent_info::<u32>(&core, agent, HSA_AGENT_INFO_DEVICE);
        let is_gpu = |agent: &hsa_agent_t| kind(*agent) == Ok(HSA_DEVICE_TYPE_GPU);
        let gpus = agents.iter().copied().filter(is_gpu).collect();
        let pools = agents.iter().flat_map(|agent| setup::pools(&core, *agent)).collect();
        let name = c"differential";
        let memory_file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        assert!(memory_file >= 0, "memfd_create");
        Self {
            core,
            vmem,
            agents,
            gpus,
            pools,
            area,
            reservations: BTreeMap::new(),
            handles: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            has_imported: false,
            memory_file: unsafe { OwnedFd::from_raw_fd(memory_file) },
            dev_null: std::fs::File::open("/dev/null").expect("/dev/null"),
        }
    }

    pub fn shut_down(&mut self) -> hsa_status_t {
        unsafe { (self.core.hsa_shut_down)() }
    }

    /// Forgets the objects of the last sequence. The next sequence gets another area.
    pub fn next_sequence(&mut self) {
        self.area += AREA_SIZE;
        self.reservations.clear();
        self.handles.clear();
        self.close_descriptors();
    }

    /// Returns whether each name in a call has a value. A name has a value if the call that creates
    /// its object has succeeded.
    pub fn has_all_names(&self, call: &Call) -> bool {
        let location = |location| match location {
            Location::In(name, _) => self.reservations.contains_key(&name),
            Location::Null | Location::Area(_) => true,
        };
        let handle = |handle| match handle {
            Handle::Of(name) => self.handles.contains_key(&name),
            Handle::Zero | Handle::Garbage => true,
        };
        call.locations().into_iter().all(location)
            && call.handle().is_none_or(handle)
            && call.descriptor().is_none_or(|name| self.descriptors.contains_key(&name))
    }

    pub fn handle_names(&self) -> impl Iterator<Item = &Name> {
        self.handles.keys()
    }

    /// Returns whether an exported descriptor is open, or a descriptor was imported.
    pub fn has_shared_memory(&self) -> bool {
        self.has_imported || !self.descriptors.is_empty()
    }

    /// Closes all exported descriptors. The caller must have released all handles.
    pub fn close_descriptors(&mut self) {
        self.descriptors.clear();
        self.has_imported = false;
    }

    /// Returns the name of the latest object that has the same value as this handle. Runtimes reuse
    /// the values of handles.
    pub fn current_name(&self, name: Name) -> Option<Name> {
        let value = self.handles.get(&name)?;
        self.handles.iter().rev().find(|(_, other)| *other == value).map(|(name, _)| *name)
    }

    pub fn address(&self, location: Location) -> u64 {
        match location {
            Location::Null => 0,
            Location::Area(offset) => self.area + offset,
            Location::In(name, offset) => {
                self.reservations.get(&name).copied().unwrap_or(0).wrapping_add_signed(offset)
            }
        }
    }

    fn pointer(&self, location: Location) -> *mut c_void {
        without_provenance_mut(self.address(location) as usize)
    }

    fn handle(&self, handle: Handle) -> hsa_amd_vmem_alloc_handle_t {
        let handle = match handle {
            Handle::Of(name) => self.handles.get(&name).copied().unwrap_or(0),
            Handle::Zero => 0,
            Handle::Garbage => GARBAGE,
        };
        hsa_amd_vmem_alloc_handle_t { handle }
    }

    fn agent(&self, agent: calls::Agent) -> hsa_agent_t {
        match agent {
            calls::Agent::Number(number) => self.agents[number % self.agents.len()],
            calls::Agent::Zero => hsa_agent_t { handle: 0 },
        }
    }

    pub fn pool(&self, pool: calls::Pool) -> hsa_amd_memory_pool_t {
        match pool {
            calls::Pool::Gpu(number) => setup::pools(&self.core, self.gpus[number])[0],
            calls::Pool::Number(number) => self.pools[number % self.pools.len()],
            calls::Pool::Zero => hsa_amd_memory_pool_t { handle: 0 },
        }
    }

    fn address_value(&self, address: *const c_void) -> Value {
        match (address.addr() as u64).checked_sub(self.area) {
            Some(offset) if offset < AREA_SIZE => Value::InArea(offset),
            _ => Value::Number(address.addr() as u64),
        }
    }

    /// Performs a call. All names in the call must have values.
    pub fn perform(&mut self, call: &Call) -> Outcome {
        let vmem = self.vmem;
        match *call {
            Call::Reserve { id, size, hint, alignment, flags } => {
                self.reserve(id, size, hint, alignment, flags)
            }
            Call::Free { at, size } => {
                unsafe { (vmem.hsa_amd_vmem_address_free)(self.pointer(at), size as usize) }.into()
            }
            Call::Create { id, pool, size, memory_type, flags } => {
                let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
                let (create, pool) = (vmem.hsa_amd_vmem_handle_create, self.pool(pool));
                let size = size as usize;
                let status = unsafe { create(pool, size, memory_type, flags, &mut handle) };
                if status == OK {
                    self.handles.insert(id, handle.handle);
                }
                status.into()
            }
            Call::Release { handle } => {
                unsafe { (vmem.hsa_amd_vmem_handle_release)(self.handle(handle)) }.into()
            }
            Call::Map { at, size, offset, handle, flags } => {
                let (size, offset) = (size as usize, offset as usize);
                let (map, handle) = (vmem.hsa_amd_vmem_map, self.handle(handle));
                unsafe { map(self.pointer(at), size, offset, handle, flags) }.into()
            }
            Call::Unmap { at, size } => {
                unsafe { (vmem.hsa_amd_vmem_unmap)(self.pointer(at), size as usize) }.into()
            }
            Call::SetAccess { at, size, ref requests } => {
                let request = |&(agent, permissions): &calls::AccessRequest| {
                    hsa_amd_memory_access_desc_t { permissions, agent_handle: self.agent(agent) }
                };
                let list: Vec<_> = requests.iter().map(request).collect();
                let set = vmem.hsa_amd_vmem_set_access;
                let (at, size) = (self.pointer(at), size as usize);
                unsafe { set(at, size, list.as_ptr(), list.len()) }.into()
            }
            Call::GetAccess { at, agent } => self.get_access(self.address(at), self.agent(agent)),
            Call::AllowAccess { at, ref agents } => {
                let list: Vec<_> = agents.iter().map(|agent| self.agent(*agent)).collect();
                let allow = self.core.hsa_amd_agents_allow_access.expect("in the table");
                let (count, at) = (list.len() as u32, self.pointer(at));
                unsafe { allow(count, list.as_ptr(), null(), at) }.into()
            }
            Call::Export { id, handle, flags } => self.export(id, self.handle(handle), flags),
            Call::Import { id, descriptor } => self.import(id, descriptor),
            Call::Close { descriptor } => {
                self.descriptors.remove(&descriptor);
                OK.into()
            }
            Call::Retain { at } => {
                let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
                let retain = vmem.hsa_amd_vmem_retain_alloc_handle;
                let status = unsafe { retain(&mut handle, self.pointer(at)) };
                let value = handle.handle;
                let found = self.handles.iter().rev().find(|(_, other)| **other == value);
                let value = found.map_or(Value::Number(value), |(name, _)| Value::Handle(*name));
                Outcome { status, values: vec![value] }
            }
            Call::Properties { handle } => self.properties(handle),
            Call::PointerInfo { at } => self.pointer_info(at),
            Call::PoolFree { at } => {
                let free = self.core.hsa_amd_memory_pool_free.expect("in the table");
                unsafe { free(self.pointer(at)) }.into()
            }
            Call::Write { at, value } => {
                let written = crate::observe::write(self.address(at), value);
                Outcome { status: OK, values: vec![Value::Number(written.into())] }
            }
            Call::Poke { at, value } => {
                self.copy(self.address(at), (&raw const value).addr() as u64, 8).into()
            }
            Call::Peek { at } => {
                let mut word = 0u64;
                let status = self.copy((&raw mut word).addr() as u64, self.address(at), 8);
                Outcome { status, values: vec![Value::Number(word)] }
            }
            Call::Copy { to, from, size } => {
                self.copy(self.address(to), self.address(from), size).into()
            }
            Call::CopyAsync { to, from, size, gpu } => self.copy_async(to, from, size, gpu),
            Call::Fill { at, value, words } => {
                let fill = self.core.hsa_amd_memory_fill.expect("in the table");
                unsafe { fill(self.pointer(at), value, words as usize) }.into()
            }
        }
    }

    fn reserve(&mut self, id: Name, size: u64, hint: Hint, alignment: u64, flags: u64) -> Outcome {
        let hint = match hint {
            Hint::Nowhere => 0,
            Hint::Area(offset) => self.area + offset,
        };
        let mut address = null_mut();
        let bytes = size as usize;
        let status = match self.vmem.hsa_amd_vmem_address_reserve_align {
            Some(reserve) => unsafe { reserve(&mut address, bytes, hint, alignment, flags) },
            None => unsafe {
                (self.vmem.hsa_amd_vmem_address_reserve)(&mut address, bytes, hint, flags)
            },
        };
        if status != OK {
            return status.into();
        }
        let value = self.address_value(address);
        if let Value::InArea(_) = value {
            self.reservations.insert(id, address.addr() as u64);
            return Outcome { status, values: vec![value] };
        }
        // Free a reservation outside of the area at once. Other code may use the addresses around the reservation, so
        // the results of later calls there could differ between the runtimes.
        let natural_alignment = (1 << size.max(PAGE).ilog2()).min(512 * PAGE);
        let is_registered = flags & u64::from(HSA_AMD_VMEM_ADDRESS_NO_REGISTER) == 0;
        let alignment = if is_registered { natural_alignment } else { PAGE };
        let aligned = (address.addr() as u64).is_multiple_of(alignment);
        let freed = unsafe { (self.vmem.hsa_amd_vmem_address_free)(address, bytes) };
        Outcome { status, values: vec![Value::Elsewhere { aligned, freed }] }
    }

    pub fn get_access(&self, address: u64, agent: hsa_agent_t) -> Outcome {
        let mut permission = setup::UNWRITTEN;
        let get = self.vmem.hsa_amd_vmem_get_access;
        let address = without_provenance_mut(address as usize);
        let status = unsafe { get(address, &mut permission, agent) };
        Outcome { status, values: vec![Value::Number(permission.into())] }
    }

    fn export(&mut self, id: Name, handle: hsa_amd_vmem_alloc_handle_t, flags: u64) -> Outcome {
        let mut descriptor = setup::UNWRITTEN as i32;
        let export = self.vmem.hsa_amd_vmem_export_shareable_handle;
        let status = unsafe { export(&mut descriptor, handle, flags) };
        if status != OK {
            return Outcome { status, values: vec![Value::Number(descriptor as u32 as u64)] };
        }
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let raw = descriptor.as_raw_fd();
        let size = unsafe { libc::lseek(raw, 0, libc::SEEK_END) };
        let flags = unsafe { libc::fcntl(raw, libc::F_GETFD) };
        self.descriptors.insert(id, descriptor);
        Outcome { status, values: vec![Value::Number(size as u64), Value::Number(flags as u64)] }
    }

    fn import(&mut self, id: Name, descriptor: Descriptor) -> Outcome {
        let descriptor = match descriptor {
            Descriptor::Of(name) => {
                self.descriptors.get(&name).map_or(CLOSED_DESCRIPTOR, |d| d.as_raw_fd())
            }
            Descriptor::Negative => -1,
            Descriptor::Closed => CLOSED_DESCRIPTOR,
            Descriptor::DevNull => self.dev_null.as_raw_fd(),
            Descriptor::MemoryFile => self.memory_file.as_raw_fd(),
        };
        let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let import = self.vmem.hsa_amd_vmem_import_shareable_handle;
        let status = unsafe { import(descriptor, &mut handle) };
        if status == OK {
            self.has_imported = true;
            self.handles.insert(id, handle.handle);
        }
        status.into()
    }

    pub fn properties(&self, handle: Handle) -> Outcome {
        let (mut pool, mut memory_type) = (hsa_amd_memory_pool_t { handle: 0 }, setup::UNWRITTEN);
        let query = self.vmem.hsa_amd_vmem_get_alloc_properties_from_handle;
        let status = unsafe { query(self.handle(handle), &mut pool, &mut memory_type) };
        if status != OK {
            return Outcome { status, values: vec![Value::Number(memory_type.into())] };
        }
        let pool = self.pools.iter().position(|other| other.handle == pool.handle);
        Outcome { status, values: vec![Value::Index(pool), Value::Number(memory_type.into())] }
    }

    fn pointer_info(&self, at: Location) -> Outcome {
        let mut info: hsa_amd_pointer_info_t = unsafe { core::mem::zeroed() };
        info.size = size_of::<hsa_amd_pointer_info_t>() as u32;
        let query = self.core.hsa_amd_pointer_info.expect("in the table");
        let status = unsafe { query(self.pointer(at), &mut info, None, null_mut(), null_mut()) };
        let owner = self.agents.iter().position(|agent| agent.handle == info.agentOwner.handle);
        let values = vec![
            Value::Number(info.type_.into()),
            self.address_value(info.agentBaseAddress),
            self.address_value(info.hostBaseAddress),
            Value::Number(info.sizeInBytes as u64),
            Value::Index(owner),
        ];
        Outcome { status, values }
    }

    fn copy(&self, to: u64, from: u64, size: u64) -> hsa_status_t {
        let copy = self.core.hsa_memory_copy.expect("in the table");
        let (to, from) = (without_provenance_mut(to as usize), without_provenance(from as usize));
        unsafe { copy(to, from, size as usize) }
    }

    fn copy_async(&self, to: Location, from: Location, size: u64, gpu: usize) -> Outcome {
        let agent = self.gpus[gpu % self.gpus.len()];
        let mut signal = hsa_signal_t { handle: 0 };
        let create = self.core.hsa_signal_create.expect("in the table");
        assert_eq!(unsafe { create(1, 0, null(), &mut signal) }, OK, "hsa_signal_create");
        let copy = self.core.hsa_amd_memory_async_copy.expect("in the table");
        let (to, from, size) = (self.pointer(to), self.pointer(from), size as usize);
        let status = unsafe { copy(to, agent, from, agent, size, 0, null(), signal) };
        let wait = self.core.hsa_signal_wait_scacquire.expect("in the table");
        let remaining = if status == OK && size > 0 {
            let (condition, state) = (HSA_SIGNAL_CONDITION_LT, HSA_WAIT_STATE_BLOCKED);
            let started = Instant::now();
            // A wait may return before the condition holds.
            loop {
                let value = unsafe { wait(signal, condition, 1, WAIT_TICKS, state) };
                if value < 1 {
                    break value;
                }
                assert!(started.elapsed() < COPY_TIMEOUT, "hsa_amd_memory_async_copy hangs");
            }
        } else {
            1
        };
        let destroy = self.core.hsa_signal_destroy.expect("in the table");
        assert_eq!(unsafe { destroy(signal) }, OK, "hsa_signal_destroy");
        Outcome { status, values: vec![Value::Number(remaining as u64)] }
    }

    /// Returns the attributes of each pool, in order.
    pub fn pool_attributes(&self) -> Vec<[Result<u64, hsa_status_t>; 6]> {
        let pools = self.pools.iter().map(|pool| {
            let word =
                |attribute| setup::pool_info::<u32>(&self.core, *pool, attribute).map(u64::from);
            let size = |attribute| setup::pool_info::<u64>(&self.core, *pool, attribute);
            [
                word(HSA_AMD_MEMORY_POOL_INFO_SEGMENT),
                word(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS),
                word(HSA_AMD_MEMORY_POOL_INFO_LOCATION),
                setup::pool_info::<bool>(
                    &self.core,
                    *pool,
                    HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED,
                )
                .map(u64::from),
                size(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE),
                size(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE),
            ]
        });
        pools.collect()
    }

    /// Returns the available memory of each GPU.
    pub fn available_memory(&self) -> Vec<u64> {
        let query = |gpu: &hsa_agent_t| {
            setup::agent_info::<u64>(&self.core, *gpu, HSA_AMD_AGENT_INFO_MEMORY_AVAIL)
        };
        self.gpus.iter().map(|gpu| query(gpu).expect("an attribute")).collect()
    }
}
