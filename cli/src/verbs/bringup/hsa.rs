//! HSA's functions one by one, as C has them, each recorded before and after.
//!
//! This is the runtime without the library: nothing is checked, nothing repeated, nothing put right.

use super::record::{Argument, Record};
use super::recorder::{Recorder, Stopped};
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use hsa_sys as sys;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

type Result<T> = std::result::Result<T, Stopped>;

/// A value and what it is called in C.
#[derive(Clone, Debug)]
pub struct Named<T> {
    pub c: String,
    pub value: T,
}

impl<T> Named<T> {
    pub fn new(c: impl Into<String>, value: T) -> Self {
        Self { c: c.into(), value }
    }
}

/// An agent: `cpu` or `gpu[1]`.
pub type Agent = Named<sys::hsa_agent_t>;
/// A pool: `pool` or `host_pool`.
pub type Pool = Named<sys::hsa_amd_memory_pool_t>;
/// Physical memory.
pub type Handle = Named<sys::hsa_amd_vmem_alloc_handle_t>;
/// An address, as a number: the runtime's own pointers are made of it at the call.
pub type Address = Named<usize>;

/// What a pool says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolInfo {
    pub segment: u32,
    pub allocatable: bool,
    pub size: usize,
    pub granule: usize,
}

/// The functions, and where their calls are told.
#[derive(Debug)]
pub struct Hsa<'a> {
    table: sys::Table,
    vmem: Option<sys::Vmem>,
    pub recorder: &'a Recorder,
}

/// What a function that the library lacks answers.
const MISSING: u32 = sys::HSA_STATUS_ERROR_NOT_SUPPORTED;

fn hex(value: impl fmt::LowerHex) -> String {
    format!("{value:#x}")
}

fn out(name: &str, value: impl Into<String>) -> Vec<Argument> {
    vec![Argument { name: name.into(), value: value.into() }]
}

impl<'a> Hsa<'a> {
    pub fn new(table: sys::Table, recorder: &'a Recorder) -> Self {
        Self { vmem: table.vmem.ok(), table, recorder }
    }

    /// A call that answers a status. Its statement in C is made of its arguments' names, unless
    /// something else makes it there.
    fn call(
        &self,
        name: &str,
        arguments: &[(&str, String)],
        in_c: bool,
        perform: impl FnOnce() -> (u32, Vec<Argument>),
    ) -> Result<()> {
        let names: Vec<&str> = arguments.iter().map(|argument| argument.0).collect();
        let c = in_c.then(|| format!("CHECK({name}({}));", names.join(", ")));
        let (number, status) = self.recorder.around(name, arguments, c, || {
            let (status, answered) = perform();
            (status, Some(status), answered)
        });
        match status {
            sys::HSA_STATUS_SUCCESS | sys::HSA_STATUS_INFO_BREAK => Ok(()),
            _ => {
                self.recorder.tell(&Record::Failed(number));
                Err(Stopped)
            }
        }
    }

    pub fn init(&self) -> Result<()> {
        // SAFETY: takes no arguments and may be called at any time.
        self.call("hsa_init", &[], true, || (unsafe { (self.table.core.hsa_init)() }, vec![]))
    }

    pub fn shut_down(&self) -> Result<()> {
        let stop = self.table.core.hsa_shut_down;
        // SAFETY: takes no arguments and may be called at any time.
        self.call("hsa_shut_down", &[], true, || (unsafe { stop() }, vec![]))
    }

    /// A number that the runtime tells of itself, of at most eight bytes.
    pub fn system(&self, attribute: u32, name: &str) -> Result<u64> {
        let mut value = 0_u64;
        let into = [(name, attribute.to_string()), ("&value", "out".into())];
        self.call("hsa_system_get_info", &into, true, || {
            // SAFETY: `value` is as large as any of the attributes that are asked for here.
            let status = unsafe {
                (self.table.core.hsa_system_get_info)(attribute, (&raw mut value).cast())
            };
            (status, out("value", value.to_string()))
        })?;
        Ok(value)
    }

