//! `conform` reports crashes and hangs of a runtime, and continues with the other cases.

mod broken_runtime;
#[path = "hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::test;
use run_command::{HSA_VMM, command, json, run, stderr, stdout};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The cases that the tests run on the broken runtimes.
const FILTER: [&str; 2] = ["--filter", "map.memory"];

/// Runs `hsa-vmm conform` on a simulation that fails according to `plan`, the value of `BREAK` (`wrap.c`).
fn conform(plan: &str, arguments: &[&str]) -> (Output, tempfile::TempDir) {
    let (mut command, folder) = conform_command(plan, arguments);
    (command.output().unwrap(), folder)
}

/// Returns the command for [`conform`], and the folder of the file that the variable `MARK` names (`wrap.c`).
fn conform_command(plan: &str, arguments: &[&str]) -> (Command, tempfile::TempDir) {
    let runtime = broken_runtime::simulation();
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["conform", "--format", "json", "--runtime"]);
    command.arg(runtime).args(FILTER).args(arguments);
    command.env("BREAK", plan).env("MARK", folder.path().join("mark"));
    (command, folder)
}

fn cases_with_status<'a>(report: &'a Value, status: &str) -> Vec<&'a Value> {
    let cases = report["cases"].as_array().unwrap();
    cases.iter().filter(|case| case["status"] == status).collect()
}

fn case_count() -> usize {
    let listed = json(&run(&["conform", "--list", "--format", "json", FILTER[0], FILTER[1]]));
    listed.as_array().unwrap().len()
}

/// Checks that one case failed with this detail and that all others passed. Returns the failed case.
#[track_caller]
fn assert_one_failed(output: &Output, detail: &str) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}{}", stderr(output), stdout(output));
    let report = json(output);
    let failed = cases_with_status(&report, "fail");
    assert_eq!(failed.len(), 1, "{report}");
    assert_eq!(failed[0]["detail"], detail);
    assert_eq!(cases_with_status(&report, "pass").len(), case_count() - 1, "{report}");
    failed[0].clone()
}

#[test]
fn crash_or_hang_fails_only_its_case() {
    for (effect, expected) in [
        ("segv", "crashed: SIGSEGV"),
        ("abort", "crashed: SIGABRT"),
        ("exit", "ended the process with status 7"),
        ("hang", "hung: did not end within 5 s"),
    ] {
        let plan = format!("hsa_amd_vmem_map:3:{effect}:once");
        let (output, _folder) = conform(&plan, &["--time-limit", "5s"]);
        let case = assert_one_failed(&output, &format!("{expected}, in hsa_amd_vmem_map"));
        assert_eq!(case["lost"]["last_call"], "in hsa_amd_vmem_map");
        let line = format!("{}: {expected}", case["name"].as_str().unwrap());
        assert!(stderr(&output).contains(&line), "reported at once: {}", stderr(&output));
    }
}

#[test]
fn time_limit_is_reduced_after_three_hangs() {
    let (output, _folder) = conform("hsa_amd_vmem_map:1:hang:always", &["--time-limit", "3s"]);
    let report = json(&output);
    let failed = cases_with_status(&report, "fail");
    let (first, others) = failed.split_at(3);
    assert!(!others.is_empty(), "{report}");
    let assert_hung = |cases: &[&Value], limit: u32| {
        let expected = format!("hung: did not end within {limit} s, in hsa_amd_vmem_map");
        assert!(
            cases.iter().all(|case| case["detail"] == expected.as_str()),
            "{expected}: {cases:?}"
        );
    };
    assert_hung(first, 3);
    assert_hung(others, 1);
    let text = stderr(&output);
    assert_eq!(
        text.matches("several cases have hung in hsa_amd_vmem_map: the time limit for cases in this call is now 1 s").count(),
        1,
        "{text}"
    );
}

