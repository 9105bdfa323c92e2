//! Runs cases of virtual memory and IPC from hip-tests, AMD's tests of HIP, on the simulation and on AMD's runtime. The
//! cases are rewritten in C under the same names, and launch no GPU kernel.

use crate::program::{Language, Program};
use hsa_rocr::{Emulation, Release, test};
use std::process::Command;
use std::sync::LazyLock;

/// hip-tests' cases, grouped by source file.
const CASES: &[(&str, &[&str])] = &[
    ("hipMemAddressFree", &["negative"]),
    ("hipMemAddressReserve", &["AlignmentTest", "Negative"]),
    (
        "hipMemCreate",
        &[
            "BasicAllocateDeAlloc_MultGranularity",
            "ChkDev2HstMemcpy_ReleaseHdlPostUnmap",
            "ChkDev2HstMemcpy_ReleaseHdlPreUse",
            "MapNonContiguousChunks",
            "ChkWithMemset",
            "Negative",
        ],
    ),
    ("hipMemExportToShareableHandle", &["Positive_Basic", "Negative_Parameters"]),
    (
        "hipMemGetAllocationGranularity",
        &["MinGranularity", "RecommendedGranularity", "AllGPUs", "NegativeTests"],
    ),
    ("hipMemGetAllocationPropertiesFromHandle", &["functional", "Negative"]),
    (
        "hipMemImportFromShareableHandle",
        &[
            "Positive_Basic",
            "Negative_Parameters",
            "MulProc_ChldUseHdl",
            "MulProc_ParntChldUseHdl",
            "MulProc_GrndChldUseHdl",
        ],
    ),
    (
        "hipMemMap",
        &[
            "SameMemoryReuse",
            "PhysicalMemoryReuse_SingleGPU",
            "PhysicalMemory_Map2MultVMMs",
            "PhysicalMemoryReuse_MultiDev",
            "VMMMemoryReuse_SingleGPU",
            "VMMMemoryReuse_MultiGPU",
            "MapPartialPhysicalMem",
            "MapPartialVMMMem",
            "negative",
        ],
    ),
    ("hipMemMapArrayAsync", &["Positive_Basic"]),
    ("hipMemRelease", &["negative"]),
    ("hipMemRetainAllocationHandle", &["SetGet", "NegTst"]),
    (
        "hipMemSetGetAccess",
        &[
            "hipMemSetAccess_SetGet",
            "hipMemSetAccess_MultDevSetGet",
            "hipMemSetAccess_EntireVMMRangeSetGet",
            "hipMemGetAccess_NegTst",
            "hipMemSetAccess_FuncTstOnMultDev",
            "hipMemSetAccess_AccessDirectlyFromHost",
            "hipMemSetAccess_ChangeAccessProp",
            "hipMemSetAccess_Vmm2UnifiedMemCpy",
            "hipMemSetAccess_Vmm2DevMemCpy",
            "hipMemSetAccess_Vmm2PeerDevMemCpy",
            "hipMemSetAccess_Vmm2PeerPeerMemCpy",
            "hipMemSetAccess_Vmm2VMMMemCpy",
            "hipMemSetAccess_Vmm2VMMInterDevMemCpy",
            "hipMemSetAccess_MapPhysChksFromMulDev",
            "hipMemSetAccess_GrowVMM",
            "hipMemSetAccess_Multithreaded",
            "hipMemSetAccess_MultiProc",
            "hipMemSetAccess_negative",
            "hipMemSetAccessHost_devicealloc",
        ],
    ),
    (
        "hipMemSetAccessImportedHandle",
        &[
            "hipMemSetAccess_MulProc_ImportedDeviceMem_HostAccess",
            "hipMemSetAccess_MulProc_ImportedDeviceMem_HostThenDeviceAccess",
        ],
    ),
    ("hipMemUnmap", &["negative"]),
    ("hipMemVmm", &["Basic", "Uncached"]),
    ("hipGetProcAddress", &["hipGetProcAddress_Negative", "hipGetProcAddressVmmApis"]),
    (
        "hipIpcGetMemHandle",
        &[
            "Positive_Unique_Handles_Separate_Allocations",
            "Positive_Unique_Handles_Reused_Memory",
            "Negative_Handle_For_Freed_Memory",
            "Negative_Out_Of_Bound_Pointer",
            "Negative_Mapped_Memory",
        ],
    ),
    ("hipIpcOpenMemHandle", &["Negative_Open_In_Creating_Process"]),
    (
        "hipIpcCloseMemHandle",
        &["Positive_Reference_Counting", "Negative_Close_In_Originating_Process"],
    ),
    ("hipIpcMemAccess", &["Semaphores", "ParameterValidation"]),
    (
        "hipNoGpuTsts",
        &[
            "NoGpuTst_hipGetDeviceCount",
            "NoGpuTst_hipGetDevice",
            "NoGpuTst_hipSetDevice",
            "NoGpuTst_hipDeviceGet",
            "NoGpuTst_hipDeviceGetName",
            "NoGpuTst_hipDeviceGetAttribute",
            "NoGpuTst_hipDeviceGetPCIBusId",
            "NoGpuTst_hipDeviceTotalMem",
            "NoGpuTst_hipDeviceCanAccessPeer",
            "NoGpuTst_hipDeviceEnablePeerAccess",
            "NoGpuTst_hipDeviceDisablePeerAccess",
            "NoGpuTst_hipDeviceSynchronize",
            "NoGpuTst_hipStreamSynchronize",
            "NoGpuTst_hipMalloc",
            "NoGpuTst_hipMallocManaged",
            "NoGpuTst_hipHostMalloc",
            "NoGpuTst_hipHostFree",
            "NoGpuTst_hipMemcpy",
            "NoGpuTst_hipMemGetInfo",
            "NoGpuTst_hipPointerGetAttributes",
            "NoGpuTst_hipMemGetAddressRange",
            "NoGpuTst_hipMemGetAllocationGranularity",
            "NoGpuTst_hipMemAddressReserve",
            "NoGpuTst_hipMemAddressFree",
            "NoGpuTst_hipMemCreate",
            "NoGpuTst_hipMemRelease",
            "NoGpuTst_hipMemMap",
            "NoGpuTst_hipMemUnmap",
            "NoGpuTst_hipMemSetAccess",
            "NoGpuTst_hipMemGetAccess",
            "NoGpuTst_hipIpcGetMemHandle",
            "NoGpuTst_hipIpcOpenMemHandle",
            "NoGpuTst_hipIpcCloseMemHandle",
        ],
    ),
];

