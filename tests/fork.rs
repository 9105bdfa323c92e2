//! In a forked child, calls return errors or empty results. Values that the child drops do not affect the parent.

mod machine;
mod process;

use hsa_vmm::area::{AreaFlags, AreaMemory, MmapOptions};
use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, RingBuffer};
use hsa_vmm::error::Rejected;
use hsa_vmm::simulation::Config;
use hsa_vmm::vmm::{Granularity, Usage};
use hsa_vmm::{
    Access, Allocation, AllocationProperties, Area, Error, ErrorKind, GrowableBuffer, HandleType,
    Ipc, Mapping, PoolMemory, Reservation, Vmm,
};
use machine::{Library, Machine, access};
use process::{Child, End};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

#[test]
fn forked_child_gets_errors() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let vmm = &machine.vmm;
        let granule = machine.granule();
        let base = machine.reserve(2 * granule);
        let handle = machine.create(0, granule);
        machine.map(base, granule, handle);
        let [cpu, gpu] = [machine.cpu(0), machine.gpu(0)];
        let grants = [cpu, gpu].map(|agent| access(agent, Access::ReadWrite));
        vmm.set_access(base, granule, &grants).unwrap();
        vmm.write(base, b"kept").unwrap();
        let reservation = Reservation::builder(granule).reserve(vmm).unwrap();
        let allocation = Allocation::create(vmm, granule, &machine.shareable_on(0)).unwrap();
        let mapping = reservation.map(0, &allocation).unwrap();
        let shared = allocation.export().unwrap();
        let end = process::in_child(|| {
            let calls = machine.simulation.all_calls();
            let results = [
                vmm.address_reserve(granule, 0, None).map(drop),
                vmm.address_reserve(0, 3, None).map(drop),
                vmm.address_free(base, granule),
                vmm.create(granule, &machine.shareable_on(0)).map(drop),
                vmm.release(handle),
                vmm.map(base, granule, 0, handle),
                vmm.map(base, 0, 1, handle),
                vmm.unmap(base, granule),
                vmm.set_access(base, granule, &grants),
                vmm.set_access(base, granule, &[]),
                vmm.get_access(gpu, base).map(drop),
                vmm.revoke(base, granule, &[gpu]),
                vmm.allocation_granularity(&AllocationProperties::on(gpu), Granularity::Minimum)
                    .map(drop),
                vmm.allocation_properties(handle).map(drop),
                vmm.allocation_size(handle).map(drop),
                vmm.export_to_shareable_handle(handle, DESCRIPTOR).map(drop),
                vmm.import_from_shareable_handle(&shared, DESCRIPTOR).map(drop),
                vmm.import_from_shareable_handle(File::open("/dev/null").unwrap(), DESCRIPTOR)
                    .map(drop),
                vmm.retain_allocation_handle(base).map(drop),
                vmm.read(base, &mut [0; 4]),
                vmm.read(base, &mut []),
                vmm.write(base, b"lost"),
                vmm.copy(gpu, base, base, 4),
                vmm.copy_to_host(gpu, &mut [0; 4], base),
                vmm.copy_to_host(gpu, &mut [], base),
                vmm.copy_from_host(gpu, base, b"lost"),
                vmm.exchange(base, base, granule),
                vmm.relocate(base, base, granule),
                vmm.fill(base, 0, 4),
                Vmm::open(&machine.runtime).map(drop),
                Reservation::builder(granule).reserve(vmm).map(drop),
                Allocation::create(vmm, granule, &machine.shareable_on(0)).map(drop),
                Allocation::import(vmm, &shared).map(drop),
                Allocation::at(vmm, base).map(drop),
                allocation.export().map(drop),
                reservation.map(0, &allocation).map(drop),
                mapping.grant(&[gpu], Access::Read),
                mapping.read(0, &mut [0; 4]),
                mapping.write(0, b"lost"),
                mapping.fill(0, 1, 4),
                mapping.revoke(&[gpu]),
            ];
            for (number, result) in results.into_iter().enumerate() {
                let is_forked =
                    matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Forked));
                assert!(is_forked, "{number}: {result:?}");
            }
            assert_eq!(machine.simulation.all_calls(), calls, "no call of the runtime");
        });
        assert_eq!(end, End::Success, "{release}");
        let mut bytes = [0; 4];
        vmm.read(base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "{release}");
    }
}

