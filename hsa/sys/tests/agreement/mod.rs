//! Checks assertions about headers with a C compiler.

use crate::assertions::Assertion;
use crate::compiler;
use std::fmt::Write as _;
use std::path::Path;

/// The name of the source file. The compiler's messages start with this name.
const SOURCE: &str = "assertions.c";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// The header agrees.
    Agrees,
    /// The header differs.
    Differs,
    /// The header lacks the name.
    Absent,
}

/// The compiler's result for a line. If a line has several messages, the last of these variants
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LineResult {
    Accepted,
    UnknownMessage,
    Failed,
    /// The line has an unknown name, and was therefore not checked.
    UnknownName,
}

/// Checks every assertion in a file that includes `includes`. The compiler searches `folders` first.
///
/// Compiles each assertion twice: unchanged and negated. A line that the compiler skips has no message in either
/// run, which is an error.
pub fn check(includes: &[&str], folders: &[&Path], assertions: &[Assertion]) -> Vec<Agreement> {
    let plain = compile(includes, folders, assertions, "");
    let negated = compile(includes, folders, assertions, "!");
    let agreement = |index: usize| match (plain.results[index], negated.results[index]) {
        (LineResult::Accepted, LineResult::Failed) => Agreement::Agrees,
        (LineResult::Failed, LineResult::Accepted) => Agreement::Differs,
        (LineResult::UnknownName, LineResult::UnknownName) => Agreement::Absent,
        contradiction => panic!(
            "the compiler contradicts itself {contradiction:?} over {:?}:\n{}\n{}",
            assertions[index], plain.messages, negated.messages
        ),
    };
    (0..assertions.len()).map(agreement).collect()
}

struct Compilation {
    results: Vec<LineResult>,
    messages: String,
}

fn compile(
    includes: &[&str],
    folders: &[&Path],
    assertions: &[Assertion],
    negation: &str,
) -> Compilation {
    let mut source = "#include <stddef.h>\n#include <stdint.h>\n".to_owned();
    for include in includes {
        writeln!(source, "#include <{include}>").expect("a string can be written");
    }
    let first_line = source.lines().count() + 1;
    for Assertion { condition, .. } in assertions {
        writeln!(source, "_Static_assert({negation}({condition}), \"assertion\");")
            .expect("a string can be written");
    }
    let work = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(work.path().join(SOURCE), source).expect("the temporary folder is writable");

    let mut command = compiler::command();
    command.current_dir(work.path()).args(["-std=gnu11", "-fsyntax-only", "-w", SOURCE]);
    if is_clang() {
        command.arg("-ferror-limit=0");
    }
    for folder in folders {
        command.arg("-I").arg(folder);
    }
    let output = command.output().expect("a C compiler, $CC or cc");
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();

    let mut results = vec![LineResult::Accepted; assertions.len()];
    for (line, result) in errors(&messages) {
        let index =
            line.and_then(|line| line.checked_sub(first_line)).filter(|i| *i < assertions.len());
        let Some(index) = index else {
            panic!("the compiler could not read the headers of {folders:?}:\n{messages}")
        };
        results[index] = results[index].max(result);
    }
    let unknown = results.iter().position(|result| *result == LineResult::UnknownMessage);
    if let Some(index) = unknown {
        panic!("unknown compiler message about {:?}:\n{messages}", assertions[index]);
    }
    let failed = results.iter().any(|result| *result != LineResult::Accepted);
    assert_eq!(!output.status.success(), failed, "an error without a line:\n{messages}");
    Compilation { results, messages }
}

/// Returns every error, with its line in the source if known.
fn errors(messages: &str) -> impl Iterator<Item = (Option<usize>, LineResult)> {
    messages.lines().filter_map(|message| {
        let error = message.split_once(" error: ");
        let (position, text) = error.or_else(|| message.split_once(" fatal error: "))?;
        let position = position.strip_prefix(SOURCE).and_then(|rest| rest.strip_prefix(':'));
        let line = position.and_then(|rest| rest.split(':').next()?.parse().ok());
        Some((line, parse_error(text)))
    })
}

/// Parses an error message of any version of GCC or Clang.
fn parse_error(error: &str) -> LineResult {
    const FAILED: [&str; 2] = ["static assertion failed", "static_assert failed"];
    const UNKNOWN: [&str; 5] = [
        "undeclared",
        "unknown type name",
        "no member named",
        // GCC reports an undeclared name once per file, and this message for every line.
        "expression in static assertion is not an integer",
        "expression in static assertion is not constant",
    ];
    if UNKNOWN.iter().any(|words| error.contains(words)) {
        LineResult::UnknownName
    } else if FAILED.iter().any(|words| error.contains(words)) {
        LineResult::Failed
    } else {
        LineResult::UnknownMessage
    }
}

fn is_clang() -> bool {
    let output = compiler::command().arg("--version").output().expect("a C compiler, $CC or cc");
    String::from_utf8_lossy(&output.stdout).contains("clang")
}
