//! Tries every sequence of operations, with every failure of its last operation. Each run executes one sequence, and
//! makes one or several calls fail. Each runtime call of the last operation fails in turn: alone with each status, or
//! together with later calls with one status. In other runs, `mmap`, `mprotect` or the allocation of descriptors fails.
//! After the failure, the state is unchanged, or the ranges that the library could not restore are in quarantine.
//! `retire.rs` makes each call of a retirement fail alone.
//!
//! Sequences have up to four operations. With `HSA_VMM_LONG=1`, sequences have up to five operations, unless the
//! library changes page tables or waits for changes of page tables. If several sequences reach the same state before
//! the last operation, the search tries only one of them. `HSA_VMM_FAULT_DEPTH=6` tries every sequence of up to six
//! operations.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod executor;
#[path = "../machine/mod.rs"]
mod machine;
mod model;
mod observation;
#[path = "../process/mod.rs"]
mod process;
mod retire;
mod search;
mod statuses;
mod system_calls;

use hsa_rocr::test::{is_long, runs_long_test};
use hsa_vmm::simulation::{Config, Generation, GpuPermissions, PageTableUpdates};
use hsa_vmm::{Access, Error, ErrorKind};
use machine::{Machine, without_cpu_mapping};
use search::{PageTables, Search};
use std::time::Instant;
use system_calls::{watch_this_thread, with_unmapping_mmap};

/// Tests a machine whose GPUs enforce the permissions that the runtime sets. `min_runs` is as in [`run_search`].
fn search(name: &'static str, config: Config, min_runs: u64) {
    let depth = if is_long() { 5 } else { 4 };
    let config = config.with_gpu_permissions(GpuPermissions::Enforced);
    run_search(name, (config, PageTables::Untouched), depth, min_runs);
}

/// Tests a machine on which the library controls the page tables. Changes of page tables take effect as late as
/// possible.
fn search_with_controlled_page_tables(name: &'static str, generation: Generation) {
    let config = config_of(generation).with_page_table_updates(PageTableUpdates::Late);
    run_search(name, (config, PageTables::Controlled), 4, 1_000);
}

/// Tests a machine on which the library waits by the barrier until changes of page tables take effect. Only this wait
/// flushes the TLB.
fn search_with_barrier(name: &'static str, generation: Generation) {
    let config = config_of(generation);
    let config = config.with_gpu_permissions(GpuPermissions::Enforced);
    let config = config.with_page_table_updates(PageTableUpdates::NotFlushed);
    run_search(name, (config, PageTables::Barrier), 4, 1_000);
}

/// Tests one machine. Fails if a run ends in a wrong state, or if there are fewer than `min_runs` runs. Without
/// `HSA_VMM_LONG=1`, a tenth of `min_runs` is enough. With `HSA_VMM_FAULT_DEPTH`, does not check the number of runs.
fn run_search(
    name: &'static str,
    machine: (Config, PageTables),
    default_depth: usize,
    min_runs: u64,
) {
    if process::rerun_in_own_process() {
        return;
    }
    let begun = Instant::now();
    let min_runs = if is_long() { min_runs } else { min_runs / 10 };
    let variable = std::env::var("HSA_VMM_FAULT_DEPTH").ok();
    let depth =
        variable.as_ref().map(|text| text.parse().expect("HSA_VMM_FAULT_DEPTH is a number"));
    // Starts a thread for the search, because a thread cannot remove its system call filter.
    let thread = std::thread::spawn(move || {
        watch_this_thread();
        Search::run(name, machine, depth.unwrap_or(default_depth), depth.is_some())
    });
    let search = thread.join().expect("nothing panics");
    println!("{search}; {:.1?}", begun.elapsed());
    assert!(search.violations.is_empty(), "{}", search.violations.join("\n\n"));
    assert!(search.runs() >= min_runs || depth.is_some(), "{} runs", search.runs());
}

fn config_of(generation: Generation) -> Config {
    Config::mi300x(2).with_generation(generation)
}

#[test]
fn faults_in_rocm_6_1_change_nothing() {
    search("6.1", config_of(Generation::A).with_extension(4), 5_000);
}

#[test]
fn faults_in_generation_a_change_nothing() {
    search("generation A", config_of(Generation::A), 5_000);
}

#[test]
fn faults_in_generation_b_change_nothing() {
    search("generation B", config_of(Generation::B), 5_000);
}

#[test]
fn faults_in_generation_c_change_nothing() {
    search("generation C", config_of(Generation::C), 5_000);
}

#[test]
fn faults_in_generation_d_change_nothing() {
    search("generation D", config_of(Generation::D), 5_000);
}

