//! `hsa-vmm emulate` runs programs and scripts with a release of AMD's runtime. It rejects programs that it cannot
//! emulate, such as statically linked programs.

#[path = "../../../hsa/sys/tests/compiler/mod.rs"]
mod compiler;
#[path = "../hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::{FetchedRelease, test};
use run_command::{HSA_VMM, command, run, stderr, stdout};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A folder with a program that is linked with the runtime of a release.
struct Fixture {
    fetched: &'static FetchedRelease,
    folder: TempDir,
    program: PathBuf,
}

/// Calls `act` with a fixture for each selected release.
fn run_on_releases(name: &str, act: impl Fn(&Fixture)) {
    for fetched in test::fetch_selected_releases(name) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().canonicalize().unwrap().join("starts itself");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let status = compiler::command()
            .arg("-I")
            .arg(root.join("../hsa/sys/include"))
            .arg(root.join("tests/emulate/starts_itself.c"))
            // The runtime needs a newer C library than the linker finds.
            .args(["-Wl,--allow-shlib-undefined", "-Wall", "-Werror", "-o"])
            .args([&program, &fetched.runtime()])
            .status();
        assert!(status.unwrap().success());
        act(&Fixture { fetched, folder, program });
    }
}

impl Fixture {
    /// Runs a command on two emulated GPUs.
    fn emulate(&self, words: &[&str]) -> Output {
        let release = self.fetched.release();
        let start = ["emulate", "--gpus", "2", "--rocr", release.version(), "--"];
        run(&[&start, words].concat())
    }

    /// Returns the output of the fixture's program: the number of GPUs, and the program's path.
    fn expected_output(&self) -> String {
        format!("2 {}\n", self.program.display())
    }

    /// Checks that a command succeeds and prints the output of the fixture's program.
    fn assert_program_runs(&self, words: &[&str]) {
        let output = self.emulate(words);
        let release = self.fetched.release();
        assert_eq!(output.status.code(), Some(0), "{release}: {words:?}: {output:?}");
        assert_eq!(stdout(&output), self.expected_output(), "{release}: {words:?}: {output:?}");
    }

