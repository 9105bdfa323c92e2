//! Text from files and the environment is escaped, so that it cannot control the terminal.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use run_command::{command, json, run, stderr, stdout};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Output;

/// A text with escape sequences and control characters. They set the terminal's title, clear the screen, set a colour
/// and a style (with CSI, U+009B), overwrite the line, reverse the direction of text, and delete (U+007F).
const HOSTILE: &str = "a\u{1b}]0;t\u{7}\u{1b}[2J\u{1b}[31m\u{9b}1m\r\u{202e}\u{2066}\u{7f}z";
/// [`HOSTILE`], as the command prints it.
const ESCAPED: &str =
    "a\\u001b]0;t\\u0007\\u001b[2J\\u001b[31m\\u009b1m\\u000d\\u202e\\u2066\\u007fz";

/// Runs the command with colours, as on a terminal.
fn run_in_colour(arguments: &[&str]) -> Output {
    command(arguments).env("CLICOLOR_FORCE", "1").output().unwrap()
}

/// Fails if a text contains control characters other than line feeds, tabs and the styles of `hsa-vmm`.
fn assert_harmless(text: &str, what: &str) {
    let mut rest = text.to_owned();
    for style in ["[0m", "[1m", "[2m", "[31m", "[32m", "[1m\u{1b}[31m"] {
        rest = rest.replace(&format!("\u{1b}{style}"), "");
    }
    let is_harmful = |it: char| {
        it.is_control() && it != '\n' && it != '\t'
            || matches!(it, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!rest.contains(is_harmful), "{what}: {text:?}");
}

/// Returns a report with hostile text in some of its fields.
fn hostile_report() -> Value {
    let mut report = json(&run(&["info", "--runtime", "sim", "--format", "json"]));
    fn replace_text(value: &mut Value, key: &str) {
        match value {
            Value::String(text) if !["kind", "enforcement"].contains(&key) => {
                *text = HOSTILE.into()
            }
            Value::Array(all) => all.iter_mut().for_each(|it| replace_text(it, key)),
            Value::Object(all) => all.iter_mut().for_each(|(key, it)| replace_text(it, key)),
            _ => {}
        }
    }
    for key in ["name", "build"] {
        replace_text(&mut report["runtime"][key], key);
    }
    replace_text(&mut report["agents"][0]["name"], "name");
    report["cases"] = json!([{
        "name": HOSTILE, "status": "fail", "source": HOSTILE, "detail": HOSTILE, "duration_us": 1,
    }]);
    report
}

#[test]
fn diff_escapes_text_of_reports() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.json"), folder.path().join("b.json"));
    let mut plain = json(&run(&["info", "--runtime", "sim", "--format", "json"]));
    plain["cases"] = json!([{
        "name": "a.case", "status": "pass", "source": "", "detail": "", "duration_us": 1,
    }]);
    fs::write(&a, plain.to_string()).unwrap();
    fs::write(&b, hostile_report().to_string()).unwrap();
    let files = [a.to_str().unwrap(), b.to_str().unwrap()];
    for (before, after) in [(files[0], files[1]), (files[1], files[0])] {
        let output = run_in_colour(&["diff", before, after]);
        assert_eq!(stderr(&output), "");
        let text = stdout(&output);
        assert!(text.matches(ESCAPED).count() >= 4, "{text:?}");
        assert_harmless(&text, "diff");
    }
    // JSON output contains the hostile text, escaped as JSON requires.
    let output = run_in_colour(&["diff", "--format", "json", files[0], files[1]]);
    assert_harmless(&stdout(&output), "diff --format json");
    let names = json(&output)["diff"]["cases"].as_array().unwrap().clone();
    assert!(names.iter().any(|case| case["name"] == HOSTILE), "{names:?}");
    // Text in an output file is escaped, too.
    let file = folder.path().join("diff.txt");
    let output = run_in_colour(&["diff", files[0], files[1], "-o", file.to_str().unwrap()]);
    assert_eq!(stdout(&output), "");
    assert_harmless(&fs::read_to_string(file).unwrap(), "diff -o");
}

#[test]
fn errors_escape_names_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let sequence = json!({"seed": 1, "number": 0, "machine": HOSTILE, "operations": []});
    fs::write(&trace, sequence.to_string()).unwrap();
    let unknown = folder.path().join("unknown.jsonl");
    fs::write(&unknown, json!({"seed": 1, HOSTILE: 2, "operations": HOSTILE}).to_string()).unwrap();
    for arguments in [
        &["diff", HOSTILE, HOSTILE][..],
        &["replay", "--runtime", "sim", HOSTILE],
        &["replay", "--runtime", "sim", trace.to_str().unwrap()],
        &["replay", "--runtime", "sim", unknown.to_str().unwrap()],
        &["info", "--runtime", HOSTILE],
        &["conform", "--filter", HOSTILE],
    ] {
        let output = run_in_colour(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let text = stderr(&output);
        assert!(text.contains(ESCAPED), "{arguments:?}: {text:?}");
        assert_harmless(&text, &format!("{arguments:?}"));
    }
    // clap writes the messages about invalid arguments. These messages omit text that looks like an escape sequence.
    for text in [HOSTILE, "a\u{1b}]0;title\u{7}", "a\u{1b}[31m", "a\u{9b}2J"] {
        for arguments in [&["info", "--sim", text][..], &["info", "--gpus", text], &[text]] {
            let output = run_in_colour(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
            assert!(stderr(&output).contains("error: "), "{output:?}");
            assert_harmless(&stderr(&output), &format!("{arguments:?}"));
        }
    }
}

#[test]
fn variables_are_escaped() {
    for (variable, arguments) in [
        ("HSA_VMM_RUNTIME", &["info"][..]),
        ("HSA_SIM", &["info"]),
        ("HSA_VMM_PROFILE", &["conform"]),
        ("HSA_VMM_LOG", &["info"]),
        ("HSA_VMM_RUNTIME", &["info", "--help"]),
    ] {
        let output = command(arguments)
            .env("CLICOLOR_FORCE", "1")
            .env(variable, OsStr::from_bytes(HOSTILE.as_bytes()))
            .output()
            .unwrap();
        let text = stdout(&output) + &stderr(&output);
        assert!(!text.is_empty());
        assert_harmless(&text, variable);
    }
}

#[test]
fn styles_are_written_only_with_colours() {
    let arguments = ["conform", "--runtime", "sim", "--list", "--filter", "map."];
    assert!(!stdout(&run(&arguments)).contains('\u{1b}'));
    let output = run_in_colour(&["info", "--runtime", "sim"]);
    assert!(stderr(&output).starts_with("\u{1b}[2mruntime: simulation"), "{:?}", stderr(&output));
}
