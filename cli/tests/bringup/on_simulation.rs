//! Levels on the simulation, in every ROCm generation, and with failing calls.

use super::{assert_contains, command_with_mount, failed_level, report};
use crate::run_command::{command, run, stderr, stdout};

fn run_simulated(sim: &str, arguments: &[&str]) -> std::process::Output {
    run(&[&["bringup", "--runtime", "sim", "--sim", sim], arguments].concat())
}

#[test]
fn no_level_fails_in_any_generation() {
    for generation in ["a", "b", "c", "d", "e"] {
        let output = run_simulated(&format!("era={generation},gpus=3"), &["--format", "json"]);
        let report = report(&output, 0);
        assert_eq!(failed_level(&report), None, "{generation}: {report:#}");
        let levels = report["levels"].as_array().unwrap().iter();
        let skipped: Vec<_> = levels.filter(|level| level["status"] == "skipped").collect();
        // `offset` and `permission` need libdrm, which the simulation lacks. `killed` needs GPUs that all processes
        // share, but each process simulates its own GPUs.
        let expected = ["offset", "permission", "killed"];
        let skipped = skipped.iter().map(|level| level["level"].as_str().unwrap());
        assert!(skipped.eq(expected), "{generation}: {report:#}");
        assert_eq!(report["simulation"], true);
        let probes = report["probes"].as_array().unwrap();
        // Only in generation `c`, granting access to a peer fails after access was granted to the owner. In the other
        // generations, the probe of this quirk has no result and is not reported.
        let count = if generation == "c" { 8 } else { 7 };
        assert_eq!(probes.len(), count, "{generation}: {report:#}");
        assert!(probes.iter().all(|it| it["expected"] == it["found"]), "{generation}: {report:#}");
    }
}

#[test]
fn levels_that_do_not_apply_are_skipped() {
    let output = run_simulated("consumer", &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_contains(
        &stdout(&output),
        &["– CPU access", "no large BAR", "– peer access", "there is one GPU"],
    );
    let output = run_simulated("gpus=2,peer-access=off", &[]);
    assert_contains(&stdout(&output), &["no other GPU can access"]);
}

#[test]
fn failing_call_is_reported_at_its_level() {
    let status = "HSA_STATUS_ERROR_OUT_OF_RESOURCES";
    for (call, level) in [
        ("hsa_init", "runtime"),
        ("hsa_iterate_agents", "agents"),
        ("hsa_amd_agent_iterate_memory_pools", "pools"),
        ("hsa_amd_vmem_address_reserve", "reserved"),
        ("hsa_amd_vmem_address_free", "reserved"),
        ("hsa_amd_vmem_handle_create", "handle"),
        ("hsa_amd_vmem_handle_release", "handle"),
        ("hsa_amd_vmem_map", "mapped"),
        ("hsa_amd_vmem_unmap", "mapped"),
        ("hsa_amd_vmem_set_access", "cpu"),
        ("hsa_amd_memory_pool_allocate", "gpu"),
        ("hsa_amd_memory_async_copy", "gpu"),
        ("hsa_amd_vmem_export_shareable_handle", "descriptors"),
        ("hsa_amd_vmem_import_shareable_handle", "shared"),
    ] {
        let output = run_simulated(&format!("gpus=2,faults={call}=0x1008"), &["--format", "json"]);
        let report = report(&output, if level == "runtime" { 3 } else { 1 });
        assert_eq!(failed_level(&report), Some(level), "{call}: {report:#}");
        let failure = &report["failure"];
        assert_eq!(failure["kind"], "status");
        assert_eq!(failure["call"]["name"], call);
        assert_contains(failure["call"]["status"].as_str().unwrap(), &[status]);
        assert_eq!(failure["call"]["other_process"], call.contains("import"));
        assert!(!failure["rests_on"].as_array().unwrap().is_empty(), "{call}");
        let last = failure["calls"].as_array().unwrap().last().unwrap();
        assert_contains(last.as_str().unwrap(), &[call, "ERROR_OUT_OF_RESOURCES"]);
    }
    // Only the level `load` makes 100 mappings or more.
    let output = run_simulated("gpus=2,faults=hsa_amd_vmem_map#100=0x1008", &["--format", "json"]);
    assert_eq!(failed_level(&report(&output, 1)), Some("load"));
}

#[test]
fn failed_query_is_listed_and_in_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("again.c");
    for (query, level, statement) in [
        (
            "hsa_amd_agent_memory_pool_get_info",
            "cpu",
            "  CHECK(hsa_amd_agent_memory_pool_get_info(cpu, pool, \
             HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, &access));\n  puts(",
        ),
        // The callbacks make these queries.
        ("hsa_amd_memory_pool_get_info#3", "pools", "HSA_AMD_MEMORY_POOL_INFO_SIZE, "),
        ("hsa_agent_get_info", "agents", "HSA_AGENT_INFO_DEVICE, "),
    ] {
        let faults = format!("gpus=2,faults={query}=ERROR");
        let arguments = ["--format", "json", "--program", source.to_str().unwrap()];
        let report = report(&run_simulated(&faults, &arguments), 1);
        assert_eq!(failed_level(&report), Some(level), "{query}: {report:#}");
        let calls = report["failure"]["calls"].as_array().unwrap();
        let function = query.split('#').next().unwrap();
        let last = calls.last().unwrap().as_str().unwrap();
        assert_contains(last, &[function, "-> ERROR"]);
        assert_contains(&std::fs::read_to_string(&source).unwrap(), &[statement]);
        let compiler = std::process::Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
            .arg(&source)
            .output()
            .expect("a C compiler");
        assert!(compiler.status.success(), "{query}: {}", stderr(&compiler));
    }
}

