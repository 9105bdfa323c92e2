//! Writes a level as a C program that makes the same calls.

use super::level::Level;
use super::supervisor::{Call, LevelRun};
use std::fmt::Write as _;

const HEAD: &str = include_str!("program.c");

/// Allocating functions, the functions that release their results, and the arguments of the latter; in the
/// order of release.
const RELEASES: [(&str, &str, &str); 5] = [
    ("hsa_amd_vmem_map", "hsa_amd_vmem_unmap", "va, size"),
    ("hsa_amd_vmem_handle_create", "hsa_amd_vmem_handle_release", "memory"),
    ("hsa_amd_vmem_address_reserve", "hsa_amd_vmem_address_free", "va, size"),
    ("hsa_signal_create", "hsa_signal_destroy", "signal"),
    ("hsa_amd_memory_pool_allocate", "hsa_amd_memory_pool_free", "host"),
];

/// Returns the program. Its first lines say how to build it.
pub fn program(run: &LevelRun) -> String {
    let until = run.failed_call().map_or(run.calls.len(), |index| index + 1);
    let calls_of = |process: u8| {
        let calls = run.calls.iter().enumerate();
        // In "shared", both processes are needed to the end: each waits for the other.
        let calls = calls.filter(move |(index, call)| {
            call.begin.number.0 == process && (*index < until || run.level == Level::Shared)
        });
        calls.map(|(_, call)| call).collect::<Vec<_>>()
    };
    let failed = run.failed_call().map_or(0, |index| run.calls[index].begin.number.0);
    // Only the processes of "shared" need each other.
    let (first, other) = match run.level {
        Level::Shared => (calls_of(0), calls_of(1)),
        _ => (calls_of(failed), Vec::new()),
    };
    let mut text = HEAD.replace("LEVEL", run.level.title());
    text = text.replace("GRANULES", &run.level.granules().to_string());
    if !other.is_empty() {
        text.push_str("\nstatic void other_process(int socket) {\n");
        body(&mut text, &other);
        text.push_str("}\n");
    }
    let threads = first.iter().map(|call| call.begin.thread).max().unwrap_or(0);
    if threads > 0 {
        let rounds = round(&first, run.failed_call().map(|index| &run.calls[index]));
        text.push_str("\nstatic void *work(void *unused) {\n  (void)unused;\n");
        variables(&mut text, &rounds);
        text.push_str("  for (int round = 0; round < 64; round++) {\n");
        statements(&mut text, &rounds, "    ");
        write_releases(&mut text, &rounds, "    ");
        text.push_str("  }\n  return NULL;\n}\n");
    }
    text.push_str("\nint main(void) {\n");
    if let Some((name, value)) = run.level.variable() {
        let _ = writeln!(text, "  setenv(\"{name}\", \"{value}\", 1);");
    }
    if !other.is_empty() {
        text.push_str("  int socket = start(other_process);\n");
    }
    let in_main_thread = |call: &&Call| call.begin.thread == 0;
    if threads > 0 {
        let start = |call: &&Call| call.begin.call != "hsa_shut_down";
        let before: Vec<_> =
            first.iter().copied().filter(in_main_thread).take_while(start).collect();
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

/// Returns the calls of one thread up to the end of its first round: of the thread that failed, if one did.
/// All rounds and threads make the same calls.
fn round<'a>(calls: &[&'a Call], failed: Option<&'a Call>) -> Vec<&'a Call> {
    let thread = failed.map_or(1, |call| call.begin.thread.max(1));
    let own: Vec<_> = calls.iter().copied().filter(|call| call.begin.thread == thread).collect();
    let starts = |call: &&Call| call.begin.call == "hsa_amd_vmem_address_reserve";
    let mut rounds = own.iter().enumerate().filter(|(_, call)| starts(call)).map(|(at, _)| at);
    match (rounds.next(), rounds.next()) {
        // Calls before the first round are included.
        (Some(_), Some(second)) => own[..second].to_vec(),
        _ => own,
    }
}

/// Declares only the variables that are used, because compilers warn about others.
fn variables(text: &mut String, calls: &[&Call]) {
    let all: Vec<_> = calls.iter().filter_map(|call| call.begin.c.as_deref()).collect();
    let used = |word: &str| all.iter().any(|statement| has_word(statement, word));
    for (name, declaration) in [
        ("value", "uint64_t value = 0;"),
        ("name", "char name[64];"),
        ("available", "uint64_t available = 0;"),
        ("va", "void *va = NULL;"),
        ("va2", "void *va2 = NULL;"),
        ("memory", "hsa_amd_vmem_alloc_handle_t memory = {0};"),
        ("memory2", "hsa_amd_vmem_alloc_handle_t memory2 = {0};"),
        ("memory3", "hsa_amd_vmem_alloc_handle_t memory3 = {0};"),
        ("host", "uint32_t *host = NULL;"),
        ("filled", "uint32_t *filled = NULL;"),
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

/// Releases what the calls have not released: a failed round stops early, and some memory is allocated
/// once for all rounds. AMD's runtime crashes in `hsa_shut_down` while a GPU's mapping exists.
fn write_releases(text: &mut String, calls: &[&Call], indent: &str) {
    let was_called = |name: &str| calls.iter().any(|call| call.begin.call == name);
    for (allocate, release, arguments) in RELEASES {
        if was_called(allocate) && !was_called(release) {
            let _ = writeln!(text, "{indent}CHECK({release}({arguments}));");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Begin, CallId, Logs};
    use super::super::supervisor::{Cause, Outcome};
    use super::*;
    use std::time::Duration;

    fn calls(of: &[(u32, &str, &str)]) -> Vec<Call> {
        let call = |(number, &(thread, call, c)): (usize, &(u32, &str, &str))| Call {
            begin: Begin {
                number: CallId(0, number as u64),
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
        program(&LevelRun {
            level: Level::Load,
            outcome: Outcome::Failed(Cause::Status(failed, 0x1000)),
            calls,
            facts: Vec::new(),
            runtime: None,
            took: Duration::ZERO,
            driver: None,
            output: String::new(),
        })
    }

    /// Returns the lines of the loop.
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
    fn program_releases_after_a_failed_round() {
        // The first round fails, so that no release was recorded.
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
    fn program_does_not_release_twice() {
        let text = written(calls(&[&ONCE[..], &ROUND, &ROUND[..4]].concat()), 12);
        let round = rounds(&text);
        let back = ["CHECK(hsa_signal_destroy(signal));", "CHECK(hsa_amd_memory_pool_free(host));"];
        assert_eq!((round.len(), &round[9..]), (11, &back[..]), "{text}");
        for (_, back, _) in RELEASES {
            assert_eq!(text.matches(back).count(), 1, "{back}: {text}");
        }
    }
}
