//! AMD's runtime itself, as a program in C would use it.

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

/// The size of mappings in these tests: a few pages, so that a part differs from the whole.
pub const SIZE: usize = 64 << 10;
pub const PAGE: usize = 4096;

type Answer<T = ()> = Result<T, hsa_status_t>;

/// A GPU accessed an address that is not in its page table.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault;

/// A started runtime, its agents, and the memory of its GPUs.
pub struct Raw {
    core: Core,
    vmem: Vmem,
    pub cpu: hsa_agent_t,
    pub gpus: Vec<hsa_agent_t>,
    pub pools: Vec<hsa_amd_memory_pool_t>,
    /// Memory that every agent can access.
    scratch: usize,
    // Last, because it contains the functions.
    _library: Library,
}

fn answer<T>(status: hsa_status_t, value: T) -> Answer<T> {
    if status == HSA_STATUS_SUCCESS { Ok(value) } else { Err(status) }
}

fn handle(handle: u64) -> hsa_amd_vmem_alloc_handle_t {
    hsa_amd_vmem_alloc_handle_t { handle }
}

fn at(address: usize) -> *mut c_void {
    without_provenance_mut(address)
}

static FAULTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn note_fault(_: *const hsa_amd_event_t, _: *mut c_void) -> hsa_status_t {
    FAULTED.store(true, Ordering::SeqCst);
    HSA_STATUS_SUCCESS
}

unsafe extern "C" fn keep<T: Copy>(found: T, list: *mut c_void) -> hsa_status_t {
    // SAFETY: `list` is the vector of the very type that the caller iterates into.
    unsafe { (*list.cast::<Vec<T>>()).push(found) };
    HSA_STATUS_SUCCESS
}

// Each unsafe block in here calls a function of the loaded runtime with pointers to locals of the
// right type. The tests check how the runtime treats the numbers; a call that may crash it runs in a child.
#[allow(clippy::undocumented_unsafe_blocks, reason = "said once, above")]
impl Raw {
    #[track_caller]
    pub fn start(fixture: &Fixture) -> Self {
        let library =
            unsafe { Library::load(&Search::only(fixture.runtime())) }.expect("a runtime");
        let core = library.table().core;
        let vmem = library.table().vmem.expect("virtual memory");
        answer(unsafe { (core.hsa_init)() }, ()).expect("it starts");
        let agents = agents(&core);
        let is = |kind| {
            let core = &core;
            move |agent: &&hsa_agent_t| device(core, **agent) == kind
        };
        let cpu = *agents.iter().find(is(HSA_DEVICE_TYPE_CPU)).expect("a CPU");
        let gpus: Vec<_> = agents.iter().filter(is(HSA_DEVICE_TYPE_GPU)).copied().collect();
        let pools = gpus.iter().map(|&gpu| pools(&core, gpu)[0]).collect();
        let register = core.hsa_amd_register_system_event_handler.expect("there");
        answer(unsafe { register(Some(note_fault), null_mut()) }, ()).expect("a handler");
        let mut raw = Self { core, vmem, cpu, gpus, pools, scratch: 0, _library: library };
        raw.scratch = raw.mapped(PAGE, &[]).0;
        // In one call, as 6.1.2 takes access from agents that are not named.
        let all_agents: Vec<_> = raw.gpus.iter().chain([&cpu]).map(|&agent| (agent, RW)).collect();
        raw.set(raw.scratch, PAGE, &all_agents).expect("access");
        raw
    }

    pub fn reserve(&self, size: usize) -> Answer<usize> {
        let mut address = null_mut();
        let reserve = self.vmem.hsa_amd_vmem_address_reserve;
        answer(unsafe { reserve(&mut address, size, 0, 0) }, ()).map(|()| address.addr())
    }

