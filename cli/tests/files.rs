//! Files that the command reads and writes: permissions, links, full devices and invalid contents.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use run_command::{run, stderr, stdout};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

fn write_report(file: &Path) -> std::process::Output {
    run(&["map", "--runtime", "sim", "--format", "json", "-o", file.to_str().unwrap()])
}

/// Creates a file with a mode and an owner, and lets the command replace it. Returns the mode of the new file.
fn mode_after_replacing(file: &Path, mode: u32, owner: Option<u32>) -> u32 {
    fs::write(file, "old").unwrap();
    std::os::unix::fs::chown(file, owner, None).unwrap();
    // Set the mode after `chown`, which clears the set-ID bits.
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    let output = write_report(file);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read_to_string(file).unwrap().starts_with('{'));
    fs::metadata(file).unwrap().mode() & 0o7777
}

#[test]
fn output_drops_set_id_bits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    for (mode, expected) in [(0o6777, 0o777), (0o1644, 0o644), (0o600, 0o600), (0o664, 0o664)] {
        assert_eq!(mode_after_replacing(&file, mode, None), expected, "{mode:o}");
    }
}

#[test]
fn output_ignores_mode_of_another_users_file() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.json");
    assert!(write_report(&new).status.success());
    let default = fs::metadata(&new).unwrap();
    if default.uid() != 0 {
        // Only root can change the owner of a file.
        return;
    }
    let file = folder.path().join("report.json");
    for mode in [0o4777, 0o777, 0o666] {
        let new_mode = mode_after_replacing(&file, mode, Some(65534));
        assert_eq!(new_mode, default.mode() & 0o7777, "{mode:o}");
        assert_eq!(fs::metadata(&file).unwrap().uid(), 0);
    }
}