#[test]
fn missing_features_are_reported() {
    let output = run_simulated("gpus=0", &["--format", "json"]);
    let found = report(&output, 1);
    assert_eq!(failed_level(&found), Some("agents"));
    assert_eq!(found["failure"]["what"], "no agent is a GPU");
    let output = run_simulated("vmem=off", &["--format", "json"]);
    let found = report(&output, 1);
    assert_eq!(failed_level(&found), Some("pools"));
    assert_contains(&found["failure"]["try_next"].to_string(), &["1.15"]);
}

#[test]
fn advice_is_for_the_simulation() {
    for fault in [
        "hsa_amd_memory_async_copy=garbled",
        "hsa_amd_memory_async_copy=lost",
        "hsa_amd_memory_fill=late:300000us",
        "hsa_amd_vmem_map=0x1008",
        "hsa_amd_vmem_set_access=half",
    ] {
        let arguments = ["--time-limit", "5s", "--format", "json"];
        let output = run_simulated(&format!("gpus=2,faults={fault}"), &arguments);
        let advice = report(&output, 1)["failure"]["try_next"].to_string();
        let planned =
            format!("this is a simulation, in which the planned fault {fault} has happened");
        assert_contains(&advice, &[planned.as_str(), "remove faults=… from --sim or HSA_SIM"]);
        for wrong in ["dmesg", "strace", "/proc/", "/sys/", "kfd_", "AMDGPU_", "the fence"] {
            assert!(!advice.contains(wrong), "{wrong}: {advice}");
        }
    }
}

#[test]
fn configuration_of_a_failing_simulation_is_named() {
    let report = report(&run_simulated("vmem=off,gpus=1", &["--format", "json"]), 1);
    let advice = report["failure"]["try_next"].to_string();
    let words = ["the configuration vmem=off,gpus=1 (--sim", "no planned fault has happened"];
    assert_contains(&advice, &words);
}

/// The level `at-once` makes 16 copies, more than the earlier levels. The copies 17 and 24 of the level `reused` read
/// memory that was written and read before.
#[test]
fn single_wrong_copy_is_not_blamed_on_create() {
    for (copy, what) in [
        ("#17", "gpu[0] copied wrong data from va; a second copy is right"),
        ("#24", "gpu[0] copied wrong data from va2; a second copy is right"),
    ] {
        let config = format!("gpus=2,vram=1g,faults=hsa_amd_memory_async_copy{copy}=garbled");
        let report = report(&run_simulated(&config, &["--format", "json"]), 1);
        assert_eq!(failed_level(&report), Some("reused"), "{copy}: {report:#}");
        let failure = &report["failure"];
        assert_eq!(failure["call"]["name"], "hsa_amd_memory_async_copy", "{copy}: {failure:#}");
        assert_contains(failure["what"].as_str().unwrap(), &[what]);
    }
}

#[test]
fn missing_memory_is_blamed_on_the_call_that_keeps_it() {
    for (fault, call) in [
        ("hsa_amd_vmem_address_free=lost", "hsa_amd_vmem_address_free"),
        ("hsa_amd_vmem_unmap=leak", "hsa_amd_vmem_unmap"),
    ] {
        let config = format!("gpus=2,vram=1g,faults={fault}");
        let report = report(&run_simulated(&config, &["--format", "json"]), 1);
        assert_eq!(failed_level(&report), Some("counted"), "{fault}: {report:#}");
        assert_eq!(report["failure"]["call"]["name"], call, "{fault}: {report:#}");
    }
}

