//! AMD's own programs, unchanged, on the simulation: `rocminfo` and `rocrtst`.

use crate::{library, run};
use hsa_rocr::{Emulation, Rocrtst, test};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The tests of rocrtst that run no kernel. The simulation passes all of them. The short tests come first.
///
/// The list does not contain these tests:
/// - `Reference_Count` passes, but leaves a reference to the runtime for the next test.
/// - `Max_Reference_Count` makes 2^31 calls, and each test of the write index makes 40 million calls.
/// - The copies of `rocrtstPerf` look for the GPU among the machine's PCI devices.
const WITHOUT_KERNELS: [&str; 21] = [
    "rocrtstFunc.VirtMemory_Basic_Test",
    "rocrtstFunc.VirtMemory_Interprocess_Test",
    "rocrtstFunc.IPC",
    "rocrtstFunc.AgentPropertiesTests",
    "rocrtstFunc.Deallocation_Notifier_Test",
    "rocrtstFunc.Signal_Max_Consumer",
    "rocrtstFunc.SvmMemory_Basic_Test",
    "rocrtstFunc.MemoryAllocateAndFreeTest",
    "rocrtstFunc.MemoryAllocateContiguousTest",
    "rocrtstFunc.Memory_Max_Mem",
    "rocrtstFunc.Memory_Available",
    "rocrtstFunc.Memory_Alignment_Test",
    "rocrtstFunc.Concurrent_Init_Test",
    "rocrtstFunc.Concurrent_Init_Shutdown_Test",
    "rocrtstFunc.Concurrent_Shutdown",
    "rocrtstFunc.Signal_Destroy_Concurrently",
    "rocrtstFunc.Signal_Create_Concurrently",
    "rocrtstNeg.Memory_Negative_Tests",
    "rocrtstStress.Memory_Concurrent_Allocate_Test",
    "rocrtstStress.Memory_Concurrent_Free_Test",
    "rocrtstStress.Memory_Concurrent_Pool_Info_Test",
];
/// The number of tests at the start of [`WITHOUT_KERNELS`] that run by default.
const DEFAULT_COUNT: usize = 6;

/// Tests of rocrtst that run kernels. They fail, and must not hang.
const WITH_KERNELS: [&str; 7] = [
    "rocrtstFunc.MemoryAccessTests",
    "rocrtst.Test_Example",
    "rocrtstFunc.GroupMemoryAllocationTest",
    "rocrtstFunc.Memory_Atomic_Add_Test",
    "rocrtstFunc.VirtMemory_Access_Test",
    "rocrtstNeg.Queue_Validation_InvalidKernelObject",
    "rocrtstPerf.ENQUEUE_LATENCY",
];

/// The time limit of rocrtst. All tests of both lists take 40 s on two busy processors.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Makes a program load the simulation instead of AMD's runtime, which is installed with the
/// program. Also preloads the libraries `others`.
fn use_simulation(command: &mut Command, others: &[PathBuf]) {
    let simulation = library().join("libhsa-runtime64.so.1");
    let libraries = [&simulation].into_iter().chain(others);
    let list: Vec<_> = libraries.map(|path| path.display().to_string()).collect();
    // The loader uses a preloaded library for every later request of its SONAME.
    command.env("LD_PRELOAD", list.join(":")).env("HSA_SIM", "gpus=2");
}

fn preloaded(command: &Command) -> Vec<PathBuf> {
    let variable = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD");
    let list = variable.and_then(|(_, value)| value).unwrap_or_default();
    env::split_paths(list).collect()
}

#[test]
fn rocminfo_prints_two_gpus() {
    for fetched in test::fetch_selected_releases("programs::rocminfo_prints_two_gpus") {
        let mut command = fetched.command("rocminfo");
        // rocminfo first looks for amdgpu in /sys/module. On a machine without amdgpu, only the
        // emulated driver provides it.
        Emulation::with_gpus(1).apply(&mut command).expect("the emulated driver was built");
        let driver = preloaded(&command);
        use_simulation(&mut command, &driver);
        let output = String::from_utf8_lossy(&run(&mut command).stdout).into_owned();
        let count = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            output
                .lines()
                .filter(|found| found.split_whitespace().eq(words.iter().copied()))
                .count()
        };
        assert_eq!(count("Device Type: CPU"), 1, "{output}");
        for line in [
            "Device Type: GPU",
            "Marketing Name: AMD Instinct MI300X",
            "Chip ID: 29857(0x74a1)",
            "L2: 4096(0x1000) KB",
            "Compute Unit: 304",
            "Max Waves Per CU: 32(0x20)",
            "Name: amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-",
        ] {
            assert_eq!(count(line), 2, "{line}:\n{output}");
        }
        assert_eq!(count("*** Done ***"), 1, "{output}");
    }
}