    /// Reserves near an address, aligned where the runtime can.
    pub fn reserve_at(&self, size: usize, hint: usize, alignment: usize) -> Answer<usize> {
        let (mut address, hint) = (null_mut(), hint as u64);
        let status = match self.vmem.hsa_amd_vmem_address_reserve_align {
            Some(reserve) => unsafe { reserve(&mut address, size, hint, alignment as u64, 0) },
            None => unsafe {
                (self.vmem.hsa_amd_vmem_address_reserve)(&mut address, size, hint, 0)
            },
        };
        answer(status, ()).map(|()| address.addr())
    }

    pub fn free(&self, address: usize, size: usize) -> Answer {
        answer(unsafe { (self.vmem.hsa_amd_vmem_address_free)(at(address), size) }, ())
    }

    /// Memory of the first GPU.
    pub fn create(&self, size: usize) -> Answer<u64> {
        let (mut made, create) = (handle(0), self.vmem.hsa_amd_vmem_handle_create);
        let status = unsafe { create(self.pools[0], size, MEMORY_TYPE_PINNED, 0, &mut made) };
        answer(status, ()).map(|()| made.handle)
    }

    pub fn release(&self, memory: u64) -> Answer {
        answer(unsafe { (self.vmem.hsa_amd_vmem_handle_release)(handle(memory)) }, ())
    }

    pub fn map(&self, address: usize, size: usize, offset: usize, memory: u64) -> Answer {
        let map = self.vmem.hsa_amd_vmem_map;
        answer(unsafe { map(at(address), size, offset, handle(memory), 0) }, ())
    }

    pub fn unmap(&self, address: usize, size: usize) -> Answer {
        answer(unsafe { (self.vmem.hsa_amd_vmem_unmap)(at(address), size) }, ())
    }

    pub fn set(
        &self,
        address: usize,
        size: usize,
        access: &[(hsa_agent_t, hsa_access_permission_t)],
    ) -> Answer {
        let describe = |&(agent_handle, permissions): &(_, _)| hsa_amd_memory_access_desc_t {
            permissions,
            agent_handle,
        };
        let list: Vec<_> = access.iter().map(describe).collect();
        let set = self.vmem.hsa_amd_vmem_set_access;
        answer(unsafe { set(at(address), size, list.as_ptr(), list.len()) }, ())
    }

    pub fn get(&self, address: usize, agent: hsa_agent_t) -> Answer<hsa_access_permission_t> {
        let (mut access, get) = (99, self.vmem.hsa_amd_vmem_get_access);
        answer(unsafe { get(at(address), &mut access, agent) }, ()).map(|()| access)
    }

    pub fn export(&self, memory: u64) -> Answer<c_int> {
        let (mut descriptor, export) = (-1, self.vmem.hsa_amd_vmem_export_shareable_handle);
        answer(unsafe { export(&mut descriptor, handle(memory), 0) }, ()).map(|()| descriptor)
    }

    pub fn import(&self, descriptor: c_int) -> Answer<u64> {
        let (mut memory, import) = (handle(0), self.vmem.hsa_amd_vmem_import_shareable_handle);
        answer(unsafe { import(descriptor, &mut memory) }, ()).map(|()| memory.handle)
    }

    pub fn retain(&self, address: usize) -> Answer<u64> {
        let (mut memory, retain) = (handle(0), self.vmem.hsa_amd_vmem_retain_alloc_handle);
        answer(unsafe { retain(&mut memory, at(address)) }, ()).map(|()| memory.handle)
    }

    /// The pool that the memory is of.
    pub fn pool(&self, memory: u64) -> Answer<hsa_amd_memory_pool_t> {
        let (mut pool, mut kind) = (hsa_amd_memory_pool_t { handle: 0 }, MEMORY_TYPE_NONE);
        let ask = self.vmem.hsa_amd_vmem_get_alloc_properties_from_handle;
        answer(unsafe { ask(handle(memory), &mut pool, &mut kind) }, ()).map(|()| pool)
    }

    pub fn fill(&self, address: usize, value: u32, words: usize) -> Answer {
        let fill = self.core.hsa_amd_memory_fill.expect("there");
        answer(unsafe { fill(at(address), value, words) }, ())
    }

