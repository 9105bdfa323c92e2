//! The exported interface: headers and library agree.

use crate::headers::functions;
use crate::program::{Language, Program, expect_success, library_folder};
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn exports_match_the_headers() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library_folder().join("libhsavmm.so"))
        .output()
        .expect("nm comes with the linker");
    let printed = expect_success(&output, "nm");
    let exported: BTreeSet<String> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    let declared = functions();
    assert!(declared.len() > 150, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn get_proc_address_finds_every_function() {
    let names = functions().into_iter().filter(|name| name.starts_with("hip"));
    let names: Vec<String> = names.chain(["hipGetDeviceProperties".to_owned()]).collect();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("by_name.c");
    let mut text = String::from(
        "#include <hip/hip_runtime_api.h>\n#include <stdio.h>\n\
         static int is_found(const char *name) {\n  void *function;\n\
         \x20 return hipGetProcAddress(name, &function, 70200000, 0, NULL) == hipSuccess\n\
         \x20   && function != NULL;\n}\nint main(void) {\n",
    );
    for name in &names {
        text.push_str(&format!("  if (!is_found(\"{name}\")) puts(\"{name}\");\n"));
    }
    text.push_str(
        "  if (is_found(\"hipNoSuchFunction\")) puts(\"hipNoSuchFunction\");\n  return 0;\n}\n",
    );
    std::fs::write(&source, text).unwrap();
    let program = Program::compile(source.to_str().unwrap(), Language::C99, &[]);
    let mismatches = expect_success(&program.on_simulation("").output().unwrap(), "by name");
    assert_eq!(mismatches, "");
}
