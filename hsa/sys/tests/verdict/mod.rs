//! Checks claims with a C compiler and given headers.

use crate::claims::Claim;
use crate::compiler;
use std::fmt::Write as _;
use std::path::Path;

/// The file's name in the compiler's messages.
const SOURCE: &str = "claims.c";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The header agrees.
    Agrees,
    /// The header differs.
    Differs,
    /// The header lacks the name.
    Absent,
}

/// The result of one line; of several messages the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Silence,
    NotUnderstood,
    Failed,
    /// A line with an unknown name was not checked, whatever other messages it has.
    Unknown,
}

/// Checks every claim after `includes`; `folders` are searched first.
///
/// Each claim is compiled twice, as it is and negated, so that a missing message is not taken for
/// agreement: a line that the compiler did not reach would have none both times.
pub fn judge(includes: &[&str], folders: &[&Path], claims: &[Claim]) -> Vec<Verdict> {
    let affirmed = ask(includes, folders, claims, "");
    let denied = ask(includes, folders, claims, "!");
    let verdict = |index: usize| match (affirmed.answers[index], denied.answers[index]) {
        (Answer::Silence, Answer::Failed) => Verdict::Agrees,
        (Answer::Failed, Answer::Silence) => Verdict::Differs,
        (Answer::Unknown, Answer::Unknown) => Verdict::Absent,
        contradiction => panic!(
            "the compiler contradicts itself {contradiction:?} over {:?}:\n{}\n{}",
            claims[index], affirmed.messages, denied.messages
        ),
    };
    (0..claims.len()).map(verdict).collect()
}

struct Asked {
    answers: Vec<Answer>,
    messages: String,
}

fn ask(includes: &[&str], folders: &[&Path], claims: &[Claim], sign: &str) -> Asked {
    let mut source = "#include <stddef.h>\n#include <stdint.h>\n".to_owned();
    for include in includes {
        writeln!(source, "#include <{include}>").expect("a string takes all");
    }
    let first = source.lines().count() + 1;
    for Claim { condition, .. } in claims {
        writeln!(source, "_Static_assert({sign}({condition}), \"claim\");")
            .expect("a string takes all");
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

    let mut answers = vec![Answer::Silence; claims.len()];
    for (line, said) in errors(&messages) {
        let index = line.and_then(|line| line.checked_sub(first)).filter(|i| *i < claims.len());
        let Some(index) = index else {
            panic!("the compiler could not read the headers of {folders:?}:\n{messages}")
        };
        answers[index] = answers[index].max(said);
    }
    let odd = answers.iter().position(|answer| *answer == Answer::NotUnderstood);
    if let Some(index) = odd {
        panic!("unknown compiler message about {:?}:\n{messages}", claims[index]);
    }
    let failed = answers.iter().any(|answer| *answer != Answer::Silence);
    assert_eq!(!output.status.success(), failed, "an error without a line:\n{messages}");
    Asked { answers, messages }
}

/// Returns every error, with its line in the source if known.
fn errors(messages: &str) -> impl Iterator<Item = (Option<usize>, Answer)> {
    messages.lines().filter_map(|message| {
        let error = message.split_once(" error: ");
        let (place, text) = error.or_else(|| message.split_once(" fatal error: "))?;
        let place = place.strip_prefix(SOURCE).and_then(|place| place.strip_prefix(':'));
        let line = place.and_then(|place| place.split(':').next()?.parse().ok());
        Some((line, meaning(text)))
    })
}

/// Matches the messages of GCC and Clang, old and new.
fn meaning(error: &str) -> Answer {
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
        Answer::Unknown
    } else if FAILED.iter().any(|words| error.contains(words)) {
        Answer::Failed
    } else {
        Answer::NotUnderstood
    }
}

fn is_clang() -> bool {
    let output = compiler::command().arg("--version").output().expect("a C compiler, $CC or cc");
    String::from_utf8_lossy(&output.stdout).contains("clang")
}