    /// Writes an executable file, and returns its path.
    fn write_script(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A program can replace `LD_PRELOAD` when it starts another program.
#[test]
fn replaced_preload_is_reported() {
    run_on_releases("replaced_preload_is_reported", |fixture| {
        let output = fixture.emulate(&["env", "LD_PRELOAD=libm.so.6", HSA_VMM, "info"]);
        assert!(stderr(&output).contains("LD_PRELOAD was changed"), "{output:?}");
    });
}

#[test]
fn invalid_fault_plan_shows_the_usage_of_emulate() {
    let output = run(&["emulate", "--fault", "NO_CALL=lost", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = stderr(&output);
    assert!(text.contains("invalid fault plan: \"NO_CALL=lost\": unknown call"), "{text}");
    assert!(text.contains("Usage: hsa-vmm emulate [OPTIONS] -- <PROGRAM>..."), "{text}");
}

#[test]
fn invalid_vram_is_named_as_option() {
    let run_with = |arguments: &[&str], variable: &str| {
        let output = command(arguments).env("HSA_KFD", variable).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        stderr(&output)
    };
    for size in ["bad", "3XB", "0", "", "1G,gpus=2", "5x "] {
        let text = run_with(&["emulate", &format!("--vram={size}"), "--", "true"], "gpus=1");
        let line =
            format!("invalid value '{size}' for '--vram <SIZE>': expected a size such as 64GiB");
        assert!(text.contains(&line) && !text.contains("HSA_KFD"), "{text}");
    }
    // The variable has the invalid value.
    for arguments in [&["emulate", "--vram=1G", "--", "true"][..], &["emulate", "--", "true"]] {
        let text = run_with(arguments, "vram=bad");
        assert!(text.contains("HSA_KFD: \"vram=bad\": expected a size such as 64GiB"), "{text}");
    }
}

#[test]
fn driver_that_cannot_be_preloaded_is_rejected() {
    let folder = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
    let file = folder.path().join("libhsa_kfd.so");
    fs::write(&file, "").unwrap();
    let output = command(&["emulate", "--", "true"]).env("HSA_VMM_KFD", &file).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("colon or white space"), "{output:?}");
}

#[test]
fn files_do_not_depend_on_the_program_folder() {
    let folder = tempfile::tempdir().unwrap();
    let sub = folder.path().join("sub");
    fs::create_dir(&sub).unwrap();
    let script = "cd sub && exec \"$0\" kfd-version --open";
    let files = ["--log", "d.log", "--page-tables", "pt.txt"];
    let words = [&["emulate"], &files[..], &["--", "sh", "-c", script, HSA_VMM]].concat();
    let output = command(&words).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(sub).unwrap().count(), 0);
    let log = fs::read_to_string(folder.path().join("d.log")).unwrap();
    assert!(log.contains("kfd OPEN"), "{log}");
    let same = ["emulate", "--log", "x", "--page-tables", "./x", "--", "true"];
    let output = command(&same).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("write to the same file"), "{output:?}");
}

#[test]
fn log_is_written_to_a_fifo() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut reader = Command::new("timeout");
    let reader = reader.args(["60", "cat"]).arg(&fifo).stdout(Stdio::piped()).spawn().unwrap();
    let mut writer = Command::new("timeout");
    writer.args(["60", HSA_VMM, "emulate", "--log"]).arg(&fifo);
    let output = writer.args(["--", HSA_VMM, "kfd-version", "--open"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = reader.wait_with_output().unwrap();
    assert!(stdout(&log).contains("kfd OPEN"), "{log:?}");
}

#[test]
fn info_prints_a_path_that_is_not_utf8() {
    run_on_releases("info_prints_a_path_that_is_not_utf8", |fixture| {
        let file = fixture.folder.path().join(OsStr::from_bytes(b"f\xff.so"));
        fs::copy(fixture.fetched.runtime(), &file).unwrap();
        let release = fixture.fetched.release();
        let mut command = command(&["emulate", "--rocr", release.version(), "--", "env"]);
        let mut variable = OsString::from("HSA_VMM_RUNTIME=");
        variable.push(&file);
        command.arg(variable).args([HSA_VMM, "info", "--format", "json"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(stdout(&output).contains("/f\u{fffd}.so"), "{output:?}");
    });
}

#[test]
fn info_names_the_command_that_chose_the_runtime() {
    run_on_releases("info_names_the_command_that_chose_the_runtime", |fixture| {
        let output = fixture.emulate(&[HSA_VMM, "info"]);
        let release = fixture.fetched.release();
        let line = format!(
            "chosen because        `emulate --gpus 2 --rocr {}` names its release",
            release.version()
        );
        assert!(stdout(&output).lines().any(|it| it == line), "{output:?}");
    });
}

#[test]
fn program_starts_itself() {
    run_on_releases("program_starts_itself", |fixture| {
        let program = fixture.program.to_str().unwrap();
        for how in ["", "execve", "execl", "posix_spawn", "vfork", "system"] {
            fixture.assert_program_runs(&[program, how]);
        }
    });
}

#[test]
fn scripts_start_programs() {
    run_on_releases("scripts_start_programs", |fixture| {
        let program = fixture.program.to_str().unwrap();
        fixture.assert_program_runs(&["bash", "-c", "exec \"$0\"", program]);
        fixture.assert_program_runs(&["sh", "-c", "\"$0\" posix_spawn", program]);
        let inner = fixture.write_script("inner", &format!("#!/bin/sh -e\n'{program}' $1\n"));
        let outer =
            fixture.write_script("outer", &format!("#!/usr/bin/env bash\n'{inner}' execve\n"));
        fixture.assert_program_runs(&[&outer]);
    });
}

#[test]
fn ctest_runs_tests() {
    if try_run("ctest", &["--version"]).is_none() {
        test::report("SKIPPED ctest_runs_tests: ctest is not installed");
        return;
    }
    run_on_releases("ctest_runs_tests", |fixture| {
        let program = fixture.program.display();
        let tests =
            format!("add_test(plain \"{program}\")\nadd_test(again \"{program}\" execve)\n");
        fs::write(fixture.folder.path().join("CTestTestfile.cmake"), tests).unwrap();
        let folder = fixture.folder.path().to_str().unwrap();
        let output = fixture.emulate(&["ctest", "--verbose", "--test-dir", folder]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let printed = stdout(&output);
        assert_eq!(printed.matches(&fixture.expected_output()).count(), 2, "{printed}");
    });
}

/// Returns the paths of the project's compiled examples. If any is missing, builds the examples. `cargo test
/// --workspace` builds the examples before it runs this test.
fn examples() -> Vec<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let built = Path::new(run_command::HSA_VMM).parent().unwrap();
    let sources = fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path());
    let names = sources
        .filter_map(|path| Some(path.file_name()?.to_str()?.strip_suffix(".rs")?.to_owned()));
    let examples: Vec<_> = names.map(|name| built.join("examples").join(name)).collect();
    if !examples.iter().all(|example| example.exists()) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "hsa-vmm", "--examples"]);
        let output = cargo.env("CARGO_TARGET_DIR", built.parent().unwrap()).output().unwrap();
        assert!(output.status.success(), "cannot build the examples: {}", stderr(&output));
    }
    examples
}

