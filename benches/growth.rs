//! Measures the time to grow buffers of several sizes: in place, and by allocating a larger buffer and
//! copying.
//!
//! ```sh
//! cargo bench -p hsa-vmm-bench --bench growth
//! ```
//!
//! Runs on the simulation, whose own cost is part of the figures. A written page of the simulation's memory
//! uses memory of this machine. Therefore the program does not copy buffers that are larger than the free
//! memory. The first lines of the output list their sizes.

use divan::Bencher;
use divan::counter::ItemsCount;
use hsa_vmm::simulation::Config;
use hsa_vmm::{
    Access, Allocation, AllocationProperties, GrowableBuffer, Mapping, Reservation, Runtime, Vmm,
};
use std::cell::RefCell;

fn main() {
    for gib in SIZES_IN_GIB {
        if !copyable_sizes().contains(&gib) {
            println!("skipped: copying {gib} GiB: this machine has too little free memory");
        }
    }
    divan::main();
}

const PAGE_SIZE: usize = 2 << 20;
const PAGES_PER_GIB: usize = (1 << 30) / PAGE_SIZE;
const SIZES_IN_GIB: [usize; 4] = [1, 4, 16, 64];
/// The number of pages that a measurement maps or unmaps.
const MEASURED_PAGES: usize = 64;

/// Returns the sizes in GiB whose copies fit into this machine's free memory.
fn copyable_sizes() -> Vec<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    let available_gib = kib.unwrap_or(0) >> 20;
    // Leave 3 GiB for other programs.
    SIZES_IN_GIB.into_iter().filter(|gib| gib + 3 <= available_gib).collect()
}

fn vmm() -> Vmm {
    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    Vmm::open(&runtime).unwrap()
}

fn properties(vmm: &Vmm) -> AllocationProperties {
    AllocationProperties::on(vmm.runtime().gpus().next().unwrap().id())
}

/// Creates a buffer of `gib` GiB in pages of 2 MiB, which can grow by 1 GiB. Both GPUs have access.
fn buffer(gib: usize) -> RefCell<GrowableBuffer> {
    let vmm = vmm();
    let options = GrowableBuffer::builder((gib + 1) << 30).with_step(PAGE_SIZE);
    let mut buffer = options.reserve(&vmm, &properties(&vmm)).unwrap();
    let gpus: Vec<_> = vmm.runtime().gpus().map(|gpu| gpu.id()).collect();
    buffer.grow(gib << 30).unwrap();
    buffer.grant(&gpus, Access::ReadWrite).unwrap();
    assert_eq!(vmm.usage().mappings, gib * PAGES_PER_GIB);
    RefCell::new(buffer)
}

/// Grows a buffer of `gib` GiB by 2 MiB.
#[divan::bench(args = SIZES_IN_GIB, sample_size = 1, sample_count = 500)]
fn grow_in_place(bencher: Bencher, gib: usize) {
    let buffer = buffer(gib);
    bencher
        .with_inputs(|| buffer.borrow_mut().resize(gib << 30).unwrap())
        .bench_local_values(|()| buffer.borrow_mut().grow(PAGE_SIZE).unwrap());
}

/// Allocates 2 MiB more than `gib` GiB, copies the contents, and frees the old memory.
#[divan::bench(args = copyable_sizes(), sample_size = 1, sample_count = 3)]
fn allocate_copy_free(bencher: Bencher, gib: usize) {
    let vmm = vmm();
    let gpu = vmm.runtime().gpus().next().unwrap().id();
    let allocate_mapped = |size: usize| -> Mapping {
        let reservation = Reservation::builder(size).reserve(&vmm).unwrap();
        let memory = Allocation::create(&vmm, size, &properties(&vmm)).unwrap();
        let mapping = reservation.map(0, &memory).unwrap();
        mapping.grant(&[gpu], Access::ReadWrite).unwrap();
        mapping
    };
    let size = gib << 30;
    bencher.with_inputs(|| allocate_mapped(size)).bench_local_values(|old| {
        let new = allocate_mapped(size + PAGE_SIZE);
        vmm.copy(gpu, new.address(), old.address(), size).unwrap();
        drop(old);
    });
}

/// Maps pages of 2 MiB at the end of a buffer of `gib` GiB, one per call.
#[divan::bench(args = SIZES_IN_GIB, sample_size = 1, sample_count = 100, counters = [ItemsCount::new(MEASURED_PAGES)])]
fn pages_one_by_one(bencher: Bencher, gib: usize) {
    let buffer = buffer(gib);
    bencher.with_inputs(|| buffer.borrow_mut().resize(gib << 30).unwrap()).bench_local_values(
        |()| (0..MEASURED_PAGES).for_each(|_| buffer.borrow_mut().grow(PAGE_SIZE).unwrap()),
    );
}

/// Maps pages of 2 MiB at the end of a buffer of `gib` GiB, all in one call.
#[divan::bench(args = SIZES_IN_GIB, sample_size = 1, sample_count = 100, counters = [ItemsCount::new(MEASURED_PAGES)])]
fn pages_in_one_call(bencher: Bencher, gib: usize) {
    let buffer = buffer(gib);
    bencher
        .with_inputs(|| buffer.borrow_mut().resize(gib << 30).unwrap())
        .bench_local_values(|()| buffer.borrow_mut().grow(MEASURED_PAGES * PAGE_SIZE).unwrap());
}

/// Removes pages of 2 MiB from the end of a buffer of `gib` GiB, all in one call.
#[divan::bench(args = SIZES_IN_GIB, sample_size = 1, sample_count = 100, counters = [ItemsCount::new(MEASURED_PAGES)])]
fn remove_pages(bencher: Bencher, gib: usize) {
    let buffer = buffer(gib);
    bencher
        .with_inputs(|| {
            buffer.borrow_mut().resize((gib << 30) + MEASURED_PAGES * PAGE_SIZE).unwrap()
        })
        .bench_local_values(|()| buffer.borrow_mut().shrink(MEASURED_PAGES * PAGE_SIZE).unwrap());
}
