//! The command on AMD's own kernel driver, in a virtual machine with software GPUs.
//!
//! With `HSA_VMM_LONG=1`, runs where QEMU is installed and `hsa-vmm vm fetch` has fetched a kernel; otherwise each
//! test prints that it is skipped, or fails if `HSA_VMM_REQUIRE` contains `vm`. One release with two GPUs is
//! tested; `HSA_VMM_VM_TESTS=all` tests the rest.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::{Installation, Release, test};
use run_command::{HSA_VMM, command, err, json, out};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The release that is tested if not all releases are.
const RELEASE: Release = Release::R6_4_3;

/// The cases that are skipped on every release, because they are for runtimes with fewer features, or need control
/// of page tables, or (`memory_stays_in_vram`) a kernel with options that Debian's lacks.
const SKIPPED: [&str; 15] = [
    "access.enforced.after_free",
    "access.enforced.after_revoke",
    "access.enforced.after_unmap",
    "access.enforced.every_offset",
    "access.enforced.importer_by_dma",
    "access.enforced.importer_by_kernels",
    "access.enforced.owner_by_dma",
    "access.enforced.owner_by_kernels",
    "access.enforced.peer_by_dma",
    "access.enforced.peer_by_kernels",
    "access.enforced.under_load",
    "access.gpus.memory_stays_in_vram",
    "access.set.agent_out_of_reach",
    "access.set.cpu_without_large_bar",
    "runtime.virtual_memory.refused_if_absent",
];

/// The cases that need two GPUs.
const TWO_GPUS: [&str; 22] = [
    "access.every_pair.in_one_range",
    "access.every_pair.not_granted",
    "access.every_pair.read_only",
    "access.every_pair.reads",
    "access.every_pair.taken_back",
    "access.every_pair.writes",
    "access.gpus.both_see_the_same",
    "access.gpus.over_memory_of_several",
    "access.gpus.peer_after_the_owner",
    "access.gpus.peer_before_the_owner",
    "area.mmap.another_device",
    "area.mmap.global_memory",
    "buffer.growable.seen_by_all_gpus",
    "buffer.paged.seen_by_all_gpus",
    "buffer.pausable.access_comes_back",
    "hip.use.chunks_granted_to_their_own_gpu",
    "hip.use.copy_between_gpus",
    "map.gpus.all_in_one_reservation",
    "map.gpus.each_uses_memory_of_one",
    "pool.memory.copied_between_gpus",
    "share.import.peer",
    "share.import.peer_after_the_owner",
];

/// The cases that need IPC handles. ROCm 6.1 has them only with AMD's own package of the kernel driver.
const IPC: [&str; 13] = [
    "ipc.close.own_memory",
    "ipc.get.interior",
    "ipc.get.layout",
    "ipc.get.reused_memory",
    "ipc.get.separate_allocations",
    "ipc.open.dead_process",
    "ipc.open.flags",
    "ipc.open.freed_memory",
    "ipc.open.no_process",
    "ipc.open.offset_beyond",
    "ipc.open.same_memory",
    "ipc.open.same_process",
    "ipc.open.twice",
];

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

/// A lock that each test holds while its virtual machine runs, because a machine uses two processors.
struct MachineLock {
    installations: &'static [Installation],
    _guard: MutexGuard<'static, ()>,
}

/// Waits until no other virtual machine runs. If virtual machines are not available, reports the reason and
/// returns `None`.
fn lock_machine(name: &str) -> Option<MachineLock> {
    static LOCK: Mutex<()> = Mutex::new(());
    let is_selected = test::is_long() || test::is_required("vm") || selection().is_some();
    if !is_selected {
        test::report(&format!("SKIPPED {name}: takes minutes; HSA_VMM_LONG=1 runs it"));
        return None;
    }
    let installations = test::installations(name)?;
    let folder = hsa_vm::folder(&hsa_rocr::folder());
    let qemu = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    let problem = match (qemu, hsa_vm::Kernel::open(&folder, None)) {
        (Err(error), _) => format!("qemu-system-x86_64: {error}"),
        (Ok(_), Err(error)) => error.to_string(),
        (Ok(_), Ok(_)) => {
            let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
            return Some(MachineLock { installations, _guard: guard });
        }
    };
    assert!(!test::is_required("vm"), "HSA_VMM_REQUIRE contains `vm`: {problem}");
    test::report(&format!("SKIPPED {name}: {problem}"));
    None
}

