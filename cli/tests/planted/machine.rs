//! Planned faults of the virtual machine's GPUs: docs/detection.md lists which faults `conform` and `bringup` detect.
//!
//! `HSA_VMM_VM_TESTS=all` runs the tools with each fault. `HSA_VMM_VM_TESTS=FILL` runs the tools with the faults whose
//! plan starts with `FILL`. With `HSA_VMM_WRITE_PAGES=1`, the test writes the results to the page.

use crate::call_faults::CallFault;
use crate::page::{self, Cell, Row};
use crate::table::Target;
use hsa_rocr::test;

/// The faults, and the reasons why `conform` and `bringup` do not detect them. An empty reason means that the tool
/// detects the fault.
const FAULTS: [(&str, &str, &str); 24] = [
    ("COPY=lost", "", ""),
    ("COPY=garbled", "", ""),
    ("COPY=half", "", ""),
    ("COPY=late:5ms", "", ""),
    ("COPY=hang", "", ""),
    ("FILL=lost", "", ""),
    ("FILL=garbled", "", ""),
    ("FILL=half", "", ""),
    ("FILL=late:5ms", "", ""),
    ("FILL=hang", "", ""),
    ("TLB_FLUSH=lost", "", ""),
    ("TLB_FLUSH=late:50ms", "", ""),
    ("PTE_WRITE=lost", "", ""),
    ("PTE_WRITE=late:50ms", "", ""),
    ("INTERRUPT=lost", "", ""),
    ("INTERRUPT=late:5ms", ONLY_A_DELAY, ONLY_A_DELAY),
    ("KERNEL_COPY=lost", "", ""),
    ("KERNEL_COPY=garbled", "", ""),
    ("KERNEL_COPY=half", "", ""),
    ("KERNEL_COPY=late:5ms", "", ""),
    ("KERNEL_FILL=lost", ONLY_FREED, ONLY_FREED),
    ("KERNEL_FILL=garbled", ONLY_FREED, ONLY_FREED),
    ("KERNEL_FILL=half", ONLY_FREED, ONLY_FREED),
    ("KERNEL_FILL=late:5ms", "", USED_LATER),
];
const ONLY_FREED: &str =
    "the kernel fills only freed memory, and no document promises that new memory contains zeros";
const USED_LATER: &str =
    "the levels write to reused memory more than 5 ms after the memory was freed";
const ONLY_A_DELAY: &str = "a late interrupt only delays a wait";
/// The last level that `bringup` runs if the SDMA engine writes page tables. The next level fails even without a
/// planned fault (docs/backends.md, "Findings").
const LAST_LEVEL_BY_SDMA: &str = "unmapped";
/// The last level that `bringup` runs if the CPU writes page tables and there is no TLB.
const LAST_LEVEL_WITHOUT_TLB: &str = "shared";
/// The time limit of a case or level. The limit is long because QEMU emulates the processor if KVM is not available.
const TIME_LIMIT: &str = "1min";

/// Returns the selected faults. If no fault is selected or no virtual machine is available, reports the test as
/// skipped, and returns no faults.
fn selected_faults(name: &str) -> Vec<(&'static str, &'static str, &'static str)> {
    let selection = std::env::var("HSA_VMM_VM_TESTS").unwrap_or_default();
    let is_selected = |plan: &str| {
        selection == "all" || (!selection.is_empty() && plan.starts_with(selection.as_str()))
    };
    let selected: Vec<_> = FAULTS.into_iter().filter(|fault| is_selected(fault.0)).collect();
    if selected.is_empty() {
        test::report(&format!("SKIPPED {name}: takes half an hour; HSA_VMM_VM_TESTS=all runs it"));
        return selected;
    }
    let folder = hsa_vm::folder(&hsa_rocr::folder().unwrap()).unwrap();
    match (test::fetch_releases(name), hsa_vm::Kernel::open(&folder, None)) {
        (None, _) => Vec::new(),
        (Some(_), Ok(_)) => selected,
        (Some(_), Err(problem)) => {
            test::report(&format!("SKIPPED {name}: {problem}"));
            Vec::new()
        }
    }
}

