//! The library's interface stays compatible: `abi/baseline.txt` contains the functions, types and values of
//! earlier versions, and the current interface must contain all of them.
//!
//! `HSA_VMM_WRITE_PAGES=1` adds new ones to the file. Removing one would need another soname.

use crate::headers::{code, functions, headers};
use crate::installed::install;
use crate::layout::{SOURCES, layout_of};
use crate::program::{Language, expect_success, package};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Returns the nodes of the version script: their names and functions.
fn version_script() -> Vec<(String, BTreeSet<String>)> {
    let text = std::fs::read_to_string(package().join("abi/hsavmm.map")).unwrap();
    let (_, text) = text.split_once("*/").unwrap();
    let mut nodes = Vec::new();
    for node in text.split_inclusive('}').filter_map(|part| part.split_once('{')) {
        let name = node.0.trim_start_matches(|letter: char| !letter.is_ascii_uppercase()).trim();
        let words = node.1.split([';', '\n', ' ']).filter(|word| word.starts_with('h'));
        nodes.push((name.to_owned(), words.map(str::to_owned).collect()));
    }
    nodes
}

#[test]
fn version_script_has_every_function_once() {
    let nodes = version_script();
    assert_eq!(nodes[0].0, "HSAVMM_1");
    let listed: Vec<_> = nodes.iter().flat_map(|(_, names)| names).collect();
    let all: BTreeSet<String> = listed.iter().map(|name| (*name).clone()).collect();
    assert_eq!(all.len(), listed.len(), "a function has two versions");
    assert_eq!(all, functions());
}

/// Returns the prototypes of all functions, each on one line.
fn prototypes() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for header in headers() {
        let code = code(&header);
        let code = code.split("template <class").next().unwrap();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with('#'));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        for statement in text.split([';', '}', '{']) {
            let words: Vec<_> = statement.split_whitespace().collect();
            let statement = words.join(" ");
            let is_function =
                ["hipError_t ", "const char *"].iter().any(|of| statement.starts_with(of));
            if is_function && statement.contains('(') {
                all.insert(statement);
            }
        }
    }
    all
}

/// Returns the interface as lines.
fn interface() -> BTreeSet<String> {
    let layout = SOURCES.map(|source| layout_of(source, Language::C99)).concat();
    layout.lines().map(str::to_owned).chain(prototypes()).collect()
}

#[test]
fn interface_contains_the_baseline() {
    assert_eq!(prototypes().len(), functions().len());
    let file = package().join("abi/baseline.txt");
    let baseline = std::fs::read_to_string(&file).unwrap_or_default();
    let baseline: BTreeSet<String> = baseline.lines().map(str::to_owned).collect();
    let current = interface();
    let lost: Vec<_> = baseline.difference(&current).collect();
    assert!(lost.is_empty(), "older programs would break: {lost:#?}");
    if std::env::var_os("HSA_VMM_WRITE_PAGES").is_some() {
        let lines: String = current.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        std::fs::write(file, lines).unwrap();
        return;
    }
    let added: Vec<_> = current.difference(&baseline).collect();
    assert!(
        added.is_empty(),
        "add new items to the baseline with HSA_VMM_WRITE_PAGES=1: {added:#?}"
    );
}

/// Builds a library with only the names, versions and soname of one node.
fn library_of(node: &(String, BTreeSet<String>), folder: &Path) {
    let (mut source, mut script) = (String::new(), format!("{} {{ global:\n", node.0));
    for name in &node.1 {
        writeln!(source, "int {name}(void) {{ return 1; }}").unwrap();
        writeln!(script, "{name};").unwrap();
    }
    script.push_str("local: *; };\n");
    std::fs::write(folder.join("old.c"), source).unwrap();
    std::fs::write(folder.join("old.map"), script).unwrap();
    let mut link = Command::new("cc");
    link.args(["-shared", "-fPIC", "-w", "old.c", "-Wl,-soname,libhsavmm.so.1"]);
    link.args(["-Wl,--version-script=old.map", "-o", "libhsavmm.so"]).current_dir(folder);
    expect_success(&link.output().unwrap(), "a library with the first version's functions");
}

#[test]
fn program_linked_to_the_first_version_still_runs() {
    let folder = tempfile::tempdir().unwrap();
    library_of(&version_script()[0], folder.path());
    let program = folder.path().join("cycle");
    let mut compile = Command::new("cc");
    compile.args(["-std=c99", "-I"]).arg(package().join("include"));
    compile.arg(package().join("examples/cycle.c")).arg("-L").arg(folder.path());
    compile.args(["-lhsavmm", "-o"]).arg(&program);
    expect_success(&compile.output().unwrap(), "cycle");
    let symbols = Command::new("nm").arg("-D").arg(&program).output().unwrap();
    assert!(expect_success(&symbols, "nm").contains("hipMemMap@HSAVMM_1"));
    let prefix = folder.path().join("today");
    install(&prefix);
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", prefix.join("lib")).env("HSA_VMM_RUNTIME", "sim");
    assert!(expect_success(&run.output().unwrap(), "cycle").contains("written at the first"));
    // The loader rejects a library without the version.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    library_of(&("HSAVMM_0".to_owned(), version_script()[0].1.clone()), &other);
    std::fs::rename(other.join("libhsavmm.so"), other.join("libhsavmm.so.1")).unwrap();
    let output = Command::new(&program).env("LD_LIBRARY_PATH", &other).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("HSAVMM_1"), "{errors}");
}

#[test]
fn installed_library_exports_only_versioned_functions() {
    let folder = tempfile::tempdir().unwrap();
    install(folder.path());
    let library = folder.path().join("lib/libhsavmm.so.1");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let printed = expect_success(&output, "nm");
    let exported: BTreeSet<&str> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| !name.starts_with("HSAVMM_"))
        .collect();
    let expected: BTreeSet<String> = version_script()
        .iter()
        .flat_map(|(node, names)| names.iter().map(move |name| format!("{name}@@{node}")))
        .collect();
    assert_eq!(exported, expected.iter().map(String::as_str).collect());
}
