//! Each driver call of an operation that changes page tables fails in turn. The operation fails and changes nothing, or
//! succeeds anyway. A single failure quarantines no range. AMD's runtime may abort the process at the calls that
//! `ABORTS` lists.
//!
//! In another test, each driver call that opening a `Vmm` makes fails in turn. The `Vmm` then maps memory and grants
//! access. If it cannot control page tables, the library reports why.

use super::failed_driver_calls::may_abort;
use super::failures::errors_for;
use crate::amd_runtime::driver_calls::driver_calls;
use crate::amd_runtime::raw::RawRuntime;
use crate::amd_runtime::{fail_driver_calls, set_variable};
use crate::machine::{Library, access, at};
use crate::process::{End, in_child, page_table};
use crate::scenario::{OPERATIONS, Operation, Scenario, StateSnapshot};
use hsa_rocr::test::{Fixture, is_long, run_on_releases};
use hsa_rocr::{Emulation, Release};
use hsa_vmm::agent::Enforcement;
use hsa_vmm::vmm::{NewMapping, VmmOptions};
use hsa_vmm::{Access, Address, Runtime, Vmm};
use std::io::{Read, Write};

/// Two of the emulated driver's modes in `PAGE_TABLE_MODES`. In both modes, the driver does not flush the TLB until the
/// library waits. In the second mode, it does not write page-table entries until then either.
const MODES: [&str; 2] = ["tlb=on,split_bug=on", "pte_delay=600s,tlb=on,split_bug=on"];

/// Operations on mappings with an offset.
const PART_OPERATIONS: [(&str, Operation); 7] = [
    ("map many parts with access", |s| {
        let (size, handle) = (s.granule(), s.handles.borrow()[2]);
        let part = |address, offset| NewMapping { address, size, offset, handle };
        let parts = [part(s.empty, size), part(at(s.empty, size), 0)];
        let [cpu, gpu, peer] = [s.library.cpu(0), s.library.gpu(0), s.library.gpu(1)];
        let list = [(cpu, Access::Read), (gpu, Access::Read), (peer, Access::ReadWrite)];
        s.library.vmm.map_many(&parts, &list.map(|(agent, granted)| access(agent, granted)))
    }),
    ("grant read access to a part", |s| {
        let gpus = [0, 1].map(|gpu| access(s.library.gpu(gpu), Access::Read));
        s.library.vmm.set_access(part_of(s), s.granule(), &gpus)
    }),
    ("grant write access to a part", |s| {
        let gpus = [0, 1].map(|gpu| access(s.library.gpu(gpu), Access::ReadWrite));
        s.library.vmm.set_access(part_of(s), s.granule(), &gpus)
    }),
    ("set no access to a part", |s| {
        let none = [access(s.library.gpu(0), Access::None)];
        s.library.vmm.set_access(part_of(s), s.granule(), &none)
    }),
    ("revoke a part", |s| s.library.vmm.revoke(part_of(s), s.granule(), &[s.library.gpu(0)])),
    ("relocate a part", |s| s.library.vmm.relocate(s.empty, part_of(s), s.granule())),
    ("unmap a part", |s| s.library.vmm.unmap(part_of(s), s.granule())),
];

/// Returns the address of the mapping with an offset.
fn part_of(scenario: &Scenario) -> Address {
    let mappings = scenario.library.vmm.mappings();
    mappings.iter().find(|mapping| mapping.offset != 0).expect("a part is mapped").address
}

/// The scenario with control of page tables, and one more mapping: the second granule of a handle.
struct Setup {
    scenario: Scenario,
    raw: RawRuntime,
}

