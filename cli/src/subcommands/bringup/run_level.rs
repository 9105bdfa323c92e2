//! The calls of each level, made in the level's worker process.

use super::arguments::Bringup;
use super::data::{self, DAMAGED, MOVED};
use super::host_buffer::{GRANT, HostBuffer, with_host, wrong_copy};
use super::hsa::{Address, Agent, COPY, Handle, Hsa, Named, Pool, PoolInfo};
use super::level::Level;
use super::record::Record;
use super::recorder::{AlreadyReported, Recorder};
use super::{accounting, other_process, page_table, processes, reuse};
use crate::Exit;
use hsa_sys as sys;
use hsa_vmm::simulation::Simulation;
use hsa_vmm_conformance::describe;
use hsa_vmm_conformance::worker::Requests;

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The number of threads of "load".
const THREADS: u32 = 4;
/// The number of rounds in each thread of "load".
const ROUNDS: u32 = 64;

/// The first of the numbers that the level "cpu" writes.
const BY_CPU: u32 = 0x0c90_0001;
/// The first of the numbers that the level "gpu" writes.
const BY_GPU: u32 = 0x6900_0001;
/// The first of the numbers that the owner of the memory writes in "peer". Bits 8 to 15 contain the number of the peer,
/// from 1. The peers are the other GPUs that can access the memory.
const BY_OWNER: u32 = 0x9ee2_0000;
/// The first of the numbers that a peer writes in "peer". Bits 8 to 15 contain the number of the peer, from 1.
const BY_PEER: u32 = 0x9ee3_0000;
/// The first of the numbers in memory that is mapped twice in "peer".
const MAPPED_TWICE: u32 = 0x9ee4_0001;

/// The agents and pools that the levels use.
#[derive(Debug)]
pub struct Resources {
    pub cpu: Agent,
    pub gpus: Vec<Agent>,
    /// The first GPU's pool.
    pub pool: Pool,
    /// The size of the memory that a level creates, in bytes: [`Level::granule_count`] granules.
    pub size: usize,
    /// The CPU's pool, for the levels that need CPU memory.
    pub host_pool: Option<Pool>,
}

/// Runs one level and records its result. The process exits afterwards.
pub fn run_level(args: &Bringup, level: Level, recorder: &Recorder) -> anyhow::Result<()> {
    let Some(table) = load_runtime(args, recorder)? else { return Ok(()) };
    let result = match level {
        Level::Library => check_functions(&table, recorder),
        _ => start_and_run(&Hsa::new(table, recorder, args), level),
    };
    if result.is_ok() {
        recorder.send(&Record::Reached);
    }
    Ok(())
}

/// Runs a level in an additional process, which the first process of the level has started.
pub fn run_in_other_process(
    args: &Bringup,
    level: Level,
    recorder: &Recorder,
    requests: &Requests,
) -> anyhow::Result<Exit> {
    let Some(table) = load_runtime(args, recorder)? else { return Ok(Exit::Failure) };
    match other_process::run(&Hsa::new(table, recorder, args), level, requests) {
        Ok(()) => Ok(Exit::Success),
        Err(AlreadyReported) => Ok(Exit::Failure),
    }
}

/// Loads the runtime and returns its functions, which stay valid until the process exits. If no library can be loaded,
/// records the reasons and returns `None`.
fn load_runtime(args: &Bringup, recorder: &Recorder) -> anyhow::Result<Option<sys::Table>> {
    if let Some(config) = args.simulation_config()? {
        let simulation = Simulation::start(config)?;
        let table = *simulation.table();
        std::mem::forget(simulation);
        recorder.send(&Record::Runtime(None));
        return Ok(Some(table));
    }
    // SAFETY: the user chose the file, or the file is the runtime with its usual name.
    match unsafe { sys::Library::load(&args.search()) } {
        Ok(library) => {
            let table = *library.table();
            recorder.send(&Record::Runtime(Some(library.path().display().to_string())));
            std::mem::forget(library);
            Ok(Some(table))
        }
        Err(error) => {
            recorder.send(&Record::NoLibrary(error.to_string()));
            Ok(None)
        }
    }
}

