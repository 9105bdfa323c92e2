//! On AMD's runtime, each driver call of an area's `mmap` and `munmap` fails in turn. A failed operation changes
//! nothing, and succeeds when the test repeats the operation.

use crate::amd_runtime::driver_calls::driver_calls;
use crate::amd_runtime::fail_driver_calls;
use crate::process::{End, in_child};
use hsa_rocr::Emulation;
use hsa_rocr::test::{Fixture, run_on_releases};
use hsa_vmm::area::{AreaFlags, AreaMemory, MmapOptions};
use hsa_vmm::error::Rejected;
use hsa_vmm::{Area, Runtime, Vmm};

const SIZE: usize = 5000;
const ALL_FLAGS: [AreaFlags; 5] = [
    AreaFlags::DEFAULT,
    AreaFlags::HOST.union(AreaFlags::GLOBAL),
    AreaFlags::MAPPED,
    AreaFlags::UNIFIED,
    AreaFlags::GLOBAL,
];

/// An area, and memory that it has already allocated.
struct AreaSetup {
    vmm: Vmm,
    area: Area,
    memory: AreaMemory<'static>,
}

fn options(flags: AreaFlags) -> MmapOptions<'static> {
    if flags == AreaFlags::MAPPED {
        MmapOptions::new().with_host_memory(Vec::leak(vec![0; SIZE]))
    } else {
        MmapOptions::new()
    }
}

impl AreaSetup {
    fn new(fixture: &Fixture, flags: AreaFlags) -> Self {
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.expect("a runtime");
        let vmm = Vmm::open(&runtime).expect("virtual memory");
        let area = Area::new(&vmm, 0, flags).unwrap();
        let memory = area.mmap(SIZE, options(flags)).unwrap();
        memory.write(0, &[7; SIZE]).unwrap();
        Self { vmm, area, memory }
    }

    fn assert_unchanged(&self, context: &str) {
        let mut bytes = [0; SIZE];
        self.memory.read(0, &mut bytes).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(bytes == [7; SIZE], "{context}: the contents have changed");
        self.vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}"));
        let usage = self.vmm.usage();
        let resources = usage.reservations + usage.handles + usage.mappings;
        // Virtual memory has a reservation, a handle and a mapping.
        let expected = if self.memory.backing() == hsa_vmm::area::Backing::Virtual { 3 } else { 0 };
        assert_eq!(resources, expected, "{context}: {usage:?}");
        assert_eq!(self.vmm.quarantined_ranges(), [], "{context}");
    }
}

/// Returns the driver calls of an `mmap` and its `munmap`. Leaves out the calls that unmap memory from GPUs, because
/// AMD's runtime asserts that they succeed.
fn calls_of(fixture: &Fixture, flags: AreaFlags) -> Vec<String> {
    let mut calls = driver_calls(
        || AreaSetup::new(fixture, flags),
        |setup| setup.area.mmap(SIZE, options(flags)).unwrap().munmap().unwrap(),
    );
    calls.retain(|call| !call.starts_with("UNMAP_MEMORY_FROM_GPU"));
    calls
}

/// Makes one driver call fail, and checks the outcome. Must run in a process of its own.
fn check_failure(fixture: &Fixture, flags: AreaFlags, plan: &str, context: &str) {
    fail_driver_calls(plan);
    let setup = AreaSetup::new(fixture, flags);
    let result = setup.area.mmap(SIZE, options(flags));
    match result.map(AreaMemory::munmap) {
        Ok(Ok(())) => {}
        Ok(Err(Rejected { value: memory, error })) => {
            println!("{context}: {error}");
            memory
                .munmap()
                .unwrap_or_else(|Rejected { error, .. }| panic!("{context}, repeated: {error}"));
        }
        Err(error) => println!("{context}: {error}"),
    }
    setup.assert_unchanged(context);
    let memory = setup.area.mmap(SIZE, options(flags));
    let memory = memory.unwrap_or_else(|error| panic!("{context}, repeated: {error}"));
    memory.write(1, b"again").unwrap();
    memory.munmap().unwrap_or_else(|Rejected { error, .. }| panic!("{context}, repeated: {error}"));
    setup.assert_unchanged(context);
}

#[test]
fn one_failed_call_changes_nothing() {
    let test = "driver::one_failed_call_changes_nothing";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let (mut tried, mut aborts, mut failures) = (0, 0, Vec::new());
        for flags in ALL_FLAGS {
            for call in calls_of(fixture, flags) {
                let context = format!("{}: {flags}, {call}", fixture.release());
                let plan = format!("{call}=ENOMEM");
                let end = in_child(|| check_failure(fixture, flags, &plan, &context));
                tried += 1;
                // The defect GRANT_WITHOUT_DESCRIPTOR_ABORTS of AMD's runtime: when the runtime grants a GPU access,
                // it asserts that the driver's calls succeed.
                let asserted = ["EXPORT_DMABUF", "PRIME_FD_TO_HANDLE"];
                let may_abort = asserted.iter().any(|name| call.starts_with(name));
                let aborted = may_abort && end == End::Signal(libc::SIGABRT);
                aborts += usize::from(aborted);
                if end != End::Success && !aborted {
                    failures.push((context, end));
                }
            }
        }
        println!("{}: {tried} failed calls, {aborts} aborts", fixture.release());
        assert_eq!(failures, [], "of {tried}");
        assert!(tried >= 30, "only {tried} calls failed");
    });
}
