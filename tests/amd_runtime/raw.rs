//! Calls AMD's runtime without the library, as a C program would.

use core::ffi::{c_int, c_void};
use hsa_rocr::test::Fixture;
use hsa_sys::*;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const NONE: hsa_access_permission_t = HSA_ACCESS_PERMISSION_NONE;
pub const RO: hsa_access_permission_t = HSA_ACCESS_PERMISSION_RO;
pub const WO: hsa_access_permission_t = HSA_ACCESS_PERMISSION_WO;
pub const RW: hsa_access_permission_t = HSA_ACCESS_PERMISSION_RW;

/// The size of mappings in these tests: several pages, so that a call can name a part of a mapping.
pub const SIZE: usize = 64 << 10;
pub const PAGE: usize = 4096;

/// The value of a variable before the runtime writes it.
const UNWRITTEN: u32 = 99;

type HsaResult<T = ()> = Result<T, hsa_status_t>;

/// A page fault of a GPU: the GPU's page table has no entry for the address, or does not permit the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// A started runtime, a CPU, the GPUs, and the first memory pool of each GPU.
pub struct RawRuntime {
    core: Core,
    vmem: Vmem,
    pub cpu: hsa_agent_t,
    pub gpus: Vec<hsa_agent_t>,
    pub pools: Vec<hsa_amd_memory_pool_t>,
    /// The address of a page that every agent can access, for copies.
    scratch: usize,
    // Dropped last, because it contains the code of the runtime's functions.
    _library: Library,
}

fn to_result<T>(status: hsa_status_t, value: T) -> HsaResult<T> {
    if status == HSA_STATUS_SUCCESS { Ok(value) } else { Err(status) }
}

fn handle(handle: u64) -> hsa_amd_vmem_alloc_handle_t {
    hsa_amd_vmem_alloc_handle_t { handle }
}

fn pointer(address: usize) -> *mut c_void {
    without_provenance_mut(address)
}

static FAULTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn record_fault(_: *const hsa_amd_event_t, _: *mut c_void) -> hsa_status_t {
    FAULTED.store(true, Ordering::SeqCst);
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn push_to_list<T: Copy>(item: T, list: *mut c_void) -> hsa_status_t {
    // SAFETY: `list` points to the `Vec<T>` that the caller passed to the iteration.
    unsafe { (*list.cast::<Vec<T>>()).push(item) };
    HSA_STATUS_SUCCESS
}

// Each unsafe block below calls a function of the loaded runtime with pointers to locals of the right type. Some tests
// pass invalid handles and addresses on purpose. A call that may crash the runtime runs in a child.
#[allow(clippy::undocumented_unsafe_blocks, reason = "explained once, above")]
impl RawRuntime {
    #[track_caller]
    pub fn start(fixture: &Fixture) -> Self {
        let library =
            unsafe { Library::load(&Search::only(fixture.runtime())) }.expect("a runtime");
        let core = library.table().core;
        let vmem = library.table().vmem.expect("virtual memory");
        to_result(unsafe { (core.hsa_init)() }, ()).expect("the runtime starts");
        let agents = agents(&core);
        let has_type = |device_type| {
            let core = &core;
            move |agent: &&hsa_agent_t| device_type_of(core, **agent) == device_type
        };
        let cpu = *agents.iter().find(has_type(HSA_DEVICE_TYPE_CPU)).expect("a CPU");
        let gpus: Vec<_> = agents.iter().filter(has_type(HSA_DEVICE_TYPE_GPU)).copied().collect();
        let pools = gpus.iter().map(|&gpu| pools(&core, gpu)[0]).collect();
        let register = core.hsa_amd_register_system_event_handler.expect("the function exists");
        to_result(unsafe { register(Some(record_fault), null_mut()) }, ()).expect("a handler");
        let mut raw = Self { core, vmem, cpu, gpus, pools, scratch: 0, _library: library };
        raw.scratch = raw.map_new_memory(PAGE, &[]).0;
        // One call names all agents, because 6.1.2 revokes the access of agents that a call does not name.
        let all_agents: Vec<_> = raw.gpus.iter().chain([&cpu]).map(|&agent| (agent, RW)).collect();
        raw.set_access(raw.scratch, PAGE, &all_agents).expect("access");
        raw
    }

    pub fn reserve(&self, size: usize) -> HsaResult<usize> {
        let mut address = null_mut();
        let reserve = self.vmem.hsa_amd_vmem_address_reserve;
        to_result(unsafe { reserve(&mut address, size, 0, 0) }, ()).map(|()| address.addr())
    }

    /// Reserves addresses near a hint. Requests the alignment only if the runtime has a function for it.
    pub fn reserve_near(&self, size: usize, hint: usize, alignment: usize) -> HsaResult<usize> {
        let (mut address, hint) = (null_mut(), hint as u64);
        let status = match self.vmem.hsa_amd_vmem_address_reserve_align {
            Some(reserve) => unsafe { reserve(&mut address, size, hint, alignment as u64, 0) },
            None => unsafe {
                (self.vmem.hsa_amd_vmem_address_reserve)(&mut address, size, hint, 0)
            },
        };
        to_result(status, ()).map(|()| address.addr())
    }

    pub fn free(&self, address: usize, size: usize) -> HsaResult {
        to_result(unsafe { (self.vmem.hsa_amd_vmem_address_free)(pointer(address), size) }, ())
    }

    /// Creates memory of the first GPU.
    pub fn create(&self, size: usize) -> HsaResult<u64> {
        let (mut memory, create) = (handle(0), self.vmem.hsa_amd_vmem_handle_create);
        let status = unsafe { create(self.pools[0], size, MEMORY_TYPE_PINNED, 0, &mut memory) };
        to_result(status, ()).map(|()| memory.handle)
    }

    pub fn release(&self, memory: u64) -> HsaResult {
        to_result(unsafe { (self.vmem.hsa_amd_vmem_handle_release)(handle(memory)) }, ())
    }

    pub fn map(&self, address: usize, size: usize, offset: usize, memory: u64) -> HsaResult {
        let map = self.vmem.hsa_amd_vmem_map;
        to_result(unsafe { map(pointer(address), size, offset, handle(memory), 0) }, ())
    }

    pub fn unmap(&self, address: usize, size: usize) -> HsaResult {
        to_result(unsafe { (self.vmem.hsa_amd_vmem_unmap)(pointer(address), size) }, ())
    }

    pub fn set_access(
        &self,
        address: usize,
        size: usize,
        access: &[(hsa_agent_t, hsa_access_permission_t)],
    ) -> HsaResult {
        let describe = |&(agent_handle, permissions): &(_, _)| hsa_amd_memory_access_desc_t {
            permissions,
            agent_handle,
        };
        let list: Vec<_> = access.iter().map(describe).collect();
        let set = self.vmem.hsa_amd_vmem_set_access;
        to_result(unsafe { set(pointer(address), size, list.as_ptr(), list.len()) }, ())
    }

    pub fn get_access(
        &self,
        address: usize,
        agent: hsa_agent_t,
    ) -> HsaResult<hsa_access_permission_t> {
        let (mut access, get) = (UNWRITTEN, self.vmem.hsa_amd_vmem_get_access);
        to_result(unsafe { get(pointer(address), &mut access, agent) }, ()).map(|()| access)
    }

    pub fn export(&self, memory: u64) -> HsaResult<c_int> {
        let (mut descriptor, export) = (-1, self.vmem.hsa_amd_vmem_export_shareable_handle);
        to_result(unsafe { export(&mut descriptor, handle(memory), 0) }, ()).map(|()| descriptor)
    }

    pub fn import(&self, descriptor: c_int) -> HsaResult<u64> {
        let (mut memory, import) = (handle(0), self.vmem.hsa_amd_vmem_import_shareable_handle);
        to_result(unsafe { import(descriptor, &mut memory) }, ()).map(|()| memory.handle)
    }

    pub fn retain(&self, address: usize) -> HsaResult<u64> {
        let (mut memory, retain) = (handle(0), self.vmem.hsa_amd_vmem_retain_alloc_handle);
        to_result(unsafe { retain(&mut memory, pointer(address)) }, ()).map(|()| memory.handle)
    }

    /// Returns the pool of the memory.
    pub fn pool(&self, memory: u64) -> HsaResult<hsa_amd_memory_pool_t> {
        let (mut pool, mut memory_type) = (hsa_amd_memory_pool_t { handle: 0 }, MEMORY_TYPE_NONE);
        let query = self.vmem.hsa_amd_vmem_get_alloc_properties_from_handle;
        to_result(unsafe { query(handle(memory), &mut pool, &mut memory_type) }, ()).map(|()| pool)
    }

    pub fn fill(&self, address: usize, value: u32, words: usize) -> HsaResult {
        let fill = self.core.hsa_amd_memory_fill.expect("the function exists");
        to_result(unsafe { fill(pointer(address), value, words) }, ())
    }

    /// Locks memory of this process for these agents, and returns the address at which they can access it.
    pub fn lock(&self, address: usize, size: usize, agents: &[hsa_agent_t]) -> HsaResult<usize> {
        let (mut device_address, lock) =
            (null_mut(), self.core.hsa_amd_memory_lock.expect("the function exists"));
        let mut agents = agents.to_vec();
        let (list, count) = (agents.as_mut_ptr(), agents.len() as c_int);
        let status = unsafe { lock(pointer(address), size, list, count, &mut device_address) };
        to_result(status, ()).map(|()| device_address.addr())
    }

    pub fn unlock(&self, address: usize) -> HsaResult {
        to_result(
            unsafe {
                self.core.hsa_amd_memory_unlock.expect("the function exists")(pointer(address))
            },
            (),
        )
    }

    /// Returns whether memory of this process is locked at an address.
    pub fn is_locked(&self, address: usize) -> bool {
        self.pointer_info(address).type_ == HSA_EXT_POINTER_TYPE_LOCKED
    }

    /// Returns the runtime's information about an address.
    pub fn pointer_info(&self, address: usize) -> hsa_amd_pointer_info_t {
        let query = self.core.hsa_amd_pointer_info.expect("the function exists");
        let mut info: hsa_amd_pointer_info_t = unsafe { core::mem::zeroed() };
        info.size = size_of::<hsa_amd_pointer_info_t>() as u32;
        let status = unsafe { query(pointer(address), &mut info, None, null_mut(), null_mut()) };
        to_result(status, info).expect("any address is valid")
    }

    /// Allocates pool memory of the first GPU.
    pub fn allocate(&self, size: usize) -> HsaResult<usize> {
        let (mut memory, allocate) =
            (null_mut(), self.core.hsa_amd_memory_pool_allocate.expect("the function exists"));
        to_result(unsafe { allocate(self.pools[0], size, 0, &mut memory) }, ())?;
        Ok(memory.addr())
    }

    /// Allows exactly these agents to access pool memory.
    pub fn allow(&self, address: usize, agents: &[hsa_agent_t]) -> HsaResult {
        let allow = self.core.hsa_amd_agents_allow_access.expect("the function exists");
        let (count, list) = (agents.len() as u32, agents.as_ptr());
        to_result(unsafe { allow(count, list, null(), pointer(address)) }, ())
    }

    /// Allocates memory of the first GPU and exports it for IPC. Returns its address and the words of its handle.
    pub fn share(&self, size: usize) -> HsaResult<(usize, [u32; 8])> {
        let memory = pointer(self.allocate(size)?);
        let mut ipc_handle = hsa_amd_ipc_memory_t { handle: [0; 8] };
        let share = self.core.hsa_amd_ipc_memory_create.expect("the function exists");
        let status = unsafe { share(memory, size, &mut ipc_handle) };
        to_result(status, ()).map(|()| (memory.addr(), ipc_handle.handle))
    }

    /// Frees memory that [`share`](Self::share) has allocated.
    pub fn free_shared(&self, address: usize) -> HsaResult {
        let free = self.core.hsa_amd_memory_pool_free.expect("the function exists");
        to_result(unsafe { free(pointer(address)) }, ())
    }

    /// Opens, for the first GPU, memory that another process has exported for IPC.
    pub fn attach(&self, handle: [u32; 8], size: usize) -> HsaResult<usize> {
        let (mut memory, handle) = (null_mut(), hsa_amd_ipc_memory_t { handle });
        let attach = self.core.hsa_amd_ipc_memory_attach.expect("the function exists");
        let status = unsafe { attach(&handle, size, 1, &self.gpus[0], &mut memory) };
        to_result(status, ()).map(|()| memory.addr())
    }

    pub fn detach(&self, address: usize) -> HsaResult {
        let detach = self.core.hsa_amd_ipc_memory_detach.expect("the function exists");
        to_result(unsafe { detach(pointer(address)) }, ())
    }

    /// Unmaps the scratch memory, so that this process has no mapping. Copies fail afterwards.
    pub fn unmap_scratch(&self) -> HsaResult {
        self.unmap(self.scratch, PAGE)
    }

    pub fn shut_down(&self) -> HsaResult {
        to_result(unsafe { (self.core.hsa_shut_down)() }, ())
    }

    /// Reserves addresses, and maps new memory of the first GPU over all of them.
    #[track_caller]
    pub fn map_new_memory(
        &self,
        size: usize,
        access: &[(hsa_agent_t, hsa_access_permission_t)],
    ) -> (usize, u64) {
        let address = self.reserve(size).expect("addresses");
        let memory = self.create(size).expect("memory");
        self.map(address, size, 0, memory).expect("a mapping");
        if !access.is_empty() {
            self.set_access(address, size, access).expect("access");
        }
        (address, memory)
    }

    /// Makes a GPU read eight bytes at an address, by a copy. After a fault, the runtime reports no other fault in this
    /// process.
    pub fn read_by(&self, gpu: hsa_agent_t, address: usize) -> Result<u64, Fault> {
        self.copy(gpu, self.scratch, address, 8)?;
        Ok(load(self.scratch))
    }

    /// Makes a GPU write eight bytes to an address, by a copy.
    pub fn write_by(&self, gpu: hsa_agent_t, address: usize, value: u64) -> Result<(), Fault> {
        store(self.scratch, value);
        self.copy(gpu, address, self.scratch, 8)
    }

    /// Makes the CPU copy eight bytes, waits until the runtime signals completion, and destroys the signal.
    /// Passes the signal's handle to `on_begin` before the copy.
    pub fn copy_by_cpu(&self, destination: usize, source: usize, on_begin: impl FnOnce(u64)) {
        let core = &self.core;
        let mut completion = hsa_signal_t { handle: 0 };
        let create = core.hsa_signal_create.expect("the function exists");
        to_result(unsafe { create(1, 0, null(), &mut completion) }, ()).expect("a signal");
        on_begin(completion.handle);
        let copy = core.hsa_amd_memory_async_copy.expect("the function exists");
        let status = unsafe {
            copy(
                pointer(destination),
                self.cpu,
                pointer(source),
                self.cpu,
                8,
                0,
                null(),
                completion,
            )
        };
        to_result(status, ()).expect("a copy begins");
        let load = core.hsa_signal_load_scacquire.expect("the function exists");
        let begun = Instant::now();
        while unsafe { load(completion) } != 0 {
            assert!(begun.elapsed() < Duration::from_secs(100), "the copy does not end");
            std::thread::yield_now();
        }
        to_result(unsafe { core.hsa_signal_destroy.expect("the function exists")(completion) }, ())
            .expect("the signal is destroyed");
    }

    /// Makes a GPU begin to copy `size` bytes. Returns the signal that the GPU decrements from 1 at the end.
    pub fn begin_copy(
        &self,
        gpu: hsa_agent_t,
        destination: usize,
        source: usize,
        size: usize,
    ) -> HsaResult<hsa_signal_t> {
        let core = &self.core;
        let mut completion = hsa_signal_t { handle: 0 };
        let create = core.hsa_signal_create.expect("the function exists");
        to_result(unsafe { create(1, 0, null(), &mut completion) }, ()).expect("a signal");
        let copy = core.hsa_amd_memory_async_copy.expect("the function exists");
        let status = unsafe {
            copy(pointer(destination), gpu, pointer(source), gpu, size, 0, null(), completion)
        };
        to_result(status, completion)
    }

    /// Makes a GPU copy `size` bytes.
    pub fn copy(
        &self,
        gpu: hsa_agent_t,
        destination: usize,
        source: usize,
        size: usize,
    ) -> Result<(), Fault> {
        let completion = self.begin_copy(gpu, destination, source, size).expect("a copy begins");
        let load = self.core.hsa_signal_load_scacquire.expect("the function exists");
        let begun = Instant::now();
        while unsafe { load(completion) } == 1 {
            if FAULTED.load(Ordering::SeqCst) {
                return Err(Fault);
            }
            assert!(begun.elapsed() < Duration::from_secs(100), "the copy neither ends nor faults");
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "explained at `impl RawRuntime`")]
fn agents(core: &Core) -> Vec<hsa_agent_t> {
    let mut found = Vec::<hsa_agent_t>::new();
    let list = (&raw mut found).cast();
    to_result(unsafe { (core.hsa_iterate_agents)(Some(push_to_list::<hsa_agent_t>), list) }, ())
        .unwrap();
    found
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "explained at `impl RawRuntime`")]
fn pools(core: &Core, agent: hsa_agent_t) -> Vec<hsa_amd_memory_pool_t> {
    let mut found = Vec::<hsa_amd_memory_pool_t>::new();
    let (list, push_to_list) =
        ((&raw mut found).cast(), Some(push_to_list::<hsa_amd_memory_pool_t> as _));
    let iterate = core.hsa_amd_agent_iterate_memory_pools;
    to_result(unsafe { iterate(agent, push_to_list, list) }, ()).unwrap();
    found
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "explained at `impl RawRuntime`")]
fn device_type_of(core: &Core, agent: hsa_agent_t) -> hsa_device_type_t {
    let mut device_type: hsa_device_type_t = UNWRITTEN;
    let value = (&raw mut device_type).cast();
    let query = core.hsa_agent_get_info;
    to_result(unsafe { query(agent, HSA_AGENT_INFO_DEVICE, value) }, ()).unwrap();
    device_type
}

/// Reads eight bytes with the CPU.
pub fn load(address: usize) -> u64 {
    atomic_at(address).load(Ordering::SeqCst)
}

/// Writes eight bytes with the CPU.
pub fn store(address: usize, value: u64) {
    atomic_at(address).store(value, Ordering::SeqCst);
}

fn atomic_at(address: usize) -> &'static AtomicU64 {
    // SAFETY: the caller passes an aligned address of mapped memory.
    unsafe { &*std::ptr::without_provenance::<AtomicU64>(address) }
}