#[test]
fn drops_in_a_forked_child_keep_parent_memory() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let machine = Machine::new(config);
        let granule = machine.granule();
        let reservation = Reservation::builder(granule).reserve(&machine.vmm).unwrap();
        let allocation =
            Allocation::create(&machine.vmm, granule, &machine.shareable_on(0)).unwrap();
        let mapping = reservation.map(0, &allocation).unwrap();
        mapping.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
        mapping.write(0, b"kept").unwrap();
        let before = (machine.vmm.usage(), machine.simulation.usage());
        let mut everything = Some((machine, reservation, allocation, mapping));
        let end = process::in_child(|| {
            let (machine, reservation, allocation, mapping) = everything.take().unwrap();
            let Rejected { value: mapping, error } = mapping.unmap().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Forked));
            drop((mapping, allocation));
            let Rejected { value: reservation, error } = reservation.free().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Forked));
            drop(reservation);
            let Machine { simulation, library: Library { runtime, vmm } } = machine;
            drop(vmm);
            drop(runtime);
            drop(simulation);
        });
        assert_eq!(end, End::Success, "{release}");
        let (machine, reservation, allocation, mapping) = everything.take().unwrap();
        assert_eq!((machine.vmm.usage(), machine.simulation.usage()), before, "{release}");
        let mut bytes = [0; 4];
        mapping.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept", "{release}");
        drop((mapping, allocation, reservation));
        machine.assert_empty();
    }
}

#[test]
fn forked_child_opens_its_own_runtime() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(2));
    let end = process::in_child(|| {
        let child_machine = Machine::new(Config::mi300x(2));
        let granule = child_machine.granule();
        let base = child_machine.reserve(granule);
        let handle = child_machine.create(0, granule);
        child_machine.map(base, granule, handle);
        child_machine.grant(base, granule, child_machine.cpu(0), Access::ReadWrite);
        child_machine.vmm.write(base, b"text").unwrap();
        // Inherited values belong to the parent.
        assert!(
            child_machine
                .vmm
                .set_access(base, granule, &[access(machine.gpu(0), Access::Read)])
                .is_err()
        );
        // A grandchild gets the same errors.
        let end = process::in_child(|| {
            assert!(
                child_machine
                    .vmm
                    .read(base, &mut [0])
                    .is_err_and(|error| *error.kind() == ErrorKind::Forked)
            );
        });
        assert_eq!(end, End::Success);
        child_machine.vmm.unmap(base, granule).unwrap();
        child_machine.vmm.release(handle).unwrap();
        child_machine.vmm.address_free(base, granule).unwrap();
        child_machine.assert_empty();
        child_machine.close();
    });
    assert_eq!(end, End::Success);
    let base = machine.reserve(machine.granule());
    machine.vmm.address_free(base, machine.granule()).unwrap();
    machine.assert_empty();
}

/// The name of a method that does not take `&mut self`, and a closure that calls the method and checks the result.
type Call<'a> = (&'static str, Box<dyn Fn() + 'a>);

/// Values of the library's types that contain locks.
struct Values {
    machine: Machine,
    reservation: Reservation,
    allocation: Allocation,
    mapping: Mapping,
    growable: GrowableBuffer,
    paged: PagedBuffer,
    pausable: PausableBuffer,
    ring: RingBuffer,
    pool: PoolMemory,
    area: Area,
    memory: Vec<AreaMemory<'static>>,
    ipc: Ipc,
}

