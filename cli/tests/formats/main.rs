//! Other programs accept the output: the Linux kernel's KTAP parser, `xmllint` with a JUnit schema, and KCIDB's schema.

#[path = "../ktap/mod.rs"]
mod ktap;
#[path = "../hsa_vmm/mod.rs"]
mod run_command;

use hsa_rocr::test;
use ktap::{Results, Test};
use run_command::{command, stderr, stdout};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

const CONFORM: [&str; 5] = ["conform", "--runtime", "sim", "--filter", "map.*"];
const FAULT: [&str; 2] = ["--sim", "faults=hsa_amd_vmem_map#3=ERROR"];

/// Reports that a test is skipped. Panics if `HSA_VMM_REQUIRE` contains `word`.
fn skip(name: &str, word: &str, reason: &str) {
    assert!(!test::is_required(word), "HSA_VMM_REQUIRE contains `{word}`: {reason}");
    test::report(&format!("SKIPPED {name}: {reason}"));
}

/// Runs the command in a temporary folder, because `fuzz` saves findings in the current folder.
fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    command(arguments).current_dir(folder.path()).output().unwrap()
}

/// Runs `conform` with a fault. One case fails, and the list for `--expect` contains this failure.
fn run_with_known_failure(options: &[&str]) -> Output {
    let failing = run(&[&CONFORM[..], &FAULT, &["--format", "json"]].concat());
    let report: Value = serde_json::from_slice(&failing.stdout).unwrap();
    let cases = report["cases"].as_array().unwrap();
    let failed = cases.iter().find(|case| case["status"] == "fail").unwrap()["name"].clone();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("expect.toml");
    let entry = format!("[[expect]]\ncase = {failed}\nreason = \"a # b\"\nsource = \"s\"\n");
    fs::write(&list, entry).unwrap();
    let expect = ["--expect", list.to_str().unwrap()];
    run(&[&CONFORM[..], &FAULT, &expect, options].concat())
}

/// Counts the tests that have no nested tests. Returns the numbers of passed, failed and skipped tests.
fn count(results: &Results) -> [u64; 3] {
    let count_one = |test: &Test| match test {
        Test { nested, .. } if !nested.is_empty() => count(nested),
        Test { directive, .. } if directive.starts_with("SKIP") => [0, 0, 1],
        Test { ok: true, .. } => [1, 0, 0],
        Test { ok: false, .. } => [0, 1, 0],
    };
    let add = |sum: [u64; 3], test| {
        let more = count_one(test);
        std::array::from_fn(|index| sum[index] + more[index])
    };
    results.values().fold([0; 3], add)
}

/// A Python script that parses a KTAP document with the kernel's `kunit_parser.py`. The last line of the script's
/// output contains the counts as JSON.
const KUNIT: &str = "
import json, sys
sys.path.insert(0, sys.argv[1])
import kunit_parser
counts = kunit_parser.parse_run_tests(open(sys.argv[2])).counts
print(json.dumps(vars(counts)))
";