/// The cases that need two devices.
const TWO_DEVICE_CASES: &[&str] = &[
    "hipMemMap_PhysicalMemoryReuse_MultiDev",
    "hipMemMap_VMMMemoryReuse_MultiGPU",
    "hipMemSetAccess_MultDevSetGet",
    "hipMemSetAccess_Vmm2PeerDevMemCpy",
    "hipMemSetAccess_Vmm2PeerPeerMemCpy",
    "hipMemSetAccess_Vmm2VMMInterDevMemCpy",
];

const UNCACHED: &str = "hipMemVmm_Uncached";

/// Returns the full name of a case. Most names start with the name of the source.
fn full_name(source: &str, case: &str) -> String {
    if case.contains("hip") { case.to_owned() } else { format!("{source}_{case}") }
}

/// Returns the line that a test program prints for a case.
fn expected_line(case: &str, gpus: u8, has_uncached: bool) -> String {
    if gpus < 2 && TWO_DEVICE_CASES.contains(&case) {
        format!("skipped {case}: needs two devices")
    } else if case == UNCACHED && !has_uncached {
        format!("skipped {case}: no uncached memory")
    } else {
        format!("ok {case}")
    }
}

fn compile(language: Language) -> Vec<Program> {
    let sources = CASES.iter().map(|(source, _)| format!("tests/hip_tests/{source}.c"));
    sources.map(|source| Program::compile(&source, language, &[])).collect()
}

/// The programs compiled as C, once for all tests.
static C_PROGRAMS: LazyLock<Vec<Program>> = LazyLock::new(|| compile(Language::C99));

/// Runs all cases and compares their output with the expected lines.
#[track_caller]
fn run_cases(
    programs: &[Program],
    label: &str,
    gpus: u8,
    has_uncached: bool,
    command: impl Fn(&Program) -> Command,
) {
    assert_eq!(programs.len(), CASES.len());
    let mut ran = 0;
    for (program, (source, cases)) in programs.iter().zip(CASES) {
        let output = command(program).output().expect("the program runs");
        let expected =
            cases.iter().map(|case| expected_line(&full_name(source, case), gpus, has_uncached));
        let expected: Vec<String> = expected.collect();
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{source}, {label}: {errors}");
        assert!(output.status.success(), "{source}, {label}: {}", output.status);
        ran += expected.len();
    }
    // In 2024, hip-tests' suite of virtual memory had 49 cases that launch no kernel, and one case about sparse arrays.
    // Five more cases run here without their kernels. This test also runs six newer cases, ten cases of IPC, and 33
    // cases without a device.
    assert_eq!(ran, 49 + 5 + 1 + 6 + 10 + 33);
}

const PROFILES: [&str; 2] = ["hip6", "hip7"];

#[test]
fn cases_pass_on_the_simulation() {
    let numbers_of_gpus: &[_] = if test::is_long() { &[1, 2] } else { &[2] };
    for generation in ["a", "b", "c", "d"] {
        for &gpus in numbers_of_gpus {
            for profile in PROFILES {
                let has_uncached = profile == "hip7" && ["c", "d"].contains(&generation);
                let configuration = format!("era={generation},gpus={gpus}");
                let label = format!("{profile} on {configuration}");
                run_cases(&C_PROGRAMS, &label, gpus, has_uncached, |program| {
                    let mut command = program.on_simulation(&configuration);
                    command.env("HSA_VMM_PROFILE", profile);
                    command
                });
            }
        }
    }
}

/// HIP's calls return the same error if no driver is installed and if no device is visible.
#[test]
fn calls_without_a_runtime_return_no_device() {
    let (source, cases) = CASES.last().unwrap();
    assert_eq!(*source, "hipNoGpuTsts");
    let mut command = C_PROGRAMS.last().unwrap().on_simulation("");
    let output = command.env("HSA_VMM_RUNTIME", "/nowhere/libhsa.so").output().unwrap();
    let expected: String = cases.iter().map(|case| format!("ok {case}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("/nowhere/libhsa.so: ").count(), cases.len(), "{errors}");
}

#[test]
fn cases_compile_as_cplusplus() {
    if !test::runs_long_test("hip_tests::cases_compile_as_cplusplus") {
        return;
    }
    let programs = compile(Language::Cpp17);
    run_cases(&programs, "C++", 2, true, |program| program.on_simulation("era=d,gpus=2"));
}

#[test]
fn cases_pass_on_every_release() {
    let name = "hip_tests::cases_pass_on_every_release";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        for profile in PROFILES {
            if profile == "hip6" && release != Release::R6_4_3 {
                continue;
            }
            let label = format!("{profile} on {release}");
            run_cases(&C_PROGRAMS, &label, 2, false, |program| {
                let mut command = program.on_release(fetched, &Emulation::with_gpus(2));
                command.env("HSA_VMM_PROFILE", profile);
                command
            });
        }
    }
}