impl Values {
    fn new() -> Self {
        let machine = Machine::new(Config::mi300x(2));
        let (vmm, granule, properties) = (&machine.vmm, machine.granule(), machine.shareable_on(0));
        let reservation =
            Reservation::builder(4 * granule).reserve(vmm).unwrap().named("addresses");
        let allocation = Allocation::create(vmm, granule, &properties).unwrap();
        let mapping = reservation.map(0, &allocation).unwrap();
        mapping.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
        let growable = GrowableBuffer::builder(4 * granule)
            .with_handle_pool(2)
            .reserve(vmm, &properties)
            .unwrap();
        let paged = PagedBuffer::builder(4 * granule)
            .with_page_size(granule)
            .with_pages_ahead(1)
            .with_handle_pool(2);
        let paged = paged.reserve(vmm, &properties).unwrap();
        let pausable = PausableBuffer::create(vmm, granule, &properties).unwrap();
        let ring = RingBuffer::create(vmm, granule, 2, &properties).unwrap();
        let pool = PoolMemory::allocate(&machine.runtime, machine.gpu(0), granule).unwrap();
        let area = Area::new(vmm, 0, AreaFlags::DEFAULT).unwrap();
        let host = Vec::leak(vec![0_u8; 1 << 16]);
        let memory = vec![
            area.mmap(5, MmapOptions::new()).unwrap(),
            Area::new(vmm, 0, AreaFlags::HOST).unwrap().mmap(5, MmapOptions::new()).unwrap(),
            Area::new(vmm, 0, AreaFlags::MAPPED)
                .unwrap()
                .mmap(5, MmapOptions::new().with_host_memory(host))
                .unwrap(),
        ];
        let ipc = Ipc::open(&machine.runtime).unwrap();
        Self {
            machine,
            reservation,
            allocation,
            mapping,
            growable,
            paged,
            pausable,
            ring,
            pool,
            area,
            memory,
            ipc,
        }
    }

    /// Makes calls that take locks. Threads of the parent call this function while the parent forks.
    fn take_locks(&self, number: usize) {
        let Machine { library: Library { vmm, .. }, .. } = &self.machine;
        let granule = self.machine.granule();
        let address = self.machine.reserve(granule);
        let handle = self.machine.create(0, granule);
        self.machine.map(address, granule, handle);
        vmm.name_handle(handle, "memory").unwrap();
        vmm.name_reservation(address, "addresses").unwrap();
        self.machine.grant(address, granule, self.machine.cpu(0), Access::ReadWrite);
        assert!(vmm.usage().mappings > 0 && !vmm.mappings().is_empty());
        assert!(vmm.mapping_at(address).is_some() && !vmm.report().reservations.is_empty());
        vmm.check().unwrap();
        vmm.unmap(address, granule).unwrap();
        vmm.release(handle).unwrap();
        vmm.address_free(address, granule).unwrap();
        let page = number % self.paged.page_count();
        self.growable.grant(&[self.machine.gpu(0)], Access::ReadWrite).unwrap();
        self.paged.map(page..page + 1).unwrap();
        self.paged.unmap(page..page + 1).unwrap();
        self.pool.allow(&[self.machine.gpu(1)]).unwrap();
        self.ipc.get_mem_handle(self.pool.address()).unwrap();
        for memory in &self.memory {
            memory.write(0, b"text").unwrap();
        }
        drop(self.area.mmap(5, MmapOptions::new()).unwrap());
    }