impl Setup {
    fn new(fixture: &Fixture, mode: &str) -> Self {
        set_variable("HSA_KFD", &format!("gpus=2,{mode}"));
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let library = Library::open(runtime, VmmOptions::new().with_page_tables(true));
        let scenario = Scenario::new(library);
        // Starts `raw` before the last grants. When these grants wait for page tables, the entries of the scratch
        // memory of `raw` also take effect.
        let raw = RawRuntime::start(fixture);
        let (library, granule) = (&scenario.library, scenario.granule());
        let part = library.reserve(granule);
        library.vmm.map(part, granule, granule, scenario.handles.borrow()[2]).unwrap();
        library.grant(part, granule, library.cpu(0), Access::ReadWrite);
        library.vmm.write(part, &[5; 16]).unwrap();
        library.grant(part, granule, library.gpu(0), Access::ReadWrite);
        let setup = Self { raw, scenario };
        // Fills the TLB, and creates the queues of the GPUs.
        setup.read_by_gpus();
        setup
    }

    /// Returns what each GPU reads from each mapping that it can access.
    fn read_by_gpus(&self) -> Vec<(Address, usize, u64)> {
        let library = &self.scenario.library;
        let mut values = Vec::new();
        for mapping in library.vmm.mappings() {
            for (number, gpu) in library.gpus().into_iter().enumerate() {
                if mapping.access.iter().any(|&(agent, _)| agent == gpu) {
                    let value = self.raw.read_by(self.raw.gpus[number], mapping.address.get());
                    values.push((mapping.address, number, value.expect("the GPU has access")));
                }
            }
        }
        values
    }

    /// Returns the state that must not change.
    fn state(&self, context: &str) -> State {
        let snapshot = StateSnapshot::of(&self.scenario.library, context);
        let mut pages = Vec::new();
        for mapping in &snapshot.mappings {
            for gpu in 0..2 {
                let page = page_table::page(gpu, mapping.address.get());
                // An operation may add an entry without permissions, which has no effect.
                let page = page.filter(|page| page.permissions != "---");
                pages.push((mapping.address, gpu, page));
            }
        }
        State { snapshot, pages, values: self.read_by_gpus() }
    }
}

/// The library's state, the GPUs' page tables, and what GPUs read.
#[derive(Debug, PartialEq)]
struct State {
    snapshot: StateSnapshot,
    /// The address, the GPU, and the GPU's page-table entry.
    pages: Vec<(Address, usize, Option<page_table::Page>)>,
    values: Vec<(Address, usize, u64)>,
}

fn check_failure(fixture: &Fixture, mode: &str, operation: Operation, context: &str, plan: &str) {
    fail_driver_calls(plan);
    let setup = Setup::new(fixture, mode);
    let (scenario, vmm) = (&setup.scenario, &setup.scenario.library.vmm);
    let mut before = setup.state(context);
    match operation(scenario) {
        Ok(()) => vmm.check().unwrap(),
        Err(error) => {
            println!("{context}: {error}");
            let after = setup.state(context);
            if plan.starts_with("PRIME_FD_TO_HANDLE") {
                // A defect of the runtime: a failed map leaks the dma-buf.
                let leaked = after.snapshot.descriptors - before.snapshot.descriptors;
                assert!(leaked <= 1, "{context}: {leaked} descriptors");
                before.snapshot.descriptors = after.snapshot.descriptors;
            }
            before.snapshot.assert_unchanged(&after.snapshot, context);
            assert_eq!(before, after, "{context}");
            scenario.assert_contents(context);
            operation(scenario).unwrap_or_else(|error| panic!("{context}, then again: {error}"));
        }
    }
    setup.read_by_gpus();
    scenario.tear_down(context);
    assert_eq!(vmm.quarantined_ranges(), [], "{context}");
}

/// Returns the mode in which a release tests an operation. The releases make nearly the same driver calls, so one mode
/// for each release is enough. With `HSA_VMM_LONG=1`, the releases together test every operation in both modes.
fn mode_of(fixture: &Fixture, operation: usize) -> &'static str {
    MODES[(operation + usize::from(fixture.release() == Release::R6_4_3)) % MODES.len()]
}