#[test]
fn every_example_runs() {
    let examples = examples();
    assert!(examples.len() > 10, "{examples:?}");
    run_on_releases("every_example_runs", |fixture| {
        for example in &examples {
            assert!(example.exists(), "{} is not built", example.display());
            let output = fixture.emulate(&[example.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(0), "{}: {output:?}", example.display());
            let printed = stdout(&output) + &stderr(&output);
            assert!(!printed.trim().is_empty(), "{} prints nothing", example.display());
        }
    });
}

/// Runs a program of this computer. Returns `None` if the program cannot be started.
fn try_run(program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).output().ok()
}

#[test]
fn environment_is_kept() {
    run_on_releases("environment_is_kept", |fixture| {
        let release = fixture.fetched.release();
        let program = fixture.program.to_str().unwrap();
        let script = "echo $LD_LIBRARY_PATH $0; exec \"$1\" execve";
        // In the second command, `env` makes `LD_LIBRARY_PATH` the last variable of the environment.
        for first in
            [&["sh"][..], &["env", "-u", "LD_LIBRARY_PATH", "LD_LIBRARY_PATH=/nowhere", "sh"]]
        {
            let start = ["emulate", "--gpus", "2", "--rocr", release.version(), "--"];
            let words = [&start, first, &["-c", script, "name", program]].concat();
            let output = command(&words).env("LD_LIBRARY_PATH", "/nowhere").output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            assert_eq!(stdout(&output), format!("/nowhere name\n{}", fixture.expected_output()));
        }
    });
}

/// UCX, which MPI libraries use, would hide the mappings of devices from the emulated driver.
#[test]
fn ucx_does_not_replace_mmap() {
    for (value, expected) in [(None, "no"), (Some("yes"), "yes")] {
        let mut command = command(&["emulate", "--", "sh", "-c", "echo $UCX_MEM_EVENTS"]);
        match value {
            Some(value) => command.env("UCX_MEM_EVENTS", value),
            None => command.env_remove("UCX_MEM_EVENTS"),
        };
        assert_eq!(stdout(&command.output().unwrap()).trim_end(), expected);
    }
}

#[test]
fn failed_emulation_exits_with_125() {
    let run = |options: &[&str], folder: &str| {
        let mut command = command(&[&["emulate"], options, &["--", "true"]].concat());
        command.env("TMPDIR", folder).output().unwrap()
    };
    let folder = std::env::temp_dir();
    let folder = folder.to_str().unwrap();
    for (options, folder, message) in [
        (&[][..], "/nonexistent", "emulated driver: /nonexistent/hsa-kfd-"),
        (&["--log", "/nonexistent/x"], folder, "cannot write /nonexistent/x: "),
        (&["--page-tables", "/nonexistent/x"], folder, "cannot write /nonexistent/x: "),
    ] {
        let output = run(options, folder);
        assert_eq!(output.status.code(), Some(125), "{options:?}: {output:?}");
        let text = stderr(&output);
        assert!(text.contains(message) && !text.contains("Usage"), "{options:?}: {text}");
    }
}

#[test]
fn log_and_page_tables_are_appended() {
    if test::fetch_releases("log_and_page_tables_are_appended").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (log, tables) = (folder.path().join("log"), folder.path().join("tables"));
    let files = ["--log", log.to_str().unwrap(), "--page-tables", tables.to_str().unwrap()];
    let program = ["--rocr", "7.2.4", "--", HSA_VMM, "bringup", "--until", "runtime"];
    let sizes = || [&log, &tables].map(|file| fs::metadata(file).unwrap().len());
    assert!(run(&[&["emulate"], &files[..], &program].concat()).status.success());
    let first = sizes();
    assert!(run(&[&["emulate"], &files[..], &program].concat()).status.success());
    let second = sizes();
    assert!(first.iter().zip(second).all(|(first, second)| 0 < *first && *first < second));
    let help = stdout(&run(&["emulate", "--help"]));
    for sentence in ["Append a line for each driver call", "Append the GPUs' page tables"] {
        assert!(help.contains(sentence), "{help}");
    }
}

