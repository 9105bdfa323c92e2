//! Several processes that use a GPU's memory at once: the levels "pressure" and "killed".

use super::accounting::large_size;
use super::host_buffer::with_host;
use super::hsa::{AGENT_INFO, Handle, Hsa, Named, Pool};
use super::other_process::start_process;
use super::record::Record;
use super::recorder::AlreadyReported;
use super::run_level::Resources;
use hsa_vmm_conformance::describe;
use hsa_vmm_conformance::worker::{End, Received, Worker};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, AlreadyReported>;

/// The number of processes of "pressure".
const PROCESSES: u8 = 3;
/// The number of rounds in each process of "pressure".
const ROUNDS: u32 = 3;
/// The number of handles that keep their data while the memory is filled.
const KEPT_HANDLES: u32 = 4;
/// The first of the numbers in the memory of the first handle that keeps its data.
const FIRST: u32 = 0x9e55_0001;
/// The largest number of handles that fill the memory.
const MAX_HANDLES: usize = 64;
/// The fact that the other process of "killed" records when it holds its memory.
const HOLDS: &str = "holds memory";
/// The time within which memory must become available. In the level "pressure", other processes release the memory. In
/// the level "killed", the driver frees the memory of the killed process.
const FREE_LIMIT: Duration = Duration::from_secs(5);

/// Fills the memory from several processes at once. Each process checks that its earlier data stays unchanged.
pub fn check_pressure(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let others =
        (1..PROCESSES).map(|number| start_other(hsa, number)).collect::<Result<Vec<_>>>()?;
    let result = fill_memory(hsa, resources);
    for mut other in others {
        let end = forward(hsa, &mut other, |_| false);
        match end {
            Some(End::Exited(0)) => {}
            // The other process has recorded the reason.
            Some(End::Exited(code)) if code == i32::from(crate::FAILED) => {
                return Err(AlreadyReported);
            }
            Some(end) => {
                return Err(hsa.recorder.fail(format!("one of the other processes: {end}")));
            }
            None => {}
        }
    }
    hsa.recorder.record_fact(format!("{PROCESSES} processes, {ROUNDS} rounds each"));
    result
}

fn start_other(hsa: &Hsa<'_>, number: u8) -> Result<Worker> {
    start_process(number)
        .map_err(|error| hsa.recorder.fail(format!("cannot start process {}: {error}", number + 1)))
}

/// Forwards the records of another process, except facts and `Reached`, until `until` accepts a record. Returns the
/// exit status if the process ends first.
fn forward(hsa: &Hsa<'_>, other: &mut Worker, until: impl Fn(&Record) -> bool) -> Option<End> {
    loop {
        match other.receive::<Record>(Duration::MAX) {
            Received::Message(record) if until(&record) => return None,
            // Only this process reports that the level was reached, and with which facts.
            Received::Message(Record::Fact(_) | Record::Reached) => {}
            Received::Message(record) => hsa.recorder.send(&record),
            Received::Invalid(_) | Received::Timeout => {}
            Received::Exited(end) => return Some(end),
        }
    }
}

/// Runs one process of "pressure". Writes data to [`KEPT_HANDLES`] handles. Each round then fills the memory: it
/// allocates until an allocation fails, or until [`MAX_HANDLES`] handles are held. At the end of the round, compares
/// the data, and releases the handles that fill the memory.
pub fn fill_memory(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let (gpu, size, pool) = (&resources.gpus[0], resources.size, &resources.pool);
    // A sixteenth of the pool, in whole granules.
    let large = (hsa.pool_info(pool)?.size / 16).max(size) / size * size;
    with_host(hsa, resources, |host| {
        let mut kept = Vec::new();
        for number in 0..KEPT_HANDLES {
            let va = hsa.reserve(size, "va")?;
            let memory = create_when_available(hsa, pool, size)?;
            hsa.map(&va, size, &memory)?;
            hsa.grant(&va, size, &[gpu])?;
            let first = FIRST | number << 12;
            host.write_and_read(gpu, &va, first)?;
            kept.push((va, memory, first));
        }
        for _ in 0..ROUNDS {
            let mut held = Vec::new();
            while held.len() < MAX_HANDLES {
                match hsa.try_create(pool, &Named::new(format!("{large:#x}"), large))? {
                    Some(memory) => held.push(memory),
                    None => break,
                }
            }
            for (va, _, first) in &kept {
                host.check_kept(gpu, va, *first, |_| {
                    let what = "data changed while this level filled the memory: suspect eviction first, which \
                                moves the memory (the copy by the kernel's SDMA engine, amdgpu_copy_buffer), then \
                                memory that was allocated twice; OUT_OF_RESOURCES is expected in this level";
                    Ok(("hsa_amd_vmem_handle_create", what.to_owned()))
                })?;
            }
            held.iter().try_for_each(|memory| hsa.release(memory))?;
        }
        kept.iter().try_for_each(|(va, memory, _)| {
            hsa.unmap(va, size)?;
            hsa.release(memory)?;
            hsa.free(va, size)
        })
    })
}

