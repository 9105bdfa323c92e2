//! What each level asks of the runtime: the fewest calls, from the first to the last, in the process
//! of the level.

use super::arguments::Bringup;
use super::hsa::{Address, Agent, Handle, Hsa, Named, Pool, PoolInfo};
use super::level::Level;
use super::other_process;
use super::record::Record;
use super::recorder::{Recorder, Stopped};
use crate::Ending;
use hsa_sys as sys;
use hsa_vmm::simulation::Simulation;
use hsa_vmm_conformance::describe;
use hsa_vmm_conformance::worker::Orders;

type Result<T> = std::result::Result<T, Stopped>;

/// How many threads the last level has, and how often each goes through it all.
const THREADS: u32 = 4;
const ROUNDS: u32 = 64;

/// What was found on the way.
#[derive(Debug)]
pub struct Ground {
    pub cpu: Agent,
    pub gpus: Vec<Agent>,
    /// Memory of the first GPU.
    pub pool: Pool,
    /// What one handle has.
    pub size: usize,
    /// Memory of the processor, from the level on that needs it.
    pub host_pool: Option<Pool>,
}

/// Climbs one level and tells how it went. The process ends after this.
pub fn climb(verb: &Bringup, level: Level, recorder: &Recorder) -> anyhow::Result<()> {
    let Some(table) = open(verb, recorder)? else { return Ok(()) };
    let reached = match level {
        Level::Library => library(&table, recorder),
        _ => start(&Hsa::new(table, recorder), level),
    };
    if reached.is_ok() {
        recorder.tell(&Record::Reached);
    }
    Ok(())
}

/// The other process of the level "shared".
pub fn be_other_process(
    verb: &Bringup,
    recorder: &Recorder,
    orders: &Orders,
) -> anyhow::Result<Ending> {
    let Some(table) = open(verb, recorder)? else { return Ok(Ending::Failed) };
    match other_process::import(&Hsa::new(table, recorder), orders) {
        Ok(()) => Ok(Ending::Well),
        Err(Stopped) => Ok(Ending::Failed),
    }
}

/// The functions of the runtime; none after telling that there is none. They stay as long as the
/// process does.
fn open(verb: &Bringup, recorder: &Recorder) -> anyhow::Result<Option<sys::Table>> {
    if let Some(config) = verb.simulation()? {
        let simulation = Simulation::start(config)?;
        let table = *simulation.table();
        std::mem::forget(simulation);
        recorder.tell(&Record::Runtime(None));
        return Ok(Some(table));
    }
    // SAFETY: the file is the one that the user names, or the runtime by its own name.
    match unsafe { sys::Library::load(&verb.search()) } {
        Ok(library) => {
            let table = *library.table();
            recorder.tell(&Record::Runtime(Some(library.path().display().to_string())));
            std::mem::forget(library);
            Ok(Some(table))
        }
        Err(error) => {
            recorder.tell(&Record::NoLibrary(error.to_string()));
            Ok(None)
        }
    }
}

fn library(table: &sys::Table, recorder: &Recorder) -> Result<()> {
    if let Err(missing) = &table.vmem {
        return Err(recorder.wrong(format!("{missing}: it is older than ROCm 6.0")));
    }
    let optional = table.core.optional().chain(table.vmem.iter().flat_map(sys::Vmem::optional));
    let lacks: Vec<_> = optional.filter(|(_, there)| !there).map(|(name, _)| name).collect();
    let required = sys::Core::SYMBOLS.len() + sys::Vmem::SYMBOLS.len() - lacks.len();
    recorder.fact(match lacks.len() {
        0 => format!("all {required} functions"),
        _ => format!("{required} functions; without {}", lacks.join(", ")),
    });
    Ok(())
}

fn start(hsa: &Hsa<'_>, level: Level) -> Result<()> {
    hsa.init()?;
    if level == Level::Runtime {
        let version = "HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR";
        let major = hsa.system(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR, version);
        // ROCm 6.0 cannot be asked.
        if let Ok(major) = major {
            let version = "HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR";
            let minor = hsa.system(sys::HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR, version)?;
            hsa.recorder.fact(format!("extension {major}.{minor}"));
        }
    } else {
        agents(hsa, level)?;
    }
    hsa.shut_down()
}

fn agents(hsa: &Hsa<'_>, level: Level) -> Result<()> {
    let (cpu, gpus) = find_agents(hsa)?;
    if level > Level::Agents {
        return on_ground(hsa, level, &find_ground(hsa, level, cpu, gpus)?);
    }
    let names = gpus.iter().map(|gpu| hsa.agent_name(gpu)).collect::<Result<Vec<_>>>()?;
    let plural = if names.len() == 1 { "" } else { "s" };
    hsa.recorder.fact(format!("{} GPU{plural}: {}", names.len(), names.join(", ")));
    Ok(())
}

