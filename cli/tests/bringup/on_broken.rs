//! Missing and broken libraries, and runtimes that crash or hang.

use super::{assert_contains, failed_level, report};
use crate::run_command::{HSA_VMM, command, run, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Compiles a runtime in C that executes a statement in `hsa_init`.
fn compile_broken(folder: &Path, statement: &str, arguments: &[&str]) -> PathBuf {
    let file = folder.join("libbroken.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bringup/c/broken.c");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&file)
        .arg(source)
        .arg(format!("-DBROKEN={statement}"))
        .args(arguments)
        .status()
        .expect("a C compiler");
    assert!(status.success());
    file
}

fn bringup(runtime: &Path, arguments: &[&str]) -> std::process::Output {
    command(&["bringup", "--runtime"]).arg(runtime).args(arguments).output().unwrap()
}

#[test]
fn missing_library_fails_the_first_level() {
    let output = run(&["bringup", "--runtime", "/nowhere/libhsa.so", "--format", "json"]);
    let report = report(&output, 3);
    assert_eq!(failed_level(&report), Some("library"));
    assert_eq!(report["failure"]["kind"], "library");
    assert_contains(report["failure"]["what"].as_str().unwrap(), &["/nowhere/libhsa.so"]);
    assert_contains(&report["failure"]["try_next"].to_string(), &["rocr fetch", "--runtime sim"]);
    // No program can repeat this failure.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("repeat.c");
    let arguments = ["--program", program.to_str().unwrap()];
    let output = bringup(Path::new("/nowhere/libhsa.so"), &arguments);
    assert_contains(&stderr(&output), &["no file is written, because no library was loaded"]);
    assert!(!program.exists() && !stdout(&output).contains("--program"), "{output:?}");
    // Without `--runtime sim`, bringup never uses the simulation.
    let output = command(&["bringup", "--format", "json"])
        .env("ROCM_PATH", "/nowhere")
        .env("LD_LIBRARY_PATH", "")
        .output()
        .unwrap();
    assert_eq!(super::json(&output)["simulation"], false);
}

#[test]
fn library_without_virtual_memory_fails() {
    let folder = tempfile::tempdir().unwrap();
    let library = compile_broken(folder.path(), ";", &["-DWITHOUT_VMEM"]);
    let report = report(&bringup(&library, &["--format", "json"]), 3);
    assert_eq!(failed_level(&report), Some("library"));
    let failure = &report["failure"];
    assert_contains(&failure.to_string(), &["hsa_amd_vmem_", "ROCm 6.0"]);
    // The library is the cause, not the driver of this machine.
    assert_contains(failure["try_next"][0].as_str().unwrap(), &["install ROCm's runtime"]);
    assert!(failure["machine"].as_array().unwrap().is_empty(), "{failure:#}");
}

/// The runtime crashes before its first request, so the emulated driver writes no log.
#[test]
fn emulated_driver_has_no_module() {
    let folder = tempfile::tempdir().unwrap();
    let library = compile_broken(folder.path(), "abort()", &[]);
    let start = ["emulate", "--", HSA_VMM, "bringup", "--format", "json", "--runtime"];
    let report = report(&command(&start).arg(&library).output().unwrap(), 3);
    let machine = report["failure"]["machine"].to_string();
    assert_contains(&machine, &["/dev/kfd can be opened"]);
    assert!(!machine.contains("PCI") && !machine.contains("amdgpu is loaded"), "{machine}");
}

#[test]
fn crash_is_reported_with_signal_and_call() {
    let folder = tempfile::tempdir().unwrap();
    for (statement, signal) in
        [("*(volatile int *)0 = 1", "SIGSEGV"), ("abort()", "SIGABRT"), ("raise(SIGILL)", "SIGILL")]
    {
        let library = compile_broken(folder.path(), statement, &[]);
        let report = report(&bringup(&library, &["--format", "json"]), 3);
        assert_eq!(failed_level(&report), Some("runtime"), "{statement}");
        let failure = &report["failure"];
        assert_eq!(failure["kind"], "crash");
        assert_contains(failure["what"].as_str().unwrap(), &[signal, "in hsa_init"]);
        assert_eq!(failure["call"]["returned"], false);
        let output = failure["runtime"].to_string();
        assert_contains(&output, &["on standard output", "on standard error"]);
    }
    // A runtime that exits the process is reported as a failure, too.
    let library = compile_broken(folder.path(), "_exit(0)", &[]);
    let report = report(&bringup(&library, &["--format", "json"]), 3);
    assert_contains(report["failure"]["what"].as_str().unwrap(), &["without a result"]);
    assert_eq!(report["failure"]["call"]["name"], "hsa_init");
}

#[test]
fn hang_is_killed_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let library = compile_broken(folder.path(), "for (;;) pause()", &[]);
    let began = Instant::now();
    let output = bringup(&library, &["--time-limit", "3s"]);
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_contains(&stdout(&output), &["hangs in hsa_init", "-> does not return", "--time-limit"]);
}

/// A driver can keep a process in the kernel, so that SIGKILL does not end it.
#[test]
fn hang_in_the_kernel_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let library = compile_broken(folder.path(), "hold_exit(); for (;;) pause()", &[]);
    let began = Instant::now();
    let output = bringup(&library, &["--time-limit", "3s"]);
    assert!(began.elapsed() < Duration::from_secs(18));
    let words = ["hangs in hsa_init", "does not end after SIGKILL", "cat /proc/"];
    assert_contains(&stdout(&output), &words);
}

#[test]
fn killing_bringup_kills_its_worker() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let write_pid = format!(
        "do {{ FILE *f = fopen(\"{}\", \"w\"); fprintf(f, \"%d\\n\", getpid()); fclose(f); for (;;) \
         pause(); }} while (0)",
        pid.display()
    );
    let library = compile_broken(folder.path(), &write_pid, &[]);
    let mut parent = Command::new(HSA_VMM)
        .args(["bringup", "--time-limit", "1h", "--runtime"])
        .arg(&library)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let wait_until = |what: &str, done: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(20), "timed out waiting until {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let written_pid = || std::fs::read_to_string(&pid).ok().filter(|text| text.ends_with('\n'));
    wait_until("the level has begun", &|| written_pid().is_some());
    let stat_file = format!("/proc/{}/stat", written_pid().unwrap().trim());
    assert!(Path::new(&stat_file).exists());
    parent.kill().unwrap();
    parent.wait().unwrap();
    // A zombie process (state Z) has ended, but still has an entry in /proc.
    let is_dead = || std::fs::read_to_string(&stat_file).map_or(true, |text| text.contains(") Z "));
    wait_until("the level has ended", &is_dead);
}
