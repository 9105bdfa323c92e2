//! Repeats the HSA calls of a recording on another runtime, and compares the status of each call with the recorded one.

use super::Replay;
use crate::arguments::Format;
use crate::choice::RuntimeChoice;
use crate::program::with_build_command;
use crate::screen::note;
use crate::table::table;
use crate::{BadUsage, Exit, output};
use anyhow::anyhow;
use hsa_sys as sys;
use hsa_vmm::Runtime;
use hsa_vmm_conformance::hsa_trace::steps::{
    Action, AddressRef, AgentRef, MemoryRef, Plan, PoolRef, plan,
};
use hsa_vmm_conformance::hsa_trace::{AgentKind, Recording, program};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// The result of a repeated call.
enum Outcome {
    Agreed,
    /// The difference between the recorded and the new result.
    Diverged(String),
    /// The reason why the call was not made.
    NotMade(String),
}

#[derive(Default, serde::Serialize)]
struct Counts {
    agreed: u64,
    divergent: u64,
    all: u64,
    not_repeated: BTreeMap<String, u64>,
    first: Option<String>,
}

pub fn run(args: &Replay) -> anyhow::Result<Exit> {
    let recording =
        Recording::open(&args.file).map_err(|cause| BadUsage::cannot_read(&args.file, cause))?;
    if !recording.complete {
        note!(
            "the recording ends early, because the program crashed or was killed, or because the disk was full"
        );
    }
    let plan = plan(&recording);
    if let Some(file) = &args.program {
        let library = match &args.common.runtime.choice {
            RuntimeChoice::Library(library) => Some(library.as_path()),
            RuntimeChoice::Auto | RuntimeChoice::Simulation => None,
        };
        let text = program::source(&recording, &plan);
        let text = with_build_command(&text, "again.c", file, library);
        output::save(file, text.as_bytes())?;
        return Ok(Exit::Success);
    }
    let runtime = args.common.runtime.open()?;
    let mut replayer = Replayer::new(&runtime, &plan)?;
    let mut counts = Counts::default();
    for step in &plan.steps {
        let outcome = match &step.action {
            Ok(action) => replayer.repeat_and_compare(action, step.status),
            Err(skipped) => Outcome::NotMade(skipped.to_string()),
        };
        counts.all += 1;
        match outcome {
            Outcome::Agreed => counts.agreed += 1,
            Outcome::Diverged(how) => {
                counts.divergent += 1;
                counts.first.get_or_insert(format!("line {}: {}: {how}", step.line, step.name));
            }
            Outcome::NotMade(reason) => *counts.not_repeated.entry(reason).or_default() += 1,
        }
    }
    replayer.unmap_remaining();
    // Do not stop AMD's runtime: if a call that diverged left a mapping, the runtime would crash.
    std::mem::forget(runtime);
    args.output.write(|out| match args.format {
        Format::Json => {
            out.keep_utf8();
            serde_json::to_writer_pretty(&mut *out, &counts)?;
            Ok(writeln!(out)?)
        }
        Format::Table => {
            let mut rows = table(&["results", "calls"]);
            rows.add_row(vec!["agreed".to_owned(), counts.agreed.to_string()]);
            rows.add_row(vec!["divergent".to_owned(), counts.divergent.to_string()]);
            for (reason, count) in &counts.not_repeated {
                rows.add_row(vec![format!("not repeated: {reason}"), count.to_string()]);
            }
            rows.add_row(vec!["all".to_owned(), counts.all.to_string()]);
            out.write_table(&rows)?;
            if let Some(first) = &counts.first {
                writeln!(out, "\nfirst divergence: {first}")?;
            }
            Ok(())
        }
    })?;
    Ok(if counts.divergent <= args.tolerate { Exit::Success } else { Exit::Failure })
}

