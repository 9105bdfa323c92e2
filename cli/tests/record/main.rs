//! `hsa-vmm record`, `lint` and `replay` of recordings, on AMD's runtime with the emulated driver.

#[path = "../../../hsa/sys/tests/compiler/mod.rs"]
mod compiler;
#[path = "../hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::{FetchedRelease, Release, test};
use run_command::{HSA_VMM, command, json, run, stderr, stdout};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MISTAKES: [&str; 6] =
    ["use-after-unmap", "never-granted", "owner-not-last", "range-cut", "leak", "vmem-in-ipc"];

/// A folder with the program `mistakes`, linked with the runtime of a release.
struct Fixture {
    fetched: &'static FetchedRelease,
    folder: TempDir,
}

/// Calls `act` with a fixture for each selected release.
fn run_on_releases(name: &str, act: impl Fn(&Fixture)) {
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Fixture { fetched, folder };
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hsa/sys/include");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/record/mistakes.c");
        fixture.compile(&source, "mistakes", &["-I", include.to_str().unwrap(), "-g", "-rdynamic"]);
        act(&fixture);
    }
}

impl Fixture {
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Compiles a program, and links it with the runtime.
    fn compile(&self, source: &Path, name: &str, options: &[&str]) {
        let output = compiler::command()
            .args(options)
            .arg(source)
            // The runtime needs a newer C library than the linker finds.
            .args(["-Wl,--allow-shlib-undefined", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([self.folder.path().join(name), self.fetched.runtime()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }

    /// Returns the command line that runs a command on two emulated GPUs.
    fn emulated_command<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let release = self.release();
        [&[HSA_VMM, "emulate", "--gpus", "2", "--rocr", release, "--"], words].concat()
    }

    fn release(&self) -> &str {
        self.fetched.root().file_name().unwrap().to_str().unwrap()
    }

    /// Records a program. Returns the file and the command's output.
    fn record(&self, options: &[&str], program: &[&str]) -> (String, Output) {
        let file = self.path("calls.jsonl");
        let start = [&["record", "-o", &file], options, &["--"]].concat();
        let output = run(&[&start[..], &self.emulated_command(program)].concat());
        (file, output)
    }

    /// Records the program `mistakes`, which must succeed. Returns the file.
    fn record_mistake(&self, options: &[&str], mistake: &str) -> String {
        let (file, output) = self.record(options, &[&self.path("mistakes"), mistake]);
        assert_eq!(output.status.code(), Some(0), "{}: {mistake}: {output:?}", self.release());
        file
    }
}

/// Returns the findings of `lint`, and checks its exit status.
fn findings(file: &str) -> Vec<Value> {
    let output = run(&["lint", "--format", "json", file]);
    let findings = json(&output).as_array().unwrap().clone();
    assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())), "{output:?}");
    findings
}

fn names(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["mistake"].as_str().unwrap()).collect()
}

#[test]
fn lint_finds_each_mistake_and_no_other() {
    run_on_releases("lint_finds_each_mistake_and_no_other", |fixture| {
        let file = fixture.record_mistake(&[], "none");
        assert_eq!(findings(&file), [] as [Value; 0], "{}", fs::read_to_string(&file).unwrap());
        for mistake in MISTAKES {
            // With `--stacks`, `record` also records calls that do not return. ROCm 7.2.4 crashes in the call that is
            // the mistake `vmem-in-ipc`.
            let program = fixture.path("mistakes");
            let (file, output) = fixture.record(&["--stacks"], &[&program, mistake]);
            assert!(output.status.success() || mistake == "vmem-in-ipc", "{mistake}: {output:?}");
            let findings = findings(&file);
            let release = fixture.release();
            assert_eq!(names(&findings), [mistake], "{release}: {findings:#?}");
            assert_eq!(findings[0]["count"], 1, "{release}: {findings:#?}");
        }
    });
}

