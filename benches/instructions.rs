//! Performs one operation of the library many times. `.ci/instructions` runs this program under callgrind, which
//! counts the instructions of the function [`measured`].
//!
//! ```sh
//! cargo run --release -p hsa-vmm-bench --example instructions -- map
//! ```
//!
//! The program prints the number of calls. A second argument is a number of additional calls, which the printed number
//! does not include. `.ci/instructions` uses this argument to test that the script detects an increase.

use hsa_vmm::simulation::Config;
use hsa_vmm::{
    Access, AccessDescriptor, Address, AllocationProperties, Error, Handle, HandleType, Runtime,
    Vmm,
};
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;
const SIZE: usize = 2 << 20;
/// The number of mappings that [`Workload::new`] makes, and the number of holes.
const LIVE_MAPPINGS: usize = 1 << 13;
/// The number of calls that the program prints, without additional calls.
const CALLS: usize = 1000;

/// A reservation in which live mappings (even pages) and holes (odd pages) alternate, and objects for the counted calls.
struct Workload {
    vmm: Vmm,
    base: usize,
    handle: Handle,
    properties: AllocationProperties,
    grants: Vec<AccessDescriptor>,
    reserved: Vec<Address>,
    created: Vec<Handle>,
    calls: usize,
}

/// Runs the counted code. Not inlined, because callgrind finds the function by its name.
#[inline(never)]
fn measured(calls: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
    calls()
}

impl Workload {
    fn new(calls: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let runtime = Runtime::simulated(Config::no_op_vmem(2))?;
        let vmm = Vmm::open(&runtime)?;
        let gpus: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
        let properties = AllocationProperties::on(gpus[0]);
        let handle = vmm.create(SIZE, &properties)?;
        let base = vmm.address_reserve(2 * LIVE_MAPPINGS * SIZE, SIZE, None)?.get();
        let grant = |&agent: &_| AccessDescriptor { agent, access: Access::ReadWrite };
        let grants = gpus.iter().map(grant).collect();
        let (reserved, created) = (Vec::with_capacity(calls), Vec::with_capacity(calls));
        let workload = Self { vmm, base, handle, properties, grants, reserved, created, calls };
        for page in 0..LIVE_MAPPINGS {
            workload.map(2 * page)?;
        }
        Ok(workload)
    }

    fn address(&self, page: usize) -> Address {
        Address::new(self.base + page * SIZE)
    }

    fn map(&self, page: usize) -> Result<(), Error> {
        self.vmm.map(self.address(page), SIZE, 0, self.handle)
    }

    fn create_shareable(&self) -> Result<Handle, Error> {
        self.vmm.create(SIZE, &self.properties.shareable_as(DESCRIPTOR))
    }

    fn export(&self, handle: Handle) -> Result<OwnedFd, Error> {
        self.vmm.export_to_shareable_handle(handle, DESCRIPTOR)
    }

    /// Calls an operation `self.calls` times. Returns `false` if no operation has this name.
    fn perform(&mut self, operation: &str) -> Result<bool, Error> {
        // Successive calls use pages that are far apart. 4099 is odd, so no hole occurs twice in `LIVE_MAPPINGS` calls.
        let calls = self.calls;
        let hole_pages = || (0..calls).map(|number| 2 * (number * 4099 % LIVE_MAPPINGS) + 1);
        let live_pages = || hole_pages().map(|hole| hole - 1);
        let for_each_hole =
            |call: &mut dyn FnMut(usize) -> Result<(), Error>| hole_pages().try_for_each(call);
        let reserve = |this: &mut Self| -> Result<(), Error> {
            for _ in 0..this.calls {
                this.reserved.push(this.vmm.address_reserve(SIZE, SIZE, None)?);
            }
            Ok(())
        };
        let create = |this: &mut Self| -> Result<(), Error> {
            for _ in 0..this.calls {
                this.created.push(this.vmm.create(SIZE, &this.properties)?);
            }
            Ok(())
        };
        match operation {
            "reserve" => measured(&mut || reserve(self))?,
            "free" => {
                reserve(self)?;
                let vmm = &self.vmm;
                measured(&mut || {
                    self.reserved.iter().try_for_each(|&base| vmm.address_free(base, SIZE))
                })?;
            }
            "create" => measured(&mut || create(self))?,
            "release" => {
                create(self)?;
                let vmm = &self.vmm;
                measured(&mut || self.created.iter().try_for_each(|&handle| vmm.release(handle)))?;
            }
            "map" => measured(&mut || for_each_hole(&mut |page| self.map(page)))?,
            "set_access" => {
                for_each_hole(&mut |page| self.map(page))?;
                let grant = |page| self.vmm.set_access(self.address(page), SIZE, &self.grants);
                measured(&mut || for_each_hole(&mut &grant))?;
            }
            "unmap" => {
                for_each_hole(&mut |page| self.map(page))?;
                let unmap = |page| self.vmm.unmap(self.address(page), SIZE);
                measured(&mut || for_each_hole(&mut &unmap))?;
            }
            "get_access" => {
                let agent = self.grants[0].agent;
                let query =
                    |page| self.vmm.get_access(agent, self.address(page)).map(black_box).map(drop);
                measured(&mut || live_pages().try_for_each(query))?;
            }
            "mapped_range_at" => {
                let query = |page| {
                    black_box(self.vmm.mapped_range_at(self.address(page)));
                    Ok(())
                };
                measured(&mut || live_pages().try_for_each(query))?;
            }
            "retain" => {
                let retain = |page| self.vmm.retain_allocation_handle(self.address(page));
                measured(&mut || live_pages().try_for_each(|page| retain(page).map(drop)))?;
            }
            "properties" => {
                let query =
                    |_| self.vmm.allocation_properties(self.handle).map(black_box).map(drop);
                measured(&mut || live_pages().try_for_each(query))?;
            }
            "export" => {
                let handle = self.create_shareable()?;
                // Closes each descriptor immediately, because the limit can be lower than the number of calls.
                measured(&mut || live_pages().try_for_each(|_| self.export(handle).map(drop)))?;
            }
            "import" => {
                let descriptor = self.export(self.create_shareable()?)?;
                let import = |_| self.vmm.import_from_shareable_handle(&descriptor, DESCRIPTOR);
                measured(&mut || live_pages().try_for_each(|page| import(page).map(drop)))?;
            }
            "cycle" => {
                let agent = self.grants[0].agent;
                let cycle = |_| {
                    let base = self.vmm.address_reserve(SIZE, SIZE, None)?;
                    let handle = self.vmm.create(SIZE, &self.properties)?;
                    self.vmm.map(base, SIZE, 0, handle)?;
                    self.vmm.set_access(base, SIZE, &self.grants)?;
                    black_box(self.vmm.get_access(agent, base)?);
                    self.vmm.unmap(base, SIZE)?;
                    self.vmm.release(handle)?;
                    self.vmm.address_free(base, SIZE)
                };
                measured(&mut || live_pages().try_for_each(cycle))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn main() -> ExitCode {
    let operation = std::env::args().nth(1).unwrap_or_default();
    let extra = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut workload = match Workload::new(CALLS + extra) {
        Ok(workload) => workload,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(3);
        }
    };
    match workload.perform(&operation) {
        Ok(true) => {
            println!("{CALLS}");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            eprintln!("unknown operation `{operation}`");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
