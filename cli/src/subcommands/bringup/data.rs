//! Data that GPUs and the CPU write and read: the levels "data", "sdma", "blit" and "at-once".

use super::hsa::{Address, Agent, COPY, Difference, FILL, Hsa, Named};
use super::recorder::Stopped;
use super::run_level::{Resources, mapped};
use hsa_sys as sys;
use std::time::Duration;

type Result<T> = std::result::Result<T, Stopped>;

const BY_GPU: u32 = 0xda7a_0001;
const BY_CPU: u32 = 0xda7b_0001;
const FILLED: u32 = 0x5a5a_0001;
/// After this time a mapping that takes effect late is usable.
const LATER: Duration = Duration::from_millis(200);
/// The number of rounds of "at-once".
const ROUNDS: u32 = 8;
/// The function that grants access.
pub const GRANT: &str = "hsa_amd_vmem_set_access";

/// CPU memory that the GPUs can access, and a signal.
#[derive(Debug)]
pub struct Host<'a> {
    hsa: &'a Hsa<'a>,
    size: usize,
    memory: Address,
    signal: Named<sys::hsa_signal_t>,
}

/// Allocates CPU memory of the size of a handle, calls `then`, and frees it.
pub fn with_host(
    hsa: &Hsa<'_>,
    resources: &Resources,
    then: impl FnOnce(&Host<'_>) -> Result<()>,
) -> Result<()> {
    let Some(pool) = &resources.host_pool else {
        return Err(hsa.recorder.wrong("the CPU's pool was not looked up"));
    };
    let memory = hsa.allocate(pool, resources.size, "host")?;
    hsa.allow(&memory, &resources.gpus.iter().collect::<Vec<_>>())?;
    let host = Host { hsa, size: resources.size, memory, signal: hsa.signal()? };
    then(&host)?;
    hsa.destroy(&host.signal)?;
    hsa.pool_free(&host.memory)
}

/// Returns the address `offset` bytes after `start`.
fn after(start: &Address, offset: usize) -> Address {
    match offset {
        0 => start.clone(),
        _ => Named::new(format!("(char *){} + {offset:#x}", start.c), start.value + offset),
    }
}

impl Host<'_> {
    /// Has a GPU copy consecutive numbers from `first` on from here to `va`.
    pub fn write_by(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        self.hsa.fill(&self.memory, self.size, first);
        self.copy(va, &self.memory, gpu)
    }

    fn copy(&self, to: &Address, from: &Address, gpu: &Agent) -> Result<()> {
        self.hsa.copy(to, from, &Named::new("size", self.size), gpu, &self.signal)
    }

    /// Has a GPU copy them from `va` to here, and compares them.
    pub fn read_by(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        match self.difference(gpu, va, first, 1)? {
            None => Ok(()),
            Some(what) => {
                let what = format!("{} copied wrong data from {}: {what}", gpu.c, va.c);
                Err(self.hsa.recorder.blame(COPY, what))
            }
        }
    }

    /// Has a GPU write consecutive numbers from here to `va` and read them back.
    pub fn write_and_read(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        self.write_by(gpu, va, first)?;
        self.verify(gpu, va, first)
    }

    /// Has a GPU read numbers that it wrote. If pages of them are wrong, the GPU writes again after some time:
    /// then right data means that the mapping took effect late.
    fn verify(&self, gpu: &Agent, va: &Address, first: u32) -> Result<()> {
        let Some(what) = self.difference(gpu, va, first, 1)? else { return Ok(()) };
        std::thread::sleep(LATER);
        self.write_by(gpu, va, first)?;
        if self.difference(gpu, va, first, 1)?.is_none() && what.is_of_pages() {
            let what = late_mapping(gpu, va, &what.to_string());
            return Err(self.hsa.recorder.blame(GRANT, what));
        }
        let what = format!("{} copied wrong data from {}: {what}", gpu.c, va.c);
        Err(self.hsa.recorder.blame(COPY, what))
    }

    /// Has a GPU copy numbers from `va` to here, and describes the first one that is not as expected.
    pub fn difference(
        &self,
        gpu: &Agent,
        va: &Address,
        first: u32,
        step: u32,
    ) -> Result<Option<Difference>> {
        self.hsa.fill(&self.memory, self.size, 0);
        self.copy(&self.memory, va, gpu)?;
        Ok(self.hsa.difference(&self.memory, self.size, first, step))
    }

    /// The same with a copy for each quarter. A defect that both a copy to and a copy from the memory have
    /// at the start of each copy cannot cancel out.
    fn difference_by_parts(
        &self,
        gpu: &Agent,
        va: &Address,
        first: u32,
        step: u32,
    ) -> Result<Option<Difference>> {
        self.hsa.fill(&self.memory, self.size, 0);
        let part = Named::new("size / 4", self.size / 4);
        for offset in (0..self.size).step_by(part.value) {
            let (to, from) = (after(&self.memory, offset), after(va, offset));
            self.hsa.copy(&to, &from, &part, gpu, &self.signal)?;
        }
        Ok(self.hsa.difference(&self.memory, self.size, first, step))
    }
}