/// Checks that the library has the required functions.
fn check_functions(table: &sys::Table, recorder: &Recorder) -> Result<()> {
    if let Err(missing) = &table.vmem {
        return Err(recorder.fail(format!("{missing}: the library is older than ROCm 6.0")));
    }
    let optional = table.core.optional().chain(table.vmem.iter().flat_map(sys::Vmem::optional));
    let absent: Vec<_> = optional.filter(|(_, exists)| !exists).map(|(name, _)| name).collect();
    let present = sys::Core::SYMBOLS.len() + sys::Vmem::SYMBOLS.len() - absent.len();
    recorder.record_fact(match absent.len() {
        0 => format!("all {present} functions"),
        _ => format!("{present} functions; without {}", absent.join(", ")),
    });
    Ok(())
}

/// Starts the runtime, runs the level and stops the runtime.
fn start_and_run(hsa: &Hsa<'_>, level: Level) -> Result<()> {
    hsa.init()?;
    if level == Level::Runtime {
        let name = "HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR";
        let major = hsa.system_attribute(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR, name);
        // ROCm 6.0 does not have this attribute.
        if let Ok(major) = major {
            let name = "HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR";
            let minor = hsa.system_attribute(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR, name)?;
            if (major, minor) == (0, 0) {
                let message = "the version of the runtime's extension is 0.0";
                return Err(hsa.recorder.fail_in("hsa_system_get_info", message));
            }
            hsa.recorder.record_fact(format!("extension {major}.{minor}"));
        }
    } else {
        run_with_agents(hsa, level)?;
    }
    match level {
        // Do not call hsa_shut_down: with HSA_ENABLE_SDMA=0, this function aborts in one of four runs in ROCm 6.1.2,
        // because it locks a mutex of a destroyed queue.
        Level::Blit => Ok(()),
        // Do not call hsa_shut_down: after a GPU fault, this function waits forever for the GPU's queue.
        Level::Permission => Ok(()),
        _ => hsa.shut_down(),
    }
}

/// Finds the agents, and runs the level with these agents.
fn run_with_agents(hsa: &Hsa<'_>, level: Level) -> Result<()> {
    let (cpu, gpus) = find_agents(hsa)?;
    if level > Level::Agents {
        return run_with_resources(hsa, level, &find_resources(hsa, level, cpu, gpus)?);
    }
    let names = gpus.iter().map(|gpu| hsa.agent_name(gpu)).collect::<Result<Vec<_>>>()?;
    let plural = if names.len() == 1 { "" } else { "s" };
    hsa.recorder.record_fact(format!("{} GPU{plural}: {}", names.len(), names.join(", ")));
    Ok(())
}

/// The message of the level if the runtime reports no GPU.
pub const NO_GPU: &str = "no agent is a GPU";

/// Finds the first CPU and all GPUs.
pub fn find_agents(hsa: &Hsa<'_>) -> Result<(Agent, Vec<Agent>)> {
    let (mut cpu, mut gpus) = (None, Vec::new());
    for value in hsa.agents()? {
        let agent = Named::new("agent", value);
        match hsa.agent_attribute(&agent, sys::HSA_AGENT_INFO_DEVICE, "HSA_AGENT_INFO_DEVICE")? {
            sys::HSA_DEVICE_TYPE_CPU if cpu.is_none() => cpu = Some(Named::new("cpu", value)),
            sys::HSA_DEVICE_TYPE_GPU => {
                gpus.push(Named::new(format!("gpu[{}]", gpus.len()), value));
            }
            _ => {}
        }
    }
    match cpu {
        None => Err(hsa.recorder.fail("no agent is a CPU")),
        Some(_) if gpus.is_empty() => Err(hsa.recorder.fail(NO_GPU)),
        Some(cpu) => {
            hsa.set_cpu(&cpu);
            Ok((cpu, gpus))
        }
    }
}

/// Checks that virtual memory is supported, and finds the pools to allocate from.
pub fn find_resources(
    hsa: &Hsa<'_>,
    level: Level,
    cpu: Agent,
    gpus: Vec<Agent>,
) -> Result<Resources> {
    let name = "HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED";
    let supported =
        hsa.system_attribute(sys::HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED, name)?;
    // The runtime writes one byte.
    if supported & 0xff == 0 {
        let message = "the runtime says that virtual memory is not supported";
        return Err(hsa.recorder.fail(message));
    }
    let (pool, info) = find_pool(hsa, &gpus[0], "pool")?;
    if level == Level::Pools {
        accounting::check_available(hsa, &gpus[0], info.size as u64)?;
        let (size, granule) =
            (describe::format_size(info.size), describe::format_size(info.granule));
        hsa.recorder.record_fact(format!("{size}, granule {granule}"));
    }
    let host_pool = match level > Level::Cpu {
        true => Some(find_pool(hsa, &cpu, "host_pool")?.0),
        false => None,
    };
    Ok(Resources { cpu, gpus, pool, size: info.granule * level.granule_count(), host_pool })
}