#[test]
fn one_failed_call_changes_no_page_table() {
    let test = "page_table_failures::one_failed_call_changes_no_page_table";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let (mut calls, mut tried, mut aborted, mut failures) = (0, 0, 0, Vec::new());
        // By default, tests only every fourth operation.
        let step = if is_long() { 1 } else { 4 };
        for (number, &(name, operation)) in
            OPERATIONS.iter().chain(&PART_OPERATIONS).step_by(step).enumerate()
        {
            let mode = mode_of(fixture, number);
            let start = || Setup::new(fixture, mode);
            let act_on = |setup: &mut Setup| {
                operation(&setup.scenario).unwrap_or_else(|error| panic!("{name}: {error}"));
            };
            for call in driver_calls(start, act_on) {
                for error in errors_for(calls) {
                    let context =
                        format!("{} {mode}: {name}, {call} is {error}", fixture.release());
                    let plan = format!("{call}={error}");
                    let end = in_child(|| check_failure(fixture, mode, operation, &context, &plan));
                    tried += 1;
                    if end == End::Signal(libc::SIGABRT) && may_abort(name, &call).is_some() {
                        aborted += 1;
                    } else if end != End::Success {
                        failures.push((context, end));
                    }
                }
                calls += 1;
            }
        }
        let release = fixture.release();
        println!("{release}: {calls} calls failed in {tried} ways; {aborted} aborts");
        assert_eq!(failures, [], "of {tried}");
        assert!(calls > hsa_rocr::test::count_to_run(300), "only {calls} calls failed");
    });
}

/// Opens the library with control of page tables. Checks that the reported enforcement is consistent, and that mappings
/// and access work. Returns the reported reasons why page tables are not controlled.
fn check_opening(fixture: &Fixture, context: &str) -> Vec<String> {
    // SAFETY: the file is a fetched release of AMD's runtime.
    let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
    let library = Library::open(runtime, VmmOptions::new().with_page_tables(true));
    let mut reasons = Vec::new();
    for gpu in library.gpus() {
        let reason = library.vmm.page_table_failure(gpu);
        let expected = match reason {
            None => Enforcement::Enforced,
            Some(_) => Enforcement::Recorded,
        };
        assert_eq!(library.vmm.enforcement(gpu), Some(expected), "{context}: {reason:?}");
        reasons.extend(reason);
    }
    reasons.extend(library.vmm.barrier_failure().map(|reason| format!("barrier: {reason}")));
    let raw = RawRuntime::start(fixture);
    let granule = library.granule();
    let (base, handle) = library.map_new_memory(0, granule);
    for (number, gpu) in library.gpus().into_iter().enumerate() {
        library.grant(base, granule, gpu, Access::ReadWrite);
        raw.write_by(raw.gpus[number], base.get(), number as u64).unwrap();
        library.grant(base, granule, gpu, Access::Read);
        assert_eq!(raw.read_by(raw.gpus[number], base.get()), Ok(number as u64), "{context}");
    }
    library.vmm.unmap(base, granule).unwrap();
    library.vmm.release(handle).unwrap();
    library.vmm.address_free(base, granule).unwrap();
    library.vmm.check().unwrap();
    assert_eq!(library.vmm.quarantined_ranges(), [], "{context}");
    reasons
}