/// Compares the data of a GPU's and the CPU's writes from both sides.
pub fn data(hsa: &Hsa<'_>, resources: &Resources, with_fill: bool) -> Result<()> {
    let (cpu, gpu) = (&resources.cpu, &resources.gpus[0]);
    let cpu_view = hsa.can_access(cpu, &resources.pool)?;
    mapped(hsa, resources, |va, _| {
        // The GPU last: some releases grant access to no other agent after it.
        let agents = if cpu_view { vec![cpu, gpu] } else { vec![gpu] };
        hsa.grant(va, resources.size, &agents)?;
        with_host(hsa, resources, |host| {
            host.write_by(gpu, va, BY_GPU)?;
            if let Some((call, of_pages, what)) = compare_views(hsa, host, (gpu, va), cpu_view)? {
                std::thread::sleep(LATER);
                host.write_by(gpu, va, BY_GPU)?;
                let again = compare_views(hsa, host, (gpu, va), cpu_view)?;
                let late = of_pages && again.is_none();
                let (call, what) =
                    if late { (GRANT, late_mapping(gpu, va, &what)) } else { (call, what) };
                return Err(hsa.recorder.blame(call, what));
            }
            if cpu_view {
                hsa.fill(va, resources.size, BY_CPU);
                if let Some(what) = host.difference_by_parts(gpu, va, BY_CPU, 1)? {
                    let what = format!("{} does not read what the CPU wrote: {what}", gpu.c);
                    return Err(hsa.recorder.blame(GRANT, what));
                }
            }
            if with_fill { fill(hsa, resources, host) } else { Ok(()) }
        })
    })?;
    let views = if cpu_view { "GPU and CPU agree" } else { "by the GPU alone: no large BAR" };
    hsa.recorder.fact(format!("4 granules: {views}"));
    Ok(())
}

/// Has a GPU fill memory of the pool. Memory of handles cannot be filled before ROCm 7.
fn fill(hsa: &Hsa<'_>, resources: &Resources, host: &Host<'_>) -> Result<()> {
    let filled = hsa.allocate(&resources.pool, resources.size, "filled")?;
    hsa.fill_by_gpu(&filled, resources.size, FILLED)?;
    if let Some(what) = host.difference_by_parts(&resources.gpus[0], &filled, FILLED, 0)? {
        return Err(hsa.recorder.blame(FILL, format!("memory was not filled: {what}")));
    }
    hsa.pool_free(&filled)
}

/// Compares what a GPU has written from the CPU's view, if it has one, and from the GPU's. Returns the
/// function that is the cause of a difference, whether whole pages differ, and a description.
fn compare_views(
    hsa: &Hsa<'_>,
    host: &Host<'_>,
    (gpu, va): (&Agent, &Address),
    cpu_view: bool,
) -> Result<Option<(&'static str, bool, String)>> {
    let by_cpu = cpu_view.then(|| hsa.difference(va, host.size, BY_GPU, 1)).flatten();
    let by_gpu = host.difference_by_parts(gpu, va, BY_GPU, 1)?;
    let of_pages = [&by_cpu, &by_gpu].into_iter().flatten().any(Difference::is_of_pages);
    let found = match (by_cpu, by_gpu) {
        (None, None) => None,
        (Some(what), None) => {
            let what = format!("CPU and {} see different memory at one address: {what}", gpu.c);
            Some((GRANT, what))
        }
        (Some(what), Some(_)) => {
            Some((COPY, format!("{} copied wrong data to {}: {what}", gpu.c, va.c)))
        }
        (None, Some(what)) => {
            Some((COPY, format!("{} copied wrong data from {}: {what}", gpu.c, va.c)))
        }
    };
    Ok(found.map(|(call, what)| (call, of_pages, what)))
}

/// Describes a mapping that took effect after the call that granted access.
fn late_mapping(gpu: &Agent, va: &Address, what: &str) -> String {
    format!("{} sees the mapping of {} only some time after the call returned: {what}", gpu.c, va.c)
}

/// Has a GPU use memory at once after each grant, with a queue that exists already.
pub fn at_once(hsa: &Hsa<'_>, resources: &Resources) -> Result<()> {
    let gpu = &resources.gpus[0];
    with_host(hsa, resources, |host| {
        for round in 0..ROUNDS {
            let first = 0xa700_0001 | round << 8;
            hsa.fill(&host.memory, resources.size, first);
            mapped(hsa, resources, |va, _| {
                hsa.grant(va, resources.size, &[gpu])?;
                host.copy(va, &host.memory, gpu)?;
                host.verify(gpu, va, first)
            })?;
        }
        Ok(())
    })?;
    hsa.recorder.fact(format!("{ROUNDS} rounds"));
    Ok(())
}
