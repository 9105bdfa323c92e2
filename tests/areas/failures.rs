//! Each runtime call of each operation on areas fails in turn. The operation fails and changes nothing, or tolerates
//! the failure. There are two exceptions. A failed fill or copy may have changed bytes. A `munmap` that cannot release
//! the handle has already unmapped the memory. When the test repeats the operation, the operation succeeds. At the end,
//! everything is freed.

use crate::fixture::Fixture;
use hsa_vmm::area::{AreaFlags, AreaMemory, MmapOptions};
use hsa_vmm::error::{Problem, Rejected};
use hsa_vmm::hsa_sys::{
    HSA_STATUS_ERROR, HSA_STATUS_ERROR_INVALID_ALLOCATION, HSA_STATUS_ERROR_INVALID_ARGUMENT,
    HSA_STATUS_ERROR_NOT_INITIALIZED, HSA_STATUS_ERROR_OUT_OF_RESOURCES,
};
use hsa_vmm::simulation::{Config, FaultPlan, Generation, Usage};
use hsa_vmm::{Area, Error, Vmm};

/// Each call fails with each of these statuses.
const STATUSES: [u32; 5] = [
    HSA_STATUS_ERROR,
    HSA_STATUS_ERROR_INVALID_ARGUMENT,
    HSA_STATUS_ERROR_INVALID_ALLOCATION,
    HSA_STATUS_ERROR_OUT_OF_RESOURCES,
    HSA_STATUS_ERROR_NOT_INITIALIZED,
];
const SIZE: usize = 5000;

/// An area, memory of this area and of another one, and the memory that an operation maps.
struct Areas {
    fixture: Fixture,
    vmm: Option<Vmm>,
    area: Area,
    /// `None` after an operation has unmapped the memory.
    memory: Option<AreaMemory<'static>>,
    peer_memory: AreaMemory<'static>,
    mapped: Option<AreaMemory<'static>>,
}

/// Returns options with host memory that is never freed.
fn leaked_host_memory() -> MmapOptions<'static> {
    MmapOptions::new().with_host_memory(Vec::leak(vec![0; SIZE]))
}

fn options(flags: AreaFlags) -> MmapOptions<'static> {
    if flags & !AreaFlags::GLOBAL == AreaFlags::MAPPED {
        leaked_host_memory()
    } else {
        MmapOptions::new()
    }
}

impl Areas {
    fn new(config: &Config, flags: AreaFlags) -> Self {
        let fixture = Fixture::simulated(config.clone());
        let vmm = Vmm::open(&fixture.runtime).ok();
        let new_area = |device: usize, flags| match &vmm {
            Some(vmm) => Area::new(vmm, device, flags).unwrap(),
            None => Area::without_vmm(&fixture.runtime, device, flags).unwrap(),
        };
        // The first device has access to `peer_memory`, because its area is global.
        let (area, peer) = (new_area(0, flags), new_area(1, AreaFlags::GLOBAL));
        let memory = area.mmap(SIZE, options(flags)).unwrap();
        let peer_memory = peer.mmap(SIZE, MmapOptions::new()).unwrap();
        memory.write(0, &[1; SIZE]).unwrap();
        peer_memory.write(0, &[2; SIZE]).unwrap();
        Self { vmm, area, memory: Some(memory), peer_memory, mapped: None, fixture }
    }

    fn memory(&self) -> &AreaMemory<'static> {
        self.memory.as_ref().expect("the memory is still mapped")
    }

    fn set_faults(&self, plan: FaultPlan) {
        self.fixture.simulation.as_ref().unwrap().set_faults(plan);
    }

    fn usage(&self) -> Usage {
        self.fixture.simulation.as_ref().unwrap().usage()
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        self.fixture.simulation.as_ref().unwrap().all_calls()
    }

    fn quarantined(&self) -> usize {
        self.vmm.as_ref().map_or(0, |vmm| vmm.quarantined_ranges().len())
    }

    /// Fails unless all contents are intact.
    fn assert_contents(&self, context: &str) {
        for (memory, value) in
            self.memory.iter().map(|memory| (memory, 1)).chain([(&self.peer_memory, 2)])
        {
            let mut bytes = [0; SIZE];
            memory.read(0, &mut bytes).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(bytes == [value; SIZE], "{context}: the contents have changed");
        }
    }

    /// Drops everything. The `Vmm` frees what areas could not free. Fails if the runtime then still has resources,
    /// unless something is quarantined.
    fn tear_down(self, context: &str) {
        let quarantined = self.quarantined();
        let Self { fixture, vmm, area, memory, peer_memory, mapped } = self;
        drop((memory, peer_memory, mapped, area));
        if let Some(vmm) = &vmm {
            vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}"));
        }
        drop(vmm);
        if quarantined == 0 {
            fixture.assert_idle();
        }
    }
}