#[test]
fn failed_call_while_opening_is_reported() {
    let test = "page_table_failures::failed_call_while_opening_is_reported";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let (mut tried, mut failures, mut reported) = (0, Vec::new(), 0);
        let mode = mode_of(fixture, 0);
        set_variable("HSA_KFD", &format!("gpus=2,{mode}"));
        let start = || {
            // SAFETY: the file is a fetched release of AMD's runtime.
            let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
            (runtime, None::<Vmm>)
        };
        let open = |(runtime, vmm): &mut (Runtime, Option<Vmm>)| {
            let options = VmmOptions::new().with_page_tables(true);
            *vmm = Some(Vmm::open_with(runtime, options).unwrap());
        };
        let calls = driver_calls(start, open);
        let mut failed_opens = 0;
        // A fault plan cannot make `CLOSE` fail.
        for call in calls.iter().filter(|call| !call.starts_with("CLOSE#")) {
            let context = format!("{} {mode}: opening, {call} fails", fixture.release());
            let (mut reader, writer) = std::io::pipe().expect("a pipe");
            let end = in_child(|| {
                fail_driver_calls(&format!("{call}=ENOMEM"));
                let reasons = check_opening(fixture, &context);
                (&writer).write_all(reasons.join("; ").as_bytes()).unwrap();
            });
            drop(writer);
            let mut reasons = String::new();
            reader.read_to_string(&mut reasons).unwrap();
            println!("{context}: {reasons}");
            tried += 1;
            reported += usize::from(!reasons.is_empty());
            // The library still enforces permissions, because calls of the runtime can also wait.
            let expected_reason = "barrier: cannot use /dev/kfd: Cannot allocate memory (os error 12); \
                           operations wait by hsa_amd_memory_lock";
            failed_opens += usize::from(call.starts_with("OPEN#") && reasons == expected_reason);
            // The runtime aborts if its own driver calls fail while it grants access. 6.1.2 also aborts if it cannot
            // map memory for a CPU. Only the probes for quirks make the runtime map memory for a CPU.
            let may_abort = may_abort("grant", call).is_some()
                || fixture.release() == Release::R6_1_2 && call.starts_with("MMAP#");
            if end != End::Success && !(may_abort && end == End::Signal(libc::SIGABRT)) {
                failures.push((context, end));
            }
        }
        assert_eq!(failed_opens, 1, "{mode}: the library opens /dev/kfd once");
        println!("{}: {tried} calls failed, {reported} reported", fixture.release());
        assert_eq!(failures, [], "of {tried}");
        let is_enough = tried >= 20 && reported >= 5;
        assert!(is_enough, "{tried} calls, {reported} reported");
    });
}

/// Opens the library with one GPU and the fault plan `plan`. Returns the lines of the driver's log.
fn log_of_opening(fixture: &Fixture, mode: &str, plan: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let end = in_child(|| {
        set_variable("HSA_KFD", &format!("gpus=1,{mode}"));
        set_variable("HSA_KFD_LOG", log.to_str().unwrap());
        fail_driver_calls(plan);
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let options = VmmOptions::new().with_page_tables(true);
        // Stopping the runtime would free all memory.
        std::mem::forget(Vmm::open_with(&runtime, options).unwrap());
        std::mem::forget(runtime);
    });
    assert_eq!(end, End::Success, "{} {mode} {plan}", fixture.release());
    std::fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn probe_keeps_memory_if_the_last_wait_fails() {
    let test = "page_table_failures::probe_keeps_memory_if_the_last_wait_fails";
    run_on_releases(test, &Emulation::with_gpus(1), |fixture| {
        for mode in MODES {
            let lines = log_of_opening(fixture, mode, "");
            let position = |start: usize, text: &str| {
                let found = lines[start..].iter().position(|line| line.contains(text));
                start + found.unwrap_or_else(|| panic!("no {text} in {lines:#?}"))
            };
            // Only the probe of page tables replaces entries. After the last replacement, the runtime unmaps the
            // probe's memory, and the library waits.
            let replaced = lines.iter().rposition(|line| line.contains("operation=REPLACE"));
            let unmapped = position(replaced.expect("the probe"), "operation=UNMAP");
            let wait = position(unmapped, "_GPU handle=");
            let call = lines[wait].split(' ').nth(3).unwrap();
            assert!(call.contains("MAP_MEMORY"), "{call}");
            let is_same = |line: &&String| line.split(' ').nth(3) == Some(call);
            let number = lines[..=wait].iter().filter(is_same).count();
            let free_line = &lines[position(wait, "FREE_MEMORY_OF_GPU handle=")];
            let (_, fields) = free_line.split_once("FREE_MEMORY_OF_GPU handle=").unwrap();
            let memory = fields.split(' ').next().unwrap();

            let lines = log_of_opening(fixture, mode, &format!("{call}#{number}=ENOMEM"));
            let context = format!("{} {mode}: {call}#{number} of {lines:#?}", fixture.release());
            let failed = lines.iter().position(|line| line.contains("ENOMEM")).expect(&context);
            let free = format!("FREE_MEMORY_OF_GPU handle={memory} ");
            assert!(!lines[failed..].iter().any(|line| line.contains(&free)), "{context}");
        }
    });
}
