//! A started simulation with its agents and pools. The methods call the functions of the
//! simulation's table. They take and return plain values.
// Every test program uses only a part of this module.
#![allow(dead_code)]
// Most unsafe blocks below call functions of the simulation's table with pointers to locals of the right type, or with
// the test's own arguments. The others are callbacks, accesses of the test's own addresses, and system calls for child
// processes.
#![allow(clippy::undocumented_unsafe_blocks)]

use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null, null_mut, without_provenance, without_provenance_mut};
use hsa_sim::{Config, Simulation};
pub use hsa_sys::*;
use std::time::{Duration, Instant};

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;
pub const GIB: usize = 1 << 30;

pub const OK: hsa_status_t = HSA_STATUS_SUCCESS;
pub const ERROR: hsa_status_t = HSA_STATUS_ERROR;
pub const INVALID_ARGUMENT: hsa_status_t = HSA_STATUS_ERROR_INVALID_ARGUMENT;
pub const INVALID_ALLOCATION: hsa_status_t = HSA_STATUS_ERROR_INVALID_ALLOCATION;
pub const INVALID_AGENT: hsa_status_t = HSA_STATUS_ERROR_INVALID_AGENT;
pub const OUT_OF_RESOURCES: hsa_status_t = HSA_STATUS_ERROR_OUT_OF_RESOURCES;
pub const RESOURCE_FREE: hsa_status_t = HSA_STATUS_ERROR_RESOURCE_FREE;
pub const NOT_INITIALIZED: hsa_status_t = HSA_STATUS_ERROR_NOT_INITIALIZED;
pub const INCOMPATIBLE: hsa_status_t = HSA_STATUS_ERROR_INCOMPATIBLE_ARGUMENTS;
pub const NOT_SUPPORTED: hsa_status_t = HSA_STATUS_ERROR_NOT_SUPPORTED;

pub const NONE: hsa_access_permission_t = HSA_ACCESS_PERMISSION_NONE;
pub const RO: hsa_access_permission_t = HSA_ACCESS_PERMISSION_RO;
pub const WO: hsa_access_permission_t = HSA_ACCESS_PERMISSION_WO;
pub const RW: hsa_access_permission_t = HSA_ACCESS_PERMISSION_RW;

/// The value of a result before a call. No call writes this value.
pub const UNWRITTEN: u32 = 99;
/// The time limit of [`Setup::wait_below`].
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// A started simulation.
pub struct Setup {
    pub simulation: Simulation,
    pub hsa: &'static Core,
    pub vmem: &'static Vmem,
    pub cpus: Vec<hsa_agent_t>,
    pub gpus: Vec<hsa_agent_t>,
    /// The first pool of every GPU: coarse-grained video memory.
    pub vram: Vec<hsa_amd_memory_pool_t>,
    /// The first pool of the first CPU.
    pub system: hsa_amd_memory_pool_t,
}

pub fn start(config: &str) -> Setup {
    Setup::new(config.parse().expect("a configuration"))
}

impl Setup {
    pub fn new(config: Config) -> Self {
        let simulation = Simulation::start(config).expect("a free slot");
        let hsa = &simulation.table().core;
        let vmem = simulation.table().vmem.as_ref().expect("virtual memory");
        assert_eq!(unsafe { (hsa.hsa_init)() }, OK);
        let agents = agents(hsa);
        let of_type = |kind| {
            let is_of_type =
                |agent: &&hsa_agent_t| agent_info(hsa, **agent, HSA_AGENT_INFO_DEVICE) == Ok(kind);
            agents.iter().filter(is_of_type).copied().collect::<Vec<_>>()
        };
        let (cpus, gpus) = (of_type(HSA_DEVICE_TYPE_CPU), of_type(HSA_DEVICE_TYPE_GPU));
        let vram = gpus.iter().map(|gpu| pools(hsa, *gpu)[0]).collect();
        let system = pools(hsa, cpus[0])[0];
        Self { simulation, hsa, vmem, cpus, gpus, vram, system }
    }

