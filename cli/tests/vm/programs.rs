//! Programs in the virtual machine: their output, exit status, time limits and files, and kept machines.

use crate::fetch::write_program;
use crate::run_command::{HSA_VMM, command, stderr, stdout};
use crate::{RELEASE, lock_machine, run_in_machine, runs_slow_parts};
use hsa_rocr::test;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A program with the name of QEMU ends at once. Files are checked before QEMU starts.
#[test]
fn error_says_how_qemu_ended() {
    let Some(_lock) = lock_machine("error_says_how_qemu_ended") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", folder.path().display());
    let file = folder.path().join("missing/log").display().to_string();
    let mut unwritable = command(&["vm", "--log", &file, "--", "true"]);
    let output = unwritable.env("PATH", &path).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("error: cannot write {file}: ")), "{output:?}");
    for (command_line, end) in [("kill -KILL $$", "signal: 9"), ("exit 7", "exit status: 7")] {
        let text = format!("#!/bin/sh\n{command_line}\n");
        write_program(&folder.path().join("qemu-system-x86_64"), &text);
        let mut command = command(&["vm", "--rocr", RELEASE.version(), "--", "true"]);
        let output = command.env("PATH", &path).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
        let message = stderr(&output);
        assert!(message.contains("ended before the program ("), "{message}");
        assert!(message.contains(&format!("; QEMU: {end}")), "{message}");
    }
}

