//! Libraries that export whatever a test wants, made with the C compiler.

use crate::compiler;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// What `hsa_init` of every stub answers, to know it by.
pub const ANSWER: u32 = 4711;

/// Makes the shared library `file`, which exports these functions and no other.
pub fn make<'a>(file: PathBuf, functions: impl IntoIterator<Item = &'a str>) -> PathBuf {
    use std::io::Write as _;
    let source: String = functions
        .into_iter()
        .map(|name| format!("unsigned {name}(void) {{ return {ANSWER}u; }}\n"))
        .collect();
    std::fs::create_dir_all(folder(&file)).expect("the temporary folder is writable");
    let mut cc = compiler::command()
        .args(["-shared", "-fPIC", "-x", "c", "-", "-o"])
        .arg(&file)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler, $CC or cc");
    let mut input = cc.stdin.take().expect("it was piped");
    input.write_all(source.as_bytes()).expect("the compiler reads its input");
    drop(input);
    assert!(cc.wait().expect("the compiler ends").success(), "no library of:\n{source}");
    file
}

/// The folder of a file.
pub fn folder(file: &Path) -> &Path {
    file.parent().expect("a file is in a folder")
}
