//! Measures the time to map, grant and unmap many mappings, one by one and in batches.
//!
//! ```sh
//! cargo bench -p hsa-vmm-bench --bench batches
//! ```
//!
//! Runs on the runtime that `HSA_VMM_RUNTIME` names. If the variable is not set, runs on a
//! simulation whose calls do nothing.

use divan::Bencher;
use divan::counter::ItemsCount;
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::NewMapping;
use hsa_vmm::{Access, AccessDescriptor, Address, AllocationProperties, Runtime, Vmm};

fn main() {
    divan::main();
}

const SIZE: usize = 2 << 20;
const COUNTS: [usize; 3] = [4, 64, 1024];

/// Descriptions of adjacent mappings in one reservation, and their access.
struct AdjacentMappings {
    vmm: Vmm,
    start: Address,
    mappings: Vec<NewMapping>,
    access: Vec<AccessDescriptor>,
}

impl AdjacentMappings {
    fn new(count: usize) -> Self {
        let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
            Some(path) if !path.is_empty() => Runtime::load(),
            _ => Runtime::simulated(Config::no_op_vmem(2)),
        };
        let runtime = runtime.expect("the runtime starts");
        let vmm = Vmm::open(&runtime).expect("virtual memory is supported");
        let gpus: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
        let grant = |&agent: &_| AccessDescriptor { agent, access: Access::ReadWrite };
        let access = gpus.iter().map(grant).collect();
        let start = vmm.address_reserve(count * SIZE, SIZE, None).expect("addresses are available");
        let handle =
            vmm.create(SIZE, &AllocationProperties::on(gpus[0])).expect("memory is available");
        let address = |page: usize| start.checked_add(page * SIZE).expect("the page is reserved");
        let mapping = |page| NewMapping { address: address(page), size: SIZE, offset: 0, handle };
        Self { vmm, start, mappings: (0..count).map(mapping).collect(), access }
    }

    fn one_by_one(&self) {
        for &NewMapping { address, size, handle, .. } in &self.mappings {
            self.vmm.map(address, size, 0, handle).expect("the addresses are free");
            self.vmm.set_access(address, size, &self.access).expect("the pages are mapped");
        }
        for mapping in &self.mappings {
            self.vmm.unmap(mapping.address, mapping.size).expect("the pages are mapped");
        }
    }

    fn in_batches(&self) {
        self.vmm.map_many(&self.mappings, &self.access).expect("the addresses are free");
        let range = (self.start, self.mappings.len() * SIZE);
        self.vmm.unmap_many(&[range]).expect("the pages are mapped");
    }
}

#[divan::bench(args = COUNTS)]
fn one_by_one(bencher: Bencher<'_, '_>, count: usize) {
    let mappings = AdjacentMappings::new(count);
    bencher.counter(ItemsCount::new(count)).bench_local(|| mappings.one_by_one());
}

#[divan::bench(args = COUNTS)]
fn in_batches(bencher: Bencher<'_, '_>, count: usize) {
    let mappings = AdjacentMappings::new(count);
    bencher.counter(ItemsCount::new(count)).bench_local(|| mappings.in_batches());
}