/// Allocates memory. Waits while the other processes of "pressure" hold all memory.
fn create_when_available(hsa: &Hsa<'_>, pool: &Pool, size: usize) -> Result<Handle> {
    let began = Instant::now();
    loop {
        match hsa.try_create(pool, &Named::new("size", size))? {
            Some(memory) => return Ok(memory),
            None if began.elapsed() < FREE_LIMIT => std::thread::sleep(Duration::from_millis(20)),
            None => {
                let message = format!("no memory for {size} bytes within {FREE_LIMIT:?}");
                return Err(hsa.recorder.fail_in("hsa_amd_vmem_handle_create", message));
            }
        }
    }
}

/// Kills a process that holds memory, and checks that the memory becomes available.
pub fn check_killed(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let gpu = &resources.gpus[0];
    let Some(before) = hsa.try_available_memory(gpu) else {
        return Err(hsa.recorder.skip("the runtime does not know the available memory"));
    };
    let mut other = start_other(hsa, 1)?;
    if let Some(end) = forward(hsa, &mut other, |record| *record == Record::Fact(HOLDS.into())) {
        return Err(hsa.recorder.fail(format!("the other process ended: {end}")));
    }
    let size = large_size(resources, before) as u64;
    let missing = || Ok(before.saturating_sub(hsa.available_memory(gpu)?));
    let is_counted = missing()? > size / 2;
    let arguments = [("process", "the other process".to_owned())];
    hsa.recorder.record("kill", &arguments, None, || {
        other.kill();
        while !matches!(other.receive::<Record>(Duration::MAX), Received::Exited(_)) {}
        ((), None, vec![])
    });
    if let Some(process) = other.unkillable_process() {
        let message =
            format!("process {process} does not end after SIGKILL; see /proc/{process}/stack");
        return Err(hsa.recorder.fail_in("kill", message));
    }
    if !is_counted && hsa.is_emulated {
        let why = "memory of other processes is not counted (simulation, emulated driver)";
        return Err(hsa.recorder.skip(why));
    }
    if !is_counted {
        let message = format!("{size} bytes of another process are not counted");
        return Err(hsa.recorder.fail_in(AGENT_INFO, message));
    }
    let began = Instant::now();
    loop {
        let missing = missing()?;
        if missing <= size / 2 {
            break;
        }
        if began.elapsed() > FREE_LIMIT {
            let message = format!("{missing} bytes are missing after the process was killed");
            return Err(hsa.recorder.fail_in("kill", message));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    hsa.recorder.record_fact(format!("{} returned", describe::format_size(size as usize)));
    Ok(())
}

/// Runs the other process of "killed": holds memory until the process is killed.
pub fn hold_memory(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let gpu = &resources.gpus[0];
    let size = large_size(resources, hsa.available_memory(gpu)?);
    let va = hsa.reserve(size, "va")?;
    let memory = hsa.create(&resources.pool, size, "memory")?;
    hsa.map(&va, size, &memory)?;
    hsa.grant(&va, size, &[gpu])?;
    hsa.recorder.record_fact(HOLDS);
    loop {
        std::thread::park();
    }
}
