//! A level as a program in C: the calls that were made, with nothing around them.

use super::ascent::{Ascent, Call};
use super::level::Level;
use std::fmt::Write as _;

const HEAD: &str = include_str!("program.c");

/// The program, with how to build it in its first lines.
pub fn program(ascent: &Ascent) -> String {
    let until = ascent.failed_call().map_or(ascent.calls.len(), |index| index + 1);
    let of = |process: u8| {
        let calls = ascent.calls.iter().enumerate();
        // The other process goes on while this one waits, and the other way round.
        let calls = calls.filter(move |(index, call)| {
            call.begin.number.0 == process && (*index < until || ascent.level == Level::Shared)
        });
        calls.map(|(_, call)| call).collect::<Vec<_>>()
    };
    let (first, other) = (of(0), of(1));
    let mut text = HEAD.replace("LEVEL", ascent.level.title());
    if !other.is_empty() {
        text.push_str("\nstatic void other_process(int socket) {\n");
        body(&mut text, &other);
        text.push_str("}\n");
    }
    let threads = first.iter().map(|call| call.begin.thread).max().unwrap_or(0);
    if threads > 0 {
        let rounds = round(&first, ascent.failed_call().map(|index| &ascent.calls[index]));
        text.push_str("\nstatic void *work(void *unused) {\n  (void)unused;\n");
        variables(&mut text, &rounds);
        text.push_str("  for (int round = 0; round < 64; round++) {\n");
        statements(&mut text, &rounds, "    ");
        text.push_str("  }\n  return NULL;\n}\n");
    }
    text.push_str("\nint main(void) {\n");
    if !other.is_empty() {
        text.push_str("  int socket = start(other_process);\n");
    }
    let alone = |call: &&Call| call.begin.thread == 0;
    if threads > 0 {
        let start = |call: &&Call| call.begin.call != "hsa_shut_down";
        let before: Vec<_> = first.iter().copied().filter(alone).take_while(start).collect();
        body(&mut text, &before);
        let _ = write!(
            text,
            "  pthread_t threads[{threads}];\n  for (int i = 0; i < {threads}; i++)\n    \
             pthread_create(&threads[i], NULL, work, NULL);\n  for (int i = 0; i < {threads}; i++)\n    \
             pthread_join(threads[i], NULL);\n  CHECK(hsa_shut_down());\n"
        );
    } else {
        body(&mut text, &first);
    }
    text.push_str("  puts(\"all calls succeeded\");\n  return 0;\n}\n");
    text
}

fn body(text: &mut String, calls: &[&Call]) {
    variables(text, calls);
    statements(text, calls, "  ");
}

/// What one thread does from its first call to its last, with the call that failed if it is another
/// thread's; one round of it, as they are all alike.
fn round<'a>(calls: &[&'a Call], failed: Option<&'a Call>) -> Vec<&'a Call> {
    let thread = failed.map_or(1, |call| call.begin.thread.max(1));
    let own: Vec<_> = calls.iter().copied().filter(|call| call.begin.thread == thread).collect();
    let starts = |call: &&Call| call.begin.call == "hsa_amd_vmem_address_reserve";
    let mut rounds = own.iter().enumerate().filter(|(_, call)| starts(call)).map(|(at, _)| at);
    match (rounds.next(), rounds.next()) {
        // Everything up to the second round: what comes before the first is made anew, too.
        (Some(_), Some(second)) => own[..second].to_vec(),
        _ => own,
    }
}

/// Only the variables that occur, so that a compiler has nothing to say.
fn variables(text: &mut String, calls: &[&Call]) {
    let all: Vec<_> = calls.iter().filter_map(|call| call.begin.c.as_deref()).collect();
    let used = |word: &str| all.iter().any(|statement| has_word(statement, word));
    for (name, declaration) in [
        ("value", "uint64_t value = 0;"),
        ("name", "char name[64];"),
        ("va", "void *va = NULL;"),
        ("memory", "hsa_amd_vmem_alloc_handle_t memory = {0};"),
        ("host", "uint32_t *host = NULL;"),
        ("signal", "hsa_signal_t signal = {0};"),
        ("dmabuf", "int dmabuf = -1;"),
    ] {
        if used(name) {
            let _ = writeln!(text, "  {declaration}");
        }
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|part| part == word)
}

fn statements(text: &mut String, calls: &[&Call], indent: &str) {
    for call in calls {
        if let Some(statement) = &call.begin.c {
            let _ = writeln!(text, "{indent}{statement}");
        }
    }
}