/// The runtime that rocrtst uses.
#[derive(Clone, Copy, PartialEq)]
enum Runtime {
    Simulation,
    /// AMD's runtime, on the kernel driver of this machine.
    Amd,
}

/// Runs tests of rocrtst in one process. Returns whether all passed, and the output. If rocrtst
/// cannot be fetched, reports this and returns `None`, or panics if `HSA_VMM_REQUIRE` requires
/// AMD's runtime.
fn run_rocrtst(name: &str, runtime: Runtime, cases: &[&str]) -> Option<(bool, String)> {
    let Rocrtst { fetched, program } =
        match hsa_rocr::fetch_rocrtst(&hsa_rocr::folder().unwrap(), &mut |_| ()) {
            Ok(fetched) => fetched,
            Err(error) => {
                assert!(!test::is_required("rocr"), "HSA_VMM_REQUIRE requires rocrtst: {error}");
                test::report(&format!("SKIPPED {name}: {error}"));
                return None;
            }
        };
    // Debian has no libamd_smi.so.26, on which rocrtst depends.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let amd_smi = folder.path().join("libamd_smi.so.26");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shared_object/amd_smi.c");
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libamd_smi.so.26", "-o"])
        .arg(&amd_smi)
        .arg(source));
    let mut command = fetched.command(&program);
    match runtime {
        Runtime::Simulation => use_simulation(&mut command, &[amd_smi]),
        Runtime::Amd => {
            command.env("LD_PRELOAD", amd_smi);
        }
    }
    let kernels = program.parent().expect("a folder");
    command.arg(format!("--gtest_filter={}", cases.join(":")));
    command.env("ROCRTST_KERNELS_PATH", kernels).current_dir(kernels);
    let (status, output) = test::run_with_timeout(&mut command, TIME_LIMIT);
    let status = status.unwrap_or_else(|| panic!("rocrtst does not end:\n{output}"));
    Some((status.success(), output))
}

#[test]
fn rocrtst_without_kernels_passes() {
    let count = if test::is_long() { WITHOUT_KERNELS.len() } else { DEFAULT_COUNT };
    let name = "programs::rocrtst_without_kernels_passes";
    let Some((passed, output)) = run_rocrtst(name, Runtime::Simulation, &WITHOUT_KERNELS[..count])
    else {
        return;
    };
    assert!(passed && output.contains(&format!("[  PASSED  ] {count} tests.")), "{output}");
}

#[test]
fn rocrtst_with_kernels_fails_without_hanging() {
    let count = if test::is_long() { WITH_KERNELS.len() } else { 1 };
    let name = "programs::rocrtst_with_kernels_fails_without_hanging";
    let Some((passed, output)) = run_rocrtst(name, Runtime::Simulation, &WITH_KERNELS[..count])
    else {
        return;
    };
    assert!(
        !passed && output.contains("hsa_code_object_reader_create_from_file is not simulated"),
        "{output}"
    );
    for case in &WITH_KERNELS[..count] {
        assert!(output.contains(&format!("[  FAILED  ] {case}")), "{case}:\n{output}");
    }
}

/// `cli/tests/vm` starts this test in the virtual machine.
#[test]
#[ignore = "needs GPUs"]
fn rocrtst_passes_on_machine_driver() {
    assert!(
        test::uses_machine_driver(),
        "HSA_VMM_TEST_DRIVER=own allows the use of this machine's GPUs"
    );
    let name = "programs::rocrtst_passes_on_machine_driver";
    let cases = &WITHOUT_KERNELS[..2];
    let Some((passed, output)) = run_rocrtst(name, Runtime::Amd, cases) else { return };
    assert!(passed && output.contains("[  PASSED  ] 2 tests."), "{output}");
}
