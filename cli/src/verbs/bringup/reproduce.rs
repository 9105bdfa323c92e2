//! A level as a program in C: the calls that were made, with nothing around them.

use super::ascent::{Ascent, Call};
use super::level::Level;
use std::fmt::Write as _;

const HEAD: &str = include_str!("program.c");

/// What makes something, what gives it back, and how; in the order in which that is done.
const BACK: [(&str, &str, &str); 5] = [
    ("hsa_amd_vmem_map", "hsa_amd_vmem_unmap", "va, size"),
    ("hsa_amd_vmem_handle_create", "hsa_amd_vmem_handle_release", "memory"),
    ("hsa_amd_vmem_address_reserve", "hsa_amd_vmem_address_free", "va, size"),
    ("hsa_signal_create", "hsa_signal_destroy", "signal"),
    ("hsa_amd_memory_pool_allocate", "hsa_amd_memory_pool_free", "host"),
];

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
        give_back(&mut text, &rounds, "    ");
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

/// What a round has not given back itself, because it failed before or begins with it once for all rounds.
/// AMD's runtime crashes if it is stopped while a GPU's mapping is left.
fn give_back(text: &mut String, calls: &[&Call], indent: &str) {
    let made = |name: &str| calls.iter().any(|call| call.begin.call == name);
    for (make, back, arguments) in BACK {
        if made(make) && !made(back) {
            let _ = writeln!(text, "{indent}CHECK({back}({arguments}));");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ascent::{Cause, Outcome};
    use super::super::record::{Begin, Logs, Number};
    use super::*;
    use std::time::Duration;

    fn calls(of: &[(u32, &str, &str)]) -> Vec<Call> {
        let call = |(number, &(thread, call, c)): (usize, &(u32, &str, &str))| Call {
            begin: Begin {
                number: Number(0, number as u64),
                thread,
                task: String::new(),
                call: call.into(),
                arguments: Vec::new(),
                c: Some(format!("CHECK({call}({c}));")),
                logs: Logs::default(),
            },
            end: None,
        };
        of.iter().enumerate().map(call).collect()
    }

    fn written(calls: Vec<Call>, failed: usize) -> String {
        program(&Ascent {
            level: Level::Load,
            outcome: Outcome::Failed(Cause::Status(failed, 0x1000)),
            calls,
            facts: Vec::new(),
            runtime: None,
            took: Duration::ZERO,
            driver: None,
            said: String::new(),
        })
    }

    /// What the threads do in each round.
    fn rounds(text: &str) -> Vec<&str> {
        let work = text.split("round++) {\n").nth(1).unwrap();
        work.split("  }\n").next().unwrap().lines().map(str::trim).collect()
    }

    const ONCE: [(u32, &str, &str); 2] =
        [(1, "hsa_amd_memory_pool_allocate", "pool"), (1, "hsa_signal_create", "&signal")];
    const ROUND: [(u32, &str, &str); 7] = [
        (1, "hsa_amd_vmem_address_reserve", "&va"),
        (1, "hsa_amd_vmem_handle_create", "&memory"),
        (1, "hsa_amd_vmem_map", "va"),
        (1, "hsa_amd_vmem_set_access", "va"),
        (1, "hsa_amd_vmem_unmap", "va"),
        (1, "hsa_amd_vmem_handle_release", "memory"),
        (1, "hsa_amd_vmem_address_free", "va"),
    ];

    #[test]
    fn what_a_round_that_failed_has_made_it_gives_back() {
        // It fails in its first round, so that nobody has seen how that goes on.
        let text = written(calls(&[&ONCE[..], &ROUND[..4]].concat()), 5);
        let back = [
            "CHECK(hsa_amd_vmem_unmap(va, size));",
            "CHECK(hsa_amd_vmem_handle_release(memory));",
            "CHECK(hsa_amd_vmem_address_free(va, size));",
            "CHECK(hsa_signal_destroy(signal));",
            "CHECK(hsa_amd_memory_pool_free(host));",
        ];
        let round = rounds(&text);
        assert_eq!((round.len(), &round[6..]), (11, &back[..]), "{text}");
    }

    #[test]
    fn what_a_whole_round_gives_back_is_not_given_back_twice() {
        let text = written(calls(&[&ONCE[..], &ROUND, &ROUND[..4]].concat()), 12);
        let round = rounds(&text);
        let back = ["CHECK(hsa_signal_destroy(signal));", "CHECK(hsa_amd_memory_pool_free(host));"];
        assert_eq!((round.len(), &round[9..]), (11, &back[..]), "{text}");
        for (_, back, _) in BACK {
            assert_eq!(text.matches(back).count(), 1, "{back}: {text}");
        }
    }
}
