//! `conform` and `bringup` detect faults of amdgpu and of the software GPUs.

use crate::run_command::{HSA_VMM, json, stderr, stdout};
use crate::{RELEASE, conform, lock_machine, run_in_machine, runs_all_variants, runs_slow_parts};
use std::path::Path;
use std::process::Command;

/// Functions of amdgpu.ko without which the conformance cases must fail.
const STUBBED: [&str; 12] = [
    "amdgpu_vm_bo_map",
    "amdgpu_vm_bo_unmap",
    "amdgpu_vm_bo_update",
    "amdgpu_vm_clear_freed",
    "amdgpu_vm_update_range",
    "amdgpu_gem_va_ioctl",
    "amdgpu_gem_object_open",
    "amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu",
    "amdgpu_amdkfd_gpuvm_unmap_memory_from_gpu",
    "amdgpu_amdkfd_gpuvm_map_memory_to_gpu",
    "amdgpu_amdkfd_gpuvm_export_dmabuf",
    "kfd_signal_event_interrupt",
];

#[test]
fn stubbed_kernel_functions_are_detected() {
    let name = "stubbed_kernel_functions_are_detected";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_all_variants(name) {
        return;
    }
    for function in STUBBED {
        let options = ["--stub", function, "--time-limit", "15min"];
        let arguments = ["--fail-fast", "--time-limit", "20s"];
        let output = conform(RELEASE, &options, &arguments);
        let status = output.status.code();
        assert!(matches!(status, Some(1 | 3)), "{function} ({status:?}): {}", stderr(&output));
    }
}

#[test]
fn lost_tlb_flush_is_detected() {
    let name = "lost_tlb_flush_is_detected";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_all_variants(name) {
        return;
    }
    let lost = ["--fault", "TLB_FLUSH=lost"];
    let output = conform(RELEASE, &lost, &["--fail-fast"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    // If the CPU writes page tables, amdgpu 6.12 does not flush the TLB after GEM_VA, and `bringup` always
    // fails. With `vm_update_mode=0`, the SDMA engine writes page tables, and amdgpu flushes the TLB.
    let options = ["--rocr", RELEASE.version(), "--parameter", "amdgpu.vm_update_mode=0"];
    let bringup = [HSA_VMM, "bringup", "--until", "unmapped"];
    let output = run_in_machine(&options, &bringup);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let options: Vec<_> = options.into_iter().chain(lost).collect();
    let output = run_in_machine(&options, &bringup);
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
}

/// The fault also delays page-table entries of the runtime's own memory. The GPU page fault in this memory is only in
/// the kernel's log.
#[test]
fn report_begins_with_gpu_page_fault() {
    let name = "report_begins_with_gpu_page_fault";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_slow_parts(name) {
        return;
    }
    let parameter = ["--parameter", "amdgpu.vm_update_mode=0", "--fault", "PTE_WRITE=late:50ms"];
    let options = [&["--rocr", RELEASE.version()], &parameter[..]].concat();
    let bringup = [HSA_VMM, "bringup", "--until", "gpu", "--format", "json"];
    let output = run_in_machine(&options, &bringup);
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    let failure = &json(&output)["failure"];
    let what = failure["what"].as_str().unwrap();
    assert!(what.starts_with("a GPU page fault at 0x"), "{failure:#}");
    // The known defect of amdgpu, a missing flush of the TLB, is not the first suspect.
    let first = failure["try_next"][0].as_str().unwrap();
    assert!(
        first.contains("first suspect that the entry is missing, or was written only"),
        "{first}"
    );
    // The commands in the advice use the virtual machine.
    let advice = failure["try_next"].to_string();
    for expected in [" -- gdb -batch -ex run", "hsa-vmm vm --log calls.log --gpus 2 "] {
        assert!(advice.contains(expected), "{failure:#}");
    }
}

/// If the driver moves memory for a second GPU without its contents, both GPUs still access the memory.
#[test]
fn lost_contents_of_moved_memory_are_named() {
    let name = "lost_contents_of_moved_memory_are_named";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_slow_parts(name) {
        return;
    }
    let fault = ["--parameter", "hsa_vmm.tlb=0", "--fault", "KERNEL_COPY=lost"];
    let options = [&["--rocr", RELEASE.version()], &fault[..]].concat();
    let bringup = [HSA_VMM, "bringup", "--until", "peer", "--format", "json"];
    let output = run_in_machine(&options, &bringup);
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    let failure = &json(&output)["failure"];
    assert!(failure["what"].as_str().unwrap().contains("damaged contents"), "{failure:#}");
    let first = failure["try_next"][0].as_str().unwrap();
    assert!(first.contains("suspect this move (amdgpu_dma_buf_pin"), "{first}");
}

#[test]
fn hanging_queue_stays_halted() {
    let name = "hanging_queue_stays_halted";
    let Some(_lock) = lock_machine(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("halted_queue");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(root.join("hsa/sys/include"))
        .arg("-I")
        .arg(root.join("docs/kernel"))
        .arg(root.join("cli/tests/vm/halted_queue.c"))
        .args(["-ldl", "-o"])
        .arg(&program)
        .output()
        .expect("a C compiler, $CC or cc");
    assert!(output.status.success(), "{}", stderr(&output));
    let options = ["--rocr", RELEASE.version(), "--gpus", "1", "--fault", "COPY#1=hang"];
    let output = run_in_machine(&options, &[program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
}