    /// All agents.
    pub fn agents(&self) -> Result<Vec<sys::hsa_agent_t>> {
        unsafe extern "C" fn add(agent: sys::hsa_agent_t, data: *mut c_void) -> sys::hsa_status_t {
            // SAFETY: `data` is the vector below, which nobody else uses meanwhile.
            unsafe { &mut *data.cast::<Vec<sys::hsa_agent_t>>() }.push(agent);
            sys::HSA_STATUS_SUCCESS
        }
        let mut agents: Vec<sys::hsa_agent_t> = Vec::new();
        let into = [("add_agent", "callback".into()), ("NULL", "0".to_owned())];
        self.call("hsa_iterate_agents", &into, true, || {
            // SAFETY: the callback has the right type and gets what it expects.
            let status = unsafe {
                (self.table.core.hsa_iterate_agents)(Some(add), (&raw mut agents).cast())
            };
            (status, out("agents", agents.len().to_string()))
        })?;
        Ok(agents)
    }

    /// A number that an agent tells of itself, of four bytes.
    pub fn agent(&self, agent: &Agent, attribute: u32, name: &str) -> Result<u32> {
        let mut value = 0_u32;
        let into = [
            (agent.c.as_str(), hex(agent.value.handle)),
            (name, hex(attribute)),
            ("&value", "out".into()),
        ];
        self.call("hsa_agent_get_info", &into, false, || {
            // SAFETY: the attributes that are asked for here have four bytes.
            let status = unsafe {
                let get = self.table.core.hsa_agent_get_info;
                get(agent.value, attribute, (&raw mut value).cast())
            };
            (status, out("value", value.to_string()))
        })?;
        Ok(value)
    }

    /// An agent's name: `gfx942`.
    pub fn agent_name(&self, agent: &Agent) -> Result<String> {
        let mut text = [0_u8; 64];
        let mut name = String::new();
        let into = [
            (agent.c.as_str(), hex(agent.value.handle)),
            ("HSA_AGENT_INFO_NAME", "0".to_owned()),
            ("name", "out".into()),
        ];
        self.call("hsa_agent_get_info", &into, true, || {
            // SAFETY: a name has 64 bytes.
            let status = unsafe {
                let get = self.table.core.hsa_agent_get_info;
                get(agent.value, sys::HSA_AGENT_INFO_NAME, text.as_mut_ptr().cast())
            };
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            name = String::from_utf8_lossy(&text[..end]).into_owned();
            (status, out("name", name.clone()))
        })?;
        Ok(name)
    }

    /// All pools of an agent. `into` is the variable that the C program keeps one in.
    pub fn pools(&self, agent: &Agent, into: &str) -> Result<Vec<sys::hsa_amd_memory_pool_t>> {
        unsafe extern "C" fn add(
            pool: sys::hsa_amd_memory_pool_t,
            data: *mut c_void,
        ) -> sys::hsa_status_t {
            // SAFETY: `data` is the vector below, which nobody else uses meanwhile.
            unsafe { &mut *data.cast::<Vec<sys::hsa_amd_memory_pool_t>>() }.push(pool);
            sys::HSA_STATUS_SUCCESS
        }
        let mut pools: Vec<sys::hsa_amd_memory_pool_t> = Vec::new();
        let variable = format!("&{into}");
        let arguments = [
            (agent.c.as_str(), hex(agent.value.handle)),
            ("take_pool", "callback".into()),
            (variable.as_str(), "out".into()),
        ];
        self.call("hsa_amd_agent_iterate_memory_pools", &arguments, true, || {
            // SAFETY: the callback has the right type and gets what it expects.
            let status = unsafe {
                let iterate = self.table.core.hsa_amd_agent_iterate_memory_pools;
                iterate(agent.value, Some(add), (&raw mut pools).cast())
            };
            (status, out("pools", pools.len().to_string()))
        })?;
        Ok(pools)
    }

