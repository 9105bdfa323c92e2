//! Every runtime call of a retirement fails in turn. The queue unmaps the mapping, or quarantines and reports it.

use crate::machine::{Machine, access, at, generations};
use crate::process;
use crate::statuses::{ERROR, statuses_of};
use hsa_vmm::Access;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::vmm::{RetireQueue, VmmOptions};

/// Retires one of two adjacent mappings while the n-th call fails. Returns the function that failed, if any did.
fn retire_with_failing_call(
    name: &str,
    config: &Config,
    options: VmmOptions,
    nth: u64,
    status: u32,
) -> Option<&'static str> {
    let machine = Machine::with_options(config.clone(), options);
    let (vmm, simulation, granule) = (&machine.vmm, &machine.simulation, machine.granule());
    let base = machine.reserve(2 * granule);
    for slot in 0..2 {
        let handle = machine.create(0, granule);
        machine.map(at(base, slot * granule), granule, handle);
        vmm.release(handle).unwrap();
    }
    let both = [0, 1].map(|gpu| access(machine.gpu(gpu), Access::ReadWrite));
    vmm.set_access(base, 2 * granule, &both).unwrap();
    let queue = RetireQueue::builder(1).without_thread().open(vmm).unwrap();
    // SAFETY: no agent uses the mapping, and there are no signals that could be destroyed too early.
    unsafe { queue.submit_range(base, granule, &[]) }.unwrap();
    simulation.set_faults(FaultPlan::none().fail_any(nth, status));
    let report = queue.poll().unwrap();
    let failed = simulation.failed_calls().first().map(|&(function, _)| function);
    simulation.set_faults(FaultPlan::none());
    let context = format!("{name}, call {nth} ({failed:?}) returns {status:#x}");
    vmm.check().unwrap_or_else(|defect| panic!("{context}: {defect}"));
    let quarantined = vmm.quarantined_ranges();
    match report.failures.as_slice() {
        [] => {
            assert_eq!((report.retired, report.pending), (1, 0), "{context}");
            assert_eq!(vmm.mappings().len(), 1, "{context}");
            // The mapping was unmapped, but releasing its memory may have failed.
            let has_lost_memory = failed == Some("hsa_amd_vmem_handle_release");
            assert_eq!(quarantined.len(), usize::from(has_lost_memory), "{context}");
        }
        [failure] => {
            assert!(failed.is_some(), "{context}: {failure:?}");
            assert!(failure.quarantined && failure.address == base, "{context}: {failure:?}");
            assert!(quarantined.iter().any(|it| it.address == base), "{context}: {quarantined:?}");
            // A GPU may still use the memory.
            assert!(vmm.mappings().iter().any(|it| it.address == base), "{context}");
            assert_eq!(simulation.usage().handles, 2, "{context}");
        }
        more => panic!("{context}: {more:?}"),
    }
    let page = simulation.page(0, base.get() + granule);
    assert!(page.is_some_and(|page| page.writable), "{context}: the other mapping");
    drop(queue);
    failed
}

#[test]
fn faults_in_retirements_are_quarantined() {
    if process::rerun_in_own_process() {
        return;
    }
    let mut runs = 0;
    for (generation, config) in generations() {
        let defaults = VmmOptions::new();
        let all = [defaults, defaults.with_barrier(true), defaults.with_page_tables(true)];
        for (options, name) in all.into_iter().zip(["untouched", "barrier", "page tables"]) {
            let name = format!("{generation}, {name}");
            for nth in 1.. {
                let Some(function) = retire_with_failing_call(&name, &config, options, nth, ERROR)
                else {
                    break;
                };
                runs += 1;
                for &status in statuses_of(function) {
                    retire_with_failing_call(&name, &config, options, nth, status);
                    runs += 1;
                }
            }
        }
    }
    assert!(runs > 50, "{runs} runs");
}
