//! The provenance in reports: the command, the machine, the environment and the planned faults.

mod hostile_runtime;
#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::test;
use run_command::{HSA_VMM, command, json, run, stderr, stdout};
use std::os::unix::process::CommandExt;
use std::process::Output;

const CONFORM_ON_SIMULATION: [&str; 5] = ["conform", "--runtime", "sim", "--filter", "map.memory"];

/// Runs a subcommand on AMD's runtime and the emulated driver, with a fault plan.
fn run_emulated(plan: &str, arguments: &[&str]) -> Output {
    run(&[&["emulate", "--rocr", "6.4.3", "--fault", plan, "--", HSA_VMM], arguments].concat())
}

#[test]
fn invalid_fault_plan_is_rejected_before_the_start() {
    for (plan, message) in [
        ("GEM_V=EIO", "GEM_VA.MAP"),
        ("COPY=leek", "garbled"),
        ("GEM_VA.UNMAP=wide", "these calls do: "),
    ] {
        let output = run(&["emulate", "--fault", plan, "--", "echo", "started"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            stderr(&output).contains(plan) && stderr(&output).contains(message),
            "{}",
            stderr(&output)
        );
        assert!(!stdout(&output).contains("started"), "{output:?}");
    }
    let output = run(&["emulate", "--fault", "COPY=garbled", "--", "echo", "started"]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("started\n", Some(0)));
}

#[test]
fn planned_faults_of_the_simulation_are_reported() {
    let plan = "faults=hsa_amd_vmem_map#2=0x1000;hsa_amd_vmem_map#99999=lost";
    let simulated = [&CONFORM_ON_SIMULATION[..], &["--sim", plan, "--format"]].concat();
    let output = run(&[&simulated[..], &["json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message = "planned fault hsa_amd_vmem_map#99999=lost never happened";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
    let provenance = &json(&output)["run"]["provenance"];
    assert_eq!(provenance["machine"], "simulation");
    assert_eq!(provenance["kfd_version"], serde_json::Value::Null);
    let faults: Vec<_> = provenance["planned_faults"].as_array().unwrap().iter().collect();
    assert_eq!(faults.len(), 2, "{provenance}");
    assert_eq!((&faults[0]["by"], &faults[0]["happened"]), (&"runtime".into(), &true.into()));
    assert_eq!(faults[1]["happened"], false);
    let text = stdout(&run(&[&simulated[..], &["table"]].concat()));
    assert!(text.starts_with("PLANNED FAULTS: hsa_amd_vmem_map#2=0x1000"), "{text}");
    // Without planned faults, the output does not mention them.
    let output = run(&CONFORM_ON_SIMULATION);
    assert!(
        !stdout(&output).contains("PLANNED") && !stderr(&output).contains("planned"),
        "{output:?}"
    );
}

#[test]
fn reports_on_amd_contain_provenance() {
    if test::fetch_releases("reports_on_amd_contain_provenance").is_none() {
        return;
    }
    let output = run_emulated(
        "GEM_VA.MAP=shifted,EXPORT_DMABUF#9999=EIO",
        &["conform", "--filter", "map.memory", "--format", "json"],
    );
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message = "planned fault EXPORT_DMABUF#9999=EIO never happened";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
    let report = json(&output);
    let provenance = &report["run"]["provenance"];
    assert_eq!(provenance["machine"], "emulated_driver");
    assert_eq!(provenance["kfd_version"], "1.17");
    let started = "emulate --rocr 6.4.3 --fault 'GEM_VA.MAP=shifted,EXPORT_DMABUF#9999=EIO' -- ";
    for key in ["command", "reproduce"] {
        let line = provenance[key].as_str().unwrap();
        assert!(line.starts_with("hsa-vmm ") && line.contains(started), "{provenance}");
        assert!(line.contains(" -- hsa-vmm conform"), "{provenance}");
    }
    assert_eq!(provenance["environment"]["LD_PRELOAD"], "libhsa_kfd.so");
    // The report contains the complete path of the tested runtime.
    assert!(report["runtime"]["path"].as_str().unwrap().starts_with('/'), "{report}");
    let cases = report["cases"].as_array().unwrap();
    let failed = cases.iter().find(|case| case["status"] == "fail").unwrap();
    assert!(failed["detail"].as_str().unwrap().contains("XOR"), "{failed}");
    assert!(failed["output"].as_str().unwrap().contains("driver: "), "{failed}");
    for (name, arguments) in [
        ("bringup", &["bringup", "--until", "agents", "--format", "json"][..]),
        ("fuzz", &["fuzz", "--sequences", "2", "--format", "json"]),
        ("stress", &["stress", "--time", "100ms", "--scene", "mixed", "--format", "json"]),
    ] {
        let output = run_emulated("GEM_VA#99999999=EIO", arguments);
        let provenance = &json(&output)["provenance"];
        assert_eq!(provenance["planned_faults"][0]["happened"], false, "{name}: {provenance}");
        assert_eq!(provenance["machine"], "emulated_driver", "{name}");
        assert!(
            provenance["command"].as_str().unwrap().contains("emulate --rocr 6.4.3"),
            "{name}: {provenance}"
        );
    }
}

#[test]
fn text_reports_list_missing_faults() {
    if test::fetch_releases("text_reports_list_missing_faults").is_none() {
        return;
    }
    let rule = "GEM_VA#99999999=EIO";
    let line = format!(
        "planned fault {rule} never happened: no such call was made, or the fault changes nothing in it; each process \
         counts its own calls"
    );
    let bringup = ["bringup", "--until", "agents"];
    for arguments in [
        &["conform", "--filter", "map.memory.*"][..],
        &bringup,
        &["fuzz", "--sequences", "2"],
        &["stress", "--time", "100ms", "--scene", "mixed"],
    ] {
        let output = run_emulated(rule, &[arguments, &["--format", "ktap"]].concat());
        let text = stdout(&output);
        assert_eq!(text.lines().next_back(), Some(format!("# {line}").as_str()), "{text}");
    }
    let table = stdout(&run_emulated(rule, &bringup));
    assert!(table.ends_with(&format!("\n\n{line}\n")), "{table}");
}

/// An import moves memory (`evict`) only if another GPU has mapped the memory, and `wide` changes only mappings that are
/// not writable.
#[test]
fn fault_without_effect_never_happened() {
    if test::fetch_releases("fault_without_effect_never_happened").is_none() {
        return;
    }
    let filters = ["--filter", "map.memory", "--filter", "access.gpus.peer_after_the_owner"];
    let cases = [&["conform", "--format", "json"], &filters[..]].concat();
    let happened = |gpus, plan| {
        let emulate =
            ["emulate", "--rocr", "6.4.3", "--gpus", gpus, "--fault", plan, "--", HSA_VMM];
        let report = json(&run(&[&emulate[..], &cases].concat()));
        report["run"]["provenance"]["planned_faults"][0]["happened"].as_bool().unwrap()
    };
    for (gpus, plan, expected) in [
        ("1", "PRIME_FD_TO_HANDLE=evict", false),
        ("2", "PRIME_FD_TO_HANDLE=evict", true),
        ("1", "GEM_VA.MAP=wide", false),
        ("1", "GEM_VA.MAP=narrow", true),
        ("1", "GEM_VA#1=stale:1us", false),
        ("1", "GEM_VA=stale:1us", true),
    ] {
        assert_eq!(happened(gpus, plan), expected, "{gpus} GPUs, {plan}");
    }
    let simulated = ["conform", "--runtime", "sim", "--gpus", "1", "--format", "json"];
    for (plan, expected) in [
        ("hsa_amd_vmem_set_access=wide", false),
        ("hsa_amd_vmem_set_access=narrow", true),
        ("hsa_amd_memory_async_copy=half", true),
    ] {
        let plan_option = format!("faults={plan}");
        let options = ["--filter", "access.gpu.copies", "--sim", &plan_option];
        let report = json(&run(&[&simulated[..], &options].concat()));
        let fault = &report["run"]["provenance"]["planned_faults"][0];
        assert_eq!(fault["happened"], expected, "{fault}");
    }
}

/// With `HSA_KFD=real`, the preloaded library only logs the calls to the kernel driver.
#[test]
fn logged_driver_is_not_reported_as_emulated() {
    if test::fetch_releases("logged_driver_is_not_reported_as_emulated").is_none() {
        return;
    }
    let arguments = ["emulate", "--rocr", "6.4.3", "--", HSA_VMM, "bringup", "--until", "runtime"];
    let arguments = [&arguments[..], &["--format", "json"]].concat();
    let output = command(&arguments).env("HSA_KFD", "real").output().unwrap();
    let report = json(&output);
    let machine = report["provenance"]["machine"].as_str().unwrap();
    assert!(["real", "virtual"].contains(&machine), "{report}");
    assert_eq!(report["failure"]["driver"], serde_json::Value::Null, "{report}");
}

#[test]
fn bringup_attributes_wrong_data_to_the_copy() {
    let plan = "faults=hsa_amd_memory_async_copy#2=garbled";
    let simulated = ["bringup", "--runtime", "sim", "--sim", plan, "--until", "gpu", "--format"];
    let failure = &json(&run(&[&simulated[..], &["json"]].concat()))["failure"];
    assert_eq!(failure["call"]["name"], "hsa_amd_memory_async_copy", "{failure}");
    let what = failure["what"].as_str().unwrap();
    assert!(what.contains("copied wrong data"), "{what}");
    assert!(what.contains("XOR"), "{what}");
}

#[test]
fn ktap_begins_with_the_provenance() {
    let faults = ["--runtime", "sim", "--sim", "faults=hsa_amd_vmem_get_access#999=ERROR"];
    let conform = ["conform", "--filter", "map.handle.*"];
    for subcommand in [
        &conform[..],
        &[&conform[..], &["--in-process"]].concat(),
        &["bringup", "--until", "handle"],
        &["fuzz", "--sequences", "1"],
        &["stress", "--time", "100ms"],
    ] {
        let arguments = [subcommand, &faults, &["--format", "ktap"]].concat();
        let mut command = command(&arguments);
        let output = command.env("HSA_XNACK", "1").arg0("folder/hsa-vmm").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = stdout(&output);
        let notes: Vec<_> =
            text.lines().skip(2).take_while(|line| line.starts_with("# ")).collect();
        for expected in [
            "# runtime: simulation",
            "# command: hsa-vmm ",
            concat!("# hsa-vmm: ", env!("CARGO_PKG_VERSION")),
            "# machine: simulation",
            "# planned fault: hsa_amd_vmem_get_access#999=0x1000 (simulated runtime)",
            "# HSA_XNACK: 1",
        ] {
            assert!(notes.iter().any(|note| note.starts_with(expected)), "{expected}: {text}");
        }
    }
}

#[test]
fn reports_replace_home_folder_and_redact_uuids() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("report.json");
    let report = |more: &[&str]| {
        let mut command =
            command(&[&CONFORM_ON_SIMULATION[..], &["--format", "json", "-o"]].concat());
        command.arg(&file).args(more).env("HOME", home.path()).env("HSA_TOOLS_LIB", &file);
        assert!(command.output().unwrap().status.success());
        std::fs::read_to_string(&file).unwrap()
    };
    let text = report(&[]);
    assert!(!text.contains(home.path().to_str().unwrap()), "{text}");
    assert!(text.contains("~/report.json"), "{text}");
    let uuids = |text: &str| {
        let report: serde_json::Value = serde_json::from_str(text).unwrap();
        let agents = report["agents"].as_array().unwrap().clone();
        agents.iter().map(|agent| agent["uuid"].to_string()).collect::<Vec<_>>()
    };
    assert!(uuids(&text).iter().all(|uuid| !uuid.contains("redacted")), "{text}");
    let text = report(&["--redact"]);
    assert!(!text.contains("~/"), "{text}");
    assert!(uuids(&text).iter().all(|uuid| uuid == "\"(redacted)\""), "{text}");
}

/// A user's report contains the standard output of `info`, and the standard output and standard error of `conform`
/// (docs/faq.md). Users also send the output of `bringup`.
#[test]
fn reports_on_amd_replace_the_home_folder() {
    let name = "reports_on_amd_replace_the_home_folder";
    let Some(releases) = test::fetch_releases(name) else { return };
    let home = std::fs::canonicalize(releases[0].root()).unwrap();
    let release = releases[0].release();
    for (arguments, runtime) in [
        (&["info", "--format", "json"][..], "\"path\": \"~/"),
        (&["conform", "--filter", "map.memory"], "runtime: ~/"),
        (&["bringup", "--until", "agents"], "runtime: ~/"),
        (&["bringup", "--until", "agents", "--format", "json"], "\"runtime\": \"~/"),
    ] {
        let start = ["emulate", "--rocr", release.version(), "--", HSA_VMM];
        let mut command = command(&[&start[..], arguments].concat());
        let output = command.env("HOME", &home).output().unwrap();
        let errors = if arguments[0] == "info" { String::new() } else { stderr(&output) };
        let text = stdout(&output) + &errors;
        assert!(text.contains(runtime), "{arguments:?}: {text}");
        assert!(!text.contains(home.to_str().unwrap()), "{arguments:?}: {text}");
    }
}

#[test]
fn redact_removes_logs_and_folders() {
    if test::fetch_releases("redact_removes_logs_and_folders").is_none() {
        return;
    }
    let bringup = ["bringup", "--until", "gpu", "--redact", "--format"];
    let output = run_emulated("GEM_VA.MAP=EIO", &[&bringup[..], &["json"]].concat());
    let failure = &json(&output)["failure"];
    let removed = serde_json::json!(["(redacted)"]);
    let kept = serde_json::json!(["drm0 GEM_VA EIO"]);
    assert_eq!((&failure["driver"], &failure["failed_requests"]), (&removed, &kept));
    let table = [&bringup[..], &["table"]].concat();
    let html = ["conform", "--filter", "map.memory", "--redact", "--format", "html"];
    for arguments in [&table[..], &html] {
        for plan in ["ACQUIRE_VM=EIO", "GEM_VA.MAP=EIO"] {
            let output = run_emulated(plan, arguments);
            let text = stdout(&output) + &stderr(&output);
            // A report without results has no other logs.
            let is_not_started = plan == "ACQUIRE_VM=EIO" && arguments[0] == "conform";
            let kept = if is_not_started { "kfd ACQUIRE_VM EIO" } else { "(redacted)" };
            assert!(text.contains(kept), "{plan} {arguments:?}: {text}");
            assert!(!text.contains(" = EIO"), "{plan} {arguments:?}: {text}");
            assert!(!text.contains("runtime: /"), "{plan} {arguments:?}: {text}");
        }
    }
}

#[test]
fn redact_keeps_causes_and_requests() {
    if test::fetch_releases("redact_keeps_causes_and_requests").is_none() {
        return;
    }
    let whole = ["conform", "--filter", "map.memory.whole_handle", "--redact", "--build-id", "a:b"];
    for format in ["table", "json", "junit", "ktap", "kcidb", "html"] {
        let arguments = [&whole[..], &["--format", format]].concat();
        let text = stdout(&run_emulated("GEM_VA.MAP=lost", &arguments));
        assert!(text.contains("GPU memory access fault: crashed: SIGABRT"), "{format}: {text}");
        assert!(!text.contains("Memory access fault by"), "{format}: {text}");
        assert!(text.contains("gpu0 fault at 0x"), "{format}: {text}");
        let text = stdout(&run_emulated("EXPORT_DMABUF=EIO", &arguments));
        for expected in ["kfd EXPORT_DMABUF EIO", "-- hsa-vmm bringup"] {
            assert!(text.contains(expected), "{format}: {expected}: {text}");
        }
    }
}

#[test]
fn faults_that_nothing_detects_are_named() {
    if test::fetch_releases("faults_that_nothing_detects_are_named").is_none() {
        return;
    }
    for (arguments, part) in [
        (&["conform", "--filter", "map.memory.whole_handle"][..], "case"),
        (&["bringup", "--until", "mapped"], "level"),
    ] {
        for (rule, sentence) in [
            ("DESTROY_EVENT=lost", format!("and no {part} of this run detected it. For ")),
            ("DESTROY_EVENT=5ms", format!("a delay is no fault, so no {part} reports it")),
        ] {
            let output = run_emulated(rule, &[arguments, &["--format", "ktap"]].concat());
            assert!(output.status.success(), "{output:?}");
            for text in [stdout(&output), stderr(&output)] {
                assert!(text.contains(&format!(" {rule} happened in ")), "{arguments:?}: {text}");
                assert!(text.contains(&sentence), "{arguments:?}: {text}");
            }
        }
    }
}

#[test]
fn expected_failure_can_detect_a_planned_fault() {
    if test::fetch_releases("expected_failure_can_detect_a_planned_fault").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("expect.toml");
    let case = "map.memory.whole_handle";
    let entry = format!("[[expect]]\ncase = \"{case}\"\nreason = \"r\"\nsource = \"s\"\n");
    std::fs::write(&list, entry).unwrap();
    let arguments = ["conform", "--filter", case, "--expect", list.to_str().unwrap()];
    for format in ["table", "ktap"] {
        let arguments = [&arguments[..], &["--format", format]].concat();
        let output = run_emulated("EXPORT_DMABUF=EIO", &arguments);
        assert!(output.status.success(), "{output:?}");
        let text = if format == "ktap" { stdout(&output) } else { stderr(&output) };
        let expected = "no case of this run, apart from expected failures, detected it";
        assert!(text.contains(expected), "{format}: {text}");
    }
}

#[test]
fn ktap_reports_a_runtime_that_does_not_start() {
    let is_fetched = test::fetch_releases("ktap_reports_a_runtime_that_does_not_start").is_some();
    let assert_bails_out = |output: &Output, fault: Option<&str>| {
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let text = stdout(output);
        let last = text.lines().last().unwrap();
        assert!(last.starts_with("Bail out! ") && !last.ends_with(':'), "{text}");
        for note in ["# runtime: ", "# command: "].iter().copied().chain(fault) {
            assert!(text.lines().any(|line| line.starts_with(note)), "{note}: {text}");
        }
    };
    for subcommand in ["conform", "fuzz", "stress"] {
        let arguments = [subcommand, "--format", "ktap"];
        let missing_runtime = [&arguments[..], &["--runtime", "/nonexistent"]].concat();
        assert_bails_out(&run(&missing_runtime), None);
        if is_fetched {
            let fault = "# planned fault: ACQUIRE_VM=EIO";
            let output = run_emulated("ACQUIRE_VM=EIO", &arguments);
            assert_bails_out(&output, Some(fault));
            // The emulated driver writes nothing to the kernel's log.
            let text = stdout(&output) + &stderr(&output);
            assert!(!text.contains("dmesg"), "{text}");
        }
    }
}

/// The reports of a runtime that does not start contain the failed requests and the `bringup` command.
#[test]
fn failed_start_names_requests_and_next_command() {
    if test::fetch_releases("failed_start_names_requests_and_next_command").is_none() {
        return;
    }
    let bringup = "hsa-vmm emulate --rocr 6.4.3 --fault 'ACQUIRE_VM=EIO' -- hsa-vmm bringup";
    let escaped = bringup.replace('\'', "&apos;");
    let in_html = bringup.replace('\'', "&#39;");
    for (format, command) in [
        ("ktap", format!("# To find the HSA call and kernel interface that fail: {bringup}")),
        ("junit", format!("<property name=\"bringup\" value=\"{escaped}\"/>")),
        ("html", format!("<code>{in_html}</code>")),
    ] {
        for (options, request) in
            [(&[][..], " kfd ACQUIRE_VM drm_fd="), (&["--redact"], "kfd ACQUIRE_VM EIO")]
        {
            let arguments = [&["conform", "--format", format], options].concat();
            let output = run_emulated("ACQUIRE_VM=EIO", &arguments);
            assert_eq!(output.status.code(), Some(3), "{output:?}");
            let text = stdout(&output);
            assert!(text.contains(request), "{format} {options:?}: {text}");
            assert!(text.contains(&command), "{format} {options:?}: {text}");
        }
    }
}

#[test]
fn reproduce_command_keeps_driver_settings() {
    if test::fetch_releases("reproduce_command_keeps_driver_settings").is_none() {
        return;
    }
    let bringup = ["bringup", "--until", "cpu", "--format", "json"];
    let start = ["emulate", "--rocr", "6.4.3", "--gpus", "2", "--", HSA_VMM];
    let mut command = command(&[&start[..], &bringup].concat());
    let output = command.env("HSA_KFD", "tlb=on").output().unwrap();
    let report = json(&output);
    let line = report["provenance"]["reproduce"].as_str().unwrap();
    assert!(line.starts_with("HSA_KFD='tlb=on' "), "{line}");
}

/// A numbered fault counts the calls of all cases, so that one case alone does not repeat it.
#[test]
fn numbered_fault_repeats_the_whole_run() {
    for (fault, options) in [
        ("hsa_amd_vmem_map#5=0x1000", " --filter 'map.*' --shuffle 7\n"),
        ("hsa_amd_vmem_map=0x1000", " --filter map.memory.whole_handle\n"),
    ] {
        let config = format!("faults={fault}");
        let conform = ["conform", "--sim", &config, "--filter", "map.*", "--shuffle", "7"];
        let text = stdout(&run(&conform));
        // The command begins with the path of this program, unless the program is in PATH.
        let line = format!("hsa-vmm conform --sim '{config}'{options}");
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn redact_removes_folders_in_each_format() {
    let folder = tempfile::Builder::new().prefix("secret").tempdir().unwrap();
    let library = hostile_runtime::build(folder.path());
    let conform = ["conform", "--filter", "runtime.*", "--filter", "create.*", "--build-id", "a:b"];
    let bringup = ["bringup"];
    let missing = folder.path().join("missing.so");
    let parent = folder.path().parent().unwrap();
    let relative = missing.strip_prefix(parent).unwrap().to_owned();
    for library in [&library, &missing, &relative] {
        for (subcommand, formats) in [
            (&conform[..], &["table", "json", "junit", "ktap", "kcidb", "html"][..]),
            (&bringup, &["table", "json", "ktap"]),
        ] {
            for format in formats {
                let runtime = ["--redact", "--format", format, "--runtime"];
                let arguments = [subcommand, &runtime, &[library.to_str().unwrap()]].concat();
                let mut command = command(&arguments);
                command.current_dir(parent).env("ROCR_VISIBLE_DEVICES", "GPU-5ec7e75ec7e75ec7");
                let output = command.env("HSA_TOOLS_LIB", library).output().unwrap();
                for text in [stdout(&output), stderr(&output)] {
                    let is_clean = !text.contains("secret") && !text.contains("5ec7e7");
                    assert!(is_clean, "{subcommand:?} {format}: {text}");
                }
            }
        }
    }
}

#[test]
fn output_is_ascii_where_the_locale_is_not_utf8() {
    let arguments = ["bringup", "--runtime", "sim", "--until", "mapped"];
    let output_with_locale =
        |locale: &str| stdout(&command(&arguments).env("LC_ALL", locale).output().unwrap());
    let text = output_with_locale("C");
    assert!(text.is_ascii() && text.contains("+ mapped"), "{text}");
    assert!(output_with_locale("C.UTF-8").contains("✓ mapped"));
}

#[test]
fn missing_program_exits_with_shell_status() {
    for (program, status) in [("/nowhere/program", 127), ("/", 126)] {
        let output = run(&["emulate", "--", program]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let message = stderr(&output);
        assert_eq!(message.matches("os error").count(), 1, "each cause once: {message}");
    }
}
