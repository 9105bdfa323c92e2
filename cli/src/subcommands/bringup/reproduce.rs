//! Writes a level as a C program that makes the same calls.

use super::level::Level;
use super::supervisor::{Call, Cause, LevelRun, Outcome};
use crate::program::with_build_command;
use hsa_sys::{Core, Vmem};
use std::fmt::Write as _;
use std::path::Path;

/// The beginning of each program.
const HEAD: &str = include_str!("program.c");
/// The C code that only the levels "offset" and "permission" need.
const PAGE_TABLE: &str = include_str!("page_table.c");
/// The end of the first comment if the level failed because of an error of the driver.
const DRIVER_ERROR: &str = "
 *
 * The level failed because the driver returned an error to a request. The runtime has ignored the error, so all calls
 * of this program can succeed. To see the error, run the program inside of `hsa-vmm emulate --log FILE --`, with the
 * options that bringup was run with, and look for the request in FILE.
 */
";

/// Functions that allocate a resource, each with the function that releases the resource and the arguments of the
/// release. The program releases resources in this order.
const RELEASES: [(&str, &str, &str); 5] = [
    ("hsa_amd_vmem_map", "hsa_amd_vmem_unmap", "va, size"),
    ("hsa_amd_vmem_handle_create", "hsa_amd_vmem_handle_release", "memory"),
    ("hsa_amd_vmem_address_reserve", "hsa_amd_vmem_address_free", "va, size"),
    ("hsa_signal_create", "hsa_signal_destroy", "signal"),
    ("hsa_amd_memory_pool_allocate", "hsa_amd_memory_pool_free", "host"),
];

/// Returns the declarations of the runtime's types, constants and functions.
fn declarations() -> String {
    let names = Core::SYMBOLS.iter().chain(Vmem::SYMBOLS).map(|symbol| symbol.name);
    let functions = names.map(|name| format!("extern __typeof__(*({name}_fn)0) {name};\n"));
    hsa_sys::C_HEADER.to_owned() + "\n" + &functions.collect::<String>()
}

/// Returns the source of the program, which begins with build instructions. `path` is the file that the source is
/// written to. If `is_redacted`, the instructions do not name the folder of the tested library.
pub fn program_source(run: &LevelRun, path: &Path, is_redacted: bool) -> String {
    let until = run.calls_until_failure();
    let calls_of = |process: u8| {
        let calls = run.calls.iter().enumerate();
        // In "shared", the program needs all calls of both processes: each process waits for the other.
        let calls = calls.filter(move |(index, call)| {
            call.begin.id.process == process && (*index < until || run.level == Level::Shared)
        });
        calls.map(|(_, call)| call).collect::<Vec<_>>()
    };
    let failed_process = run.failed_call().map_or(0, |index| run.calls[index].begin.id.process);
    // In all other levels, the calls of the process that failed are sufficient.
    let (first, other) = match run.level {
        Level::Shared => (calls_of(0), calls_of(1)),
        _ => (calls_of(failed_process), Vec::new()),
    };
    let library = run.runtime.iter().flatten().next().filter(|_| !is_redacted);
    let mut text = with_build_command(HEAD, "repeat.c", path, library.map(Path::new));
    text = text.replacen("LEVEL", run.level.title(), 1);
    let has_driver_error = matches!(run.outcome, Outcome::Failed(Cause::DriverError(..)));
    if has_driver_error {
        text = text.replacen("\n */\n", DRIVER_ERROR, 1);
    }
    text = text.replace("GRANULES", &run.level.granule_count().to_string());
    text = text.replacen("DECLARATIONS", &declarations(), 1);
    if matches!(run.level, Level::Offset | Level::Permission) {
        text.push_str(PAGE_TABLE);
    }
    if !other.is_empty() {
        text.push_str("\nstatic void other_process(int socket) {\n");
        write_body(&mut text, &other);
        text.push_str("}\n");
    }
    let threads = first.iter().map(|call| call.begin.thread).max().unwrap_or(0);
    if threads > 0 {
        let round = first_round(&first, run.failed_call().map(|index| &run.calls[index]));
        text.push_str("\nstatic void *work(void *unused) {\n  (void)unused;\n");
        write_variables(&mut text, &round);
        text.push_str("  for (int round = 0; round < 64; round++) {\n");
        write_statements(&mut text, &round, "    ");
        write_releases(&mut text, &round, "    ");
        text.push_str("  }\n  return NULL;\n}\n");
    }
    text.push_str("\nint main(void) {\n");
    if let Some((name, value)) = run.level.environment_variable() {
        let _ = writeln!(text, "  setenv(\"{name}\", \"{value}\", 1);");
    }
    if !other.is_empty() {
        text.push_str("  int socket = start_process(other_process);\n");
    }
    let in_main_thread = |call: &&Call| call.begin.thread == 0;
    if threads > 0 {
        let is_before_end = |call: &&Call| call.begin.call != "hsa_shut_down";
        let before: Vec<_> =
            first.iter().copied().filter(in_main_thread).take_while(is_before_end).collect();
        write_body(&mut text, &before);
        let _ = write!(
            text,
            "  pthread_t threads[{threads}];\n  for (int i = 0; i < {threads}; i++)\n    \
             pthread_create(&threads[i], NULL, work, NULL);\n  for (int i = 0; i < {threads}; i++)\n    \
             pthread_join(threads[i], NULL);\n  CHECK(hsa_shut_down());\n"
        );
    } else {
        write_body(&mut text, &first);
    }
    // The program does not know which numbers are right.
    let mut statements = first.iter().filter_map(|call| call.begin.c_statement.as_deref());
    let advice = match statements.any(|statement| statement.starts_with("print_")) {
        _ if has_driver_error => "; look for the driver's error in the log of emulate --log FILE",
        true => "; compare the printed numbers with those of the report",
        false => "",
    };
    let _ = writeln!(text, "  puts(\"all calls succeeded{advice}\");\n  return 0;\n}}");
    text
}