/// The first processor, and all GPUs.
pub fn find_agents(hsa: &Hsa<'_>) -> Result<(Agent, Vec<Agent>)> {
    let (mut cpu, mut gpus) = (None, Vec::new());
    for value in hsa.agents()? {
        let agent = Named::new("agent", value);
        match hsa.agent(&agent, sys::HSA_AGENT_INFO_DEVICE, "HSA_AGENT_INFO_DEVICE")? {
            sys::HSA_DEVICE_TYPE_CPU if cpu.is_none() => cpu = Some(Named::new("cpu", value)),
            sys::HSA_DEVICE_TYPE_GPU => {
                gpus.push(Named::new(format!("gpu[{}]", gpus.len()), value));
            }
            _ => {}
        }
    }
    match cpu {
        None => Err(hsa.recorder.wrong("no agent is a CPU")),
        Some(_) if gpus.is_empty() => Err(hsa.recorder.wrong("no agent is a GPU")),
        Some(cpu) => Ok((cpu, gpus)),
    }
}

/// The pools to take memory from.
pub fn find_ground(hsa: &Hsa<'_>, level: Level, cpu: Agent, gpus: Vec<Agent>) -> Result<Ground> {
    let name = "HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED";
    let supported = hsa.system(sys::HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED, name)?;
    // One byte is answered.
    if supported & 0xff == 0 {
        let what = "the runtime says that virtual memory is not supported";
        return Err(hsa.recorder.wrong(what));
    }
    let (pool, info) = find_pool(hsa, &gpus[0], "pool")?;
    if level == Level::Pools {
        let (size, granule) = (describe::size(info.size), describe::size(info.granule));
        hsa.recorder.fact(format!("{size}, granule {granule}"));
    }
    let host_pool = match level > Level::Cpu {
        true => Some(find_pool(hsa, &cpu, "host_pool")?.0),
        false => None,
    };
    Ok(Ground { cpu, gpus, pool, size: info.granule, host_pool })
}

/// The first pool of an agent that memory can be had from.
fn find_pool(hsa: &Hsa<'_>, agent: &Agent, c: &str) -> Result<(Pool, PoolInfo)> {
    for value in hsa.pools(agent, c)? {
        let pool = Named::new(c, value);
        let info = hsa.pool(&pool)?;
        if info.segment != sys::HSA_AMD_SEGMENT_GLOBAL || !info.allocatable {
            continue;
        }
        if !info.granule.is_power_of_two() || info.granule < 4096 {
            let what = format!("the granule of a pool of {} is {} bytes", agent.c, info.granule);
            return Err(hsa.recorder.wrong(what));
        }
        return Ok((pool, info));
    }
    Err(hsa.recorder.wrong(format!("{} has no pool that memory can be had from", agent.c)))
}

fn on_ground(hsa: &Hsa<'_>, level: Level, ground: &Ground) -> Result<()> {
    let size = ground.size;
    match level {
        Level::Library | Level::Runtime | Level::Agents | Level::Pools => Ok(()),
        Level::Reserved => {
            let va = hsa.reserve(size)?;
            hsa.recorder.fact(format!("{} at {:#x}", describe::size(size), va.value));
            hsa.free(&va, size)
        }
        Level::Handle => {
            let memory = hsa.create(&ground.pool, size)?;
            hsa.release(&memory)
        }
        Level::Mapped => mapped(hsa, ground, |_, _| Ok(())),
        Level::Cpu => cpu(hsa, ground),
        Level::Gpu => {
            mapped(hsa, ground, |va, _| with_host(hsa, ground, |host| gpu(hsa, ground, va, host)))
        }
        Level::Peer => peer(hsa, ground),
        Level::Shared => mapped(hsa, ground, |va, memory| {
            with_host(hsa, ground, |host| other_process::export(hsa, ground, va, memory, host))
        }),
        Level::Load => load(hsa, ground),
    }
}

/// Memory at addresses, and everything back in the end.
fn mapped(
    hsa: &Hsa<'_>,
    ground: &Ground,
    then: impl FnOnce(&Address, &Handle) -> Result<()>,
) -> Result<()> {
    let va = hsa.reserve(ground.size)?;
    let memory = hsa.create(&ground.pool, ground.size)?;
    hsa.map(&va, ground.size, &memory)?;
    then(&va, &memory)?;
    hsa.unmap(&va, ground.size)?;
    hsa.release(&memory)?;
    hsa.free(&va, ground.size)
}