type Operation = fn(&mut Areas) -> Result<(), Error>;

const OPERATIONS: &[(&str, Operation)] = &[
    ("mmap", |areas| {
        areas.mapped = Some(areas.area.mmap(SIZE, options(areas.area.flags()))?);
        Ok(())
    }),
    ("munmap", |areas| {
        let memory = areas.memory.take().expect("the memory is unmapped once");
        memory.munmap().map_err(|Rejected { value: memory, error }| {
            areas.memory = Some(memory);
            error
        })
    }),
    ("read", |areas| areas.memory().read(1, &mut [0; 4000])),
    ("write", |areas| areas.memory().write(1, &[1; 4000])),
    ("fill", |areas| areas.memory().fill(4, 0x0101_0101, 4000)),
    ("copy to itself", |areas| areas.memory().copy(0, areas.memory(), 3000, 1000)),
    ("copy from the peer", |areas| {
        areas.memory().copy(0, &areas.peer_memory, 0, 2000)?;
        areas.memory().copy(0, areas.memory(), 3000, 2000)
    }),
];

/// Returns the configurations: kinds of areas in ROCm generations A to D, and without virtual memory.
fn configurations() -> Vec<(&'static str, Config, AreaFlags)> {
    let config = Config::mi300x(2);
    let mut without_vmem = config.clone();
    without_vmem.vmem = false;
    let mut configurations = Vec::new();
    for (name, generation) in [
        ("generation A", Generation::A),
        ("generation B", Generation::B),
        ("generation C", Generation::C),
        ("generation D", Generation::D),
    ] {
        let config = config.clone().with_generation(generation);
        for flags in [AreaFlags::DEFAULT, AreaFlags::UNIFIED | AreaFlags::GLOBAL] {
            configurations.push((name, config.clone(), flags));
        }
    }
    for flags in [
        AreaFlags::GLOBAL,
        AreaFlags::UNIFIED,
        AreaFlags::HOST,
        AreaFlags::HOST | AreaFlags::GLOBAL,
        AreaFlags::MAPPED,
        AreaFlags::MAPPED | AreaFlags::GLOBAL,
    ] {
        configurations.push(("generation B", config.clone(), flags));
    }
    for flags in [AreaFlags::DEFAULT, AreaFlags::UNIFIED] {
        configurations.push(("no virtual memory", without_vmem.clone(), flags));
    }
    configurations
}

/// Returns the names of the runtime functions that an operation calls, and the number of calls. Leaves out the wait for
/// a signal, which cannot fail.
fn calls_of(
    config: &Config,
    flags: AreaFlags,
    operation: Operation,
    name: &str,
) -> Vec<(&'static str, u64)> {
    let mut areas = Areas::new(config, flags);
    let before = areas.calls();
    operation(&mut areas)
        .unwrap_or_else(|error| panic!("{name} succeeds when nothing fails: {error}"));
    let after = areas.calls();
    areas.tear_down(name);
    let calls_made = before.into_iter().zip(after).map(|((name, old), (_, new))| (name, new - old));
    calls_made.filter(|&(name, calls)| calls > 0 && name != "hsa_signal_wait_scacquire").collect()
}

/// Returns whether an operation succeeds although this function fails.
fn tolerates_failure(operation: &str, function: &str) -> bool {
    match function {
        // The failure leaks a signal, or leaves memory of this process locked.
        "hsa_signal_destroy" => true,
        "hsa_amd_memory_unlock" => operation != "munmap",
        _ => false,
    }
}