impl LevelRun {
    /// Returns whether a C program can repeat the level.
    pub fn is_repeatable_in_c(&self) -> bool {
        let has_library = !matches!(self.outcome, Outcome::Failed(Cause::NoLibrary(_)));
        has_library && self.level.is_repeatable_in_c()
    }
}

fn write_body(text: &mut String, calls: &[&Call]) {
    write_variables(text, calls);
    write_statements(text, calls, "  ");
}

/// Returns the calls of one thread up to the end of its first round. Chooses the thread of the failed call, if a call
/// failed. All rounds and threads make the same calls.
fn first_round<'a>(calls: &[&'a Call], failed: Option<&'a Call>) -> Vec<&'a Call> {
    let thread = failed.map_or(1, |call| call.begin.thread.max(1));
    let by_thread: Vec<_> =
        calls.iter().copied().filter(|call| call.begin.thread == thread).collect();
    let starts_round = |call: &&Call| call.begin.call == "hsa_amd_vmem_address_reserve";
    let mut rounds =
        by_thread.iter().enumerate().filter(|(_, call)| starts_round(call)).map(|(index, _)| index);
    match (rounds.next(), rounds.next()) {
        // Calls before the first round are included.
        (Some(_), Some(second)) => by_thread[..second].to_vec(),
        _ => by_thread,
    }
}

/// Declares only the variables that the calls use, because compilers warn about unused variables.
fn write_variables(text: &mut String, calls: &[&Call]) {
    let statements: Vec<_> =
        calls.iter().filter_map(|call| call.begin.c_statement.as_deref()).collect();
    let used = |word: &str| statements.iter().any(|statement| has_word(statement, word));
    for (name, declaration) in [
        ("value", "uint64_t value = 0;"),
        ("name", "char name[64];"),
        ("access", "hsa_amd_memory_pool_access_t access;"),
        ("va", "void *va = NULL;"),
        ("va2", "void *va2 = NULL;"),
        ("memory", "hsa_amd_vmem_alloc_handle_t memory = {0};"),
        ("memory2", "hsa_amd_vmem_alloc_handle_t memory2 = {0};"),
        ("host", "uint32_t *host = NULL;"),
        ("pool_memory", "uint32_t *pool_memory = NULL;"),
        ("signal", "hsa_signal_t signal = {0};"),
        ("dmabuf", "int dmabuf = -1;"),
        ("locked", "void *locked = NULL;"),
    ] {
        if used(name) {
            let _ = writeln!(text, "  {declaration}");
        }
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|part| part == word)
}

