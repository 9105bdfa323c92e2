//! The kernel driver refuses one call, each in turn, of an `mmap` and its `munmap` on AMD's
//! runtime: it fails and has changed nothing, and works when it is asked for again.

use crate::process::{End, in_child};
use hsa_rocr::Emulation;
use hsa_rocr::test::{Ground, on_each_release};
use hsa_vmm::Kept;
use hsa_vmm::area::MmapOptions;
use hsa_vmm::{Area, AreaFlags, AreaMemory, Runtime, Vmm};
use std::collections::BTreeMap;
use std::path::Path;

const SIZE: usize = 5000;
const KINDS: [AreaFlags; 5] = [
    AreaFlags::DEFAULT,
    AreaFlags::HOST.union(AreaFlags::GLOBAL),
    AreaFlags::MAPPED,
    AreaFlags::UNIFIED,
    AreaFlags::GLOBAL,
];

/// Configures the emulated driver of this child, before it opens a runtime.
fn set_variable(variable: &str, value: &str) {
    // SAFETY: a forked child has one thread, and the runtime is not loaded yet.
    unsafe { std::env::set_var(variable, value) };
}

/// An area, and memory of it that is there already.
struct Stage {
    vmm: Vmm,
    area: Area,
    memory: AreaMemory<'static>,
}

fn options(flags: AreaFlags) -> MmapOptions<'static> {
    if flags == AreaFlags::MAPPED {
        MmapOptions::new().mapping(Vec::leak(vec![0; SIZE]))
    } else {
        MmapOptions::new()
    }
}

impl Stage {
    fn new(ground: &Ground, flags: AreaFlags) -> Self {
        let runtime = Runtime::load_from(ground.runtime()).expect("a runtime");
        let vmm = Vmm::open(&runtime).expect("virtual memory");
        let area = Area::create_in(&vmm, 0, flags).unwrap();
        let memory = area.mmap(SIZE, options(flags)).unwrap();
        memory.write(0, &[7; SIZE]).unwrap();
        Self { vmm, area, memory }
    }

    fn assert_as_it_was(&self, when: &str) {
        let mut bytes = [0; SIZE];
        self.memory.read(0, &mut bytes).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert!(bytes == [7; SIZE], "{when}: the contents have changed");
        self.vmm.check().unwrap_or_else(|defect| panic!("{when}: {defect}"));
        let usage = self.vmm.usage();
        let held = usage.reservations + usage.handles + usage.mappings;
        let mine = if self.memory.backing() == hsa_vmm::area::Backing::Virtual { 3 } else { 0 };
        assert_eq!(held, mine, "{when}: {usage:?}");
        assert_eq!(self.vmm.quarantine(), [], "{when}");
    }
}

/// How often each call of the driver was made by now: `process:thread time device CALL …`.
fn calls(log: &Path) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for line in std::fs::read_to_string(log).unwrap().lines() {
        let call = line.split(' ').nth(3).unwrap_or_default();
        *calls.entry(call.to_owned()).or_default() += 1;
    }
    calls
}

/// The calls of an `mmap` and its `munmap`: each call, and which of its kind it is.
fn calls_of(ground: &Ground, flags: AreaFlags) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (log, list) = (folder.path().join("log"), folder.path().join("list"));
    let end = in_child(|| {
        set_variable("HSA_KFD_LOG", log.to_str().unwrap());
        let stage = Stage::new(ground, flags);
        let before = calls(&log);
        stage.area.mmap(SIZE, options(flags)).unwrap().munmap().unwrap();
        let mut made = String::new();
        for (call, count) in calls(&log) {
            for number in before.get(&call).unwrap_or(&0) + 1..=count {
                made += &format!("{call}#{number}\n");
            }
        }
        std::fs::write(&list, made).unwrap();
    });
    assert_eq!(end, End::Well, "{flags}");
    // What nothing depends on, what is no call of the driver, and what takes memory back, of
    // which AMD's runtime asserts that it works.
    let beside = [
        "GET_CLOCK_COUNTERS",
        "SET_EVENT",
        "WAIT_EVENTS",
        "FREE_MEMORY_OF_GPU",
        "UNMAP_MEMORY_FROM_GPU",
        "MUNMAP",
    ];
    let counts = |call: &&str| !beside.iter().any(|it| call.starts_with(it));
    std::fs::read_to_string(&list).unwrap().lines().filter(counts).map(str::to_owned).collect()
}

/// One failure, in a process of its own.
fn fails_well(ground: &Ground, flags: AreaFlags, plan: &str, when: &str) {
    set_variable("HSA_KFD_FAULTS", plan);
    let stage = Stage::new(ground, flags);
    let made = stage.area.mmap(SIZE, options(flags));
    match made.map(AreaMemory::munmap) {
        Ok(Ok(())) => {}
        Ok(Err(Kept { value: memory, error })) => {
            println!("{when}: {error}");
            memory
                .munmap()
                .unwrap_or_else(|Kept { error, .. }| panic!("{when}, then again: {error}"));
        }
        Err(error) => println!("{when}: {error}"),
    }
    stage.assert_as_it_was(when);
    let again = stage.area.mmap(SIZE, options(flags));
    let again = again.unwrap_or_else(|error| panic!("{when}, then again: {error}"));
    again.write(1, b"again").unwrap();
    again.munmap().unwrap_or_else(|Kept { error, .. }| panic!("{when}, then again: {error}"));
    stage.assert_as_it_was(when);
}

#[test]
fn one_refused_call_changes_nothing() {
    let test = "driver::one_refused_call_changes_nothing";
    on_each_release(test, &Emulation::gpus(2), |ground| {
        let (mut tried, mut aborts, mut failures) = (0, 0, Vec::new());
        for flags in KINDS {
            for call in calls_of(ground, flags) {
                let when = format!("{}: {flags}, {call}", ground.release());
                let plan = format!("{call}=ENOMEM");
                let end = in_child(|| fails_well(ground, flags, &plan, &when));
                tried += 1;
                // A defect of AMD's runtime, GRANT_WITHOUT_DESCRIPTOR_ABORTS: letting a GPU in, it
                // asserts that the driver gives it what it asks for.
                let asserted = ["EXPORT_DMABUF", "PRIME_FD_TO_HANDLE"];
                let may_abort = asserted.iter().any(|it| call.starts_with(it));
                let aborted = may_abort && end == End::Signal(libc::SIGABRT);
                aborts += usize::from(aborted);
                if end != End::Well && !aborted {
                    failures.push((when, end));
                }
            }
        }
        println!("{}: {tried} refused calls, of which {aborts} abort", ground.release());
        assert_eq!(failures, [], "of {tried}");
        assert!(tried >= 30, "only {tried} calls were refused");
    });
}