    /// Locks memory of this process for some agents, and returns their address of it.
    pub fn lock(&self, address: usize, size: usize, agents: &[hsa_agent_t]) -> Answer<usize> {
        let (mut there, lock) = (null_mut(), self.core.hsa_amd_memory_lock.expect("there"));
        let mut agents = agents.to_vec();
        let (list, count) = (agents.as_mut_ptr(), agents.len() as c_int);
        let status = unsafe { lock(at(address), size, list, count, &mut there) };
        answer(status, ()).map(|()| there.addr())
    }

    pub fn unlock(&self, address: usize) -> Answer {
        answer(unsafe { self.core.hsa_amd_memory_unlock.expect("there")(at(address)) }, ())
    }

    /// Whether the runtime has memory of this process locked at an address.
    pub fn is_locked(&self, address: usize) -> bool {
        self.pointer_info(address).type_ == HSA_EXT_POINTER_TYPE_LOCKED
    }

    /// Returns the runtime's information about an address.
    pub fn pointer_info(&self, address: usize) -> hsa_amd_pointer_info_t {
        let ask = self.core.hsa_amd_pointer_info.expect("there");
        let mut info: hsa_amd_pointer_info_t = unsafe { core::mem::zeroed() };
        info.size = size_of::<hsa_amd_pointer_info_t>() as u32;
        let status = unsafe { ask(at(address), &mut info, None, null_mut(), null_mut()) };
        answer(status, info).expect("any address is valid")
    }

    /// Exports memory of the first GPU through the IPC server. Returns its address and the words of its
    /// handle.
    pub fn share(&self, size: usize) -> Answer<(usize, [u32; 8])> {
        let (mut memory, allocate) =
            (null_mut(), self.core.hsa_amd_memory_pool_allocate.expect("there"));
        answer(unsafe { allocate(self.pools[0], size, 0, &mut memory) }, ())?;
        let mut made = hsa_amd_ipc_memory_t { handle: [0; 8] };
        let share = self.core.hsa_amd_ipc_memory_create.expect("there");
        let status = unsafe { share(memory, size, &mut made) };
        answer(status, ()).map(|()| (memory.addr(), made.handle))
    }

    /// Frees what was allocated to be shared.
    pub fn free_shared(&self, address: usize) -> Answer {
        let free = self.core.hsa_amd_memory_pool_free.expect("there");
        answer(unsafe { free(at(address)) }, ())
    }

    /// Opens memory that another process shares, for the first GPU.
    pub fn attach(&self, handle: [u32; 8], size: usize) -> Answer<usize> {
        let (mut memory, handle) = (null_mut(), hsa_amd_ipc_memory_t { handle });
        let attach = self.core.hsa_amd_ipc_memory_attach.expect("there");
        let status = unsafe { attach(&handle, size, 1, &self.gpus[0], &mut memory) };
        answer(status, ()).map(|()| memory.addr())
    }

    pub fn detach(&self, address: usize) -> Answer {
        let detach = self.core.hsa_amd_ipc_memory_detach.expect("there");
        answer(unsafe { detach(at(address)) }, ())
    }

    /// Unmaps the scratch memory of copies, so that nothing is mapped.
    pub fn end_copies(&self) -> Answer {
        self.unmap(self.scratch, PAGE)
    }

    pub fn shut_down(&self) -> Answer {
        answer(unsafe { (self.core.hsa_shut_down)() }, ())
    }

    /// A reservation with new memory of the first GPU mapped over all of it.
    #[track_caller]
    pub fn mapped(
        &self,
        size: usize,
        access: &[(hsa_agent_t, hsa_access_permission_t)],
    ) -> (usize, u64) {
        let address = self.reserve(size).expect("addresses");
        let memory = self.create(size).expect("memory");
        self.map(address, size, 0, memory).expect("a mapping");
        if !access.is_empty() {
            self.set(address, size, access).expect("access");
        }
        (address, memory)
    }

    /// Has a GPU read an address, by a copy. After a fault, the runtime reports no other fault in this
    /// process.
    pub fn read_by(&self, gpu: hsa_agent_t, address: usize) -> Result<u64, Fault> {
        self.copy(gpu, self.scratch, address)?;
        Ok(load(self.scratch))
    }