fn write_statements(text: &mut String, calls: &[&Call], indent: &str) {
    for call in calls {
        if let Some(statement) = &call.begin.c_statement {
            let _ = writeln!(text, "{indent}{statement}");
        }
    }
}

/// Writes calls that release the resources that `calls` do not release. A failed round stops before its releases, and
/// some memory is allocated once for all rounds. AMD's runtime crashes in `hsa_shut_down` if a GPU's mapping still
/// exists.
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
    use super::*;
    use std::time::Duration;

    fn calls(list: &[(u32, &str, &str)]) -> Vec<Call> {
        let call = |(number, &(thread, call, arguments)): (usize, &(u32, &str, &str))| Call {
            begin: Begin {
                id: CallId { process: 0, number: number as u64 },
                thread,
                task: String::new(),
                call: call.into(),
                arguments: Vec::new(),
                c_statement: Some(format!("CHECK({call}({arguments}));")),
                logs: Logs::default(),
            },
            end: None,
        };
        list.iter().enumerate().map(call).collect()
    }

    fn failed_program(calls: Vec<Call>, failed: usize, is_redacted: bool) -> String {
        program_of(calls, Cause::Status(failed, 0x1000), is_redacted)
    }

    fn program_of(calls: Vec<Call>, cause: Cause, is_redacted: bool) -> String {
        let run = LevelRun {
            level: Level::Load,
            outcome: Outcome::Failed(cause),
            calls,
            facts: Vec::new(),
            runtime: Some(Some("/home/a/rocr/libhsa-runtime64.so.1".into())),
            took: Duration::ZERO,
            idle: Duration::ZERO,
            driver: None,
            output: String::new(),
            kernel: Ok(Vec::new()),
            stuck_copies: Vec::new(),
            unkillable_process: None,
        };
        program_source(&run, Path::new("repeat.c"), is_redacted)
    }

    #[test]
    fn redacted_program_does_not_name_the_folder() {
        for (is_redacted, folder) in [(false, "-L/home/a/rocr"), (true, "-L/opt/rocm/lib")] {
            let text = failed_program(calls(&ROUND), 5, is_redacted);
            assert!(text.contains(folder), "{text}");
            assert_eq!(text.contains("/home/a"), !is_redacted, "{text}");
        }
    }

    #[test]
    fn program_mentions_ignored_driver_error() {
        let ignored = Cause::DriverError(Some(5), "the driver returned EIO".to_owned());
        for (cause, expected) in [(ignored, true), (Cause::Status(5, 0x1000), false)] {
            let text = program_of(calls(&ROUND), cause, false);
            let (comment, rest) = text.split_once("\n */\n").unwrap();
            assert!(rest.starts_with("#define _GNU_SOURCE"), "{text}");
            assert_eq!(comment.contains("`hsa-vmm emulate --log FILE --`"), expected, "{text}");
            assert_eq!(rest.contains("; look for the driver's error"), expected, "{text}");
        }
    }

    fn loop_lines(text: &str) -> Vec<&str> {
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
        // The first round fails, so no release was recorded.
        let text = failed_program(calls(&[&ONCE[..], &ROUND[..4]].concat()), 5, false);
        let releases = [
            "CHECK(hsa_amd_vmem_unmap(va, size));",
            "CHECK(hsa_amd_vmem_handle_release(memory));",
            "CHECK(hsa_amd_vmem_address_free(va, size));",
            "CHECK(hsa_signal_destroy(signal));",
            "CHECK(hsa_amd_memory_pool_free(host));",
        ];
        let lines = loop_lines(&text);
        assert_eq!((lines.len(), &lines[6..]), (11, &releases[..]), "{text}");
    }

    #[test]
    fn program_does_not_release_twice() {
        let text = failed_program(calls(&[&ONCE[..], &ROUND, &ROUND[..4]].concat()), 12, false);
        let lines = loop_lines(&text);
        let releases =
            ["CHECK(hsa_signal_destroy(signal));", "CHECK(hsa_amd_memory_pool_free(host));"];
        assert_eq!((lines.len(), &lines[9..]), (11, &releases[..]), "{text}");
        for (_, release, _) in RELEASES {
            let call = format!("{release}(");
            assert_eq!(text.matches(&call).count(), 1, "{release}: {text}");
        }
    }
}
