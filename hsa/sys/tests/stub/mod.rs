//! Compiles shared libraries that export chosen functions.

use crate::compiler;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The value that all functions of a stub return.
pub const RESULT: u32 = 4711;

/// Builds the shared library `file`, which exports exactly these functions.
pub fn build<'a>(file: PathBuf, functions: impl IntoIterator<Item = &'a str>) -> PathBuf {
    build_with(file, functions, &[])
}

/// Builds the shared library `file` with the runtime's soname. Once a process has loaded the library, the dynamic
/// linker of the process returns the library for that name. Tests therefore load the library only in child processes.
pub fn build_named<'a>(file: PathBuf, functions: impl IntoIterator<Item = &'a str>) -> PathBuf {
    build_with(file, functions, &["-Wl,-soname,libhsa-runtime64.so.1"])
}

fn build_with<'a>(
    file: PathBuf,
    functions: impl IntoIterator<Item = &'a str>,
    options: &[&str],
) -> PathBuf {
    use std::io::Write as _;
    let source: String = functions
        .into_iter()
        .map(|name| format!("unsigned {name}(void) {{ return {RESULT}u; }}\n"))
        .collect();
    std::fs::create_dir_all(folder(&file)).expect("the temporary folder is writable");
    let mut compiler = compiler::command()
        .args(["-shared", "-fPIC", "-x", "c", "-"])
        .args(options)
        .arg("-o")
        .arg(&file)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler, $CC or cc");
    let mut input = compiler.stdin.take().expect("a pipe");
    input.write_all(source.as_bytes()).expect("the compiler reads its input");
    drop(input);
    assert!(compiler.wait().expect("the compiler ends").success(), "cannot compile:\n{source}");
    file
}

/// Returns the folder that contains a file.
pub fn folder(file: &Path) -> &Path {
    file.parent().expect("a file is in a folder")
}
