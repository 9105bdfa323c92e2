//! Compares the throughput of two threads with the throughput of one thread. Each thread maps, unmaps and looks up
//! pages in its own reservation. Then both threads look up pages in a shared reservation.
//!
//! ```sh
//! cargo bench -p hsa-vmm-bench --bench threads
//! ```
//!
//! Runs on a simulation whose calls do nothing. Needs two idle cores. Run the benchmark several times, and use the best
//! result.

use hsa_vmm::simulation::Config;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AllocationProperties, Error, Handle, Runtime, Vmm,
};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const SIZE: usize = 2 << 20;
const PAGES: usize = 64;
const ROUNDS: usize = 2000;
const TRIES: usize = 15;

/// The reservation and memory of one thread.
#[derive(Clone)]
struct ThreadPages {
    vmm: Vmm,
    base: Address,
    handle: Handle,
    grant: AccessDescriptor,
}

impl ThreadPages {
    fn new(vmm: &Vmm) -> Result<Self, Error> {
        let gpu = vmm.runtime().gpus().next().map(|gpu| gpu.id());
        let gpu = gpu.unwrap_or(vmm.runtime().host().id());
        let handle = vmm.create(SIZE, &AllocationProperties::on(gpu))?;
        let base = vmm.address_reserve(PAGES * SIZE, 0, None)?;
        let grant = AccessDescriptor { agent: gpu, access: Access::ReadWrite };
        Ok(Self { vmm: vmm.clone(), base, handle, grant })
    }

    fn address(&self, page: usize) -> Address {
        Address::new(self.base.get() + page * SIZE)
    }

    fn map_and_unmap(&self) -> Result<(), Error> {
        for page in 0..PAGES {
            self.vmm.map(self.address(page), SIZE, 0, self.handle)?;
        }
        self.vmm.unmap(self.base, PAGES * SIZE)
    }

    fn look_up(&self) -> Result<(), Error> {
        for page in 0..PAGES {
            std::hint::black_box(self.vmm.get_access(self.grant.agent, self.address(page))?);
        }
        Ok(())
    }
}

/// Starts one thread for each element of `pages`. Each thread runs `work` `ROUNDS` times. Repeats this `TRIES`
/// times, and returns the shortest time.
fn shortest_time(
    pages: &[ThreadPages],
    work: impl Fn(&ThreadPages) -> Result<(), Error> + Sync,
) -> Result<Duration, Error> {
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let barrier = Barrier::new(pages.len());
        let (barrier, work) = (&barrier, &work);
        let duration = std::thread::scope(|scope| {
            let start = |pages| {
                scope.spawn(move || {
                    barrier.wait();
                    let begun = Instant::now();
                    (0..ROUNDS).try_for_each(|_| work(pages))?;
                    Ok::<_, Error>((begun, Instant::now()))
                })
            };
            let threads: Vec<_> = pages.iter().map(start).collect();
            let mut spans = Vec::with_capacity(threads.len());
            for thread in threads {
                spans.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            let begun = spans.iter().map(|span| span.0).min();
            let ended = spans.iter().map(|span| span.1).max();
            Ok::<_, Error>(begun.zip(ended).map_or(Duration::MAX, |(begun, ended)| ended - begun))
        })?;
        best = best.min(duration);
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::simulated(Config::no_op_vmem(1))?;
    let vmm = Vmm::open(&runtime)?;
    let pages = [ThreadPages::new(&vmm)?, ThreadPages::new(&vmm)?];
    let pages_per_thread = (ROUNDS * PAGES) as f64;
    let show = |name: &str, one: Duration, two: Duration| {
        let per_page = |time: Duration| time.as_nanos() as f64 / pages_per_thread;
        let speedup = 2.0 * one.as_secs_f64() / two.as_secs_f64();
        println!(
            "{name:20} one thread {:6.0} ns per page; two threads, each {:6.0} ns per page: {speedup:.2} times the throughput",
            per_page(one),
            per_page(two)
        );
    };
    let map_and_unmap = ThreadPages::map_and_unmap;
    show(
        "map and unmap",
        shortest_time(&pages[..1], map_and_unmap)?,
        shortest_time(&pages, map_and_unmap)?,
    );
    for pages in &pages {
        for page in 0..PAGES {
            vmm.map(pages.address(page), SIZE, 0, pages.handle)?;
        }
        vmm.set_access(pages.base, PAGES * SIZE, &[pages.grant])?;
    }
    let look_up = ThreadPages::look_up;
    show("get_access", shortest_time(&pages[..1], look_up)?, shortest_time(&pages, look_up)?);
    let shared = [pages[0].clone(), pages[0].clone()];
    show(
        "get_access, shared",
        shortest_time(&shared[..1], look_up)?,
        shortest_time(&shared, look_up)?,
    );
    Ok(())
}