#[test]
fn program_runs_with_its_output_and_status() {
    let name = "program_runs_with_its_output_and_status";
    let Some(_lock) = lock_machine(name) else { return };
    let results = tempfile::tempdir().unwrap();
    let folder = results.path().to_str().unwrap();
    let [dmesg, coverage] = ["dmesg", "coverage"].map(|name| results.path().join(name));
    let files = ["--dmesg", dmesg.to_str().unwrap(), "--coverage", coverage.to_str().unwrap()];
    let options = [&["--gpus", "3", "--vram", "256M", "--results", folder][..], &files].concat();
    let script = "exec 3</dev/dri/renderD128; ls /dev/kfd /dev/dri/renderD*; pwd; echo \"$1\" >&2; echo result >$2/file; \
        touch $0.new && exit 7";
    // `$0` is this test program: the file that the script creates beside it must exist only in the virtual
    // machine.
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let output = run_in_machine(&options, &["sh", "-c", script, program, "two  words", folder]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let current = std::env::current_dir().unwrap().display().to_string();
    let nodes = ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/renderD130"];
    let expected: Vec<_> = nodes.into_iter().chain([current.as_str()]).collect();
    let text = stdout(&output);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable_by_key(|line| expected.iter().position(|it| it == line));
    assert_eq!(lines, expected);
    assert_eq!(stderr(&output), "two  words\n");
    assert_eq!(std::fs::read_to_string(results.path().join("file")).unwrap(), "result\n");
    assert!(!std::path::Path::new(&format!("{program}.new")).exists());
    assert!(std::fs::read_to_string(dmesg).unwrap().contains("software_gmc"));
    let coverage = std::fs::read_to_string(coverage).unwrap();
    let calls =
        coverage.lines().find_map(|line| line.strip_prefix("amdgpu_driver_open_kms [amdgpu] "));
    assert_eq!(calls.map(str::trim), Some("1"), "{coverage}");
}

/// While the runtime starts, AMD's driver returns errors. The log contains these errors, but `bringup` must not report
/// them as failures.
#[test]
fn bringup_passes_while_calls_are_logged() {
    let name = "bringup_passes_while_calls_are_logged";
    let Some(_lock) = lock_machine(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let [log, lost, calls] =
        ["log", "lost", "calls"].map(|name| folder.path().join(name).display().to_string());
    let options = ["--rocr", RELEASE.version(), "--log", &log];
    let script = "$0 bringup --until gpu --output $1 && $0 record -o $2 -- true";
    let program = ["sh", "-c", script, HSA_VMM, &lost, &calls];
    let output = run_in_machine(&options, &program);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    let message = stderr(&output);
    for file in [&lost, &calls] {
        assert!(message.contains(&format!("{file} is lost when")), "{message}");
    }
    assert!(message.contains(&format!("--results {}", folder.path().display())), "{message}");
    assert!(!Path::new(&lost).exists());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains(" kfd MAP_MEMORY_TO_GPU ") && log.contains(" = E"), "{log}");
}

#[test]
fn programs_of_a_script_use_the_release() {
    let name = "programs_of_a_script_use_the_release";
    let Some(lock) = lock_machine(name) else { return };
    let runs_slow = runs_slow_parts(&format!("{name}, other releases"));
    let machines = KeptMachines(tempfile::tempdir().unwrap());
    let releases = lock.fetched_releases.iter().map(hsa_rocr::FetchedRelease::release);
    for release in releases.filter(|release| runs_slow || *release == RELEASE) {
        let options = ["--keep=60s", "--rocr", release.version()];
        let script = format!("'{HSA_VMM}' bringup --until runtime");
        let (output, _) = run_kept(machines.0.path(), &options, &script);
        assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
        let path = format!("rocr/{release}/");
        assert!(stdout(&output).contains(&path), "{release}: {}", stdout(&output));
    }
}

#[test]
fn program_that_cannot_start_exits_as_in_a_shell() {
    let name = "program_that_cannot_start_exits_as_in_a_shell";
    let Some(_lock) = lock_machine(name) else { return };
    let machines = KeptMachines(tempfile::tempdir().unwrap());
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = file.path().to_str().unwrap();
    for (program, status) in [("no-such-program", 127), (file, 126)] {
        let output = command(&["vm", "--gpus", "1", "--keep=60s", "--", program])
            .env("XDG_RUNTIME_DIR", machines.0.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(program), "{}", stderr(&output));
    }
}

#[test]
fn expired_time_limit_exits_with_125() {
    let name = "expired_time_limit_exits_with_125";
    let Some(_lock) = lock_machine(name) else { return };
    let output = run_in_machine(&["--gpus", "1", "--time-limit", "2s"], &["sleep", "600"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    // The limit expires before the machine has booted.
    let text = stderr(&output);
    assert!(
        text.contains("had not started the program after 2s") && !text.contains("CR0="),
        "{text}"
    );
}

#[test]
fn interrupted_program_exits_with_130() {
    let name = "interrupted_program_exits_with_130";
    let Some(_lock) = lock_machine(name) else { return };
    // `kept_machine_runs_next_programs` interrupts a program in a kept machine.
    if !runs_slow_parts(name) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [log, dmesg] = ["log", "dmesg"].map(|name| folder.path().join(name).display().to_string());
    for file in [&log, &dmesg] {
        std::fs::write(file, "of an earlier run").unwrap();
    }
    let child =
        start_sleeping(&["--gpus", "1", "--log", &log, "--dmesg", &dmesg], &std::env::temp_dir());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    // The kernel's log is written after the program has ended.
    assert_eq!(
        [log, dmesg.clone()].map(|file| std::fs::read_to_string(file).unwrap()),
        ["call\n", ""]
    );
    let message = format!("cannot write {dmesg}: the virtual machine has not written its dmesg");
    assert!(stderr(&output).contains(&message), "{}", stderr(&output));
}

#[test]
fn closed_output_ends_a_program_that_writes() {
    let name = "closed_output_ends_a_program_that_writes";
    let Some(_lock) = lock_machine(name) else { return };
    let mut command = command(&["vm", "--gpus", "1", "--time-limit", "5min", "--", "yes"]);
    let mut child =
        command.env("HOME", std::env::temp_dir()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // 128 + SIGPIPE
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("y\n", Some(141)));
}

#[test]
fn output_that_cannot_be_written_exits_with_125() {
    let name = "output_that_cannot_be_written_exits_with_125";
    let Some(_lock) = lock_machine(name) else { return };
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = command(&["vm", "--gpus", "1", "--time-limit", "5min", "--", "echo", "text"]);
    let output = command.env("HOME", std::env::temp_dir()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("cannot write to standard output"), "{output:?}");
}

#[test]
fn unread_output_does_not_delay_the_time_limit() {
    let name = "unread_output_does_not_delay_the_time_limit";
    let Some(_lock) = lock_machine(name) else { return };
    let mut command = command(&["vm", "--gpus", "1", "--time-limit", "40s", "--", "yes"]);
    let mut child =
        command.env("HOME", std::env::temp_dir()).stdout(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(100) {
            child.kill().unwrap();
            panic!("`hsa-vmm vm` still runs after {:?}", begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(status.code(), Some(125));
}

/// Starts a program that writes a line to the driver's log and then sleeps. Waits until it sleeps. `folder` contains
/// the kept machines.
fn start_sleeping(options: &[&str], folder: &Path) -> Child {
    let script = "echo call >/run/hsa-vmm/log; echo started; sleep 600";
    let mut child = command(&[&["vm"], options, &["--", "sh", "-c", script]].concat())
        .env("HOME", std::env::temp_dir())
        .env("XDG_RUNTIME_DIR", folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child
}

#[test]
fn machine_failures_exit_with_125() {
    let empty = tempfile::tempdir().unwrap();
    let output = command(&["vm", "--", "true"]).env("HSA_VMM_VM", empty.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("hsa-vmm vm fetch"), "{}", stderr(&output));
    let output = command(&["vm", "--vram", "3G", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// Runs a shell script in a kept machine. `folder` contains the kept machines.
pub fn run_kept(folder: &Path, options: &[&str], script: &str) -> (Output, Duration) {
    let options = [&["vm", "--gpus", "1"], options, &["--", "sh", "-c", script]].concat();
    let started = Instant::now();
    let output = command(&options).env("XDG_RUNTIME_DIR", folder).output().unwrap();
    (output, started.elapsed())
}

/// A folder of kept machines. On drop, ends the kept machine that has one GPU, so that it also ends when a test fails.
pub struct KeptMachines(pub TempDir);

impl Drop for KeptMachines {
    fn drop(&mut self) {
        run_kept(self.0.path(), &["--keep=1s"], "true");
    }
}

#[test]
fn kept_machine_runs_next_programs() {
    let name = "kept_machine_runs_next_programs";
    let Some(_lock) = lock_machine(name) else { return };
    let machines = KeptMachines(tempfile::tempdir().unwrap());
    let folder = machines.0.path();
    // Each program leaves a process and a file behind. The next program must see neither.
    let script = "cat /proc/sys/kernel/random/boot_id; pgrep -x sleep; cat /left-behind; \
        echo text >/left-behind; setsid sleep 600 >&- 2>&- & exit $1";
    let run = |status: &str| {
        let script = format!("set -- {status}; {script}");
        let (output, time) = run_kept(folder, &["--keep=60s"], &script);
        assert_eq!(output.status.code(), status.parse().ok(), "{}", stderr(&output));
        assert!(stderr(&output).contains("left-behind"), "{}", stderr(&output));
        (stdout(&output), time)
    };
    let ((first, boot), (second, reuse)) = (run("3"), run("4"));
    assert_eq!(first, second, "the same kernel, and no other line");
    assert_eq!(first.lines().count(), 1);
    test::report(&format!("{name}: {boot:.1?} with booting, {reuse:.1?} without"));

    // Ctrl-C ends the program and keeps the machine.
    let mut child = start_sleeping(&["--gpus", "1", "--keep=60s"], folder);
    // A second program for the same machine waits until the first ends, or until its time limit.
    let (output, _) = run_kept(folder, &["--keep=60s", "--time-limit", "1s"], "true");
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("another program used"), "{}", stderr(&output));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(run("5").0, first);

    // A machine whose kernel has warned is not used again. In `tainted`, 512 means that the kernel has warned.
    let taint = "cat /proc/sys/kernel/random/boot_id; echo 512 >/proc/sys/kernel/tainted";
    let (tainted, _) = run_kept(folder, &["--keep=60s"], taint);
    assert_eq!(stdout(&tainted), first);
    let (after, _) = run_kept(folder, &["--keep=1s"], "cat /proc/sys/kernel/random/boot_id");
    assert!(after.status.success(), "{}", stderr(&after));
    assert_ne!(stdout(&after), first);

    // The machine ends when it has been idle for a second.
    let socket = socket_of(folder);
    let deadline = Instant::now() + Duration::from_secs(30);
    while UnixStream::connect(&socket).is_ok() {
        assert!(Instant::now() < deadline, "QEMU still runs");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns a socket of the only machine in the folder.
fn socket_of(folder: &Path) -> PathBuf {
    let first = |folder: &Path| std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    first(&first(folder)).join("output")
}