/// Returns the user's selection of tests.
fn selection() -> Option<String> {
    std::env::var("HSA_VMM_VM_TESTS").ok()
}

/// Returns whether `HSA_VMM_VM_TESTS` enables long tests. Reports the test as skipped otherwise.
fn runs_long_tests(name: &str) -> bool {
    let runs_all = selection().is_some_and(|value| value == "all");
    if !runs_all {
        test::report(&format!("SKIPPED {name}: takes long; HSA_VMM_VM_TESTS=all runs it"));
    }
    runs_all
}

/// Runs `hsa-vmm vm OPTIONS -- PROGRAM`.
fn run_in_machine(options: &[&str], program: &[&str]) -> Output {
    let words: Vec<_> =
        ["vm"].iter().chain(options).chain(&["--"]).chain(program).copied().collect();
    command(&words).env("HOME", std::env::temp_dir()).output().unwrap()
}

fn conform(release: Release, options: &[&str], arguments: &[&str]) -> Output {
    let start = ["--rocr", release.version()];
    let options: Vec<_> = start.iter().chain(options).copied().collect();
    let program: Vec<_> = [HSA_VMM, "conform"].iter().chain(arguments).copied().collect();
    run_in_machine(&options, &program)
}

#[test]
fn program_runs_with_its_output_and_status() {
    let name = "program_runs_with_its_output_and_status";
    let Some(_lock) = lock_machine(name) else { return };
    let results = tempfile::tempdir().unwrap();
    let folder = results.path().to_str().unwrap();
    let dmesg = results.path().join("dmesg");
    let options =
        ["--gpus", "3", "--vram", "256M", "--results", folder, "--dmesg", dmesg.to_str().unwrap()];
    let script = "ls /dev/kfd /dev/dri/renderD*; pwd; echo \"$1\" >&2; echo result >$2/file; \
        touch $0.new && exit 7";
    // `$0` is this test program: the file that the script creates beside it must exist only in the virtual
    // machine.
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let output = run_in_machine(&options, &["sh", "-c", script, program, "two  words", folder]);
    assert_eq!(output.status.code(), Some(7), "{}", err(&output));
    let current = std::env::current_dir().unwrap().display().to_string();
    let nodes = ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/renderD130"];
    let expected: Vec<_> = nodes.into_iter().chain([current.as_str()]).collect();
    let text = out(&output);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable_by_key(|line| expected.iter().position(|it| it == line));
    assert_eq!(lines, expected);
    assert_eq!(err(&output), "two  words\n");
    assert_eq!(std::fs::read_to_string(results.path().join("file")).unwrap(), "result\n");
    assert!(!std::path::Path::new(&format!("{program}.new")).exists());
    assert!(std::fs::read_to_string(dmesg).unwrap().contains("software_gmc"));
}

#[test]
fn missing_program_exits_with_shell_status() {
    let name = "missing_program_exits_with_shell_status";
    let Some(_lock) = lock_machine(name) else { return };
    let output = run_in_machine(&["--gpus", "1"], &["no-such-program"]);
    assert_eq!(output.status.code(), Some(127), "{}", err(&output));
    assert!(err(&output).contains("no-such-program"), "{}", err(&output));
}

