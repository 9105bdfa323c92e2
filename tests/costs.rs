//! The cost of a mapping: the runtime calls and heap allocations that are made to create it, and its size in the
//! ledger.

mod allocations;
mod machine;
mod process;

use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::RetireQueue;
use hsa_vmm::{Access, Address, Handle, Runtime, Vmm};
use machine::{Machine, access, at};

const PAGE: usize = 2 << 20;

/// Opens a `Vmm` on a runtime that does nothing. Reserves the addresses of `pages` pages, and creates memory of one
/// page.
fn open_and_reserve(pages: usize) -> (Vmm, Address, Handle) {
    let runtime = Runtime::simulated(Config::no_op_vmem(2)).unwrap();
    let vmm = Vmm::open(&runtime).unwrap();
    let base = vmm.address_reserve(pages * PAGE, PAGE, None).unwrap();
    let gpu = runtime.gpus().next().unwrap().id();
    let properties = hsa_vmm::AllocationProperties::on(gpu);
    let handle = vmm.create(PAGE, &properties).unwrap();
    (vmm, base, handle)
}

/// Returns the pages in several orders: ascending, descending, and scattered.
fn orders(pages: usize) -> [(&'static str, Vec<usize>); 3] {
    // The prime 7919 divides no number of pages in these tests, so every page occurs once.
    let scattered = (0..pages).map(|number| number * 7919 % pages).collect();
    [
        ("ascending", (0..pages).collect()),
        ("descending", (0..pages).rev().collect()),
        ("scattered", scattered),
    ]
}

#[test]
fn mapping_takes_little_memory() {
    const PAGES: usize = 100_000;
    for (order, pages) in orders(PAGES) {
        let (vmm, base, handle) = open_and_reserve(PAGES);
        // Adjacent mappings differ in their access.
        let grants = [1, 2].map(|count| {
            let gpus = vmm.runtime().gpus().take(count);
            gpus.map(|gpu| access(gpu.id(), Access::ReadWrite)).collect::<Vec<_>>()
        });
        let (allocations, bytes) = (allocations::count(), allocations::bytes());
        for &page in &pages {
            vmm.map(at(base, page * PAGE), PAGE, 0, handle).unwrap();
        }
        let per_map = (allocations::count() - allocations) as f64 / PAGES as f64;
        for &page in &pages {
            vmm.set_access(at(base, page * PAGE), PAGE, &grants[page % 2]).unwrap();
        }
        let size = (allocations::bytes() - bytes) as f64 / PAGES as f64;
        println!("{order}: {size:.1} bytes a mapping, {per_map:.3} allocations a map");
        assert!(per_map <= 0.2, "{order}: {per_map} allocations a map");
        assert!((33.0..=128.0).contains(&size), "{order}: {size} bytes a mapping");
        assert_eq!(vmm.usage().mappings, PAGES);
        // Unmapping frees memory.
        for &page in &pages {
            vmm.unmap(at(base, page * PAGE), PAGE).unwrap();
        }
        let remaining = allocations::bytes() - bytes;
        assert!(remaining < 64 << 10, "{order}: {remaining} bytes are left");
    }
}

#[test]
fn retire_queue_takes_documented_memory() {
    let (vmm, ..) = open_and_reserve(1);
    for capacity in [1_000, 100_000] {
        let bytes = allocations::bytes();
        let queue = RetireQueue::builder(capacity).without_thread().open(&vmm).unwrap();
        let size = (allocations::bytes() - bytes) as f64 / capacity as f64;
        drop(queue);
        assert!((600.0..=630.0).contains(&size), "{size} bytes for each mapping");
    }
}

/// The ledger's memory per mapping stays small, whichever mappings of a range are unmapped.
#[test]
fn memory_shrinks_after_unmapping_many() {
    const PAGES: usize = 50_000;
    let (vmm, base, handle) = open_and_reserve(PAGES);
    let bytes = allocations::bytes();
    // One of `interval` mappings stays mapped, at regular or random positions.
    for interval in [2, 3, 4, 5, 7, 8, 9, 10, 12, 16, 20, 31, 32, 33, 50, 63, 64, 65, 100, 200] {
        for random in [false, true] {
            let stays = |page: usize| {
                let number =
                    if random { page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 } else { page };
                number % interval == 0
            };
            for page in 0..PAGES {
                vmm.map(at(base, page * PAGE), PAGE, 0, handle).unwrap();
            }
            for page in (0..PAGES).filter(|&page| !stays(page)) {
                vmm.unmap(at(base, page * PAGE), PAGE).unwrap();
            }
            let mappings = vmm.usage().mappings;
            let size = (allocations::bytes() - bytes) as f64 / mappings as f64;
            println!("one of {interval}, random: {random}: {size:.1} bytes a mapping");
            assert!((33.0..=128.0).contains(&size), "one of {interval}, random: {random}: {size}");
            for page in (0..PAGES).filter(|&page| stays(page)) {
                vmm.unmap(at(base, page * PAGE), PAGE).unwrap();
            }
        }
    }
}

/// Most maps allocate no node of the ledger's tree, and few maps allocate more than one node. A map allocates several
/// nodes if nodes on several levels of the tree are full.
#[test]
fn map_allocates_only_ledger_nodes() {
    const PAGES: usize = 20_000;
    for (order, pages) in orders(PAGES) {
        let (vmm, base, handle) = open_and_reserve(PAGES);
        let mut counts = [0; 8];
        for (number, page) in pages.into_iter().enumerate() {
            let before = allocations::count();
            vmm.map(at(base, page * PAGE), PAGE, 0, handle).unwrap();
            // With few mappings, debug builds check the whole ledger after every step, and these checks allocate.
            if number < 1000 {
                continue;
            }
            counts[allocations::count() - before] += 1;
        }
        let several: usize = counts[2..].iter().sum();
        assert!(counts[0] > PAGES * 8 / 10, "{order}: {counts:?}");
        println!("{order}: {counts:?}");
        assert!(several <= PAGES / 50 && counts[6..] == [0; 2], "{order}: {counts:?}");
    }
}

/// Each call that changes something makes exactly one runtime call in each release. Look-ups and repeated grants make
/// no runtime call.
#[test]
fn calls_make_one_runtime_call_and_look_ups_none() {
    for (release, config) in machine::releases() {
        // Older releases reserve with another function, which cannot align.
        let has_aligned_reserve = config.extension_minor >= 6;
        let machine = Machine::new(config);
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let base = machine.reserve(granule);
        let handle = machine.create(0, granule);
        let gpus = [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite));
        let reserve = if has_aligned_reserve { "address_reserve_align" } else { "address_reserve" };
        let look_up = || {
            vmm.get_access(machine.gpu(0), base).unwrap();
            vmm.retain_allocation_handle(base).unwrap();
            vmm.release(handle).unwrap();
            vmm.allocation_properties(handle).unwrap();
            vmm.mapping_at(base).unwrap();
        };
        let grant = || vmm.set_access(base, granule, &gpus).unwrap();
        let operations: [(&dyn Fn(), &[_]); 9] = [
            (&|| assert_ne!(machine.reserve(granule), base), &[(reserve, 1)]),
            (&|| assert_ne!(machine.create(0, granule), handle), &[("handle_create", 1)]),
            (&|| machine.map(base, granule, handle), &[("map", 1)]),
            (&grant, &[("set_access", 1)]),
            (&grant, &[]),
            (&look_up, &[]),
            (&|| vmm.unmap(base, granule).unwrap(), &[("unmap", 1)]),
            (&|| vmm.release(handle).unwrap(), &[("handle_release", 1)]),
            (&|| vmm.address_free(base, granule).unwrap(), &[("address_free", 1)]),
        ];
        for (number, (function, expected)) in operations.into_iter().enumerate() {
            assert_eq!(machine.calls(function), expected, "{release}: call {number}");
        }
    }
}

#[test]
fn adjacent_mappings_are_granted_in_one_call() {
    const MAPPINGS: usize = 64;
    for (release, config) in machine::releases() {
        let grants_of_several_fail = config.extension_minor < 7;
        let machine = Machine::new(config);
        let (vmm, granule) = (&machine.vmm, machine.granule());
        let (base, handle) = (machine.reserve(MAPPINGS * granule), machine.create(0, granule));
        let gpus = [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite));
        let map_all = || {
            (0..MAPPINGS).for_each(|index| machine.map(at(base, index * granule), granule, handle))
        };
        assert_eq!(machine.calls(map_all), [("map", MAPPINGS as u64)], "{release}");
        let grant_all = || vmm.set_access(base, MAPPINGS * granule, &gpus).unwrap();
        let grants = if grants_of_several_fail { MAPPINGS as u64 } else { 1 };
        assert_eq!(machine.calls(grant_all), [("set_access", grants)], "{release}");
        let unmap_all = || vmm.unmap(base, MAPPINGS * granule).unwrap();
        let unmaps = if vmm.quirks().unmap_of_several_fails { MAPPINGS as u64 } else { 1 };
        assert_eq!(machine.calls(unmap_all), [("unmap", unmaps)], "{release}");
    }
}