#[test]
fn kernel_parser_accepts_ktap() {
    let name = "kernel_parser_accepts_ktap";
    let Some(folder) = env::var_os("HSA_VMM_KUNIT") else {
        let reason = "HSA_VMM_KUNIT does not name the folder of the kernel's kunit_parser.py";
        return skip(name, "kunit", reason);
    };
    let ktap = ["--format", "ktap"];
    let fuzz = ["fuzz", "--runtime", "sim", "--seed", "3", "--processes", "1", "--time", "2s"];
    let stress = ["stress", "--runtime", "sim", "--processes", "1", "--time", "1s"];
    let bringup = ["bringup", "--runtime", "sim"];
    let finding = ["--sim", "faults=hsa_amd_vmem_map#3-=lost", "--shrink", "1s"];
    let leak = ["--leak", "mapping"];
    for (what, output, status) in [
        ("conform", run(&[&CONFORM[..], &ktap].concat()), 0),
        ("conform, failing", run(&[&CONFORM[..], &FAULT, &ktap].concat()), 1),
        ("conform, expected failure", run_with_known_failure(&ktap), 0),
        ("bringup", run(&[&bringup[..], &ktap].concat()), 0),
        ("bringup, failing", run(&[&bringup[..], &FAULT, &ktap].concat()), 1),
        ("fuzz", run(&[&fuzz[..], &ktap].concat()), 0),
        ("fuzz, failing", run(&[&fuzz[..], &finding, &ktap].concat()), 1),
        ("stress", run(&[&stress[..], &ktap].concat()), 0),
        ("stress, failing", run(&[&stress[..], &leak, &ktap].concat()), 1),
    ] {
        assert_eq!(output.status.code(), Some(status), "{what}: {output:?}");
        let text = stdout(&output);
        let expected = count(&ktap::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}")));
        assert_eq!(expected[1] > 0, status == 1, "{what}: {text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, &text).unwrap();
        let mut python = Command::new("python3");
        python.args(["-c", KUNIT]).arg(&folder).arg(file.path());
        let parsed = python.output().unwrap();
        assert!(parsed.status.success(), "{what}: {parsed:?}");
        let counts: Value = serde_json::from_str(stdout(&parsed).lines().last().unwrap()).unwrap();
        let [passed, failed, skipped] = expected;
        let expected_counts = json!({ "passed": passed, "failed": failed, "skipped": skipped, "crashed": 0, "errors": 0 });
        assert_eq!(counts, expected_counts, "{what}: {}{text}", stdout(&parsed));
        test::report(&format!("{what}: {passed} passed, {failed} failed, {skipped} skipped"));
    }
}

#[test]
fn junit_follows_the_schema() {
    let name = "junit_follows_the_schema";
    if Command::new("xmllint").arg("--version").output().is_err() {
        return skip(name, "xmllint", "xmllint is not installed (libxml2-utils)");
    }
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/junit.xsd");
    // If `HSA_VMM_JUNIT_XSD` names a schema, the output must follow this schema, too.
    let schemas = env::var_os("HSA_VMM_JUNIT_XSD").into_iter().chain([schema.into()]);
    let junit = ["--format", "junit"];
    let missing = ["conform", "--runtime", "/nonexistent/libhsa-runtime64.so.1"];
    let outputs = [
        run(&[&CONFORM[..], &junit].concat()),
        run(&[&CONFORM[..], &FAULT, &junit].concat()),
        run_with_known_failure(&junit),
        run(&[&missing[..], &junit].concat()),
    ];
    let words = ["tests=", "<failure ", "type=\"known\"", "<error "];
    for schema in schemas {
        for (output, words) in outputs.iter().zip(words) {
            let file = tempfile::NamedTempFile::new().unwrap();
            assert!(stdout(output).contains(words), "{words}: {output:?}");
            fs::write(&file, &output.stdout).unwrap();
            let mut xmllint = Command::new("xmllint");
            xmllint.args(["--noout", "--schema"]).arg(&schema).arg(file.path());
            let checked = xmllint.output().unwrap();
            assert!(checked.status.success(), "{schema:?}: {}", stderr(&checked));
        }
    }
}

/// A Python script that checks a document against version 4.0 of KCIDB's schema. The script then converts the document
/// to the newest version, and checks the result.
const KCIDB: &str = "
import json, sys, kcidb_io
document = json.load(open(sys.argv[1]))
kcidb_io.schema.V4_0.validate(document)
kcidb_io.schema.LATEST.validate(kcidb_io.schema.LATEST.upgrade(document))
";

#[test]
fn kcidb_follows_the_schema() {
    let name = "kcidb_follows_the_schema";
    let import = Command::new("python3").args(["-c", "import kcidb_io"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        return skip(name, "kcidb", "Python's package kcidb-io is not installed");
    }
    let kcidb = ["--format", "kcidb", "--build-id", "us:linux-6.12"];
    for output in [run(&[&CONFORM[..], &FAULT, &kcidb].concat()), run_with_known_failure(&kcidb)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, &output.stdout).unwrap();
        let checked =
            Command::new("python3").args(["-c", KCIDB]).arg(file.path()).output().unwrap();
        assert!(checked.status.success(), "{}", stderr(&checked));
    }
}