#[test]
fn machine_failures_exit_with_125() {
    let empty = tempfile::tempdir().unwrap();
    let output = command(&["vm", "--", "true"]).env("HSA_VMM_VM", empty.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(err(&output).contains("hsa-vmm vm fetch"), "{}", err(&output));
    let output = command(&["vm", "--vram", "3G", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
}

#[test]
fn conform_passes_on_amds_kernel_driver() {
    let name = "conform_passes_on_amds_kernel_driver";
    let Some(lock) = lock_machine(name) else { return };
    let runs_all = runs_long_tests(&format!("{name}, other releases and numbers of GPUs"));
    // A busy machine emulates slowly.
    let arguments = ["--format", "json", "--time-limit", "5min"];
    let all = lock.installations.iter().map(Installation::release);
    for release in all.filter(|release| runs_all || *release == RELEASE) {
        for gpus in if runs_all { &[1, 2, 4][..] } else { &[2] } {
            let output = conform(release, &["--gpus", &gpus.to_string()], &arguments);
            let context = format!("{release}, {gpus} GPUs: {}", err(&output));
            assert_eq!(output.status.code(), Some(0), "{context}");
            let report = json(&output);
            assert_eq!(report["agents"].as_array().unwrap().len(), gpus + 1, "{context}");
            let cases = report["cases"].as_array().unwrap();
            let names = |status: &str| -> Vec<_> {
                let matching = cases.iter().filter(|case| case["status"] == status);
                matching.map(|case| case["name"].as_str().unwrap().to_owned()).collect()
            };
            let mut expected = SKIPPED.to_vec();
            if *gpus == 1 {
                expected.extend(TWO_GPUS);
            }
            if release == Release::R6_1_2 {
                expected.extend(IPC);
            }
            expected.sort_unstable();
            let mut skipped = names("skip");
            skipped.sort();
            assert_eq!(skipped, expected, "{context}");
            assert!(names("pass").len() >= 300, "{context}");
            let placement =
                cases.iter().find(|it| it["name"] == "access.gpus.memory_stays_in_vram");
            let detail = placement.unwrap()["detail"].as_str().unwrap();
            assert!(*gpus == 1 || detail.contains("needs CONFIG_DMABUF_MOVE_NOTIFY"), "{detail}");
        }
    }
}

#[test]
fn info_warns_of_missing_kernel_options() {
    let name = "info_warns_of_missing_kernel_options";
    let Some(_lock) = lock_machine(name) else { return };
    let output = run_in_machine(&["--rocr", RELEASE.version()], &[HSA_VMM, "info"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    // Debian's kernel has none of the options.
    let options = "DMABUF_MOVE_NOTIFY=n PCI_P2PDMA=n HSA_AMD_P2P=n (/boot/config-6.12.";
    assert!(out(&output).contains(options), "{}", out(&output));
    assert!(err(&output).contains("without CONFIG_DMABUF_MOVE_NOTIFY"), "{}", err(&output));
}

#[test]
fn stubbed_kernel_functions_are_detected() {
    let name = "stubbed_kernel_functions_are_detected";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_long_tests(name) {
        return;
    }
    for function in STUBBED {
        let options = ["--stub", function, "--time-limit", "15min"];
        let arguments = ["--fail-fast", "--time-limit", "20s"];
        let output = conform(RELEASE, &options, &arguments);
        let status = output.status.code();
        assert!(matches!(status, Some(1 | 3)), "{function} ({status:?}): {}", err(&output));
    }
}

#[test]
fn lost_tlb_flush_is_detected() {
    let name = "lost_tlb_flush_is_detected";
    let Some(_lock) = lock_machine(name) else { return };
    if !runs_long_tests(name) {
        return;
    }
    let lost = ["--fault", "TLB_FLUSH=lost"];
    let output = conform(RELEASE, &lost, &["--fail-fast"]);
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    // If the CPU writes page tables, amdgpu 6.12 does not flush the TLB after GEM_VA, and `bringup` always
    // fails. With `vm_update_mode=0`, the SDMA engine writes them, and amdgpu flushes.
    let options = ["--rocr", RELEASE.version(), "--parameter", "amdgpu.vm_update_mode=0"];
    let bringup = [HSA_VMM, "bringup", "--until", "unmapped"];
    let output = run_in_machine(&options, &bringup);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    let options: Vec<_> = options.into_iter().chain(lost).collect();
    let output = run_in_machine(&options, &bringup);
    assert_eq!(output.status.code(), Some(1), "{}{}", out(&output), err(&output));
}

#[test]
fn access_is_enforced_and_calls_are_logged() {
    let name = "access_is_enforced_and_calls_are_logged";
    let Some(_lock) = lock_machine(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, tables) = (file("log"), file("tables"));
    let options = ["--log", &log, "--page-tables", &tables];
    let arguments = ["--page-tables", "--filter", "access.enforced.*", "--format", "json"];
    let arguments = [&arguments[..], &["--time-limit", "5min"]].concat();
    let output = conform(RELEASE, &options, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    assert_eq!(json(&output)["summary"]["passed"], 11, "{}", out(&output));
    let log = std::fs::read_to_string(log).unwrap();
    let replaces = |line: &&str| line.contains("drm0 GEM_VA") && line.contains("operation=REPLACE");
    let line = log.lines().find(replaces).expect("a changed entry");
    assert!(line.contains(" -> ") && line.ends_with(" us)"), "{line}");
    let tables = std::fs::read_to_string(tables).unwrap();
    assert!(tables.starts_with("process ") && tables.contains("\ngpu 1 id "), "{tables}");
}
