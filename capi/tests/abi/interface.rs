//! The exported interface: headers, library, pkg-config and CMake agree.

use crate::headers::functions;
use crate::program::{Language, Program, library_folder, package, well};
use hsa_rocr::test;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn exports_match_the_headers() {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library_folder().join("libhsavmm.so"))
        .output()
        .expect("nm comes with the linker");
    let printed = well(&output, "nm");
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
    let mut names: Vec<String> = names.chain(["hipGetDeviceProperties".to_owned()]).collect();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("by_name.c");
    let mut text = String::from(
        "#include <hip/hip_runtime_api.h>\n#include <stdio.h>\n\
         static int ask(const char *name) {\n  void *function;\n\
         \x20 return hipGetProcAddress(name, &function, 70200000, 0, NULL) == hipSuccess\n\
         \x20   && function != NULL;\n}\nint main(void) {\n",
    );
    for name in &names {
        text.push_str(&format!("  if (!ask(\"{name}\")) puts(\"{name}\");\n"));
    }
    text.push_str("  if (ask(\"hipNoSuchFunction\")) puts(\"an invented one\");\n  return 0;\n}\n");
    std::fs::write(&source, text).unwrap();
    let program = Program::compile(source.to_str().unwrap(), Language::C99, &[]);
    let missing = well(&program.on_simulation("").output().unwrap(), "by name");
    names.clear();
    assert_eq!(missing, "");
}

fn install(prefix: &Path) {
    let output = Command::new(package().join("install"))
        .arg("--built")
        .arg(library_folder())
        .arg(prefix)
        .output()
        .unwrap();
    well(&output, "install");
}

#[test]
fn pkg_config_finds_the_installation() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("prefix");
    install(&prefix);
    let mut found = Command::new("pkg-config");
    found.args(["--cflags", "--libs", "--print-errors", "hsavmm"]);
    let output = found.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).output();
    let Ok(output) = output else {
        test::report("SKIPPED interface::pkg_config_finds_the_installation: no pkg-config");
        return;
    };
    let flags = well(&output, "pkg-config");
    let program = folder.path().join("cycle");
    let script = format!(
        "cc -std=c99 \"$1\" {flags} -Wl,-rpath,\"$2\" -o \"$3\" && HSA_VMM_RUNTIME=sim \"$3\"",
        flags = flags.trim()
    );
    let output = Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(package().join("examples/cycle.c"))
        .arg(prefix.join("lib"))
        .arg(&program)
        .output()
        .unwrap();
    assert!(well(&output, "cycle").contains("written at the first"));
}

#[test]
fn cmake_finds_the_installation() {
    if Command::new("cmake").arg("--version").output().is_err() {
        test::report("SKIPPED interface::cmake_finds_the_installation: cmake is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("prefix");
    install(&prefix);
    std::fs::copy(package().join("examples/cycle.c"), folder.path().join("cycle.c")).unwrap();
    let project = "cmake_minimum_required(VERSION 3.16)\nproject(cycle C)\n\
                   find_package(hsavmm 0.1 REQUIRED)\n\
                   foreach(kind hsavmm static)\n  add_executable(cycle_${kind} cycle.c)\n\
                   \x20 target_link_libraries(cycle_${kind} hsavmm::${kind})\nendforeach()\n";
    std::fs::write(folder.path().join("CMakeLists.txt"), project).unwrap();
    let cmake = |arguments: &[&str]| {
        let output =
            Command::new("cmake").args(arguments).current_dir(folder.path()).output().unwrap();
        well(&output, "cmake")
    };
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    cmake(&["-S", ".", "-B", "build", &prefix]);
    cmake(&["--build", "build"]);
    for kind in ["hsavmm", "static"] {
        let mut program = Command::new(folder.path().join(format!("build/cycle_{kind}")));
        let output = program.env("HSA_VMM_RUNTIME", "sim").output().unwrap();
        assert!(well(&output, kind).contains("written at the first"));
    }
}