/// Returns an agent's first pool that allows allocation. `c_variable` is the pool's variable in the C program that
/// repeats a failure.
fn find_pool(hsa: &Hsa<'_>, agent: &Agent, c_variable: &str) -> Result<(Pool, PoolInfo)> {
    for value in hsa.pools(agent, c_variable)? {
        let pool = Named::new(c_variable, value);
        let info = hsa.pool_info(&pool)?;
        if info.segment != sys::HSA_AMD_SEGMENT_GLOBAL || !info.allocatable {
            continue;
        }
        if !info.granule.is_power_of_two() || info.granule < 4096 {
            let message = format!(
                "the granule of a pool of {} is {} bytes; it must be a power of two of at least 4096",
                agent.c_expression, info.granule
            );
            return Err(hsa.recorder.fail(message));
        }
        return Ok((pool, info));
    }
    Err(hsa.recorder.fail(format!("{} has no pool that allows allocation", agent.c_expression)))
}

/// Runs a level that uses memory.
fn run_with_resources(hsa: &Hsa<'_>, level: Level, resources: &Resources) -> Result<()> {
    let size = resources.size;
    match level {
        Level::Library | Level::Runtime | Level::Agents | Level::Pools => Ok(()),
        Level::Reserved => {
            let va = hsa.reserve(size, "va")?;
            hsa.recorder.record_fact(format!("{} at {:#x}", describe::format_size(size), va.value));
            hsa.free(&va, size)
        }
        Level::Handle => {
            let memory = hsa.create(&resources.pool, size, "memory")?;
            hsa.release(&memory)
        }
        Level::Mapped => with_mapping(hsa, resources, |_, _| Ok(())),
        Level::Cpu => check_cpu(hsa, resources),
        Level::Gpu => with_mapping(hsa, resources, |va, _| {
            with_host(hsa, resources, |host| check_gpu(hsa, resources, va, host))
        }),
        Level::Data | Level::Sdma => data::check_data(hsa, resources, false),
        Level::Blit => data::check_data(hsa, resources, true),
        Level::AtOnce => data::check_at_once(hsa, resources),
        Level::Unmapped => reuse::check_unmapped(hsa, resources),
        Level::Reused => reuse::check_reused(hsa, resources),
        Level::Counted => accounting::check_counted(hsa, resources),
        Level::Descriptors => accounting::check_descriptors(hsa, resources),
        Level::Peer => check_peer(hsa, resources),
        Level::Shared => with_mapping(hsa, resources, |va, memory| {
            with_host(hsa, resources, |host| {
                other_process::export(hsa, resources, va, memory, host)
            })
        }),
        Level::Offset => page_table::check_offset(hsa, resources),
        Level::Permission => page_table::check_permission(hsa, resources),
        Level::Load => check_load(hsa, resources),
        Level::Pressure => processes::check_pressure(hsa, resources),
        Level::Killed => processes::check_killed(hsa, resources),
    }
}

/// Maps memory, calls `then`, unmaps and releases the memory. Releases nothing after a failure: the process then exits.
pub fn with_mapping(
    hsa: &Hsa<'_>,
    resources: &Resources,
    then: impl FnOnce(&Address, &Handle) -> Result<()>,
) -> Result<()> {
    let va = hsa.reserve(resources.size, "va")?;
    let memory = hsa.create(&resources.pool, resources.size, "memory")?;
    hsa.map(&va, resources.size, &memory)?;
    then(&va, &memory)?;
    hsa.unmap(&va, resources.size)?;
    hsa.release(&memory)?;
    hsa.free(&va, resources.size)
}

fn check_cpu(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    if !hsa.can_access(&resources.cpu, &resources.pool)? {
        return Err(hsa.recorder.skip("no large BAR: the CPU cannot access all of the memory"));
    }
    with_mapping(hsa, resources, |va, _| {
        hsa.grant(va, resources.size, &[&resources.cpu])?;
        hsa.fill(va, resources.size, BY_CPU);
        hsa.compare(va, resources.size, BY_CPU)
    })
}