/// `conform` reports the remaining cases as not tried, and `--resume` runs these cases.
#[test]
fn run_stops_after_eight_consecutive_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let (file, partial) = (folder.path().join("out"), folder.path().join("out.partial"));
    let path = file.to_str().unwrap();
    let filter = ["--filter", "map.*", "--time-limit", "3s", "-o", path];
    let plan = "hsa_amd_vmem_map:1:hang:always";
    let (output, _folder) = conform(plan, &filter);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let message =
        "stopped after 8 consecutive cases hung, the remaining cases were not run; --resume";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
    let read = || serde_json::from_slice::<Value>(&std::fs::read(&file).unwrap()).unwrap();
    let report = read();
    let untried = |report: &Value| {
        let reason = "not tried: the run stopped after consecutive cases hung";
        let skipped = cases_with_status(report, "skip");
        skipped.iter().filter(|case| case["detail"] == reason).count()
    };
    assert_eq!(cases_with_status(&report, "fail").len(), 8, "{report}");
    assert!(untried(&report) > 0 && partial.exists(), "{report}");

    let (output, _folder) = conform("", &[&filter[..], &["--resume"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report = read();
    assert_eq!(cases_with_status(&report, "fail").len(), 8, "{report}");
    assert!(untried(&report) == 0 && !partial.exists(), "{report}");
}

#[test]
fn reduced_limit_does_not_apply_to_slow_cases() {
    if !test::runs_long_test("reduced_limit_does_not_apply_to_slow_cases") {
        return;
    }
    let plan = "hsa_amd_vmem_map:1:hang:always;hsa_amd_vmem_handle_release:1:slow:always";
    let slow = "release.handle.twice";
    let (output, _folder) = conform(plan, &["--time-limit", "3s", "--filter", slow]);
    assert!(
        stderr(&output).contains("several cases have hung in hsa_amd_vmem_map: the time limit for cases in this call is now 1 s"),
        "{}",
        stderr(&output)
    );
    let report = json(&output);
    let passed = cases_with_status(&report, "pass");
    let slow = passed.iter().find(|case| case["name"] == slow).unwrap();
    assert!(slow["duration_us"].as_u64().unwrap() > 1_900_000, "{slow}");
}

#[test]
fn runtime_output_is_not_read_as_worker_message() {
    let (output, _folder) = conform("hsa_amd_vmem_map:1:chatter:always", &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(cases_with_status(&json(&output), "pass").len(), case_count());
    assert!(stderr(&output).contains("no JSON at all"), "{}", stderr(&output));
}

#[test]
fn crash_kills_children_of_the_worker() {
    // The child inherits the worker's socket. Therefore, conform receives no end of file when the worker crashes.
    let begun = Instant::now();
    let (output, folder) = conform("hsa_amd_vmem_map:3:child:once", &["--time-limit", "60s"]);
    assert_one_failed(&output, "crashed: SIGSEGV, in hsa_amd_vmem_map");
    assert!(begun.elapsed() < Duration::from_secs(50), "conform waited for the child");
    let plan = "BREAK=hsa_amd_vmem_map:3:child:once\0MARK=";
    let variables = format!("{plan}{}", folder.path().join("mark").display());
    assert!(
        !processes().any(|(_, environment)| environment.contains(&variables)),
        "the child still exists"
    );
}

/// Returns all processes whose environment can be read.
fn processes() -> impl Iterator<Item = (u32, String)> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        Some((pid, String::from_utf8_lossy(&environment).into_owned()))
    })
}

