//! The library's interface stays compatible. `abi/baseline.txt` contains the functions of earlier versions with their
//! symbol versions, the types and the values. The current interface must contain all of them.
//!
//! `HSA_VMM_WRITE_PAGES=1` adds new items to the file. Removing an item would need another soname.

use crate::headers::{code, functions, headers};
use crate::installed::install;
use crate::layout::{SOURCES, layout_of};
use crate::program::{Language, expect_success, package};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// The nodes of a version script: their names and functions.
type Nodes = Vec<(String, BTreeSet<String>)>;

/// Returns the nodes of the library's version script.
fn version_script() -> Nodes {
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
                ["hipError_t ", "const char *"].iter().any(|result| statement.starts_with(result));
            if is_function && statement.contains('(') {
                all.insert(statement);
            }
        }
    }
    all
}

/// Returns the functions of a version script as the linker names them (`hipMemMap@@HSAVMM_1`).
fn versioned_functions(nodes: &Nodes) -> BTreeSet<String> {
    let names = |(node, names): &(String, BTreeSet<String>)| {
        names.iter().map(|name| format!("{name}@@{node}")).collect::<Vec<_>>()
    };
    nodes.iter().flat_map(names).collect()
}

/// Returns the interface as lines: layouts of types, values, prototypes, versioned functions.
fn interface() -> BTreeSet<String> {
    let layout = SOURCES.map(|source| layout_of(source, Language::C99)).concat();
    let lines = layout.lines().map(str::to_owned).chain(prototypes());
    lines.chain(versioned_functions(&version_script())).collect()
}

fn baseline() -> BTreeSet<String> {
    let text = std::fs::read_to_string(package().join("abi/baseline.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns the nodes of the baseline, sorted by name.
fn baseline_nodes() -> Nodes {
    let mut nodes = Nodes::new();
    for line in baseline() {
        let Some((name, node)) = line.split_once("@@") else { continue };
        match nodes.iter_mut().find(|(other, _)| other == node) {
            Some((_, names)) => _ = names.insert(name.to_owned()),
            None => nodes.push((node.to_owned(), BTreeSet::from([name.to_owned()]))),
        }
    }
    nodes.sort();
    nodes
}

#[test]
fn interface_contains_the_baseline() {
    assert_eq!(prototypes().len(), functions().len());
    let (baseline, current) = (baseline(), interface());
    let lost: Vec<_> = baseline.difference(&current).collect();
    assert!(lost.is_empty(), "older programs would break: {lost:#?}");
    if std::env::var_os("HSA_VMM_WRITE_PAGES").is_some() {
        let lines: String = current.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        std::fs::write(package().join("abi/baseline.txt"), lines).unwrap();
        return;
    }
    let added: Vec<_> = current.difference(&baseline).collect();
    assert!(
        added.is_empty(),
        "add new items to the baseline with HSA_VMM_WRITE_PAGES=1: {added:#?}"
    );
}

/// Builds a library with the soname of `libhsavmm` that exports the functions of `nodes`. Each function returns 1.
fn build_library(nodes: &Nodes, folder: &Path) {
    let (mut source, mut script, mut inherited) = (String::new(), String::new(), String::new());
    for (node, names) in nodes {
        writeln!(script, "{node} {{ global:").unwrap();
        for name in names {
            writeln!(source, "int {name}(void) {{ return 1; }}").unwrap();
            writeln!(script, "{name};").unwrap();
        }
        let rest = if inherited.is_empty() { "local: *; " } else { "" };
        writeln!(script, "{rest}}}{inherited};").unwrap();
        inherited = format!(" {node}");
    }
    std::fs::write(folder.join("old.c"), source).unwrap();
    std::fs::write(folder.join("old.map"), script).unwrap();
    let mut link = Command::new("cc");
    link.args(["-shared", "-fPIC", "-w", "old.c", "-Wl,-soname,libhsavmm.so.1"]);
    link.args(["-Wl,--version-script=old.map", "-o", "libhsavmm.so"]).current_dir(folder);
    expect_success(&link.output().unwrap(), "the library of the baseline");
}

/// Writes the source of a program that refers to every function of `nodes`, so that the loader must find every
/// function. The program does not call the functions.
fn write_program_with_every_function(nodes: &Nodes, file: &Path) {
    let (mut source, mut list) = (String::from("#include <stdio.h>\n"), String::new());
    for name in nodes.iter().flat_map(|(_, names)| names) {
        writeln!(source, "extern int {name}(void);").unwrap();
        writeln!(list, "{name},").unwrap();
    }
    writeln!(source, "int (*functions[])(void) = {{ {list} }};").unwrap();
    writeln!(source, "int main(void) {{ puts(functions[0] ? \"loaded\" : \"\"); return 0; }}")
        .unwrap();
    std::fs::write(file, source).unwrap();
}

#[test]
fn program_built_with_the_baseline_still_runs() {
    let (folder, nodes) = (tempfile::tempdir().unwrap(), baseline_nodes());
    assert_eq!(nodes[0].0, "HSAVMM_1");
    build_library(&nodes, folder.path());
    let link = |source: &Path, name: &str| {
        let program = folder.path().join(name);
        let mut compile = Command::new("cc");
        compile.args(["-std=c99", "-I"]).arg(package().join("include")).arg(source);
        compile.arg("-L").arg(folder.path()).args(["-lhsavmm", "-o"]).arg(&program);
        expect_success(&compile.output().unwrap(), name);
        program
    };
    let cycle = link(&package().join("examples/cycle.c"), "cycle");
    let source = folder.path().join("every.c");
    write_program_with_every_function(&nodes, &source);
    let every = link(&source, "every");
    let symbols = Command::new("nm").arg("-D").arg(&every).output().unwrap();
    let symbols = expect_success(&symbols, "nm");
    for name in versioned_functions(&nodes) {
        assert!(symbols.contains(&name.replace("@@", "@")), "{name}: {symbols}");
    }
    let prefix = folder.path().join("current");
    install(&prefix);
    let run = |program: &Path| {
        let mut run = Command::new(program);
        run.env("LD_LIBRARY_PATH", prefix.join("lib")).env("HSA_VMM_RUNTIME", "sim");
        expect_success(&run.env("LD_BIND_NOW", "1").output().unwrap(), "an older program")
    };
    assert!(run(&cycle).contains("written at the first"));
    assert_eq!(run(&every), "loaded\n");
    // The loader rejects a library without the version `HSAVMM_1`.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    build_library(&vec![("HSAVMM_0".to_owned(), nodes[0].1.clone())], &other);
    std::fs::rename(other.join("libhsavmm.so"), other.join("libhsavmm.so.1")).unwrap();
    let output = Command::new(&cycle).env("LD_LIBRARY_PATH", &other).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("HSAVMM_1"), "{errors}");
}

#[test]
fn installation_exports_only_versioned_functions() {
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
    let expected = versioned_functions(&version_script());
    assert_eq!(exported, expected.iter().map(String::as_str).collect());
}