    /// What a pool says of itself.
    pub fn pool(&self, pool: &Pool) -> Result<PoolInfo> {
        let segment = "HSA_AMD_MEMORY_POOL_INFO_SEGMENT";
        let segment = self.of_pool::<u32>(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SEGMENT, segment)?;
        if segment != sys::HSA_AMD_SEGMENT_GLOBAL {
            return Ok(PoolInfo { segment, ..PoolInfo::default() });
        }
        let name = "HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED";
        let attribute = sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED;
        let allocatable = self.of_pool::<u8>(pool, attribute, name)? != 0;
        let name = "HSA_AMD_MEMORY_POOL_INFO_SIZE";
        let size = self.of_pool(pool, sys::HSA_AMD_MEMORY_POOL_INFO_SIZE, name)?;
        let name = "HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE";
        let attribute = sys::HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE;
        let granule = self.of_pool(pool, attribute, name)?;
        Ok(PoolInfo { segment, allocatable, size, granule })
    }

    fn of_pool<T: Copy + Default + fmt::Display>(
        &self,
        pool: &Pool,
        attribute: u32,
        name: &str,
    ) -> Result<T> {
        // As large as any attribute of a pool.
        let mut value = [T::default(); 8];
        let into = [
            (pool.c.as_str(), hex(pool.value.handle)),
            (name, attribute.to_string()),
            ("&value", "out".into()),
        ];
        self.call("hsa_amd_memory_pool_get_info", &into, false, || {
            // SAFETY: the attributes that are asked for here are of type `T`, an integer.
            let status = unsafe {
                let get = self.table.core.hsa_amd_memory_pool_get_info;
                get(pool.value, attribute, value.as_mut_ptr().cast())
            };
            (status, out("value", value[0].to_string()))
        })?;
        Ok(value[0])
    }

    /// Whether an agent can be given access to a pool's memory at all.
    pub fn may_reach(&self, agent: &Agent, pool: &Pool) -> Result<bool> {
        let mut access = [0_u32; 4];
        let into = [
            (agent.c.as_str(), hex(agent.value.handle)),
            (pool.c.as_str(), hex(pool.value.handle)),
            ("HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS", "0".to_owned()),
            ("&access", "out".into()),
        ];
        self.call("hsa_amd_agent_memory_pool_get_info", &into, false, || {
            let Some(get) = self.table.core.hsa_amd_agent_memory_pool_get_info else {
                return (MISSING, vec![]);
            };
            // SAFETY: the attribute has four bytes.
            let status = unsafe {
                let attribute = sys::HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS;
                get(agent.value, pool.value, attribute, access.as_mut_ptr().cast())
            };
            (status, out("access", access[0].to_string()))
        })?;
        Ok(access[0] != sys::HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED)
    }