/// The functions of the runtime, and the results of the calls so far.
struct Replayer {
    core: sys::Core,
    vmem: sys::Vmem,
    /// The agents, each with its pools.
    cpus: Vec<(sys::hsa_agent_t, Vec<sys::hsa_amd_memory_pool_t>)>,
    gpus: Vec<(sys::hsa_agent_t, Vec<sys::hsa_amd_memory_pool_t>)>,
    /// The start of each block (a reservation or pool memory), by the number of the block in the plan. `None` until
    /// this process has reserved or allocated the block.
    blocks: Vec<Option<u64>>,
    /// The runtime's handles of physical memory, by the number of the handle in the plan. `None` until a call in this
    /// process has returned the handle.
    memories: Vec<Option<u64>>,
    /// The exported descriptors, by the number of the descriptor in the plan. `None` until a call in this process has
    /// returned the descriptor.
    descriptors: Vec<Option<OwnedFd>>,
    /// The address and the size of each mapping that still exists.
    mapped: Vec<(u64, u64)>,
}

/// The error for a call that needs the result of an earlier call. The earlier call succeeded in the recording, but not
/// here.
struct Missing;

impl From<Missing> for Outcome {
    fn from(_: Missing) -> Self {
        Self::NotMade("needs the result of a call that failed here".to_owned())
    }
}

fn pointer(address: u64) -> *mut c_void {
    address as *mut c_void
}

extern "C" fn add_pool(pool: sys::hsa_amd_memory_pool_t, list: *mut c_void) -> sys::hsa_status_t {
    // SAFETY: `Replayer::new` passes a pointer to a vector of pools, which nothing else uses during the call.
    unsafe { &mut *list.cast::<Vec<sys::hsa_amd_memory_pool_t>>() }.push(pool);
    sys::HSA_STATUS_SUCCESS
}

extern "C" fn add_agent(agent: sys::hsa_agent_t, list: *mut c_void) -> sys::hsa_status_t {
    // SAFETY: `Replayer::new` passes a pointer to a vector of agents, which nothing else uses during the call.
    unsafe { &mut *list.cast::<Vec<sys::hsa_agent_t>>() }.push(agent);
    sys::HSA_STATUS_SUCCESS
}

impl Replayer {
    fn new(runtime: &Runtime, plan: &Plan) -> anyhow::Result<Self> {
        let table = match runtime.simulation() {
            Some(simulation) => *simulation.table(),
            // SAFETY: the addresses are those of the runtime's functions, and the runtime is never dropped.
            None => unsafe { sys::Table::load(&mut |name| runtime.function(name)) }?,
        };
        let vmem = table.vmem.map_err(|missing| anyhow!("{missing}"))?;
        let core = table.core;
        let (mut cpus, mut gpus, mut agents) = (Vec::new(), Vec::new(), Vec::new());
        // SAFETY: `add_agent` casts the pointer back to the type of `agents`.
        unsafe { (core.hsa_iterate_agents)(Some(add_agent), (&raw mut agents).cast()) };
        for agent in agents {
            let (mut kind, mut pools) = (0_u32, Vec::new());
            // SAFETY: the attribute has the type of `kind`; `add_pool` casts the pointer back to the type of `pools`.
            unsafe {
                (core.hsa_agent_get_info)(
                    agent,
                    sys::HSA_AGENT_INFO_DEVICE,
                    (&raw mut kind).cast(),
                );
                let list = (&raw mut pools).cast();
                (core.hsa_amd_agent_iterate_memory_pools)(agent, Some(add_pool), list);
            }
            match kind {
                sys::HSA_DEVICE_TYPE_CPU => cpus.push((agent, pools)),
                sys::HSA_DEVICE_TYPE_GPU => gpus.push((agent, pools)),
                _ => {}
            }
        }
        for (kind, name, found) in
            [(AgentKind::Gpu, "GPUs", gpus.len()), (AgentKind::Cpu, "CPUs", cpus.len())]
        {
            let needed = plan.agents_needed(kind);
            if needed > found {
                let hint = match kind {
                    AgentKind::Gpu if runtime.simulation().is_some() => {
                        format!("; --gpus {needed} simulates them")
                    }
                    AgentKind::Gpu => format!("; hsa-vmm emulate --gpus {needed} emulates them"),
                    _ => String::new(),
                };
                let message = format!(
                    "the recording uses {needed} {name}, and this machine has {found}{hint}"
                );
                return Err(BadUsage(message).into());
            }
        }
        let none = |count| (0..count).map(|_| None).collect();
        Ok(Self {
            core,
            vmem,
            cpus,
            gpus,
            blocks: none(plan.block_count),
            memories: none(plan.handle_count),
            descriptors: (0..plan.descriptor_count).map(|_| None).collect(),
            mapped: Vec::new(),
        })
    }