    pub fn init(&self) -> hsa_status_t {
        unsafe { (self.hsa.hsa_init)() }
    }

    pub fn shut_down(&self) -> hsa_status_t {
        unsafe { (self.hsa.hsa_shut_down)() }
    }

    // --- Reservations ---

    pub fn try_reserve(
        &self,
        size: usize,
        hint: usize,
        alignment: usize,
        flags: u64,
    ) -> Result<usize, hsa_status_t> {
        let mut address = null_mut();
        let (hint, alignment) = (hint as u64, alignment as u64);
        let status = match self.vmem.hsa_amd_vmem_address_reserve_align {
            Some(reserve) => unsafe { reserve(&mut address, size, hint, alignment, flags) },
            None => unsafe {
                (self.vmem.hsa_amd_vmem_address_reserve)(&mut address, size, hint, flags)
            },
        };
        if status == OK { Ok(address.addr()) } else { Err(status) }
    }

    #[track_caller]
    pub fn reserve(&self, size: usize) -> usize {
        self.try_reserve(size, 0, 0, 0).expect("a reservation")
    }

    pub fn free(&self, address: usize, size: usize) -> hsa_status_t {
        unsafe { (self.vmem.hsa_amd_vmem_address_free)(without_provenance_mut(address), size) }
    }

    // --- Handles ---

    pub fn try_create(
        &self,
        pool: hsa_amd_memory_pool_t,
        size: usize,
        kind: hsa_amd_memory_type_t,
        flags: u64,
    ) -> Result<u64, hsa_status_t> {
        let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let create = self.vmem.hsa_amd_vmem_handle_create;
        match unsafe { create(pool, size, kind, flags, &mut handle) } {
            OK => Ok(handle.handle),
            status => Err(status),
        }
    }

    /// Creates memory of the first GPU.
    #[track_caller]
    pub fn create(&self, size: usize) -> u64 {
        self.try_create(self.vram[0], size, MEMORY_TYPE_PINNED, 0).expect("memory")
    }

    pub fn release(&self, handle: u64) -> hsa_status_t {
        let handle = hsa_amd_vmem_alloc_handle_t { handle };
        unsafe { (self.vmem.hsa_amd_vmem_handle_release)(handle) }
    }

    pub fn retain(&self, address: usize) -> Result<u64, hsa_status_t> {
        let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let retain = self.vmem.hsa_amd_vmem_retain_alloc_handle;
        match unsafe { retain(&mut handle, without_provenance_mut(address)) } {
            OK => Ok(handle.handle),
            status => Err(status),
        }
    }

    pub fn properties(&self, handle: u64) -> Result<(u64, hsa_amd_memory_type_t), hsa_status_t> {
        let (mut pool, mut kind) = (hsa_amd_memory_pool_t { handle: 0 }, UNWRITTEN);
        let handle = hsa_amd_vmem_alloc_handle_t { handle };
        let query = self.vmem.hsa_amd_vmem_get_alloc_properties_from_handle;
        match unsafe { query(handle, &mut pool, &mut kind) } {
            OK => Ok((pool.handle, kind)),
            status => Err(status),
        }
    }

    pub fn export(&self, handle: u64) -> Result<c_int, hsa_status_t> {
        let mut descriptor = UNWRITTEN as c_int;
        let handle = hsa_amd_vmem_alloc_handle_t { handle };
        let export = self.vmem.hsa_amd_vmem_export_shareable_handle;
        match unsafe { export(&mut descriptor, handle, 0) } {
            OK => Ok(descriptor),
            status => {
                assert_eq!(descriptor, -1, "a failed export writes -1 as the descriptor");
                Err(status)
            }
        }
    }