fn cpu(hsa: &Hsa<'_>, ground: &Ground) -> Result<()> {
    if !hsa.may_reach(&ground.cpu, &ground.pool)? {
        return Err(hsa.recorder.skip("no large BAR: the CPU cannot reach all of the memory"));
    }
    mapped(hsa, ground, |va, _| {
        hsa.grant(va, ground.size, &[&ground.cpu])?;
        hsa.fill(va, ground.size, 0x0c90_0001);
        hsa.compare(va, ground.size, 0x0c90_0001)
    })
}

/// Memory of the processor that the GPUs can use, and a signal.
#[derive(Debug)]
pub struct Host<'a> {
    hsa: &'a Hsa<'a>,
    size: usize,
    memory: Address,
    signal: Named<sys::hsa_signal_t>,
}

/// Goes on with memory of the processor, as much as one handle has.
pub fn with_host(
    hsa: &Hsa<'_>,
    ground: &Ground,
    then: impl FnOnce(&Host<'_>) -> Result<()>,
) -> Result<()> {
    let Some(pool) = &ground.host_pool else {
        return Err(hsa.recorder.wrong("no memory of the processor was looked for"));
    };
    let memory = hsa.allocate(pool, ground.size, "host")?;
    hsa.allow(&memory, &ground.gpus.iter().collect::<Vec<_>>())?;
    let host = Host { hsa, size: ground.size, memory, signal: hsa.signal()? };
    then(&host)?;
    hsa.destroy(&host.signal)?;
    hsa.pool_free(&host.memory)
}

impl Host<'_> {
    /// A GPU copies words, which count from `first`, from here to an address.
    pub fn write_by(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        self.hsa.fill(&self.memory, self.size, first);
        self.hsa.copy(va, &self.memory, self.size, gpu, &self.signal)
    }

    /// A GPU copies them here, where they are looked at.
    pub fn read_by(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        self.hsa.fill(&self.memory, self.size, 0);
        self.hsa.copy(&self.memory, va, self.size, gpu, &self.signal)?;
        self.hsa.compare(&self.memory, self.size, first)
    }
}

fn gpu(hsa: &Hsa<'_>, ground: &Ground, va: &Address, host: &Host<'_>) -> Result<()> {
    let gpu = &ground.gpus[0];
    hsa.grant(va, ground.size, &[gpu])?;
    host.write_by(gpu, va, 0x6900_0001)?;
    host.read_by(gpu, va, 0x6900_0001)
}

fn peer(hsa: &Hsa<'_>, ground: &Ground) -> Result<()> {
    let (owner, others) = (&ground.gpus[0], &ground.gpus[1..]);
    if others.is_empty() {
        return Err(hsa.recorder.skip("there is one GPU"));
    }
    let mut peers = Vec::new();
    for gpu in others {
        if hsa.may_reach(gpu, &ground.pool)? {
            peers.push(gpu);
        }
    }
    if peers.is_empty() {
        return Err(hsa.recorder.skip("no GPU may reach the first one's memory"));
    }
    hsa.recorder.fact(format!("{} of {} reach the first one's memory", peers.len(), others.len()));
    mapped(hsa, ground, |va, _| {
        // The owner last: after it, some releases take nobody in.
        let all: Vec<_> = peers.iter().copied().chain([owner]).collect();
        hsa.grant(va, ground.size, &all)?;
        with_host(hsa, ground, |host| {
            for (peer, number) in peers.iter().zip(1..) {
                let (there, back) = (0x9ee2_0000 | number << 8, 0x9ee3_0000 | number << 8);
                host.write_by(owner, va, there)?;
                host.read_by(peer, va, there)?;
                host.write_by(peer, va, back)?;
                host.read_by(owner, va, back)?;
            }
            Ok(())
        })
    })
}

fn load(hsa: &Hsa<'_>, ground: &Ground) -> Result<()> {
    let work = |thread: u32| -> Result<()> {
        Recorder::name_thread(thread);
        with_host(hsa, ground, |host| {
            for round in 0..ROUNDS {
                mapped(hsa, ground, |va, _| {
                    let gpu = &ground.gpus[0];
                    hsa.grant(va, ground.size, &[gpu])?;
                    let first = thread << 24 | round << 12;
                    host.write_by(gpu, va, first)?;
                    host.read_by(gpu, va, first)
                })?;
            }
            Ok(())
        })
    };
    let well = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (1..=THREADS).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().all(|thread| thread.join().is_ok_and(|result| result.is_ok()))
    });
    if !well {
        return Err(Stopped);
    }
    hsa.recorder.fact(format!("{THREADS} threads, {ROUNDS} rounds each"));
    Ok(())
}