#[test]
fn call_without_result_is_suspected() {
    for (fault, level, words) in [
        (
            "hsa_amd_memory_pool_allocate=lost",
            "gpu",
            "hsa_amd_memory_pool_allocate returned success, but set the argument `host` to 0",
        ),
        (
            "hsa_amd_vmem_handle_create#2=lost",
            "unmapped",
            "hsa_amd_vmem_handle_create returned success, but set the argument `memory2` to 0",
        ),
    ] {
        let faults = format!("gpus=2,faults={fault}");
        let report = report(&run_simulated(&faults, &["--format", "json"]), 1);
        assert_eq!(failed_level(&report), Some(level), "{fault}: {report:#}");
        assert_contains(report["failure"]["try_next"][0].as_str().unwrap(), &[words]);
    }
}

#[test]
fn report_names_program_and_time_limit() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("again.c");
    let arguments = ["--program", source.to_str().unwrap(), "--time-limit", "90s"];
    let output = run_simulated("gpus=2,faults=hsa_amd_vmem_map=0x1008", &arguments);
    assert_contains(&stdout(&output), &["--until mapped --time-limit 1m30s\n"]);
    assert_contains(&std::fs::read_to_string(source).unwrap(), &["cc -g -o repeat again.c -L"]);
}

#[test]
fn table_fits_80_columns_without_colours() {
    let output = run_simulated("gpus=2,faults=hsa_amd_vmem_map=0x1008", &[]);
    let text = stdout(&output);
    let table: Vec<_> = text.lines().take_while(|line| !line.starts_with("mapped:")).collect();
    assert!(table.len() > 12, "{text}");
    for line in table {
        assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    assert_contains(
        &text,
        &[
            "✗ mapped",
            "· CPU access",
            "Kernel interfaces of this call",
            "EXPORT_DMABUF",
            "Try next",
            "--program",
        ],
    );
}

#[test]
fn until_ends_at_the_named_level() {
    let output = run_simulated("gpus=2", &["--until", "mapped", "--format", "json"]);
    let levels = report(&output, 0)["levels"].as_array().unwrap().len();
    assert_eq!(levels, 7);
}

#[test]
fn invalid_arguments_are_rejected() {
    for arguments in [
        &["bringup", "--until", "moon"][..],
        &["bringup", "--time-limit", "0s"],
        &["bringup", "--time-limit", "soon"],
        &["bringup", "--run-level", "moon"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = run(&["bringup", "--runtime", "sim", "--sim", "nonsense=1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_contains(&stderr(&output), &["nonsense"]);
    // The second name exists, but is a folder.
    for log in ["/nowhere/log", "/"] {
        let output = run(&["bringup", "--runtime", "sim", "--log", log]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_contains(&stderr(&output), &[&format!("cannot write {log}:")]);
        assert!(
            stdout(&output).is_empty(),
            "the file is checked before running: {}",
            stdout(&output)
        );
    }
    let output = run(&["bringup", "--runtime", "sim", "--program", "/nowhere/repeat.c"]);
    assert_eq!(output.status.code(), Some(2));
    assert_contains(&stderr(&output), &["cannot write /nowhere/repeat.c"]);
    assert!(stdout(&output).is_empty(), "the file is checked before running: {}", stdout(&output));
    // The hidden option `--run-level` works only in a worker process.
    let output = run(&["bringup", "--runtime", "sim", "--run-level", "mapped"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_contains(&stderr(&output), &["only hsa-vmm can start worker processes"]);
}

#[test]
fn log_contains_calls_of_every_level() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let output = command(&["bringup", "--runtime", "sim", "--until", "gpu", "--log"])
        .arg(&log)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(log).unwrap();
    assert_contains(
        &text,
        &["== library loads", "== GPU access", "hsa_amd_memory_async_copy(va=0x"],
    );
}

#[test]
fn invalid_files_keep_the_earlier_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, new) = (path("log"), path("new"));
    std::fs::write(&log, "earlier").unwrap();
    for (arguments, words) in [
        (["--log", &log, "-o", "/nowhere/report"], "cannot write /nowhere/report"),
        (["--log", &log, "-o", &log], "--log and --output write to the same file"),
        (["--log", &new, "--program", &path("./new")], "the same file, "),
    ] {
        let output = run_simulated("gpus=1", &arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_contains(&stderr(&output), &[words]);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "earlier");
    }
    assert!(!std::fs::exists(new).unwrap());
}

#[test]
fn report_survives_unwritable_log() {
    let arguments = ["--log", "/dev/full", "--until", "handle", "--format", "json"];
    let output = run_simulated("gpus=1", &arguments);
    assert_eq!(failed_level(&report(&output, 2)), None);
    assert_contains(&stderr(&output), &["cannot write the log (--log) /dev/full", "No space left"]);
    // The report is also printed if the program file cannot be written.
    let faults = "faults=hsa_amd_vmem_map=0x1008";
    let output = run_simulated(faults, &["--program", "/dev/full", "--format", "json"]);
    assert_eq!(failed_level(&report(&output, 2)), Some("mapped"));
    assert_contains(&stderr(&output), &["cannot write /dev/full", "No space left"]);
    let output = run_simulated(faults, &["--program", "/dev/full"]);
    assert!(!stdout(&output).contains("/dev/full"), "{output:?}");
    // Both files are named. The second path is another name of the same device.
    let output = run_simulated(faults, &["--program", "/dev/full", "--log", "/dev/../dev/full"]);
    let words = ["cannot write /dev/full:", "cannot write the log (--log) /dev/../dev/full:"];
    assert_contains(&stderr(&output), &words);
}

#[test]
fn missing_temporary_folder_exits_with_2() {
    let mut command = command(&["bringup", "--runtime", "sim"]);
    let output = command.env("TMPDIR", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_contains(&stderr(&output), &["cannot create a temporary folder", "/nonexistent"]);
}

#[test]
fn until_accepts_the_name_in_json() {
    let output = run_simulated("gpus=1", &["--until", "at_once", "--format", "json"]);
    assert_eq!(failed_level(&report(&output, 0)), None);
}

#[test]
fn log_names_version_and_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let output = run_simulated("gpus=1", &["--until", "library", "--log", log.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(log).unwrap();
    let first = text.lines().next().unwrap();
    let start = format!("hsa-vmm {}, Linux ", env!("CARGO_PKG_VERSION"));
    assert!(first.starts_with(&start) && first.ends_with('Z'), "{first}");
}

/// The log lists each argument of a call with the name of a variable or parameter. No C expression such as `size / 4` is
/// used as a name.
#[test]
fn arguments_have_readable_names() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let output = run_simulated("gpus=2", &["--log", log.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let log = std::fs::read_to_string(log).unwrap();
    let lines = || log.lines().filter_map(|line| line.split_once("hsa_"));
    let names = lines().flat_map(|(_, call)| {
        let arguments = call.split_once('(').map_or("", |(_, rest)| rest);
        let arguments = arguments.rsplit_once(')').map_or("", |(arguments, _)| arguments);
        arguments.split(", ").filter_map(|argument| argument.split_once('=')).collect::<Vec<_>>()
    });
    let mut count = 0;
    for (name, value) in names {
        let is_name =
            name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_[] ".contains(letter));
        assert!(
            is_name && !name.starts_with(|letter: char| !letter.is_ascii_lowercase()),
            "{name}={value}"
        );
        count += 1;
    }
    assert!(count > 1000, "{count}");
    assert!(log.contains("value=0x5a5a0001, count=0x"), "{log}");
}

/// In the virtual machine of `vm`, the host's files are the lower layer of an overlay file system.
#[test]
fn lost_program_is_not_recommended() {
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs tmpfs . && cd \"$PWD\" && mkdir l u w m && \
                 mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m";
    let file = folder.path().join("m/repeat.c");
    let simulated = ["bringup", "--runtime", "sim", "--sim", "faults=hsa_amd_vmem_map=0x1008"];
    let arguments = [&simulated[..], &["--program", file.to_str().unwrap()]].concat();
    let Some(mut command) = command_with_mount(folder.path(), mount, &arguments) else { return };
    for (outer, is_lost) in [("vm --rocr 7.2.4", true), ("", false)] {
        let output = command.env("HSA_VMM_UNDER", outer).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(stderr(&output).contains("is lost when"), is_lost, "{output:?}");
        let recommended = stdout(&output).contains("C program that repeats the calls: ");
        assert_eq!(recommended, !is_lost, "{output:?}");
    }
}