#[test]
fn output_keeps_links() {
    let folder = tempfile::tempdir().unwrap();
    let [link, file] = ["link", "file"].map(|name| folder.path().join(name));
    fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    assert!(write_report(&link).status.success());
    assert!(link.is_symlink() && fs::read_to_string(&file).unwrap().starts_with('{'));

    fs::remove_file(&file).unwrap();
    let output = write_report(&link);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(link.is_symlink() && !file.exists());
    assert!(
        stderr(&output).contains("symbolic link points to a file that does not exist"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn conform_opens_no_link_or_fifo_as_partial_file() {
    let folder = tempfile::tempdir().unwrap();
    let [report, partial, target] =
        ["out", "out.partial", "target"].map(|name| folder.path().join(name));
    let create_link = || symlink(&target, &partial).unwrap();
    let create_fifo =
        || mknodat(CWD, &partial, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::write(&target, "text").unwrap();
    for create in [&create_link as &dyn Fn(), &create_fifo] {
        for (resume, status) in [(Some("--resume"), Some(2)), (None, Some(0))] {
            let _ = fs::remove_file(&partial);
            create();
            let mut conform = run_command::command(&["conform", "--runtime", "sim"]);
            conform.args(["--filter", "map.handle.zero", "-o"]).arg(&report).args(resume);
            let output = conform.output().unwrap();
            assert_eq!(output.status.code(), status, "{output:?}");
            assert_eq!(fs::read(&target).unwrap(), b"text");
        }
    }
}

#[test]
fn help_fails_on_a_full_device() {
    for argument in ["--help", "--version"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = run_command::command(&[argument]).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{argument}: {output:?}");
        assert!(stderr(&output).contains("standard output"), "{}", stderr(&output));
    }
}

/// Arguments of commands that succeed if their output can be written.
const COMMANDS: [&[&str]; 8] = [
    &["info", "--runtime", "sim"],
    &["info", "--runtime", "sim", "--format", "json"],
    &["conform", "--list"],
    &["conform", "--runtime", "sim", "--filter", "map.handle.*"],
    &["conform", "--runtime", "sim", "--filter", "map.handle.*", "--format", "json"],
    &["conform", "--runtime", "sim", "--filter", "map.handle.*", "--format", "ktap"],
    &["bringup", "--runtime", "sim", "--until", "reserved"],
    &["bringup", "--runtime", "sim", "--until", "reserved", "--format", "ktap"],
];

#[test]
fn full_device_exits_with_2() {
    let open = || fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in COMMANDS {
        let mut to_output = run_command::command(arguments);
        let mut to_file = run_command::command(&[arguments, &["-o", "/dev/full"]].concat());
        for (command, name) in
            [(to_output.stdout(open()), "to standard output"), (&mut to_file, "/dev/full")]
        {
            let output = command.output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
            let message = format!("cannot write {name}: No space left");
            assert!(stderr(&output).contains(&message), "{arguments:?}: {}", stderr(&output));
        }
    }
}

/// Runs the command with a limit on the size of files, in blocks of 512 bytes. A full disk has the same effect.
fn run_with_file_limit(blocks: u8, arguments: &[&str]) -> std::process::Output {
    let command = run_command::command(arguments);
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(arguments);
    shell.env("LC_ALL", "C.UTF-8").output().unwrap()
}

#[test]
fn full_disk_does_not_split_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("info");
    let words = ["bringup", "--runtime", "sim", "--until", "reserved", "-o"];
    let output = run_with_file_limit(1, &[&words[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.ends_with('\n') && text.len() <= 512, "{text}");
}

#[test]
fn result_goes_to_standard_output_on_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let [traces, file] = ["traces", "file"].map(|name| folder.path().join(name));
    fs::write(&traces, r#"{"seed":7,"trace":0,"granule":2097152,"devices":1,"ops":[]}"#).unwrap();
    fs::write(&file, "old").unwrap();
    let (traces, path) = (traces.to_str().unwrap(), file.to_str().unwrap());
    for (words, text) in [(&["info"][..], "works around"), (&["replay", traces], "divergent")] {
        let arguments = [words, &["--runtime", "sim", "-o", path]].concat();
        let output = run_with_file_limit(0, &arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stdout(&output).contains(text), "{output:?}");
        assert_eq!(fs::read(&file).unwrap(), b"old");
    }
}

#[test]
fn replay_rejects_pipes() {
    let output = run(&["replay", "--runtime", "sim", "/dev/null"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("is a pipe or a device"), "{output:?}");
}

#[test]
fn runtime_path_need_not_be_utf8() {
    let path = OsStr::from_bytes(b"/nowhere/f\xff.so");
    let output = run_command::command(&["info"]).env("HSA_VMM_RUNTIME", path).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn full_disk_error_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("o.json");
    let path = file.to_str().unwrap();
    let arguments = ["map", "--runtime", "sim", "--format", "json", "-o", path];
    let output = run_with_file_limit(0, &arguments);
    let text = stderr(&output);
    assert!(text.contains("o.json") && !text.contains(".hsa-vmm-"), "{text}");
}

/// Runs the command with its standard output closed.
fn run_with_closed_output(arguments: &[&str]) -> std::process::Output {
    let mut command = run_command::command(&[]);
    command.args(arguments);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "exec \"$@\" >&-", "sh"]).arg(command.get_program()).args(arguments);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.output().unwrap()
}

#[test]
fn closed_output_exits_with_2() {
    let others = [&["--help"][..], &["man"], &["completions", "bash"]];
    for arguments in COMMANDS.into_iter().chain(others) {
        let output = run_with_closed_output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains("standard output"), "{arguments:?}: {}", stderr(&output));
    }
    for arguments in COMMANDS {
        let output = run_with_closed_output(&[arguments, &["-o", "/dev/null"]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let output = run_with_closed_output(&["vm", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // The program that `record` starts inherits the closed standard output of `record`.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls.jsonl");
    let script = "test ! -e /proc/self/fd/1";
    let record = ["record", "-o", file.to_str().unwrap(), "--", "sh", "-c", script];
    let output = run_with_closed_output(&record);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn conform_quotes_only_start_of_long_line() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("known.toml");
    for text in ["x".repeat(300_000), format!("[[known]]\ncase = \"{}\"", "x".repeat(300_000))] {
        fs::write(&list, text).unwrap();
        let output = run(&["conform", "--runtime", "sim", "--known", list.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).len() < 4000, "{} bytes", stderr(&output).len());
    }
}

#[test]
fn replay_reports_invalid_line_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    for (bytes, reason) in [(&b"{"[..], "EOF"), (b"\xff\xfe\n", "not UTF-8")] {
        fs::write(&file, bytes).unwrap();
        let output = run(&["replay", "--runtime", "sim", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(stderr(&output).matches(reason).count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn unusable_input_file_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let [empty, missing] = ["empty", "missing"].map(|name| folder.path().join(name));
    fs::write(&empty, "").unwrap();
    for file in [&empty, &missing] {
        let file = file.to_str().unwrap();
        for arguments in [
            &["lint", file][..],
            &["replay", "--runtime", "sim", file],
            &["map", "--runtime", "sim", file],
            &["diff", file, file],
        ] {
            let output = run(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
            assert!(stderr(&output).contains(file), "{arguments:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn file_of_another_kind_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let files = [
        ("a recording of `hsa-vmm record`", path("recording")),
        ("a report of `hsa-vmm conform` or `hsa-vmm info`", path("report")),
        ("a file of sequences of `hsa-vmm fuzz`", path("sequences")),
        ("a file of traces", path("traces")),
        ("a report of `hsa-vmm bringup`", path("bringup")),
    ];
    let [recording, report, sequences, traces, bringup] = &files;
    let header = r#"{"format":"hsa-vmm-hsa-trace","version":1,"pid":7,"agents":[]}"#;
    fs::write(&recording.1, format!("{header}\n")).unwrap();
    let info = run(&["info", "--runtime", "sim", "--format", "json", "-o", &report.1]);
    assert!(info.status.success(), "{info:?}");
    let simulated = ["bringup", "--runtime", "sim", "--until", "mapped", "--format", "json", "-o"];
    assert!(run(&[&simulated[..], &[&bringup.1]].concat()).status.success());
    let faults = "gpus=1,faults=hsa_amd_vmem_handle_create#1-=OUT_OF_RESOURCES";
    let arguments = ["fuzz", "--sim", faults, "--processes", "1", "--shrink", "1s", "--save"];
    assert_eq!(run(&[&arguments[..], &[&sequences.1]].concat()).status.code(), Some(1));
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/src/subcommands/map/example.jsonl"), &traces.1)
        .unwrap();
    for (subcommand, others) in [
        ("lint", [report, sequences, traces, bringup].as_slice()),
        ("diff", &[recording, sequences, traces, bringup]),
        ("map", &[recording, report, bringup]),
    ] {
        for (kind, file) in others {
            let arguments = match subcommand {
                "map" => vec!["map", "--runtime", "sim", file],
                "diff" => vec!["diff", &report.1, file],
                _ => vec!["lint", file],
            };
            let output = run(&arguments);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let expected = format!("{file} is {kind}, which `{subcommand}` does not read; use `");
            assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
        }
    }
}

#[test]
fn unsaved_fuzz_finding_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("found.jsonl");
    let faults = "gpus=1,faults=hsa_amd_vmem_handle_create#1-=OUT_OF_RESOURCES";
    let arguments = ["fuzz", "--sim", faults, "--processes", "1", "--shrink", "1s", "--save"];
    let arguments = [&arguments[..], &[file.to_str().unwrap()]].concat();
    let output = run_with_file_limit(0, &arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!file.exists() && !stdout(&output).contains("saved as"), "{}", stdout(&output));
}

#[test]
fn failed_start_keeps_an_earlier_table() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    fs::write(&file, "old").unwrap();
    let start = ["conform", "--runtime", "sim", "--sim", "faults=hsa_init=ERROR", "-o"];
    let output = run(&[&start[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
}