    /// Returns calls of methods that take no `&mut self`, with their names.
    fn calls(&self) -> Vec<Call<'_>> {
        let vmm = &self.machine.vmm;
        let (address, granule) = (self.mapping.address(), self.machine.granule());
        let gpu = self.machine.gpu(0);
        let assert_forked = |result: Result<(), Error>| {
            assert!(
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Forked)),
                "{result:?}"
            );
        };
        macro_rules! calls {
            ($($name:literal => $function:expr;)+) => { vec![$(($name, Box::new(move || { let _ = $function; }))),+] };
        }
        let mut calls: Vec<Call<'_>> = calls! {
            "Runtime::has_forked" => assert!(self.machine.runtime.has_forked());
            "Runtime::available_memory" => assert_eq!(self.machine.runtime.available_memory(gpu), None);
            "Runtime::compute_properties" => assert_eq!(self.machine.runtime.compute_properties(gpu), None);
            "Runtime: Debug" => format!("{:?}", self.machine.runtime);
            "Vmm::usage" => assert_eq!(vmm.usage(), Usage::default());
            "Vmm::mappings" => assert_eq!(vmm.mappings(), []);
            "Vmm::reservations" => assert_eq!(vmm.reservations(), []);
            "Vmm::quarantined_ranges" => assert_eq!(vmm.quarantined_ranges(), []);
            "Vmm::check" => assert!(vmm.check().unwrap_err().to_string().contains("forked child"));
            "Vmm::mapping_at" => assert_eq!(vmm.mapping_at(address), None);
            "Vmm::mapped_range_at" => assert_eq!(vmm.mapped_range_at(address), None);
            "Vmm::location_at" => assert_eq!(vmm.location_at(address), None);
            "Vmm::reservation_at" => assert_eq!(vmm.reservation_at(address), None);
            "Vmm::report" => {
                let report = vmm.report();
                assert!(report.reservations.is_empty() && report.memory.is_empty());
                assert!(report.pool_memory.is_empty() && report.quarantine.is_empty());
            };
            "Vmm: Debug" => format!("{vmm:?}");
            "Vmm::name_handle" => assert_forked(vmm.name_handle(self.allocation.handle(), "other"));
            "Vmm::name_mapping" => assert_forked(vmm.name_mapping(address, "other"));
            "Vmm::name_reservation" => assert_forked(vmm.name_reservation(address, "other"));
            "Vmm::write" => assert_forked(vmm.write(address, b"lost"));
            "Vmm::retain" => assert_forked(vmm.retain_allocation_handle(address).map(drop));
            "Vmm::map_many" => assert_forked(vmm.map_many(&[], &[]));
            "Vmm::unmap_many" => assert_forked(vmm.unmap_many(&[]));
            "Vmm::set_access_many" => assert_forked(vmm.set_access_many(&[]));
            "Vmm::export" => assert_forked(
                vmm.export_to_shareable_handle(self.allocation.handle(), DESCRIPTOR).map(drop),
            );
            "Reservation::name" => assert_eq!(self.reservation.name(), None);
            "Reservation::named" => drop(self.reservation.clone().named("other"));
            "Reservation: Debug" => format!("{:?}", self.reservation);
            "Allocation::properties" => self.allocation.properties();
            "Allocation::named" => drop(self.allocation.clone().named("other"));
            "Allocation: Debug" => format!("{:?}", self.allocation);
            "Mapping::access" => assert_forked(self.mapping.access(gpu).map(drop));
            "Mapping: Debug" => format!("{:?}", self.mapping);
            "GrowableBuffer::pooled_handles" => assert_eq!(self.growable.pooled_handles(), 0);
            "GrowableBuffer::grant" => assert_forked(self.growable.grant(&[gpu], Access::Read));
            "GrowableBuffer::revoke" => assert_forked(self.growable.revoke(&[gpu]));
            "GrowableBuffer::access" => assert_forked(self.growable.access(gpu).map(drop));
            "DeviceBuffer::read" => assert_forked(self.growable.read(0, &mut []));
            "GrowableBuffer: Debug" => format!("{:?}", self.growable);
            "PagedBuffer::map" => assert_forked(self.paged.map(0..1));
            "PagedBuffer::unmap" => assert_forked(self.paged.unmap(0..1));
            "PagedBuffer::share_pages" => assert_forked(self.paged.share_pages(0..1, &self.paged, 2));
            "PagedBuffer::page_users" => assert_forked(self.paged.page_users(0).map(drop));
            "PagedBuffer::trim" => assert_forked(self.paged.trim());
            "PagedBuffer::grant" => assert_forked(self.paged.grant(&[gpu], Access::Read));
            "PagedBuffer::revoke" => assert_forked(self.paged.revoke(&[gpu]));
            "PagedBuffer::access" => assert_forked(self.paged.access(gpu).map(drop));
            "PagedBuffer::read" => assert_forked(self.paged.read(0, &mut [0; 4]));
            "PagedBuffer::state" => assert_forked(self.paged.state(0).map(drop));
            "PagedBuffer::statistics" => self.paged.statistics();
            "PagedBuffer: Debug" => format!("{:?}", self.paged);
            "PausableBuffer::access" => assert_forked(self.pausable.access(gpu).map(drop));
            "PausableBuffer: Debug" => format!("{:?}", self.pausable);
            "RingBuffer::access" => assert_forked(self.ring.access(gpu).map(drop));
            "RingBuffer: Debug" => format!("{:?}", self.ring);
            "PoolMemory::allow" => self.pool.allow(&[gpu]).unwrap_err();
            "PoolMemory::is_accessible_by" => assert!(!self.pool.is_accessible_by(self.machine.gpu(1)));
            "PoolMemory::read" => self.pool.read(0, &mut [0; 4]).unwrap_err();
            "PoolMemory::copy" => self.pool.copy(0, &self.pool, 64, 4).unwrap_err();
            "PoolMemory: Debug" => format!("{:?}", self.pool);
            "Area: Display" => self.area.to_string();
            "Area::backing" => assert_forked(self.area.backing().map(drop));
            "Area::mmap" => self.area.mmap(5, MmapOptions::new()).unwrap_err();
            "Ipc::get_mem_handle" => self.ipc.get_mem_handle(self.pool.address()).unwrap_err();
            "Ipc::close_mem_handle" => self.ipc.close_mem_handle(address).unwrap_err();
            "Ipc: Debug" => format!("{:?}", self.ipc);
            "Reservation::reserve" => assert_forked(Reservation::builder(granule).reserve(vmm).map(drop));
        };
        for memory in &self.memory {
            calls.push((
                "AreaMemory::read",
                Box::new(move || {
                    memory.read(0, &mut [0; 4]).unwrap_err();
                }),
            ));
            calls.push((
                "AreaMemory::write",
                Box::new(move || {
                    memory.write(0, b"lost").unwrap_err();
                }),
            ));
            calls.push(("AreaMemory: Debug", Box::new(move || drop(format!("{memory:?}")))));
        }
        calls
    }
}