#[test]
fn faults_in_generation_e_change_nothing() {
    search("generation E", config_of(Generation::E), 5_000);
}

#[test]
fn faults_in_generation_a_with_runtime_cpu_access() {
    search(
        "generation A, CPU access by the runtime",
        without_cpu_mapping(config_of(Generation::A)),
        5_000,
    );
}

#[test]
fn faults_in_generation_b_with_runtime_cpu_access() {
    search(
        "generation B, CPU access by the runtime",
        without_cpu_mapping(config_of(Generation::B)),
        5_000,
    );
}

#[test]
fn faults_in_generation_c_with_runtime_cpu_access() {
    search(
        "generation C, CPU access by the runtime",
        without_cpu_mapping(config_of(Generation::C)),
        5_000,
    );
}

#[test]
fn faults_in_generation_d_with_runtime_cpu_access() {
    search(
        "generation D, CPU access by the runtime",
        without_cpu_mapping(config_of(Generation::D)),
        5_000,
    );
}

#[test]
fn faults_in_generation_a_with_page_tables() {
    search_with_controlled_page_tables("generation A, page tables", Generation::A);
}

#[test]
fn faults_in_generation_b_with_page_tables() {
    if !runs_long_test("faults_in_generation_b_with_page_tables") {
        return;
    }
    search_with_controlled_page_tables("generation B, page tables", Generation::B);
}

#[test]
fn faults_in_generation_c_with_page_tables() {
    if !runs_long_test("faults_in_generation_c_with_page_tables") {
        return;
    }
    search_with_controlled_page_tables("generation C, page tables", Generation::C);
}

#[test]
fn faults_in_generation_d_with_page_tables() {
    search_with_controlled_page_tables("generation D, page tables", Generation::D);
}

#[test]
fn faults_in_generation_b_without_execute() {
    let config = config_of(Generation::B).with_page_table_updates(PageTableUpdates::NotFlushed);
    let machine = (config, PageTables::ControlledWithoutExecute);
    run_search("generation B, no execute", machine, 4, 1_000);
}

#[test]
fn faults_in_generation_a_with_barrier() {
    search_with_barrier("generation A, barrier", Generation::A);
}

#[test]
fn faults_in_generation_b_with_barrier() {
    if !runs_long_test("faults_in_generation_b_with_barrier") {
        return;
    }
    search_with_barrier("generation B, barrier", Generation::B);
}

#[test]
fn faults_in_generation_c_with_barrier() {
    if !runs_long_test("faults_in_generation_c_with_barrier") {
        return;
    }
    search_with_barrier("generation C, barrier", Generation::C);
}

#[test]
fn faults_in_generation_d_with_barrier() {
    search_with_barrier("generation D, barrier", Generation::D);
}

/// When the CPU loses its access, the library replaces the CPU's view. If `mmap` fails after it has unmapped the view,
/// the library fills the hole. If this also fails, the reservation is quarantined.
#[test]
fn hole_in_place_of_an_unused_view_is_filled() {
    if process::rerun_in_own_process() {
        return;
    }
    let test = || {
        watch_this_thread();
        for generation in Generation::ALL {
            // The calls are: `mprotect` of the view, `mmap`, `mmap` to fill the hole, `mprotect` because the process may have
            // reached the limit of mappings, and again `mmap` to fill the hole.
            for (calls, is_filled) in [(2..=2, true), (2..=4, true), (2..=5, false)] {
                let machine = Machine::new(config_of(generation));
                let granule = machine.granule();
                let (base, _) = machine.map_new_memory(0, granule);
                machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
                let no_access = [machine::access(machine.cpu(0), Access::None)];
                let range = base.get()..base.get() + granule;
                let set = || machine.vmm.set_access(base, granule, &no_access);
                let result = with_unmapping_mmap(range, calls, set);
                let is_quarantined = matches!(
                    result.as_ref().map_err(Error::kind),
                    Err(ErrorKind::Quarantined { now: true, .. })
                );
                assert_eq!((result.is_ok(), is_quarantined), (is_filled, !is_filled), "{result:?}");
                if is_filled {
                    process::assert_inaccessible(base.get(), granule, "revoked");
                    machine.vmm.unmap(base, granule).unwrap();
                    process::assert_inaccessible(base.get(), granule, "unmapped");
                }
                assert_eq!(machine.vmm.quarantined_ranges().len(), usize::from(!is_filled));
                machine.vmm.check().unwrap();
            }
        }
    };
    // Starts a thread, because a thread cannot remove its system call filter.
    std::thread::spawn(test).join().expect("nothing panics");
}