    fn address(&self, address: AddressRef) -> Result<*mut c_void, Missing> {
        match address {
            AddressRef::Fixed(address) => Ok(pointer(address)),
            AddressRef::Block { block, offset } => {
                let start = self.blocks.get(block).copied().flatten().ok_or(Missing)?;
                Ok(pointer(start + offset))
            }
        }
    }

    fn memory(&self, memory: MemoryRef) -> Result<sys::hsa_amd_vmem_alloc_handle_t, Missing> {
        let handle = match memory {
            MemoryRef::Fixed(handle) => handle,
            MemoryRef::Numbered(number) => {
                self.memories.get(number).copied().flatten().ok_or(Missing)?
            }
        };
        Ok(sys::hsa_amd_vmem_alloc_handle_t { handle })
    }

    fn agent(&self, agent: AgentRef) -> Result<sys::hsa_agent_t, Missing> {
        let found = match agent {
            AgentRef::Invalid => return Ok(sys::hsa_agent_t { handle: 0 }),
            AgentRef::Numbered { kind: AgentKind::Gpu, number } => self.gpus.get(number),
            AgentRef::Numbered { number, .. } => self.cpus.get(number),
        };
        found.map(|(agent, _)| *agent).ok_or(Missing)
    }

    fn pool(&self, pool: PoolRef) -> Result<sys::hsa_amd_memory_pool_t, Missing> {
        let (agent, number) = match pool {
            PoolRef::Invalid => return Ok(sys::hsa_amd_memory_pool_t { handle: 0 }),
            PoolRef::Numbered { agent, number } => (agent, number),
        };
        let wanted = self.agent(agent)?;
        let mut agents = self.cpus.iter().chain(&self.gpus);
        let (_, pools) = agents.find(|(agent, _)| *agent == wanted).ok_or(Missing)?;
        pools.get(number).copied().ok_or(Missing)
    }

    /// Repeats a call, and compares its status with the recorded status.
    fn repeat_and_compare(&mut self, action: &Action, recorded: u32) -> Outcome {
        let (status, difference) = match self.repeat(action) {
            Ok(Some(result)) => result,
            Ok(None) => return Outcome::NotMade("this runtime lacks the function".to_owned()),
            Err(missing) => return missing.into(),
        };
        if status != recorded {
            return Outcome::Diverged(format!(
                "recorded status {recorded:#x} ({}), here {status:#x} ({})",
                self.status_text(recorded),
                self.status_text(status)
            ));
        }
        difference.map_or(Outcome::Agreed, Outcome::Diverged)
    }

    fn status_text(&self, status: u32) -> String {
        let mut text = ptr::null();
        // SAFETY: the function only writes the address of a constant C string to `text`.
        let result = unsafe { (self.core.hsa_status_string)(status, &raw mut text) };
        if result != sys::HSA_STATUS_SUCCESS || text.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: the runtime has returned a constant C string.
        let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned();
        text.split(':').next().unwrap_or_default().to_owned()
    }

