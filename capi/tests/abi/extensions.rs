//! The functions of `hsavmm.h`, which HIP lacks, and the environment variables.

use crate::program::{Language, Program, expect_success};
use hsa_rocr::{Emulation, Release, test};

#[test]
fn extensions_work() {
    for language in Language::ALL {
        let program = Program::compile("tests/c/extensions.c", language, &[]);
        for generation in ["a", "b", "c", "d"] {
            let output =
                program.on_simulation(&format!("gpus=2,era={generation}")).output().unwrap();
            assert_eq!(expect_success(&output, generation), "all checks passed\n");
        }
    }
}

#[test]
fn extensions_work_on_amds_runtime() {
    let name = "extensions::extensions_work_on_amds_runtime";
    let fetched_releases = test::fetch_selected_releases(name);
    let program = Program::compile("tests/c/extensions.c", Language::C99, &[]);
    for fetched in fetched_releases {
        let output = program.on_release(fetched, &Emulation::with_gpus(2)).output().unwrap();
        assert_eq!(expect_success(&output, &fetched.release().to_string()), "all checks passed\n");
    }
}

/// HIP's permissions hold for a GPU's copies from and to a part of a handle. In both modes, the emulated driver keeps
/// entries in the TLB and forgets parts of mappings (`split_bug`). In the second mode, the driver also writes page
/// table entries late.
#[test]
fn permissions_hold_for_parts_on_amds_runtime() {
    let name = "extensions::permissions_hold_for_parts_on_amds_runtime";
    let program = Program::compile("tests/c/permissions.c", Language::C99, &["-ldl"]);
    for fetched in test::fetch_selected_releases(name) {
        for mode in ["tlb=on,split_bug=on", "pte_delay=600s,tlb=on,split_bug=on"] {
            // HIP's flags: 3 allows reads and writes, 1 only reads, 0 nothing.
            for (flags, access, expected) in [
                ("3", "reads", "copied\n"),
                ("3", "writes", "copied\n"),
                ("1", "reads", "copied\n"),
                ("1", "writes", "faulted\n"),
                ("0", "reads", "faulted\n"),
                ("0", "writes", "faulted\n"),
            ] {
                let emulation = Emulation::with_gpus(1).with_setting(mode);
                let mut command = program.on_release(fetched, &emulation);
                command.env("HSA_VMM_PAGE_TABLES", "on").arg(fetched.runtime());
                let output = command.args([flags, access]).output().unwrap();
                let context = format!("{} {mode}: {flags} {access}", fetched.release());
                assert_eq!(expect_success(&output, &context), expected, "{context}");
            }
        }
    }
}

#[test]
fn area_memory_is_copied_and_filled() {
    let program = Program::compile("tests/c/areas.c", Language::C99, &[]);
    for configuration in ["gpus=2", "gpus=2,vmem=off"] {
        let output = program.on_simulation(configuration).output().unwrap();
        assert_eq!(expect_success(&output, configuration), "all checks passed\n");
    }
}

#[test]
fn area_memory_is_copied_and_filled_on_amds_runtime() {
    let name = "extensions::area_memory_is_copied_and_filled_on_amds_runtime";
    let fetched_releases = test::fetch_selected_releases(name);
    let program = Program::compile("tests/c/areas.c", Language::C99, &[]);
    for fetched in fetched_releases {
        let output = program.on_release(fetched, &Emulation::with_gpus(2)).output().unwrap();
        assert_eq!(expect_success(&output, &fetched.release().to_string()), "all checks passed\n");
    }
}

#[test]
fn failed_copies_change_nothing() {
    let program = Program::compile("tests/c/failed_copies.c", Language::C99, &[]);
    for generation in ["a", "b"] {
        let output = program.on_simulation(&format!("gpus=2,era={generation}")).output().unwrap();
        assert_eq!(expect_success(&output, generation), "all checks passed\n");
    }
}

#[test]
fn failed_copies_change_nothing_on_amds_runtime() {
    let name = "extensions::failed_copies_change_nothing_on_amds_runtime";
    let fetched_releases = test::fetch_selected_releases(name);
    let program = Program::compile("tests/c/failed_copies.c", Language::C99, &[]);
    for fetched in fetched_releases {
        let output = program.on_release(fetched, &Emulation::with_gpus(2)).output().unwrap();
        assert_eq!(expect_success(&output, &fetched.release().to_string()), "all checks passed\n");
    }
}

#[test]
fn mappings_are_retired() {
    for language in Language::ALL {
        let program = Program::compile("tests/c/retire.c", language, &["-ldl", "-pthread"]);
        for generation in ["a", "b", "c", "d"] {
            let output =
                program.on_simulation(&format!("gpus=1,era={generation}")).output().unwrap();
            assert_eq!(expect_success(&output, generation), "all checks passed\n");
        }
    }
}