    pub fn import(&self, descriptor: c_int) -> Result<u64, hsa_status_t> {
        let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let import = self.vmem.hsa_amd_vmem_import_shareable_handle;
        match unsafe { import(descriptor, &mut handle) } {
            OK => Ok(handle.handle),
            status => Err(status),
        }
    }

    // --- Mappings ---

    pub fn map_at(&self, address: usize, size: usize, offset: usize, handle: u64) -> hsa_status_t {
        let handle = hsa_amd_vmem_alloc_handle_t { handle };
        let map = self.vmem.hsa_amd_vmem_map;
        unsafe { map(without_provenance_mut(address), size, offset, handle, 0) }
    }

    pub fn map(&self, address: usize, size: usize, handle: u64) -> hsa_status_t {
        self.map_at(address, size, 0, handle)
    }

    pub fn unmap(&self, address: usize, size: usize) -> hsa_status_t {
        unsafe { (self.vmem.hsa_amd_vmem_unmap)(without_provenance_mut(address), size) }
    }

    pub fn set(
        &self,
        address: usize,
        size: usize,
        requests: &[(hsa_agent_t, hsa_access_permission_t)],
    ) -> hsa_status_t {
        let descriptor = |&(agent_handle, permissions): &(_, _)| hsa_amd_memory_access_desc_t {
            permissions,
            agent_handle,
        };
        let list: Vec<_> = requests.iter().map(descriptor).collect();
        let set = self.vmem.hsa_amd_vmem_set_access;
        unsafe { set(without_provenance_mut(address), size, list.as_ptr(), list.len()) }
    }

    pub fn get(
        &self,
        address: usize,
        agent: hsa_agent_t,
    ) -> Result<hsa_access_permission_t, hsa_status_t> {
        let mut permission = UNWRITTEN;
        let get = self.vmem.hsa_amd_vmem_get_access;
        match unsafe { get(without_provenance_mut(address), &mut permission, agent) } {
            OK => Ok(permission),
            status => Err(status),
        }
    }

    /// Reserves a range, maps a new handle of GPU 0 over all of it, and sets the requested access.
    #[track_caller]
    pub fn mapped(
        &self,
        size: usize,
        requests: &[(hsa_agent_t, hsa_access_permission_t)],
    ) -> (usize, u64) {
        let (address, handle) = (self.reserve(size), self.create(size));
        assert_eq!(self.map(address, size, handle), OK);
        if !requests.is_empty() {
            assert_eq!(self.set(address, size, requests), OK);
        }
        (address, handle)
    }

    // --- Copies ---

    pub fn copy(&self, destination: usize, source: usize, size: usize) -> hsa_status_t {
        let copy = self.hsa.hsa_memory_copy.expect("in the table");
        unsafe { copy(without_provenance_mut(destination), without_provenance(source), size) }
    }

    pub fn fill(&self, address: usize, value: u32, count: usize) -> hsa_status_t {
        let fill = self.hsa.hsa_amd_memory_fill.expect("in the table");
        unsafe { fill(without_provenance_mut(address), value, count) }
    }

    /// Locks memory of this process for all agents. Returns the memory's address for agents.
    pub fn lock(&self, address: usize, size: usize) -> Result<usize, hsa_status_t> {
        let lock = self.hsa.hsa_amd_memory_lock.expect("in the table");
        let mut agent_address = null_mut();
        let status = unsafe {
            lock(without_provenance_mut(address), size, null_mut(), 0, &mut agent_address)
        };
        if status == OK { Ok(agent_address.addr()) } else { Err(status) }
    }

    #[track_caller]
    pub fn unlock(&self, address: usize) {
        let unlock = self.hsa.hsa_amd_memory_unlock.expect("in the table");
        assert_eq!(unsafe { unlock(without_provenance_mut(address)) }, OK);
    }

    /// Reads a 64-bit number from GPU memory by a copy.
    #[track_caller]
    pub fn peek(&self, address: usize) -> u64 {
        let mut value = 0u64;
        assert_eq!(self.copy((&raw mut value).addr(), address, 8), OK);
        value
    }