/// `info` opens a `Vmm`, which tests the runtime. With one GPU, the tests grant no agent access to a mapping.
#[test]
fn probes_of_the_library_are_no_mistake() {
    run_on_releases("probes_of_the_library_are_no_mistake", |fixture| {
        for gpus in ["1", "2"] {
            let file = fixture.path("calls.jsonl");
            let emulate = [HSA_VMM, "emulate", "--gpus", gpus, "--rocr", fixture.release(), "--"];
            let record = [&["record", "-o", &file, "--"], &emulate[..], &[HSA_VMM, "info"]];
            let output = run(&record.concat());
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let text = fs::read_to_string(&file).unwrap();
            assert!(text.matches("\"hsa_amd_vmem_map\"").count() >= 2, "the tests: {text}");
            assert_eq!(findings(&file), [] as [Value; 0], "{gpus} GPUs: {text}");
        }
    });
}

#[test]
fn stacks_show_where_a_mistake_was_made() {
    run_on_releases("stacks_show_where_a_mistake_was_made", |fixture| {
        let file = fixture.record_mistake(&["--stacks"], "leak");
        let output = run(&["lint", &file]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = stdout(&output);
        if Command::new("addr2line").arg("--version").output().is_ok() {
            assert!(text.contains("mistakes.c:"), "{text}");
        }
        let frames: Vec<_> =
            text.lines().filter(|line| line.contains(&fixture.path("mistakes"))).collect();
        let functions: Vec<_> =
            frames.iter().filter_map(|line| line.trim().split(' ').nth(1)).collect();
        assert!(functions.starts_with(&["leak"]) && functions.contains(&"main"), "{text}");
        assert!(text.starts_with("leak: line "), "{text}");
        assert!(stderr(&output).starts_with("1 mistake in "), "{output:?}");
    });
}

#[test]
fn repeated_mistakes_are_counted() {
    run_on_releases("repeated_mistakes_are_counted", |fixture| {
        let (file, output) = fixture.record(&[], &[&fixture.path("mistakes"), "leak", "3"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let findings = findings(&file);
        assert_eq!((findings.len(), &findings[0]["count"]), (1, &3.into()), "{findings:#?}");
    });
}

/// Replays a recording. Checks that each call returns the recorded status. Returns the number of calls.
fn assert_agrees(words: &[&str], context: &str) -> u64 {
    let output = run(words);
    let result = json(&output);
    assert_eq!(output.status.code(), Some(0), "{context}: {output:?}");
    assert!(result["all"].as_u64() > Some(10), "{result}");
    assert_eq!(result["agreed"], result["all"], "{context}: {result}");
    result["all"].as_u64().unwrap()
}

#[test]
fn replay_agrees_on_other_runtimes() {
    run_on_releases("replay_agrees_on_other_runtimes", |fixture| {
        let file = fixture.record_mistake(&[], "none");
        let replay = ["replay", "--format", "json", &file];
        let emulated = fixture.emulated_command(&[HSA_VMM]);
        assert_agrees(&[&emulated[1..], &replay].concat(), "same release");
        assert_agrees(&[&replay[..], &["--runtime", "sim", "--gpus", "2"]].concat(), "simulation");
        let output = run(&[&replay[..], &["--runtime", "sim", "--gpus", "1"]].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains("; --gpus 2 simulates them"), "{output:?}");
        let release = fixture.release();
        let emulated = ["emulate", "--gpus", "1", "--rocr", release, "--", HSA_VMM];
        let output = run(&[&emulated[..], &replay].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains("; hsa-vmm emulate --gpus 2 emulates"), "{output:?}");
    });
}

#[test]
fn replay_finds_divergent_status() {
    run_on_releases("replay_finds_divergent_status", |fixture| {
        let file = fixture.record_mistake(&[], "none");
        let text = fs::read_to_string(&file).unwrap();
        let line = text.lines().position(|line| line.contains("\"hsa_amd_vmem_unmap\"")).unwrap();
        let changed = text.lines().enumerate().map(|(number, text)| {
            if number == line {
                text.replace("\"status\":0", "\"status\":4096")
            } else {
                text.to_owned()
            }
        });
        fs::write(&file, changed.collect::<Vec<_>>().join("\n")).unwrap();
        let output = run(&["replay", "--runtime", "sim", "--gpus", "2", &file]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let first = format!(
            "first divergence: line {}: hsa_amd_vmem_unmap: recorded status 0x1000",
            line + 1
        );
        assert!(stdout(&output).contains(&first), "{output:?}");
    });
}

#[test]
fn program_repeats_the_calls() {
    run_on_releases("program_repeats_the_calls", |fixture| {
        let file = fixture.record_mistake(&[], "range-cut");
        let source = fixture.path("again.c");
        let output = run(&["replay", &file, "--program", &source]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        fixture.compile(Path::new(&source), "again", &[]);
        let again = fixture.path("again");
        let output = run(&fixture.emulated_command(&[&again])[1..]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let calls = fs::read_to_string(&file).unwrap().lines().count() - 2;
        assert_eq!(stdout(&output), format!("{calls} of {calls} calls agreed\n"));
        // The program contains the command that builds it.
        let words = [HSA_VMM, "replay", &file, "--program", &fixture.path("a b.c")];
        assert!(run(&fixture.emulated_command(&words)[1..]).status.success());
        let text = fs::read_to_string(fixture.path("a b.c")).unwrap();
        let build = text.lines().find_map(|line| line.strip_prefix(" *   ")).unwrap();
        let mut shell = Command::new("sh");
        let built = shell.args(["-c", build]).current_dir(fixture.folder.path()).output().unwrap();
        assert!(built.status.success(), "{build}: {built:?}");
    });
}

#[test]
fn record_keeps_exit_status() {
    run_on_releases("record_keeps_exit_status", |fixture| {
        let program = fixture.path("mistakes");
        let (file, output) = fixture.record(&[], &[&program, "exit"]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        // The program exits without stopping the runtime. Nevertheless, the recording is complete.
        assert_eq!(findings(&file), [] as [Value; 0]);
        let (file, output) = fixture.record(&[], &[&program, "crash"]);
        assert_eq!(output.status.code(), Some(128 + libc::SIGABRT), "{output:?}");
        let output = run(&["lint", &file]);
        assert!(stderr(&output).contains("ends early"), "{output:?}");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    });
}

#[test]
fn forked_child_is_not_recorded() {
    run_on_releases("forked_child_is_not_recorded", |fixture| {
        let calls = |mistake| {
            let file = fixture.record_mistake(&[], mistake);
            fs::read_to_string(file).unwrap().lines().count()
        };
        assert_eq!(calls("fork"), calls("none"));
        assert_eq!(fs::read_dir(fixture.folder.path()).unwrap().count(), 2);
    });
}

#[test]
fn threads_write_whole_lines() {
    run_on_releases("threads_write_whole_lines", |fixture| {
        let file = fixture.record_mistake(&[], "threads");
        let text = fs::read_to_string(file).unwrap();
        let calls: Vec<Value> =
            text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
        let threads: BTreeSet<_> = calls.iter().filter_map(|call| call["tid"].as_u64()).collect();
        // Eight threads make 1,000 calls each. The last line marks the end of the recording.
        assert_eq!((calls.len(), threads.len()), (8001, 8));
    });
}

#[test]
fn other_processes_write_other_files() {
    run_on_releases("other_processes_write_other_files", |fixture| {
        let program = fixture.path("mistakes");
        let twice = format!("'{program}' none; '{program}' leak");
        let (file, output) = fixture.record(&[], &["sh", "-c", &twice]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(stderr(&output).matches("recorded ").count(), 2, "{output:?}");
        assert_eq!(findings(&file), [] as [Value; 0]);
        let entries = fs::read_dir(fixture.folder.path()).unwrap();
        let second: Vec<_> = entries
            .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
            .filter(|path| path.starts_with(&format!("{file}.")))
            .collect();
        assert_eq!(names(&findings(&second[0])), ["leak"], "{second:?}");
        // The next recording replaces the files of both processes.
        fixture.record_mistake(&[], "none");
        assert!(!Path::new(&second[0]).exists());
    });
}

#[test]
fn failures_of_record_have_own_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let other = file("other");
    fs::write(&other, "text").unwrap();
    let removed = file("removed");
    fs::create_dir(&removed).unwrap();
    let [lost, empty] = [format!("{removed}/a"), file("empty")];
    for (arguments, status, word) in [
        (&["-o", &other, "--", "true"][..], 125, "not a recording"),
        (&["-o", "/nowhere/file", "--", "true"], 125, "cannot write /nowhere/file"),
        (&["-o", &file("a"), "--", "/nowhere/program"], 127, "cannot start"),
        (&["-o", &file("a"), "--", "/dev/null"], 126, "cannot start"),
        (&["-o", &file("a")], 2, "PROGRAM"),
        (&["-o", &file("a"), "--", "sh", "-c", "exit 5"], 5, "nothing was recorded"),
        (&["-o", &lost, "--", "rm", "-r", &removed], 125, "cannot read"),
        (&["-o", &empty, "--", "touch", &empty], 125, "error: cannot write"),
    ] {
        let output = run(&[&["record"], arguments].concat());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(word), "{arguments:?}: {output:?}");
    }
    assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    let output = run(&["lint", &other]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = run(&["replay", &other, "--program", &file("again.c")]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn record_replaces_only_its_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "a.7", "a.7.2", "a2", "a.b"].map(|name| folder.path().join(name));
    let header = r#"{"format":"hsa-vmm-hsa-trace","version":1,"pid":7,"agents":[]}"#;
    for file in &files {
        fs::write(file, format!("{header}\n")).unwrap();
    }
    let first = files[0].to_str().unwrap();
    let record_program = |words: &[&str]| run(&[&["record", "-o", first, "--"], words].concat());
    let exist = || files.each_ref().map(|file| file.exists());
    // Without a new recording, the earlier ones stay.
    assert_eq!(record_program(&["/nowhere/program"]).status.code(), Some(127));
    let output = record_program(&["true"]);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("nothing was recorded"), "{output:?}");
    assert_eq!(exist(), [true; 5]);
    // The program writes a recording, as the recorder does.
    let script = format!("echo '{header}' > {first}");
    let output = record_program(&["sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(exist(), [true, false, false, true, true]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn recording_that_is_still_written_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a").display().to_string();
    // The shell writes a recording, as the recorder does, and starts another `record` with the same file.
    let script = r#"exec 3>"$1"; echo '{"format":"hsa-vmm-hsa-trace","version":1,"pid":'$$',"agents":[]}' >&3
        "$0" record -o "$1" -- true; echo $?"#;
    let output = run(&["record", "-o", &file, "--", "sh", "-c", script, HSA_VMM, &file]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "125\n"), "{output:?}");
    assert!(stderr(&output).contains("still writes"), "{output:?}");
    assert!(stderr(&output).contains("recorded 0 calls"), "{output:?}");
}

/// `record` blocks when it prints the number of calls, because the program has filled the pipe.
#[test]
fn signal_after_the_program_ends_record() {
    let folder = tempfile::tempdir().unwrap();
    let [file, pid] = ["a", "pid"].map(|name| folder.path().join(name).display().to_string());
    let script = "dd if=/dev/zero of=/proc/self/fd/3 bs=4096 count=999 oflag=nonblock 3>&2 2>/dev/null; \
        echo $$ >$0.part; mv $0.part $0";
    let words = ["record", "-o", &file, "--", "sh", "-c", script, &pid];
    let mut record = command(&words).stderr(Stdio::piped()).spawn().unwrap();
    let is_reaped = |pid: &str| !Path::new("/proc").join(pid.trim()).exists();
    wait_until(&mut record, |_| fs::read_to_string(&pid).ok().filter(|it| is_reaped(it)));
    kill_process(Pid::from_child(&record), Signal::TERM).unwrap();
    let status = wait_until(&mut record, |record| record.try_wait().unwrap());
    assert!(status.signal() == Some(15) || status.code() == Some(128 + 15), "{status:?}");
}

/// Waits until a function returns a value. After a minute, kills the process and panics.
fn wait_until<T>(record: &mut Child, mut find: impl FnMut(&mut Child) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = find(record) {
            return found;
        }
        if Instant::now() > deadline {
            record.kill().unwrap();
            panic!("`hsa-vmm record` does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a");
    let script = "trap '' HUP; exec \"$@\"";
    let program = ["sh", "-c", "kill -HUP $$ $PPID; exit 5"];
    let output = Command::new("sh")
        .args(["-c", script, "sh", HSA_VMM, "record", "-o", file.to_str().unwrap(), "--"])
        .args(program)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

/// Compiles the HIP program `grow.c`, which loads HIP with `dlopen`.
fn compile_hip_program(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("grow");
    let output = compiler::command()
        .arg("-I")
        .arg(root.join("../capi/include"))
        .arg(root.join("tests/record/grow.c"))
        .args(["-D__HIP_PLATFORM_AMD__", "-Wall", "-Wextra", "-Werror", "-ldl", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    program
}

#[test]
fn hip_program_is_recorded_and_replayed() {
    let name = "hip_program_is_recorded_and_replayed";
    let fetched_releases = test::fetch_releases(name).unwrap_or_default();
    let found = fetched_releases.iter().find(|fetched| fetched.release() == Release::R6_4_3);
    let Some(fetched) = found else { return };
    let Some(hip) = fetched.hip() else {
        assert!(!test::is_required("hip"), "HIP is not fetched");
        test::report(&format!("SKIPPED {name}: HIP is not fetched (`rocr fetch 6.4.3 --hip`)"));
        return;
    };
    let fixture = Fixture { fetched, folder: tempfile::tempdir().unwrap() };
    let program = compile_hip_program(fixture.folder.path());
    let words = [program.to_str().unwrap(), hip.to_str().unwrap()];
    let (file, output) = fixture.record(&[], &words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.matches("\"hsa_amd_vmem_map\"").count() >= 5, "{text}");
    let hip_calls = stdout(&output).lines().count();
    // ROCm 6.1.2 rejects calls that HIP 6.4.3 makes.
    for fetched in fetched_releases.iter().filter(|it| it.release() != Release::R6_1_2) {
        let fixture = Fixture { fetched, folder: tempfile::tempdir().unwrap() };
        let emulated = fixture.emulated_command(&[HSA_VMM, "replay", "--format", "json", &file]);
        let calls = assert_agrees(&emulated[1..], &text);
        let release = fixture.release();
        test::report(&format!(
            "{hip_calls} calls of HIP 6.4.3 made {calls} calls of HSA; all {calls} agree on {release}"
        ));
    }
}

/// Reports how much longer a call takes with recording than without recording. Fails above 100 microseconds.
#[test]
fn recording_costs_less_than_100_microseconds() {
    run_on_releases("recording_costs_less_than_100_microseconds", |fixture| {
        let program = fixture.path("mistakes");
        let words = [program.as_str(), "measure", "1000"];
        let cost = |output: Output| -> f64 {
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            stdout(&output).split(' ').next().unwrap().parse().unwrap()
        };
        let without_recording = cost(run(&fixture.emulated_command(&words)[1..]));
        let with_recording = cost(fixture.record(&[], &words).1);
        let with_stacks = cost(fixture.record(&["--stacks"], &words).1);
        test::report(&format!(
            "{}: recording costs {:.0} ns a call, with call stacks {:.0} ns",
            fixture.release(),
            with_recording - without_recording,
            with_stacks - without_recording
        ));
        // The limit is far above the usual cost, so that the test passes on a busy computer.
        assert!(
            with_recording - without_recording < 100_000.0,
            "{without_recording} {with_recording}"
        );
    });
}
