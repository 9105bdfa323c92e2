//! Runs tests and programs under the shared object, preloaded.

// Each test uses a part.
#![allow(dead_code)]

use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Names the test whose body a process is to run.
const INSIDE: &str = "HSA_KFD_TEST_INSIDE";

/// The object, which cargo builds before this test and leaves beside it.
pub fn object() -> PathBuf {
    let test = env::current_exe().expect("the test has a path");
    let folder = test.parent().expect("the test lies in a folder");
    folder.join("libhsa_kfd.so")
}

/// A program that is to be run under the object.
pub fn program(setting: &str, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", object()).env("HSA_KFD", setting);
    command
}

/// Runs to the end.
pub fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// What a program prints, which must end well and complain of nothing.
pub fn output(setting: &str, name: &str, arguments: &[&str]) -> String {
    let output = run(&mut program(setting, name, arguments));
    assert!(output.status.success(), "{name} {arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{name} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs the body of a test in a process of its own under the object. `name` is the test's.
pub fn under(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if env::var(INSIDE).is_ok_and(|inside| inside == name) {
        return body();
    }
    let output = again(name, environment);
    let text = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{complaints}", output.status);
    assert!(text.contains("1 passed"), "no test is called {name}: {text}");
}

/// Runs the body of a test in another process under the object, whatever comes of it.
pub fn again(name: &str, environment: &[(&str, &str)]) -> Output {
    let test = env::current_exe().expect("the test has a path");
    let mut command = Command::new(test);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("LD_PRELOAD", object()).env(INSIDE, name).envs(environment.iter().copied());
    run(&mut command)
}