/// Runs `conform` and `bringup` with a fault.
fn measure((plan, conform_reason, bringup_reason): (&str, &str, &str)) -> Row {
    let call_fault = CallFault::parse(plan).unwrap();
    let with_reason = |cell: Cell, reason: &str| match (cell, reason) {
        (Cell::Missed(_), "") => Cell::Missed("NOT DETECTED".to_owned()),
        (Cell::Missed(_), reason) => Cell::Missed(reason.to_owned()),
        (detected, _) => detected,
    };
    let target = page::MACHINE;
    let conform = with_reason(page::conform(target, &call_fault, None, TIME_LIMIT), conform_reason);
    let last = if bringup_has_tlb(plan) { LAST_LEVEL_BY_SDMA } else { LAST_LEVEL_WITHOUT_TLB };
    let bringup = page::bringup(target, &call_fault, Some(last), TIME_LIMIT);
    let bringup = with_reason(bringup, bringup_reason);
    Row { call_fault, conform, bringup }
}

#[test]
fn software_gpu_faults_are_detected() {
    let mut rows = page::read_rows(page::MACHINE);
    let mut wrong = Vec::new();
    for fault in selected_faults("software_gpu_faults_are_detected") {
        let row = measure(fault);
        println!("{row:?}");
        for (cell, reason) in [(&row.conform, fault.1), (&row.bringup, fault.2)] {
            if matches!(cell, Cell::Detected(..)) != reason.is_empty() {
                wrong.push(format!("{}: {cell:?}, reason {reason:?}", fault.0));
            }
        }
        rows.retain(|other| other.call_fault != row.call_fault);
        rows.push(row);
        if std::env::var_os("HSA_VMM_WRITE_PAGES").is_some() {
            rows.sort_by(|a, b| a.call_fault.cmp(&b.call_fault));
            page::write_machine(&rows);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn detection_page_lists_faults_of_software_gpus() {
    let rows = page::read_rows(page::MACHINE);
    for (plan, conform, bringup) in FAULTS {
        let row = rows.iter().find(|row| row.call_fault.plan() == plan);
        let Some(row) = row else { panic!("docs/detection.md has no row for {plan}") };
        for (cell, reason) in [(&row.conform, conform), (&row.bringup, bringup)] {
            let matches = match cell {
                Cell::Detected(..) => reason.is_empty(),
                Cell::Missed(text) => text == reason,
            };
            assert!(matches, "{plan}: {cell:?}, reason {reason:?}");
        }
    }
    assert_eq!(rows.len(), FAULTS.len());
}

/// Returns whether the GPUs have a TLB when `bringup` runs with this fault.
///
/// If the CPU writes page tables, amdgpu does not flush the TLB after `GEM_VA`. With a TLB, the level "unmapped" then
/// always fails. If the SDMA engine writes page tables, new entries are late, and the level "used at once" always
/// fails.
fn bringup_has_tlb(plan: &str) -> bool {
    !["KERNEL", "INTERRUPT"].iter().any(|operation| plan.starts_with(operation))
}

/// Returns the options of `hsa-vmm vm` for a run of a tool with a fault.
pub fn vm_options(release: &'static str, plan: &str, tool: &str) -> Vec<String> {
    let mut options = ["vm", "--rocr", release, "--gpus", "2"].map(str::to_owned).to_vec();
    let by_sdma = plan.starts_with("PTE_WRITE") || (tool == "bringup" && bringup_has_tlb(plan));
    if by_sdma {
        options.extend(["--parameter", "amdgpu.vm_update_mode=0"].map(str::to_owned));
    } else if tool == "bringup" {
        options.extend(["--parameter", "hsa_vmm.tlb=0"].map(str::to_owned));
    }
    if !plan.is_empty() {
        options.extend(["--fault".to_owned(), plan.to_owned()]);
    }
    options
}

impl Target {
    /// Returns whether the target is the virtual machine.
    pub fn is_machine(self) -> bool {
        matches!(self, Self::Machine(_))
    }
}
