//! The symbols that the shared library exports.

use crate::{headers, library, run};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Returns the names that a library exports, with their versions.
fn exports(library: &Path) -> BTreeSet<String> {
    let output = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let text = String::from_utf8(output.stdout).expect("ASCII");
    let names = text.lines().filter_map(|line| line.split(' ').next_back());
    // The symbol version itself is a symbol too.
    names.filter(|name| *name != "ROCR_1").map(str::to_owned).collect()
}

/// Returns the names of the functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let mut code = String::new();
    // Each part after the first starts inside a comment.
    for (index, part) in header.split("/*").enumerate() {
        let part =
            if index == 0 { part } else { part.split_once("*/").map_or("", |(_, after)| after) };
        code.extend(
            part.lines().flat_map(|line| [line.split("//").next().unwrap_or_default(), "\n"]),
        );
    }
    let is_word_character = |character: char| character.is_ascii_alphanumeric() || character == '_';
    // Take the word before each opening parenthesis. If the word is a type, the parenthesis begins a pointer to a
    // function. The functions `hsa_flag_…` are inline, so the library does not export them.
    let words = code.split('(').filter_map(|before| {
        before.trim_end().rsplit(|character| !is_word_character(character)).next()
    });
    let is_function = |word: &&str| {
        word.starts_with("hsa_") && !word.ends_with("_t") && !word.starts_with("hsa_flag_")
    };
    words.filter(is_function).map(str::to_owned).collect()
}

#[test]
fn exports_are_c_functions_of_version_rocr_1() {
    let exports = exports(&library().join("libhsa-runtime64.so.1"));
    let is_function = |name: &&String| name.starts_with("hsa_") && name.ends_with("@@ROCR_1");
    assert_eq!(exports.iter().find(|name| !is_function(name)), None);
    let table = hsa_sys::Core::SYMBOLS.iter().chain(hsa_sys::Vmem::SYMBOLS);
    for symbol in table {
        let name = format!("{}@@ROCR_1", symbol.name);
        assert!(exports.contains(&name), "{name} is missing");
    }
    let output =
        run(Command::new("readelf").arg("-d").arg(library().join("libhsa-runtime64.so.1")));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("[libhsa-runtime64.so.1]"), "no SONAME: {text}");
    let link = std::fs::read_link(library().join("libhsa-runtime64.so")).expect("a link");
    assert_eq!(link, Path::new("libhsa-runtime64.so.1"));
}

#[test]
fn exports_include_those_of_amds_releases() {
    let own = exports(&library().join("libhsa-runtime64.so.1"));
    let name = "exports::exports_include_those_of_amds_releases";
    for fetched in hsa_rocr::test::fetch_releases(name).unwrap_or_default() {
        let amds = exports(&fetched.runtime());
        assert!(amds.len() > 200, "{}: only {}", fetched.release(), amds.len());
        // `_amdgpu_r_debug` is the only symbol that is not a function. In this structure, debuggers
        // find the code objects.
        let amds = amds.iter().filter(|name| *name != "_amdgpu_r_debug@@ROCR_1");
        let missing: Vec<_> = amds.filter(|name| !own.contains(*name)).collect();
        assert!(missing.is_empty(), "{} also exports {missing:?}", fetched.release());
    }
}

#[test]
fn exports_include_the_functions_of_each_header() {
    let own = exports(&library().join("libhsa-runtime64.so.1"));
    for folder in headers("exports::exports_include_the_functions_of_each_header") {
        for header in ["hsa/hsa.h", "hsa/hsa_ext_amd.h"] {
            let text = std::fs::read_to_string(folder.join(header)).expect("the header is text");
            let functions = declared(&text);
            assert!(functions.len() > 50, "{header}: only {functions:?}");
            let is_missing = |name: &&String| !own.contains(&format!("{name}@@ROCR_1"));
            let missing: Vec<_> = functions.iter().filter(is_missing).collect();
            assert!(missing.is_empty(), "{folder:?}: {header} also declares {missing:?}");
        }
    }
}