#[test]
fn crash_at_start_exits_with_3() {
    for (effect, expected) in [
        ("segv", "while the runtime started, it crashed: SIGSEGV, in hsa_init"),
        ("hang", "while the runtime started, it hung: did not end within 2 s, in hsa_init"),
    ] {
        let plan = format!("hsa_init:1:{effect}:always");
        let (output, _folder) = conform(&plan, &["--time-limit", "2s"]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn failed_start_is_reported_in_each_format() {
    let reason = "while the runtime started, it crashed: SIGSEGV, in hsa_init";
    let report_of_failed_start = |plan: &str, format: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report");
        let mut command = command(&["conform", "--format", format, "--runtime"]);
        command.arg(broken_runtime::simulation()).args(FILTER).arg("-o").arg(&file);
        command.env("BREAK", plan).env("MARK", folder.path().join("mark"));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{format}: {}", stderr(&output));
        std::fs::read_to_string(&file).unwrap()
    };
    let plan = "hsa_init:1:segv:always";
    let ktap = report_of_failed_start(plan, "ktap");
    let lines: Vec<_> = ktap.lines().collect();
    assert_eq!(lines[..3], ["KTAP version 1", "1..3", "# runtime: not loaded"], "{ktap}");
    assert!(lines[3].starts_with("# command: hsa-vmm conform"), "{ktap}");
    assert_eq!(*lines.last().unwrap(), format!("Bail out! {reason}"));

    let junit = report_of_failed_start(plan, "junit");
    let error = format!("<error message=\"{reason}\" type=\"error\">");
    assert!(junit.contains(&error), "{junit}");
    assert!(junit.contains("tests=\"1\"") && junit.contains("errors=\"1\""), "{junit}");
    assert!(junit.trim_end().ends_with("</testsuites>"), "{junit}");

    let html = report_of_failed_start(plan, "html");
    let (_, body) = html.split_once("<body>").unwrap();
    let (header, _) = body.split_once("</header>").unwrap();
    assert!(header.contains("The runtime did not start") && header.contains(reason), "{header}");
    assert!(html.trim_end().ends_with("</html>"), "{html}");
}

#[test]
fn runtime_that_does_not_restart_is_reported_once() {
    let plan = "hsa_amd_vmem_map:3:segv:once;hsa_init:1:abort:after";
    let (output, _folder) = conform(plan, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report = json(&output);
    let failed = cases_with_status(&report, "fail");
    let names: Vec<_> = failed.iter().map(|case| case["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"runtime.library.starts") && names.len() == 2, "{names:?}");
    let starts = failed.iter().find(|case| case["name"] == "runtime.library.starts").unwrap();
    let detail = starts["detail"].as_str().unwrap();
    assert!(detail.contains("3 starts in a row failed"), "{detail}");
    assert!(detail.ends_with("it crashed: SIGABRT, in hsa_init"), "{detail}");
    let skipped = cases_with_status(&report, "skip");
    assert!(!skipped.is_empty());
    for case in skipped {
        assert_eq!(case["detail"], "not tried: the runtime no longer starts");
    }
}

#[test]
fn crash_at_stop_is_a_failed_case() {
    for (effect, expected) in
        [("segv", "crashed: SIGSEGV"), ("hang", "hung: did not end within 3 s")]
    {
        let plan = format!("hsa_shut_down:1:{effect}:always");
        let (output, _folder) = conform(&plan, &["--time-limit", "3s"]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let report = json(&output);
        assert_eq!(cases_with_status(&report, "pass").len(), case_count(), "{report}");
        let failed = cases_with_status(&report, "fail");
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0]["name"], "runtime.library.stops");
        assert_eq!(failed[0]["detail"], format!("{expected}, in hsa_shut_down"));
    }
}

#[test]
fn hang_suggests_a_longer_time_limit() {
    let sim = ["conform", "--runtime", "sim", "--sim", "faults=hsa_amd_vmem_map=hang"];
    let options = ["--time-limit", "1s", "--filter", "map.memory.whole_handle"];
    let text = stdout(&run(&[&sim[..], &options].concat()));
    assert!(
        text.contains("if the machine is slow, extend the limit: --time-limit 10min"),
        "{text}"
    );
}

/// The case `runtime.process.stops_after_copies` makes its calls in a second process.
#[test]
fn call_of_the_second_process_is_named() {
    for (fault, limit, expected) in [
        ("hsa_amd_memory_lock=hang", "3s", "in hsa_amd_memory_lock of the second process"),
        ("hsa_amd_memory_pool_allocate=lost", "30s", "the second process: "),
    ] {
        let filter = ["--filter", "runtime.process.stops_after_copies", "--format", "json"];
        let sim = ["conform", "--runtime", "sim", "--sim", &format!("faults={fault}")];
        let report = json(&run(&[&sim[..], &filter, &["--time-limit", limit]].concat()));
        let failed = cases_with_status(&report, "fail");
        let detail = failed[0]["detail"].as_str().unwrap();
        assert!(detail.contains(expected), "{fault}: {detail}");
        // The reason names the failed call. The last call belongs to the clean-up after the failure.
        assert!(!detail.contains(", after hsa_shut_down"), "{fault}: {detail}");
    }
}

#[test]
fn killing_conform_kills_its_worker() {
    let (mut command, folder) =
        conform_command("hsa_amd_vmem_map:3:hang:once", &["--time-limit", "10m"]);
    let mark = folder.path().join("mark");
    let mut parent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("the worker hangs", || mark.exists());
    let workers = || {
        let children = format!("/proc/{0}/task/{0}/children", parent.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let workers = workers();
    assert_eq!(workers.len(), 1);
    // `kill` sends SIGKILL, so conform cannot stop its worker.
    parent.kill().unwrap();
    parent.wait().unwrap();
    let is_dead = |pid: &String| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        status.is_empty() || status.contains(") Z ")
    };
    wait_for("the worker has exited", || workers.iter().all(is_dead));
}

#[track_caller]
fn wait_for(what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn worker_options_need_a_parent() {
    let conform = &["conform", "--runtime", "sim", "--worker"][..];
    for subcommand in [conform, &["worker"], &["bringup", "--run-level", "mapped"]] {
        for parent in ["", "nonsense", "1:2", "0:0"] {
            let output = command(subcommand).env("HSA_VMM_WORKS_FOR", parent).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{subcommand:?}: {}", stderr(&output));
            assert!(
                stderr(&output).contains("only hsa-vmm can start worker processes"),
                "{}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn in_process_does_not_contain_crashes() {
    let (output, _folder) = conform("hsa_amd_vmem_map:3:segv:once", &["--in-process"]);
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(11), "{output:?}");
    let (output, _folder) = conform("", &["--in-process"]);
    assert_eq!(cases_with_status(&json(&output), "pass").len(), case_count());
}

#[test]
fn repeat_reports_sporadic_failures() {
    let (output, _folder) = conform("hsa_amd_vmem_map:3:segv:once", &["--repeat", "3"]);
    let detail = "failed 1 of 3: crashed: SIGSEGV, in hsa_amd_vmem_map";
    let case = assert_one_failed(&output, detail);
    assert_eq!(case["repetitions"], serde_json::json!({ "ran": 3, "failed": 1 }));
    assert_eq!(json(&output)["run"]["repeat"], 3);
}

#[test]
fn shuffle_prints_seed_that_repeats_the_order() {
    let first_failure = |seed: &str| {
        let faults = "faults=hsa_amd_vmem_map=0x1000";
        let arguments = ["--sim", faults, "--shuffle", seed, "--fail-fast", "--format", "json"];
        let output = run(&[&["conform", "--runtime", "sim"][..], &arguments].concat());
        assert!(
            stderr(&output).contains(&format!("order: --shuffle {seed}")),
            "{}",
            stderr(&output)
        );
        let report = json(&output);
        assert_eq!(report["run"]["seed"].to_string(), seed);
        let failed = cases_with_status(&report, "fail");
        assert_eq!(failed.len(), 1, "conform stops after the first failure");
        failed[0]["name"].as_str().unwrap().to_owned()
    };
    let names: Vec<_> = (1..6).map(|seed| first_failure(&seed.to_string())).collect();
    assert_eq!(names[0], first_failure("1"));
    assert!(names.iter().any(|name| *name != names[0]), "{names:?}");
    // Without a seed, conform chooses one and prints it.
    let output = run(&["conform", "--runtime", "sim", "--filter", "map.size", "--shuffle"]);
    let text = stderr(&output);
    let seed = text.lines().find_map(|line| line.strip_prefix("order: --shuffle ")).unwrap();
    seed.parse::<u64>().unwrap();
}

#[test]
fn known_failures_match_case_agent_and_version() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("known.toml");
    let file = file.to_str().unwrap();
    let write_entry = |case: &str, conditions: &str| {
        let text = format!(
            "[[known]]\ncase = \"{case}\"\nreason = \"it forgets\"\nsource = \"ticket 1\"\n{conditions}\n"
        );
        std::fs::write(file, text).unwrap();
    };
    let options =
        ["--sim", "faults=hsa_amd_vmem_unmap=0x1000", "--filter", "unmap.run.one_mapping"];
    let conform = |with_faults: bool| {
        let arguments = if with_faults { &options[..] } else { &options[2..] };
        let start = ["conform", "--runtime", "sim", "--known", file, "--format", "json"];
        run(&[&start[..], arguments].concat())
    };

    write_entry("unmap.run.one_mapping", "agent = \"gfx942\"\nlast = \"1.15\"");
    let output = conform(true);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    let detail = cases_with_status(&report, "known")[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("it forgets (ticket 1): "), "{detail}");
    assert!(stderr(&output).contains("1 known defect of this runtime"), "{}", stderr(&output));

    let output = conform(false);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(cases_with_status(&json(&output), "pass")[0]["known_passed"], true);
    assert!(
        stderr(&output).contains("known, but passed: it forgets (ticket 1)"),
        "{}",
        stderr(&output)
    );

    for condition in ["agent = \"gfx90a\"", "last = \"1.14\"", "runtime = \"libhsa\""] {
        write_entry("unmap.run.one_mapping", condition);
        assert_eq!(conform(true).status.code(), Some(1), "{condition}");
    }

    write_entry("unmap.run.no_such_case", "");
    let output = conform(true);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("unmap.run.no_such_case"), "{}", stderr(&output));
}

#[test]
fn known_failures_include_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("known.toml");
    let text = "[[known]]\ncase = \"map.memory.whole_handle\"\nruntime = \"libhsa-broken*\"\n\
                reason = \"it crashes\"\nsource = \"wrap.c\"\n";
    std::fs::write(&file, text).unwrap();
    let plan = "hsa_amd_vmem_map:1:segv:once";
    let (output, _folder) = conform(plan, &["--known", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = json(&output);
    let known = cases_with_status(&report, "known");
    assert_eq!(known[0]["detail"], "it crashes (wrap.c): crashed: SIGSEGV, in hsa_amd_vmem_map");
}

#[test]
fn invalid_options_exit_with_2() {
    for arguments in [
        &["--time-limit", "0s"][..],
        &["--time-limit", "soon"],
        &["--time-limit", "-1"],
        &["--time-limit", "inf"],
        &["--repeat", "0"],
        &["--shuffle", "x"],
        &["--known", "/nowhere/known.toml"],
        &["--in-process", "--time-limit", "3s"],
        &["--list", "--format", "junit"],
    ] {
        let output = run(&[&["conform", "--runtime", "sim"][..], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn crashes_of_amds_runtime_are_contained() {
    let name = "crashes_of_amds_runtime_are_contained";
    for fetched in test::fetch_selected_releases(name) {
        let release = fetched.release();
        let folder = tempfile::tempdir().unwrap();
        let broken = folder.path().join("libhsa-broken.so");
        let real = fetched.runtime();
        let broken = broken_runtime::wrap(&real, broken);
        for (effect, expected) in [
            ("segv", "crashed: SIGSEGV, in hsa_amd_vmem_unmap"),
            ("hang", "hung: did not end within 5 s, in hsa_amd_vmem_unmap"),
        ] {
            let start = ["emulate", "--rocr", release.version(), "--gpus", "2", "--", HSA_VMM];
            let output = command(&start)
                .args(["conform", "--format", "json", "--time-limit", "5s", "--runtime"])
                .arg(&broken)
                .args(FILTER)
                .env("BREAK", format!("hsa_amd_vmem_unmap:2:{effect}:once"))
                .env("MARK", folder.path().join(effect))
                .output()
                .unwrap();
            assert_one_failed(&output, expected);
            let report = json(&output);
            let path = report["runtime"]["path"].as_str().unwrap();
            assert_eq!(Path::new(path).file_name(), broken.file_name(), "{release}");
        }
    }
}