    /// Has a GPU write to an address, by a copy.
    pub fn write_by(&self, gpu: hsa_agent_t, address: usize, value: u64) -> Result<(), Fault> {
        store(self.scratch, value);
        self.copy(gpu, address, self.scratch)
    }

    /// Has the CPU copy eight bytes, waits until the runtime signals completion, and destroys the signal.
    /// Passes the signal's address to `begun`.
    pub fn copy_by_cpu(&self, to: usize, from: usize, begun: impl FnOnce(u64)) {
        let core = &self.core;
        let mut done = hsa_signal_t { handle: 0 };
        let create = core.hsa_signal_create.expect("there");
        answer(unsafe { create(1, 0, null(), &mut done) }, ()).expect("a signal");
        begun(done.handle);
        let copy = core.hsa_amd_memory_async_copy.expect("there");
        let status = unsafe { copy(at(to), self.cpu, at(from), self.cpu, 8, 0, null(), done) };
        answer(status, ()).expect("a copy begins");
        let load = core.hsa_signal_load_scacquire.expect("there");
        let begun = Instant::now();
        while unsafe { load(done) } != 0 {
            assert!(begun.elapsed() < Duration::from_secs(100), "the copy does not end");
            std::thread::yield_now();
        }
        answer(unsafe { core.hsa_signal_destroy.expect("there")(done) }, ())
            .expect("it is destroyed");
    }

    /// Has a GPU copy eight bytes.
    fn copy(&self, gpu: hsa_agent_t, to: usize, from: usize) -> Result<(), Fault> {
        let core = &self.core;
        let mut done = hsa_signal_t { handle: 0 };
        let create = core.hsa_signal_create.expect("there");
        answer(unsafe { create(1, 0, null(), &mut done) }, ()).expect("a signal");
        let copy = core.hsa_amd_memory_async_copy.expect("there");
        let status = unsafe { copy(at(to), gpu, at(from), gpu, 8, 0, null(), done) };
        answer(status, ()).expect("a copy begins");
        let load = core.hsa_signal_load_scacquire.expect("there");
        let begun = Instant::now();
        while unsafe { load(done) } == 1 {
            if FAULTED.load(Ordering::SeqCst) {
                return Err(Fault);
            }
            assert!(begun.elapsed() < Duration::from_secs(100), "the copy neither ends nor faults");
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "as above")]
fn agents(core: &Core) -> Vec<hsa_agent_t> {
    let mut found = Vec::<hsa_agent_t>::new();
    let list = (&raw mut found).cast();
    answer(unsafe { (core.hsa_iterate_agents)(Some(keep::<hsa_agent_t>), list) }, ()).unwrap();
    found
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "as above")]
fn pools(core: &Core, agent: hsa_agent_t) -> Vec<hsa_amd_memory_pool_t> {
    let mut found = Vec::<hsa_amd_memory_pool_t>::new();
    let (list, keep) = ((&raw mut found).cast(), Some(keep::<hsa_amd_memory_pool_t> as _));
    let iterate = core.hsa_amd_agent_iterate_memory_pools;
    answer(unsafe { iterate(agent, keep, list) }, ()).unwrap();
    found
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "as above")]
fn device(core: &Core, agent: hsa_agent_t) -> hsa_device_type_t {
    let mut kind: hsa_device_type_t = 99;
    let value = (&raw mut kind).cast();
    let ask = core.hsa_agent_get_info;
    answer(unsafe { ask(agent, HSA_AGENT_INFO_DEVICE, value) }, ()).unwrap();
    kind
}

/// Has the CPU read.
pub fn load(address: usize) -> u64 {
    number(address).load(Ordering::SeqCst)
}

/// Has the CPU write.
pub fn store(address: usize, value: u64) {
    number(address).store(value, Ordering::SeqCst);
}

fn number(address: usize) -> &'static AtomicU64 {
    // SAFETY: an aligned address of the test's memory.
    unsafe { &*std::ptr::without_provenance::<AtomicU64>(address) }
}