fn check_gpu(
    hsa: &Hsa<'_>,
    resources: &Resources,
    va: &Address,
    host: &HostBuffer<'_>,
) -> Result<()> {
    let gpu = &resources.gpus[0];
    hsa.grant(va, resources.size, &[gpu])?;
    host.write_and_read(gpu, va, BY_GPU)
}

fn check_peer(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let (owner, others) = (&resources.gpus[0], &resources.gpus[1..]);
    if others.is_empty() {
        return Err(hsa.recorder.skip("there is one GPU"));
    }
    let mut peers = Vec::new();
    for gpu in others {
        if hsa.can_access(gpu, &resources.pool)? {
            peers.push(gpu);
        }
    }
    if peers.is_empty() {
        return Err(hsa.recorder.skip("no other GPU can access gpu[0]'s memory"));
    }
    hsa.recorder.record_fact(format!(
        "{} of {} other GPUs can access gpu[0]'s memory",
        peers.len(),
        others.len()
    ));
    with_mapping(hsa, resources, |va, memory| {
        // Use separate memory to test the first grant to another GPU: the driver can move the memory during this grant.
        hsa.grant(va, resources.size, &[owner])?;
        with_host(hsa, resources, |host| {
            check_after_second_mapping(hsa, resources, (va, memory), (owner, peers[0]), host)
        })
    })?;
    with_mapping(hsa, resources, |va, _| {
        // Name the owner last: some releases ignore the agents that are named after the owner.
        let all: Vec<_> = peers.iter().copied().chain([owner]).collect();
        hsa.grant(va, resources.size, &all)?;
        with_host(hsa, resources, |host| {
            for (peer, number) in peers.iter().zip(1..) {
                let (by_owner, by_peer) = (BY_OWNER | number << 8, BY_PEER | number << 8);
                host.write_by(owner, va, by_owner)?;
                let cause = |_| Ok((COPY, wrong_copy(peer, va)));
                host.read_first(peer, va, by_owner, &hsa.describe_copier(owner), cause)?;
                host.write_by(peer, va, by_peer)?;
                host.read_by(owner, va, by_peer, &hsa.describe_copier(peer))?;
            }
            Ok(())
        })
    })
}

/// Maps the memory at a second address, for another GPU only. The driver can then move the memory. Checks
/// that the first mapping still refers to the memory.
fn check_after_second_mapping(
    hsa: &Hsa<'_>,
    resources: &Resources,
    (va, memory): (&Address, &Handle),
    (owner, peer): (&Agent, &Agent),
    host: &HostBuffer<'_>,
) -> Result<()> {
    let (first, size) = (MAPPED_TWICE, resources.size);
    host.write_and_read(owner, va, first)?;
    let alias = hsa.reserve(size, "va2")?;
    hsa.map(&alias, size, memory)?;
    hsa.grant(&alias, size, &[peer])?;
    host.check_kept(owner, va, first, |_| {
        // If the other GPU reads right data, the memory has moved, and the mapping has not.
        let is_damaged = host.difference(peer, &alias, first)?.is_some();
        let problem = if is_damaged { DAMAGED } else { MOVED };
        let (owner, peer) = (&owner.c_expression, &peer.c_expression);
        Ok((GRANT, format!("{owner} {problem} after this call mapped the memory for {peer}")))
    })?;
    let cause = |_| Ok((COPY, wrong_copy(peer, &alias)));
    host.read_first(peer, &alias, first, &hsa.describe_copier(owner), cause)?;
    hsa.unmap(&alias, size)?;
    hsa.free(&alias, size)
}

fn check_load(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let run_rounds = |thread: u32| -> Result<()> {
        Recorder::set_thread_number(thread);
        with_host(hsa, resources, |host| {
            for round in 0..ROUNDS {
                with_mapping(hsa, resources, |va, _| {
                    let gpu = &resources.gpus[0];
                    hsa.grant(va, resources.size, &[gpu])?;
                    // No two rounds begin with the same number.
                    let first = thread << 24 | round << 12;
                    host.write_and_read(gpu, va, first)
                })?;
            }
            Ok(())
        })
    };
    let succeeded = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (1..=THREADS).map(|number| scope.spawn(move || run_rounds(number))).collect();
        threads.into_iter().all(|thread| thread.join().is_ok_and(|result| result.is_ok()))
    });
    if !succeeded {
        return Err(AlreadyReported);
    }
    hsa.recorder.record_fact(format!("{THREADS} threads, {ROUNDS} rounds each"));
    Ok(())
}
