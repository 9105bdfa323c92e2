//! What the calls cost on the simulation, and how that grows with the number of live mappings.
//!
//! ```sh
//! cargo bench
//! ```
//!
//! The simulation's own work is in these figures; they compare changes of this library, not
//! hardware.

use divan::{Bencher, black_box};
use hsa_vmm::simulation::Config;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AllocationProperties, Handle, HandleType, Runtime, Vmm,
};

fn main() {
    divan::main();
}

const PAGE: usize = 4096;
const LIVE: [usize; 3] = [1, 1_000, 100_000];

/// A reservation with `live` mappings of one handle, and room for one more at the end.
struct Field {
    vmm: Vmm,
    base: Address,
    handle: Handle,
    live: usize,
}

impl Field {
    fn new(live: usize) -> Self {
        let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
        let vmm = Vmm::open(&runtime).unwrap();
        let gpu = runtime.gpus().next().unwrap().id();
        let properties =
            AllocationProperties::on(gpu).shareable_as(HandleType::PosixFileDescriptor);
        let handle = vmm.create(PAGE, &properties, 0).unwrap();
        let base = vmm.address_reserve((live + 1) * PAGE, 0, None, 0).unwrap();
        let field = Self { vmm, base, handle, live };
        for page in 0..live {
            field.vmm.map(field.page(page), PAGE, 0, handle, 0).unwrap();
        }
        field
    }

    fn page(&self, page: usize) -> Address {
        self.base.checked_add(page * PAGE).unwrap()
    }

    fn last(&self) -> Address {
        self.page(self.live)
    }

    fn grant(&self, access: Access) -> AccessDescriptor {
        AccessDescriptor { agent: self.vmm.runtime().gpus().next().unwrap().id(), access }
    }
}

#[divan::bench]
fn reserve_and_free(bencher: Bencher) {
    let field = Field::new(1);
    bencher.bench_local(|| {
        let address = field.vmm.address_reserve(512 * PAGE, 0, None, 0).unwrap();
        field.vmm.address_free(address, 512 * PAGE).unwrap();
    });
}

#[divan::bench]
fn create_and_release(bencher: Bencher) {
    let field = Field::new(1);
    let gpu = field.vmm.runtime().gpus().next().unwrap().id();
    let properties = AllocationProperties::on(gpu);
    bencher.bench_local(|| {
        let handle = field.vmm.create(512 * PAGE, &properties, 0).unwrap();
        field.vmm.release(handle).unwrap();
    });
}

#[divan::bench(args = LIVE)]
fn map_and_unmap(bencher: Bencher, live: usize) {
    let field = Field::new(live);
    bencher.bench_local(|| {
        field.vmm.map(field.last(), PAGE, 0, field.handle, 0).unwrap();
        field.vmm.unmap(field.last(), PAGE).unwrap();
    });
}

#[divan::bench(args = LIVE)]
fn set_access(bencher: Bencher, live: usize) {
    let field = Field::new(live);
    field.vmm.map(field.last(), PAGE, 0, field.handle, 0).unwrap();
    let mut access = Access::Read;
    bencher.bench_local(|| {
        access = if access == Access::Read { Access::ReadWrite } else { Access::Read };
        field.vmm.set_access(field.last(), PAGE, &[field.grant(access)]).unwrap();
    });
}

#[divan::bench(args = LIVE)]
fn get_access(bencher: Bencher, live: usize) {
    let field = Field::new(live);
    let agent = field.vmm.runtime().host().id();
    let mut page = 0;
    bencher.bench_local(|| {
        page = (page + 7919) % live;
        black_box(field.vmm.get_access(agent, field.page(page)).unwrap());
    });
}

#[divan::bench(args = LIVE)]
fn retain_and_release(bencher: Bencher, live: usize) {
    let field = Field::new(live);
    bencher.bench_local(|| {
        let handle = field.vmm.retain_allocation_handle(field.page(live / 2)).unwrap();
        field.vmm.release(handle).unwrap();
    });
}