/// AMD's runtime aborts the process after a GPU fault, so that the process does not exit normally.
#[test]
fn page_tables_are_written_at_a_gpu_fault() {
    if test::fetch_releases("page_tables_are_written_at_a_gpu_fault").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let tables = folder.path().join("tables");
    let options = ["--rocr", "7.2.4", "--fault", "GEM_VA.MAP=lost", "--page-tables"];
    let program = [tables.to_str().unwrap(), "--", HSA_VMM, "bringup", "--until", "gpu"];
    let output = run(&[&["emulate"], &options[..], &program].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stdout(&output).contains("--page-tables FILE"), "{output:?}");
    let text = fs::read_to_string(tables).unwrap();
    let (_, at_fault) = text.split_once(" at a GPU fault\n").unwrap();
    assert!(at_fault.starts_with("gpu 0 id "), "{text}");
}

#[test]
fn programs_that_cannot_be_emulated_are_rejected() {
    run_on_releases("programs_that_cannot_be_emulated_are_rejected", |fixture| {
        let source = fixture.folder.path().join("static.c");
        fs::write(&source, "void _start(void) { for (;;) { } }").unwrap();
        let program = fixture.folder.path().join("static");
        let options = ["-nostdlib", "-nostartfiles", "-static", "-no-pie", "-o"];
        let status = compiler::command().args(options).args([&program, &source]).status().unwrap();
        assert!(status.success());
        let program = program.to_str().unwrap();
        let script = fixture.write_script("script", &format!("#!{program}\n"));
        let text = fixture.write_script("text", "");
        fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
        for (program, status, message) in [
            (program, 125, "statically linked"),
            (&script, 125, "statically linked"),
            (&text, 126, "Permission denied"),
            ("no-such-program", 127, "cannot start no-such-program"),
            ("/no/such/program", 127, "cannot start /no/such/program"),
        ] {
            let output = fixture.emulate(&[program]);
            assert_eq!(output.status.code(), Some(status), "{program}: {output:?}");
            assert!(stderr(&output).contains(message), "{program}: {}", stderr(&output));
        }
    });
    // Without `--rocr`, a missing program is also rejected.
    let output = run(&["emulate", "--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
}

#[test]
fn sanitizer_build_runs_with_options_from_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("hello.c"), folder.path().join("hello"));
    fs::write(&source, "#include <stdio.h>\nint main(void) { return puts(\"hello\") < 0; }\n")
        .unwrap();
    let mut compiler = compiler::command();
    let compiled = compiler.arg("-fsanitize=address").arg(&source).arg("-o").arg(&program).output();
    if !compiled.unwrap().status.success() {
        let name = "sanitizer_build_runs_with_options_from_the_help";
        return test::report(&format!("SKIPPED {name}: the compiler has no AddressSanitizer"));
    }
    let help = stdout(&run(&["emulate", "--help"])).to_owned();
    let (_, options) = help.split_once("ASAN_OPTIONS=").expect("the help names the options");
    let options = options.split_whitespace().next().unwrap().trim_end_matches('.');
    let with_options = |options: &str| {
        let mut command = command(&["emulate", "--gpus", "1", "--", program.to_str().unwrap()]);
        command.env("ASAN_OPTIONS", options).output().unwrap()
    };
    let rejected = with_options("");
    assert!(stderr(&rejected).contains("ASan runtime does not come first"), "{rejected:?}");
    let output = with_options(options);
    assert_eq!(
        (output.status.code(), stdout(&output).as_ref()),
        (Some(0), "hello\n"),
        "{output:?}"
    );
}

#[test]
fn unknown_release_lists_fetched_releases() {
    if test::fetch_releases("unknown_release_lists_fetched_releases").is_none() {
        return;
    }
    for words in [["emulate", "--rocr", "6.9"], ["rocr", "run", "--rocr=6.9"]] {
        let output = run(&[&words[..], &["--", "true"]].concat());
        let text = stderr(&output);
        assert!(!output.status.success(), "{output:?}");
        assert!(
            text.contains("unknown release `6.9`; fetched releases: 6.1.2, 6.4.3, 7.2.4"),
            "{text}"
        );
        assert!(text.contains("rocr fetch"), "{text}");
    }
}