    /// Writes a 64-bit number to GPU memory by a copy.
    #[track_caller]
    pub fn poke(&self, address: usize, value: u64) {
        assert_eq!(self.copy(address, (&raw const value).addr(), 8), OK);
    }

    // --- Pool memory ---

    pub fn allocate(
        &self,
        pool: hsa_amd_memory_pool_t,
        size: usize,
    ) -> Result<usize, hsa_status_t> {
        let mut address = null_mut();
        let allocate = self.hsa.hsa_amd_memory_pool_allocate.expect("in the table");
        match unsafe { allocate(pool, size, 0, &mut address) } {
            OK => Ok(address.addr()),
            status => Err(status),
        }
    }

    pub fn pool_free(&self, address: usize) -> hsa_status_t {
        let free = self.hsa.hsa_amd_memory_pool_free.expect("in the table");
        unsafe { free(without_provenance_mut(address)) }
    }

    pub fn allow(&self, agents: &[hsa_agent_t], address: usize) -> hsa_status_t {
        let allow = self.hsa.hsa_amd_agents_allow_access.expect("in the table");
        let count = agents.len() as u32;
        unsafe { allow(count, agents.as_ptr(), null(), without_provenance(address)) }
    }

    pub fn pointer_info(&self, address: usize) -> hsa_amd_pointer_info_t {
        let mut info: hsa_amd_pointer_info_t = unsafe { core::mem::zeroed() };
        info.size = size_of::<hsa_amd_pointer_info_t>() as u32;
        let query = self.hsa.hsa_amd_pointer_info.expect("in the table");
        let address = without_provenance(address);
        assert_eq!(unsafe { query(address, &mut info, None, null_mut(), null_mut()) }, OK);
        info
    }

    pub fn signal(&self, value: i64) -> hsa_signal_t {
        let mut signal = hsa_signal_t { handle: 0 };
        let create = self.hsa.hsa_signal_create.expect("in the table");
        assert_eq!(unsafe { create(value, 0, null(), &mut signal) }, OK);
        signal
    }

    /// Waits at most ten seconds until the signal is below `value`. Returns the last value read.
    pub fn wait_below(&self, signal: hsa_signal_t, value: i64) -> i64 {
        let wait = self.hsa.hsa_signal_wait_scacquire.expect("in the table");
        let (condition, state) = (HSA_SIGNAL_CONDITION_LT, HSA_WAIT_STATE_BLOCKED);
        let nanoseconds = WAIT_LIMIT.as_nanos() as u64;
        // A wait may return before the condition holds, even without a timeout.
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let now = unsafe { wait(signal, condition, value, nanoseconds, state) };
            if now < value || Instant::now() >= deadline {
                return now;
            }
        }
    }
}

pub fn agents(hsa: &Core) -> Vec<hsa_agent_t> {
    unsafe extern "C" fn keep(agent: hsa_agent_t, data: *mut c_void) -> hsa_status_t {
        unsafe { (*data.cast::<Vec<hsa_agent_t>>()).push(agent) };
        OK
    }
    let mut found = Vec::<hsa_agent_t>::new();
    assert_eq!(unsafe { (hsa.hsa_iterate_agents)(Some(keep), (&raw mut found).cast()) }, OK);
    found
}

pub fn pools(hsa: &Core, agent: hsa_agent_t) -> Vec<hsa_amd_memory_pool_t> {
    unsafe extern "C" fn keep(pool: hsa_amd_memory_pool_t, data: *mut c_void) -> hsa_status_t {
        unsafe { (*data.cast::<Vec<hsa_amd_memory_pool_t>>()).push(pool) };
        OK
    }
    let mut found = Vec::<hsa_amd_memory_pool_t>::new();
    let iterate = hsa.hsa_amd_agent_iterate_memory_pools;
    assert_eq!(unsafe { iterate(agent, Some(keep), (&raw mut found).cast()) }, OK);
    found
}

