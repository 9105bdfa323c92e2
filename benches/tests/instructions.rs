//! Tests which counts `.ci/instructions --compare` accepts and rejects. Each run of `.ci/instructions` also checks
//! that it detects additional calls.

use std::path::Path;
use std::process::Command;

const FIGURES: &str =
    "# Instructions a call.\n# Written by …\n# rustc, libc\nmap 1000.0\nunmap 200.0\n";

/// Compares new figures with old figures. Returns the exit status and the output.
fn compare(old: &str, new: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let output = Command::new(script())
        .arg("--compare")
        .args([file("old", old), file("new", new)])
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn script() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/instructions"))
}

#[test]
fn increase_fails_and_decrease_is_reported() {
    for (map, status, ending) in [
        ("1000.0", 0, "+0.0 %\n"),
        ("1029.9", 0, "+3.0 %\n"),
        ("1031.0", 1, "+3.1 %  INCREASED BY MORE THAN 3 %\n"),
        ("2000.0", 1, "+100.0 %  INCREASED BY MORE THAN 3 %\n"),
        ("971.0", 0, "-2.9 %\n"),
        ("960.0", 0, "-4.0 %  less: --update records it\n"),
    ] {
        let (found, output) = compare(FIGURES, &format!("map {map}\nunmap 200.0\n"));
        assert_eq!(found, status, "{map}: {output}");
        let line = output.lines().find(|line| line.starts_with("map ")).unwrap();
        assert!(format!("{line}\n").ends_with(ending), "{map}: {output}");
        assert!(line.contains("was   1000.0"), "{map}: {output}");
    }
}

#[test]
fn decrease_does_not_offset_increase() {
    let (status, output) = compare(FIGURES, "map 500.0\nunmap 210.0\n");
    assert_eq!(status, 1, "{output}");
    assert!(output.contains("less") && output.contains("MORE"), "{output}");
}

#[test]
fn compare_fails_on_missing_figures() {
    let (status, output) = compare(FIGURES, "map 1000.0\nunmap 200.0\nfree 1.0\n");
    assert_eq!(status, 1, "{output}");
    assert!(output.contains("free") && output.contains("has no figure"), "{output}");
    let (status, output) = compare(FIGURES, "map 1000.0\n");
    assert_eq!(status, 1, "{output}");
    assert!(output.contains("unmap       was not counted"), "{output}");
}

#[test]
fn invalid_arguments_print_usage() {
    for arguments in [&["--compare"][..], &["--compare", "/nowhere", "/nowhere"], &["--measure"]] {
        let output = Command::new(script()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// `benches/instructions.txt` is valid, and equal counts pass.
#[test]
fn compare_passes_on_equal_figures() {
    let figures = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt"));
    let figures = figures.unwrap();
    let counted: String = figures
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    let (status, output) = compare(&figures, &counted);
    assert_eq!((status, output.lines().count()), (0, 14), "{output}");
}