#[test]
fn mappings_are_retired_on_amds_runtime() {
    let fetched_releases =
        test::fetch_selected_releases("extensions::mappings_are_retired_on_amds_runtime");
    let program = Program::compile("tests/c/retire.c", Language::C99, &["-ldl", "-pthread"]);
    for fetched in fetched_releases {
        let mut command = program.on_release(fetched, &Emulation::with_gpus(1));
        let output = command.arg(fetched.runtime()).output().unwrap();
        let release = fetched.release().to_string();
        assert_eq!(expect_success(&output, &release), "all checks passed\n");
    }
}

#[test]
fn area_destroy_excludes_mmap() {
    let program = Program::compile("tests/c/areas.c", Language::C99, &[]);
    for configuration in ["gpus=2", "gpus=2,vmem=off"] {
        let output = program.on_simulation(configuration).arg("destroy").output().unwrap();
        assert_eq!(expect_success(&output, configuration), "all checks passed\n");
    }
}

#[test]
fn unregister_during_queries_ends() {
    let name = "extensions::unregister_during_queries_ends";
    let program = Program::compile("tests/c/areas.c", Language::C99, &[]);
    let output = program.on_simulation("gpus=2").arg("unregister").output().unwrap();
    assert_eq!(expect_success(&output, "simulation"), "all checks passed\n");
    // On AMD's runtime, devices use other addresses of registered memory than the host.
    for fetched in test::fetch_selected_releases(name) {
        let mut command = program.on_release(fetched, &Emulation::with_gpus(2));
        let output = command.arg("unregister").output().unwrap();
        assert_eq!(expect_success(&output, &fetched.release().to_string()), "all checks passed\n");
    }
}

const IPC_CASES: &str = "ok close_accepts_interior_address\nok waiting_open_delays_no_other_call\n\
    ok memory_of_hidden_gpu_is_copied\nok signals_interrupt_no_open\n";

#[test]
fn ipc_cases_pass() {
    let program = Program::compile("tests/c/ipc.c", Language::C99, &["-pthread"]);
    let output = program.on_simulation("gpus=2").output().unwrap();
    assert_eq!(expect_success(&output, "simulation"), IPC_CASES);
}

#[test]
fn ipc_cases_pass_on_amds_runtime() {
    let name = "extensions::ipc_cases_pass_on_amds_runtime";
    let fetched_releases = test::fetch_selected_releases(name);
    let program = Program::compile("tests/c/ipc.c", Language::C99, &["-pthread"]);
    for fetched in fetched_releases {
        let output = program.on_release(fetched, &Emulation::with_gpus(2)).output().unwrap();
        assert_eq!(expect_success(&output, &fetched.release().to_string()), IPC_CASES);
    }
}

/// ROCm 7.2 shares by dma-buf. Its `recvmsg` fails if a signal interrupts it.
#[test]
fn signals_interrupt_no_open_by_dma_buf() {
    let Some(fetched) = test::fetch_releases("extensions::signals_interrupt_no_open_by_dma_buf")
    else {
        return;
    };
    let program = Program::compile("tests/c/ipc.c", Language::C99, &["-pthread"]);
    for fetched in fetched.iter().filter(|it| it.release() == Release::R7_2_4) {
        let mut command = program.on_release(fetched, &Emulation::with_gpus(2));
        let output = command.arg("signals_interrupt_no_open").output().unwrap();
        expect_success(&output, "7.2.4");
    }
}

#[test]
fn host_access_is_set_for_each_mapping() {
    let program = Program::compile("tests/c/host_access.c", Language::C99, &["-pthread"]);
    for generation in ["a", "b", "c", "d"] {
        let output = program.on_simulation(&format!("gpus=2,era={generation}")).output().unwrap();
        expect_success(&output, generation);
    }
}

#[test]
fn host_access_is_set_for_each_mapping_on_amd() {
    let name = "extensions::host_access_is_set_for_each_mapping_on_amd";
    let fetched_releases = test::fetch_selected_releases(name);
    let program = Program::compile("tests/c/host_access.c", Language::C99, &["-pthread"]);
    for fetched in fetched_releases {
        let output = program.on_release(fetched, &Emulation::with_gpus(2)).output().unwrap();
        expect_success(&output, &fetched.release().to_string());
    }
}

#[test]
fn object_numbers_are_not_reused_after_shut_down() {
    let program = Program::compile("tests/c/numbers.c", Language::C99, &[]);
    let output = program.on_simulation("gpus=1").output().unwrap();
    assert_eq!(expect_success(&output, "numbers"), "all checks passed\n");
}

/// Runs `devices.c` on a simulation of four GPUs. Returns its output, with the PCI address of each GPU.
fn devices(program: &Program, variables: &[(&str, &str)]) -> String {
    let mut command = program.on_simulation("mi300x,gpus=4");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    expect_success(&output, &format!("{variables:?}")).trim_end().to_owned()
}