#[test]
fn one_failure_changes_nothing() {
    let mut tried = 0;
    for (configuration, config, flags) in configurations() {
        for &(name, operation) in OPERATIONS {
            for (function, calls) in calls_of(&config, flags, operation, name) {
                for number in 1..=calls {
                    for status in STATUSES {
                        let context = format!(
                            "{configuration}, {flags}: {name}, {function} #{number} is {status:#x}"
                        );
                        let mut areas = Areas::new(&config, flags);
                        let before = areas.usage();
                        areas.set_faults(FaultPlan::none().fail(function, number, status));
                        let result = operation(&mut areas);
                        areas.set_faults(FaultPlan::none());
                        tried += 1;
                        match result {
                            Ok(()) => {
                                assert!(
                                    tolerates_failure(name, function),
                                    "{context}: the operation succeeded"
                                );
                                // The memory that the library has locked for the copy stays locked.
                                if function != "hsa_amd_memory_unlock" {
                                    areas.tear_down(&context);
                                }
                            }
                            Err(error) => {
                                // If the memory was freed in part, only the source of the error names the
                                // function. Only the debug format includes the source.
                                let text = format!("{error:?}");
                                assert!(text.contains(function), "{context}: {text}");
                                if function == "hsa_amd_vmem_handle_release" {
                                    // The memory is unmapped, and nothing else was freed.
                                    let error = areas.memory().read(0, &mut [0]).unwrap_err();
                                    let not_mapped =
                                        matches!(error.problem(), Some(Problem::NotMapped(_)));
                                    assert!(not_mapped, "{context}: {error}");
                                    operation(&mut areas)
                                        .unwrap_or_else(|e| panic!("{context}: {e}"));
                                    let usage = areas.vmm.as_ref().map(Vmm::usage);
                                    assert_eq!(
                                        usage.map(|usage| usage.handles),
                                        Some(1),
                                        "{context}"
                                    );
                                    areas.tear_down(&context);
                                    continue;
                                }
                                // A fill or copy in two steps may have completed the first step.
                                if !matches!(name, "fill" | "copy from the peer" | "copy to itself")
                                {
                                    areas.assert_contents(&context);
                                }
                                let after = areas.usage();
                                assert_eq!(before, after, "{context}");
                                assert_eq!(areas.quarantined(), 0, "{context}");
                                operation(&mut areas)
                                    .unwrap_or_else(|e| panic!("{context}, again: {e}"));
                                if name != "munmap" {
                                    areas.assert_contents(&context);
                                }
                                areas.mapped = None;
                                if name == "mmap" {
                                    assert_eq!(
                                        before,
                                        areas.usage(),
                                        "{context}: mapped and unmapped"
                                    );
                                }
                                areas.tear_down(&context);
                            }
                        }
                    }
                }
            }
        }
    }
    println!("{tried} failures");
    assert!(tried > 1000, "only {tried}");
}

/// Makes several runtime calls of an `mmap` or `munmap` fail. Either every call of one function fails, or one call of
/// the function and further calls of any function. Once the runtime works again, everything can be freed, except memory
/// that a failed `mmap` leaked.
#[test]
fn memory_is_freed_after_repeated_failures() {
    let mut tried = 0;
    for (configuration, config, flags) in configurations() {
        for &(name, operation) in &OPERATIONS[..2] {
            for (function, calls) in calls_of(&config, flags, operation, name) {
                for number in 1..=calls {
                    let one_failure = FaultPlan::none().fail(function, number, HSA_STATUS_ERROR);
                    let mut plans = vec![FaultPlan::none().always(function, HSA_STATUS_ERROR)];
                    // In addition, the operation's n-th call fails, alone or with all calls after it. The n-th call
                    // may precede the call of `function`.
                    plans.extend((1..20).map(|nth| {
                        one_failure.clone().fail_any(nth, HSA_STATUS_ERROR_INVALID_ARGUMENT)
                    }));
                    plans.extend((1..20).map(|nth| {
                        one_failure.clone().fail_any_from(nth, HSA_STATUS_ERROR_INVALID_ARGUMENT)
                    }));
                    for (index, plan) in plans.into_iter().enumerate() {
                        let context = format!(
                            "{configuration}, {flags}: {name}, {function} #{number}, {index}"
                        );
                        let mut areas = Areas::new(&config, flags);
                        areas.set_faults(plan);
                        let result = operation(&mut areas);
                        let failed = areas.fixture.simulation.as_ref().unwrap().failed_calls();
                        areas.set_faults(FaultPlan::none());
                        tried += 1;
                        if let Some(vmm) = &areas.vmm {
                            vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}"));
                        }
                        if name == "munmap" && result.is_err() && areas.quarantined() == 0 {
                            operation(&mut areas)
                                .unwrap_or_else(|error| panic!("{context}, again: {error}"));
                        }
                        // After a failed `mmap`, memory that the library cannot free or unlock is leaked.
                        let leaking = ["hsa_amd_memory_pool_free", "hsa_amd_memory_unlock"];
                        if name == "munmap"
                            || !failed.iter().any(|(call, _)| leaking.contains(call))
                        {
                            areas.tear_down(&context);
                        }
                    }
                }
            }
        }
    }
    println!("{tried} failures");
    assert!(tried > 1000, "only {tried}");
}