    /// Repeats a call. Returns its status and, if the call returned other permissions than recorded, a description of
    /// the difference. Returns `None` if the runtime does not have the function.
    fn repeat(&mut self, action: &Action) -> Result<Option<(u32, Option<String>)>, Missing> {
        let vmem = self.vmem;
        let core = self.core;
        // SAFETY, for all calls: addresses are in blocks that the runtime has returned, or were rejected when they were
        // recorded. Arrays and result pointers are valid during the call.
        let status = match *action {
            Action::Reserve { block, size, hint, alignment, flags } => {
                let mut address = ptr::null_mut();
                let result = &raw mut address;
                let size = size as usize;
                // Releases before 6.2 cannot align a reservation. Then, reserve without alignment.
                let status = match (alignment, vmem.hsa_amd_vmem_address_reserve_align) {
                    // SAFETY: see the start of `repeat`.
                    (Some(alignment), Some(reserve)) => unsafe {
                        reserve(result, size, hint, alignment, flags)
                    },
                    // SAFETY: see the start of `repeat`.
                    _ => unsafe { (vmem.hsa_amd_vmem_address_reserve)(result, size, hint, flags) },
                };
                store_result(&mut self.blocks, block, status, address as u64);
                status
            }
            Action::Free { at, size } => {
                let at = self.address(at)?;
                // SAFETY: see the start of `repeat`.
                unsafe { (vmem.hsa_amd_vmem_address_free)(at, size as usize) }
            }
            Action::Create { memory, pool, size, kind, flags } => {
                let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
                let (pool, result) = (self.pool(pool)?, &raw mut handle);
                // SAFETY: see the start of `repeat`.
                let status = unsafe {
                    (vmem.hsa_amd_vmem_handle_create)(pool, size as usize, kind, flags, result)
                };
                store_result(&mut self.memories, memory, status, handle.handle);
                status
            }
            Action::Release { memory } => {
                let memory = self.memory(memory)?;
                // SAFETY: see the start of `repeat`.
                unsafe { (vmem.hsa_amd_vmem_handle_release)(memory) }
            }
            Action::Map { at, size, offset, memory, flags } => {
                let (at, memory) = (self.address(at)?, self.memory(memory)?);
                // SAFETY: see the start of `repeat`.
                let status = unsafe {
                    (vmem.hsa_amd_vmem_map)(at, size as usize, offset as usize, memory, flags)
                };
                if status == sys::HSA_STATUS_SUCCESS {
                    self.mapped.push((at as u64, size));
                }
                status
            }
            Action::Unmap { at, size } => {
                let at = self.address(at)?;
                // SAFETY: see the start of `repeat`.
                let status = unsafe { (vmem.hsa_amd_vmem_unmap)(at, size as usize) };
                if status == sys::HSA_STATUS_SUCCESS {
                    self.mapped.retain(|(address, _)| *address != at as u64);
                }
                status
            }
            Action::SetAccess { at, size, ref access } => {
                let at = self.address(at)?;
                let list = access.iter().map(|&(agent, permissions)| {
                    let agent_handle = self.agent(agent)?;
                    Ok(sys::hsa_amd_memory_access_desc_t { permissions, agent_handle })
                });
                let list: Vec<_> = list.collect::<Result<_, Missing>>()?;
                let first = if list.is_empty() { ptr::null() } else { list.as_ptr() };
                // SAFETY: see the start of `repeat`.
                unsafe { (vmem.hsa_amd_vmem_set_access)(at, size as usize, first, list.len()) }
            }
            Action::GetAccess { at, agent, permissions } => {
                let (at, agent, mut found) = (self.address(at)?, self.agent(agent)?, 0);
                // SAFETY: see the start of `repeat`.
                let status = unsafe { (vmem.hsa_amd_vmem_get_access)(at, &raw mut found, agent) };
                let differs = permissions.filter(|&recorded| recorded != found);
                let difference = differs
                    .map(|recorded| format!("recorded permissions {recorded}, here {found}"));
                return Ok(Some((status, difference)));
            }
            Action::Export { descriptor, memory, flags } => {
                let (memory, mut fd) = (self.memory(memory)?, -1);
                // SAFETY: see the start of `repeat`.
                let status = unsafe {
                    (vmem.hsa_amd_vmem_export_shareable_handle)(&raw mut fd, memory, flags)
                };
                if status == sys::HSA_STATUS_SUCCESS {
                    // SAFETY: the call has succeeded, so this process owns the new descriptor.
                    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                    if let Some(slot) =
                        descriptor.and_then(|number| self.descriptors.get_mut(number))
                    {
                        *slot = Some(fd);
                    }
                }
                status
            }
            Action::Import { memory, descriptor } => {
                let fd =
                    self.descriptors.get(descriptor).and_then(Option::as_ref).ok_or(Missing)?;
                let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
                // SAFETY: see the start of `repeat`.
                let status = unsafe {
                    (vmem.hsa_amd_vmem_import_shareable_handle)(fd.as_raw_fd(), &raw mut handle)
                };
                store_result(&mut self.memories, memory, status, handle.handle);
                status
            }
            Action::Retain { memory, at } => {
                let at = self.address(at)?;
                let mut handle = sys::hsa_amd_vmem_alloc_handle_t { handle: 0 };
                // SAFETY: see the start of `repeat`.
                let status =
                    unsafe { (vmem.hsa_amd_vmem_retain_alloc_handle)(&raw mut handle, at) };
                store_result(&mut self.memories, memory, status, handle.handle);
                status
            }
            Action::Properties { memory } => {
                let memory = self.memory(memory)?;
                let (mut pool, mut kind) = (sys::hsa_amd_memory_pool_t { handle: 0 }, 0);
                let query = vmem.hsa_amd_vmem_get_alloc_properties_from_handle;
                // SAFETY: see the start of `repeat`.
                unsafe { query(memory, &raw mut pool, &raw mut kind) }
            }
            Action::Allocate { block, pool, size, flags } => {
                let Some(allocate) = core.hsa_amd_memory_pool_allocate else { return Ok(None) };
                let (pool, mut address) = (self.pool(pool)?, ptr::null_mut());
                // SAFETY: see the start of `repeat`.
                let status = unsafe { allocate(pool, size as usize, flags, &raw mut address) };
                store_result(&mut self.blocks, block, status, address as u64);
                status
            }
            Action::FreeMemory { at } => {
                let Some(free) = core.hsa_amd_memory_pool_free else { return Ok(None) };
                let at = self.address(at)?;
                // SAFETY: see the start of `repeat`.
                unsafe { free(at) }
            }
            Action::AllowAccess { at, ref agents } => {
                let Some(allow) = core.hsa_amd_agents_allow_access else { return Ok(None) };
                let at = self.address(at)?;
                let agents = agents.iter().map(|&agent| self.agent(agent));
                let agents: Vec<_> = agents.collect::<Result<_, Missing>>()?;
                let first = if agents.is_empty() { ptr::null() } else { agents.as_ptr() };
                // SAFETY: see the start of `repeat`.
                unsafe { allow(agents.len() as u32, first, ptr::null(), at) }
            }
            Action::IpcCreate { at, size } => {
                let Some(create) = core.hsa_amd_ipc_memory_create else { return Ok(None) };
                let at = self.address(at)?;
                let mut handle = sys::hsa_amd_ipc_memory_t { handle: [0; 8] };
                // SAFETY: see the start of `repeat`.
                unsafe { create(at, size as usize, &raw mut handle) }
            }
            _ => return Ok(None),
        };
        Ok(Some((status, None)))
    }

    /// Unmaps the remaining mappings, because the driver logs a warning about a process that ends with mappings.
    fn unmap_remaining(&mut self) {
        for (address, size) in self.mapped.drain(..) {
            // SAFETY: the runtime has mapped the range, and nothing uses it any more.
            unsafe { (self.vmem.hsa_amd_vmem_unmap)(pointer(address), size as usize) };
        }
    }
}

/// Stores a result at its number if the call succeeded. Calls that failed when they were recorded have no number.
fn store_result(list: &mut [Option<u64>], number: Option<usize>, status: u32, value: u64) {
    if status == sys::HSA_STATUS_SUCCESS
        && let Some(slot) = number.and_then(|number| list.get_mut(number))
    {
        *slot = Some(value);
    }
}