#[test]
fn environment_selects_devices() {
    let program = Program::compile("tests/c/devices.c", Language::C99, &[]);
    let all = devices(&program, &[]);
    let addresses: Vec<&str> = all.split_whitespace().skip(2).collect();
    assert!(all.starts_with("hipSuccess 4:") && addresses.len() == 4, "{all}");
    let chosen = |indices: &[usize]| {
        let list: String = indices.iter().map(|&index| format!(" {}", addresses[index])).collect();
        format!("hipSuccess {}:{list}", indices.len())
    };
    let none = "hipErrorNoDevice 0:";
    let hip = |list| devices(&program, &[("HIP_VISIBLE_DEVICES", list)]);
    assert_eq!(hip("2,0"), chosen(&[2, 0]));
    // The list ends at the first invalid number. A repeated number is skipped.
    assert_eq!(hip("1,9,0"), chosen(&[1]));
    assert_eq!(hip("1,1,0"), chosen(&[1, 0]));
    assert_eq!(hip("2, 1"), chosen(&[2]));
    assert_eq!(hip("2,01"), chosen(&[2]));
    assert_eq!(hip("-1"), none);
    // An empty list selects no device (seen with HIP 6.4.3 and 7.2.4).
    assert_eq!(hip(""), none);
    assert_eq!(devices(&program, &[("CUDA_VISIBLE_DEVICES", "")]), none);
    assert_eq!(devices(&program, &[("CUDA_VISIBLE_DEVICES", "3")]), chosen(&[3]));
    assert_eq!(
        devices(&program, &[("CUDA_VISIBLE_DEVICES", "3"), ("HIP_VISIBLE_DEVICES", "0")]),
        chosen(&[0])
    );
    assert_eq!(
        devices(&program, &[("CUDA_VISIBLE_DEVICES", "3"), ("HIP_VISIBLE_DEVICES", "")]),
        none
    );
    // AMD's runtime accepts spaces, and a repeated number ends the list.
    let rocr = |list| devices(&program, &[("ROCR_VISIBLE_DEVICES", list)]);
    assert_eq!(rocr("2, 1"), chosen(&[2, 1]));
    assert_eq!(rocr("1,1,0"), chosen(&[1]));
    assert_eq!(rocr(""), none);
    // The numbers in HIP_VISIBLE_DEVICES count the devices that ROCR_VISIBLE_DEVICES selects.
    let both = [("ROCR_VISIBLE_DEVICES", "3,2,1"), ("HIP_VISIBLE_DEVICES", "1")];
    assert_eq!(devices(&program, &both), chosen(&[2]));
}

#[test]
fn missing_runtime_error_lists_attempts() {
    let program = Program::compile("tests/c/devices.c", Language::C99, &[]);
    let mut command = program.on_simulation("");
    let output = command.env("HSA_VMM_RUNTIME", "/nowhere/libhsa.so").output().unwrap();
    assert_eq!(expect_success(&output, "no runtime"), "hipErrorNoDevice 0:\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("HSA_VMM_RUNTIME"), "{errors}");
    // The library prints the first line. The program prints the second line, the result of `hsavmm_last_message`.
    for prefix in ["libhsavmm: no runtime: ", "hipGetDeviceCount: "] {
        let lines: Vec<_> = errors.split(prefix).collect();
        assert!(lines.len() == 2 && lines[1].contains("/nowhere/libhsa.so: "), "{errors}");
    }
}

/// HIP returns `hipErrorNoDevice` if it finds no device, for whatever reason. Programs then go on without a GPU.
#[test]
fn simulation_that_does_not_start_is_no_device() {
    let program = Program::compile("tests/c/devices.c", Language::C99, &[]);
    for configuration in ["gpu=2", "gpus=two", "vram=1x"] {
        let output = program.on_simulation(configuration).output().unwrap();
        assert_eq!(expect_success(&output, configuration), "hipErrorNoDevice 0:\n");
        let errors = String::from_utf8_lossy(&output.stderr);
        let reason = "cannot start the HSA runtime: the simulation did not start: HSA_SIM";
        assert!(errors.starts_with(&format!("libhsavmm: {reason}")), "{errors}");
    }
}

#[test]
fn log_is_printed_on_request() {
    let program = Program::compile("examples/cycle.c", Language::C99, &[]);
    let run = |level: Option<&str>| {
        let mut command = program.on_simulation("gpus=2");
        command.env_remove("HSA_VMM_LOG");
        let output = command.envs(level.map(|level| ("HSA_VMM_LOG", level))).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (succeeded, errors) = run(Some("trace"));
    assert!(succeeded && errors.contains("hsa_amd_vmem_map"), "{errors}");
    assert_eq!(run(None), (true, String::new()));
    let (succeeded, errors) = run(Some("loud"));
    assert!(succeeded && errors.contains("HSA_VMM_LOG: invalid level \"loud\""), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