/// Forks a child that makes all calls, and then drops all values. The error names the call or drop that failed.
fn call_all_in_child(values: &mut Option<Values>) -> Result<(), String> {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let child = Child::start(|| {
        let values = values.take().unwrap();
        let calls = values.calls();
        for (name, call) in &calls {
            writeln!(writer, "{name}").unwrap();
            call();
        }
        drop(calls);
        writeln!(writer, "named").unwrap();
        let Values { machine, reservation, allocation, mapping, growable, .. } = values;
        let Values { paged, pausable, ring, pool, area, memory, ipc, .. } = values;
        let pool = pool.named("other");
        macro_rules! drop_each {
            ($($value:ident)+) => {
                $(writeln!(writer, "drop {}", stringify!($value)).unwrap(); drop($value);)+
            };
        }
        drop_each! {
            mapping allocation reservation growable paged pausable ring memory area ipc pool machine
        }
        0
    });
    drop(writer);
    let end = child.wait_for(Duration::from_secs(10));
    let mut steps = String::new();
    reader.read_to_string(&mut steps).unwrap();
    match end {
        End::Success => Ok(()),
        end => Err(format!("{}: {end:?}", steps.lines().last().unwrap_or("before the first call"))),
    }
}

#[test]
fn child_of_a_busy_parent_does_not_hang() {
    if process::rerun_in_own_process() {
        return;
    }
    let forks = std::env::var("HSA_VMM_FORKS").map_or(400, |text| text.parse().unwrap());
    let mut values = Some(Values::new());
    let shared: *const Values = values.as_ref().unwrap();
    let shared = shared.expose_provenance();
    let stop = AtomicBool::new(false);
    let mut failure = None;
    std::thread::scope(|scope| {
        for number in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                // SAFETY: the parent changes the values only after these threads have ended. A child
                // changes only its own copy.
                let values = unsafe { &*core::ptr::with_exposed_provenance::<Values>(shared) };
                while !stop.load(Ordering::Relaxed) {
                    values.take_locks(number);
                }
            });
        }
        for number in 0..forks {
            if let Err(error) = call_all_in_child(&mut values) {
                failure = Some(format!("fork {number}: {error}"));
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(failure, None);
    values.unwrap().machine.vmm.check().unwrap();
}

#[test]
fn fork_during_calls_does_not_hang_the_child() {
    if process::rerun_in_own_process() {
        return;
    }
    let machine = Machine::new(Config::mi300x(1));
    let granule = machine.granule();
    let base = machine.reserve(granule);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let address = machine.reserve(granule);
                    let handle = machine.create(0, granule);
                    machine.map(address, granule, handle);
                    machine.vmm.unmap(address, granule).unwrap();
                    machine.vmm.release(handle).unwrap();
                    machine.vmm.address_free(address, granule).unwrap();
                }
            });
        }
        for _ in 0..50 {
            let end = process::in_child(|| {
                assert!(
                    machine
                        .vmm
                        .unmap(base, granule)
                        .is_err_and(|error| *error.kind() == ErrorKind::Forked)
                );
            });
            if end != End::Success {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            assert_eq!(end, End::Success);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    machine.vmm.address_free(base, granule).unwrap();
    machine.assert_empty();
}