/// Reads an attribute of an agent. `T` must be the attribute's type.
pub fn agent_info<T: Default>(hsa: &Core, agent: hsa_agent_t, attribute: u32) -> Result<T, u32> {
    let mut value = T::default();
    match unsafe { (hsa.hsa_agent_get_info)(agent, attribute, (&raw mut value).cast()) } {
        OK => Ok(value),
        status => Err(status),
    }
}

pub fn agent_text(hsa: &Core, agent: hsa_agent_t, attribute: u32) -> String {
    let mut text = [0u8; 64];
    assert_eq!(unsafe { (hsa.hsa_agent_get_info)(agent, attribute, text.as_mut_ptr().cast()) }, OK);
    CStr::from_bytes_until_nul(&text).expect("a terminating zero").to_str().expect("ASCII").into()
}

/// Reads an attribute of a pool. `T` must be the attribute's type.
pub fn pool_info<T: Default>(
    hsa: &Core,
    pool: hsa_amd_memory_pool_t,
    attribute: u32,
) -> Result<T, hsa_status_t> {
    let mut value = T::default();
    match unsafe { (hsa.hsa_amd_memory_pool_get_info)(pool, attribute, (&raw mut value).cast()) } {
        OK => Ok(value),
        status => Err(status),
    }
}

/// Reads an attribute of the runtime. `T` must be the attribute's type.
pub fn system_info<T: Default>(hsa: &Core, attribute: u32) -> Result<T, hsa_status_t> {
    let mut value = T::default();
    match unsafe { (hsa.hsa_system_get_info)(attribute, (&raw mut value).cast()) } {
        OK => Ok(value),
        status => Err(status),
    }
}

/// Returns a reference to the word at an address. The CPU must have access.
pub fn word(address: usize) -> &'static core::sync::atomic::AtomicU64 {
    unsafe { &*without_provenance::<core::sync::atomic::AtomicU64>(address) }
}

/// Reads a word with the CPU.
pub fn read(address: usize) -> u64 {
    word(address).load(core::sync::atomic::Ordering::SeqCst)
}

/// Writes a word with the CPU.
pub fn write(address: usize, value: u64) {
    word(address).store(value, core::sync::atomic::Ordering::SeqCst);
}

/// Returns whether the CPU can read an address. A child process reads the address, because a fault
/// ends the process.
pub fn readable(address: usize) -> bool {
    in_child(|| {
        core::hint::black_box(read(address));
    }) == Ended::Exit(0)
}

/// How a child process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Exit(i32),
    Signal(i32),
}

/// Runs a function in a forked child. If the function panics, the child prints the panic and exits
/// with status 101.
pub fn in_child(work: impl FnOnce()) -> Ended {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    show_panics_of_children();
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let code = if catch_unwind(AssertUnwindSafe(work)).is_ok() { 0 } else { 101 };
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {}
    if libc::WIFSIGNALED(status) {
        Ended::Signal(libc::WTERMSIG(status))
    } else {
        Ended::Exit(libc::WEXITSTATUS(status))
    }
}

/// Makes children print panics to standard error, because the test harness would capture the
/// output. The parent sets the hook before it forks. A child that set the hook could wait forever
/// for a lock that another thread of the parent held during the fork.
fn show_panics_of_children() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let (parent, default_hook) = (std::process::id(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            if std::process::id() == parent {
                return default_hook(panic);
            }
            let text = format!("in a child: {panic}\n");
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }));
    });
}

/// Runs a function in a forked child, and checks that it does not panic. Tests use this for
/// functions whose changes to the address space or to descriptors would disturb other tests.
#[track_caller]
pub fn succeeds_in_child(work: impl FnOnce()) {
    assert_eq!(in_child(work), Ended::Exit(0), "see standard error");
}