    pub fn reserve(&self, size: usize) -> Result<Address> {
        let mut address = null_mut();
        let into = [
            ("&va", "out".to_owned()),
            ("size", hex(size)),
            ("0", "hint".into()),
            ("0", "flags".into()),
        ];
        self.call("hsa_amd_vmem_address_reserve", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: `address` is writable.
            let status = unsafe { (vmem.hsa_amd_vmem_address_reserve)(&mut address, size, 0, 0) };
            (status, out("va", hex(address as usize)))
        })?;
        Ok(Named::new("va", address as usize))
    }

    pub fn free(&self, va: &Address, size: usize) -> Result<()> {
        let into = [(va.c.as_str(), hex(va.value)), ("size", hex(size))];
        self.call("hsa_amd_vmem_address_free", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the range was reserved, and nothing uses it any more.
            (unsafe { (vmem.hsa_amd_vmem_address_free)(va.value as *mut c_void, size) }, vec![])
        })
    }

    pub fn create(&self, pool: &Pool, size: usize) -> Result<Handle> {
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let into = [
            (pool.c.as_str(), hex(pool.value.handle)),
            ("size", hex(size)),
            ("MEMORY_TYPE_NONE", "0".to_owned()),
            ("0", "flags".into()),
            ("&memory", "out".into()),
        ];
        self.call("hsa_amd_vmem_handle_create", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the pool is one that the runtime named; `handle` is writable.
            let status = unsafe {
                let create = vmem.hsa_amd_vmem_handle_create;
                create(pool.value, size, sys::MEMORY_TYPE_NONE, 0, &mut handle)
            };
            (status, out("memory", hex(handle.handle)))
        })?;
        Ok(Named::new("memory", handle))
    }

    pub fn release(&self, memory: &Handle) -> Result<()> {
        let into = [(memory.c.as_str(), hex(memory.value.handle))];
        self.call("hsa_amd_vmem_handle_release", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the handle is one that the runtime gave, and is not used any more.
            (unsafe { (vmem.hsa_amd_vmem_handle_release)(memory.value) }, vec![])
        })
    }

    pub fn map(&self, va: &Address, size: usize, memory: &Handle) -> Result<()> {
        let into = [
            (va.c.as_str(), hex(va.value)),
            ("size", hex(size)),
            ("0", "offset".to_owned()),
            (memory.c.as_str(), hex(memory.value.handle)),
            ("0", "flags".into()),
        ];
        self.call("hsa_amd_vmem_map", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the range was reserved and the handle is one that the runtime gave.
            let status = unsafe {
                (vmem.hsa_amd_vmem_map)(va.value as *mut c_void, size, 0, memory.value, 0)
            };
            (status, vec![])
        })
    }

    pub fn unmap(&self, va: &Address, size: usize) -> Result<()> {
        let into = [(va.c.as_str(), hex(va.value)), ("size", hex(size))];
        self.call("hsa_amd_vmem_unmap", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the range was mapped as a whole, and nothing uses it any more.
            (unsafe { (vmem.hsa_amd_vmem_unmap)(va.value as *mut c_void, size) }, vec![])
        })
    }

    /// Lets agents read and write.
    pub fn grant(&self, va: &Address, size: usize, agents: &[&Agent]) -> Result<()> {
        let descriptors: Vec<_> = agents
            .iter()
            .map(|agent| sys::hsa_amd_memory_access_desc_t {
                permissions: sys::HSA_ACCESS_PERMISSION_RW,
                agent_handle: agent.value,
            })
            .collect();
        let one = |agent: &&Agent| format!("{{HSA_ACCESS_PERMISSION_RW, {}}}", agent.c);
        let list: Vec<_> = agents.iter().map(one).collect();
        let list = format!("(hsa_amd_memory_access_desc_t[]){{{}}}", list.join(", "));
        let shown: Vec<_> =
            agents.iter().map(|agent| format!("{}={:#x}", agent.c, agent.value.handle)).collect();
        let count = agents.len().to_string();
        let into = [
            (va.c.as_str(), hex(va.value)),
            ("size", hex(size)),
            (list.as_str(), format!("RW for {}", shown.join(", "))),
            (count.as_str(), "descriptors".into()),
        ];
        self.call("hsa_amd_vmem_set_access", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the range was mapped as a whole; the agents are ones that the runtime named.
            let status = unsafe {
                let set = vmem.hsa_amd_vmem_set_access;
                set(va.value as *mut c_void, size, descriptors.as_ptr(), descriptors.len())
            };
            (status, vec![])
        })
    }

    pub fn export(&self, memory: &Handle) -> Result<OwnedFd> {
        let mut dmabuf = -1;
        let into = [
            ("&dmabuf", "out".to_owned()),
            (memory.c.as_str(), hex(memory.value.handle)),
            ("0", "flags".into()),
        ];
        self.call("hsa_amd_vmem_export_shareable_handle", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the handle is one that the runtime gave; `dmabuf` is writable.
            let status = unsafe {
                (vmem.hsa_amd_vmem_export_shareable_handle)(&mut dmabuf, memory.value, 0)
            };
            (status, out("dmabuf", dmabuf.to_string()))
        })?;
        if dmabuf < 0 {
            return Err(self.recorder.wrong(format!("the descriptor exported is {dmabuf}")));
        }
        // SAFETY: the runtime has just opened it and gives it away.
        Ok(unsafe { OwnedFd::from_raw_fd(dmabuf) })
    }

    pub fn import(&self, dmabuf: &OwnedFd) -> Result<Handle> {
        let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
        let number = dmabuf.as_raw_fd();
        let into = [("dmabuf", number.to_string()), ("&memory", "out".into())];
        self.call("hsa_amd_vmem_import_shareable_handle", &into, true, || {
            let Some(vmem) = &self.vmem else { return (MISSING, vec![]) };
            // SAFETY: the descriptor is open; `handle` is writable.
            let status =
                unsafe { (vmem.hsa_amd_vmem_import_shareable_handle)(number, &mut handle) };
            (status, out("memory", hex(handle.handle)))
        })?;
        Ok(Named::new("memory", handle))
    }

    /// Memory of a pool, as `c`.
    pub fn allocate(&self, pool: &Pool, size: usize, c: &str) -> Result<Address> {
        let mut address = null_mut();
        let variable = format!("(void **)&{c}");
        let into = [
            (pool.c.as_str(), hex(pool.value.handle)),
            ("size", hex(size)),
            ("0", "flags".to_owned()),
            (variable.as_str(), "out".into()),
        ];
        self.call("hsa_amd_memory_pool_allocate", &into, true, || {
            let Some(allocate) = self.table.core.hsa_amd_memory_pool_allocate else {
                return (MISSING, vec![]);
            };
            // SAFETY: the pool is one that the runtime named; `address` is writable.
            let status = unsafe { allocate(pool.value, size, 0, &mut address) };
            (status, out(c, hex(address as usize)))
        })?;
        Ok(Named::new(c, address as usize))
    }

    /// Frees memory of a pool.
    pub fn pool_free(&self, address: &Address) -> Result<()> {
        let into = [(address.c.as_str(), hex(address.value))];
        self.call("hsa_amd_memory_pool_free", &into, true, || {
            let Some(free) = self.table.core.hsa_amd_memory_pool_free else {
                return (MISSING, vec![]);
            };
            // SAFETY: the memory is of a pool and is not used any more.
            (unsafe { free(address.value as *mut c_void) }, vec![])
        })
    }

    /// Lets agents use memory of a pool.
    pub fn allow(&self, address: &Address, agents: &[&Agent]) -> Result<()> {
        let list: Vec<_> = agents.iter().map(|agent| agent.c.as_str()).collect();
        let list = format!("(hsa_agent_t[]){{{}}}", list.join(", "));
        let values: Vec<_> = agents.iter().map(|agent| agent.value).collect();
        let count = values.len().to_string();
        let into = [
            (count.as_str(), "agents".to_owned()),
            (list.as_str(), "agents".into()),
            ("NULL", "flags".into()),
            (address.c.as_str(), hex(address.value)),
        ];
        self.call("hsa_amd_agents_allow_access", &into, true, || {
            let Some(allow) = self.table.core.hsa_amd_agents_allow_access else {
                return (MISSING, vec![]);
            };
            let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
            // SAFETY: the agents are ones that the runtime named; the memory is of a pool.
            let status =
                unsafe { allow(count, values.as_ptr(), null(), address.value as *const c_void) };
            (status, vec![])
        })
    }

    pub fn signal(&self) -> Result<Named<sys::hsa_signal_t>> {
        let mut signal = sys::hsa_signal_t { handle: 0 };
        let into = [
            ("1", "value".to_owned()),
            ("0", "consumers".into()),
            ("NULL", "0".into()),
            ("&signal", "out".into()),
        ];
        self.call("hsa_signal_create", &into, true, || {
            let Some(create) = self.table.core.hsa_signal_create else { return (MISSING, vec![]) };
            // SAFETY: no consumers are named; `signal` is writable.
            let status = unsafe { create(1, 0, null(), &mut signal) };
            (status, out("signal", hex(signal.handle)))
        })?;
        Ok(Named::new("signal", signal))
    }

    pub fn destroy(&self, signal: &Named<sys::hsa_signal_t>) -> Result<()> {
        let into = [(signal.c.as_str(), hex(signal.value.handle))];
        self.call("hsa_signal_destroy", &into, true, || {
            let Some(destroy) = self.table.core.hsa_signal_destroy else {
                return (MISSING, vec![]);
            };
            // SAFETY: nothing waits for it.
            (unsafe { destroy(signal.value) }, vec![])
        })
    }

    /// Has a GPU copy, and waits for it.
    pub fn copy(
        &self,
        to: &Address,
        from: &Address,
        size: usize,
        by: &Agent,
        signal: &Named<sys::hsa_signal_t>,
    ) -> Result<()> {
        let core = &self.table.core;
        let set = core.hsa_signal_store_screlease;
        let into = [(signal.c.as_str(), hex(signal.value.handle)), ("1", "value".to_owned())];
        let c = format!("hsa_signal_store_screlease({}, 1);", signal.c);
        self.recorder.around("hsa_signal_store_screlease", &into, Some(c), || {
            if let Some(set) = set {
                // SAFETY: the signal is alive.
                unsafe { set(signal.value, 1) };
            }
            ((), None, vec![])
        });
        let into = [
            (to.c.as_str(), hex(to.value)),
            (by.c.as_str(), hex(by.value.handle)),
            (from.c.as_str(), hex(from.value)),
            (by.c.as_str(), hex(by.value.handle)),
            ("size", hex(size)),
            ("0", "dependencies".into()),
            ("NULL", "0".into()),
            (signal.c.as_str(), hex(signal.value.handle)),
        ];
        self.call("hsa_amd_memory_async_copy", &into, true, || {
            let Some(copy) = core.hsa_amd_memory_async_copy else { return (MISSING, vec![]) };
            // SAFETY: both ranges are this process's and as long as `size`; nothing else uses them
            // until the signal says that the copy is done.
            let status = unsafe {
                let (to, from) = (to.value as *mut c_void, from.value as *const c_void);
                copy(to, by.value, from, by.value, size, 0, null(), signal.value)
            };
            (status, vec![])
        })?;
        let Some(wait) = core.hsa_signal_wait_scacquire else {
            return Err(self.recorder.wrong("the library has no hsa_signal_wait_scacquire"));
        };
        let into = [
            (signal.c.as_str(), hex(signal.value.handle)),
            ("HSA_SIGNAL_CONDITION_LT", "2".to_owned()),
            ("1", "value".into()),
            ("UINT64_MAX", "no limit".into()),
            ("HSA_WAIT_STATE_BLOCKED", "0".into()),
        ];
        let names: Vec<&str> = into.iter().map(|argument| argument.0).collect();
        let c = format!("WAIT(hsa_signal_wait_scacquire({}));", names.join(", "));
        let (_, value) = self.recorder.around("hsa_signal_wait_scacquire", &into, Some(c), || {
            // SAFETY: the signal is alive until after this.
            let value = unsafe {
                let state = sys::HSA_WAIT_STATE_BLOCKED;
                wait(signal.value, sys::HSA_SIGNAL_CONDITION_LT, 1, u64::MAX, state)
            };
            (value, None, out("value", value.to_string()))
        });
        if value != 0 {
            return Err(self
                .recorder
                .wrong(format!("the copy by {} failed: its signal is {value}, not 0", by.c)));
        }
        Ok(())
    }

    /// The processor writes words that count from `first`.
    pub fn fill(&self, at: &Address, size: usize, first: u32) {
        let into = [(at.c.as_str(), hex(at.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("fill({}, size, {first:#x});", at.c);
        self.recorder.around("fill", &into, Some(c), || {
            let words = at.value as *mut u32;
            for index in 0..size / 4 {
                // SAFETY: the range is mapped for writing, as far as the runtime told the truth;
                // if it did not, this process ends, which is what it is there for.
                unsafe { words.add(index).write_volatile(first.wrapping_add(index as u32)) };
            }
            ((), None, vec![])
        });
    }

    /// The processor reads them again.
    pub fn compare(&self, at: &Address, size: usize, first: u32) -> Result<()> {
        let into = [(at.c.as_str(), hex(at.value)), ("size", hex(size)), ("first", hex(first))];
        let c = format!("compare({}, size, {first:#x});", at.c);
        let (_, wrong) = self.recorder.around("compare", &into, Some(c), || {
            let words = at.value as *const u32;
            let differs = (0..size / 4).find_map(|index| {
                let expected = first.wrapping_add(index as u32);
                // SAFETY: as for `fill`.
                let found = unsafe { words.add(index).read_volatile() };
                (found != expected).then_some((index * 4, expected, found))
            });
            (differs, None, vec![])
        });
        match wrong {
            None => Ok(()),
            Some((offset, expected, found)) => Err(self.recorder.wrong(format!(
                "at offset {offset:#x} of {} there is {found:#x}; {expected:#x} was written",
                at.c
            ))),
        }
    }
}
