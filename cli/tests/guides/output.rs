//! Runs the commands of each page in [`PAGES`] from top to bottom, except those in [`NOT_RUN`], and compares their
//! output.
//!
//! The output must contain the lines that the guide shows, in order. Addresses, times, process IDs,
//! descriptors and column widths may differ. A line `…` in a guide matches any lines. `…` inside a line matches any
//! words.

use crate::run_command::{HSA_VMM, stderr, stdout};
use crate::{GuideCommand, commands, pages, root};
use hsa_rocr::test;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The pages whose commands run. The commands in CONTRIBUTING take minutes and change the tree.
const PAGES: &[&str] = &[
    "README.md",
    "backends.md",
    "bringup.md",
    "conformance.md",
    "embedding.md",
    "faq.md",
    "record.md",
];
/// The beginnings of commands that are not run, and the reason for each.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo build", "the command is already built"),
    ("cargo test", "this is a test run"),
    ("cargo run --example", "tests/examples.rs runs them"),
    ("export ", "the command is on the path"),
    ("capi/install", "capi/tests installs and links"),
    ("hsa-vmm emulate --rocr 6.4.3 --gpus 2 -- ./cycle", "capi/tests runs it"),
    ("cc ", "capi/tests installs and links"),
    ("HSA_VMM_RUNTIME=sim ./cycle", "capi/tests runs it"),
    ("HSA_VMM_RUNTIME=sim cargo run", "tests/examples.rs has the program"),
    ("hsa-vmm conform --runtime /opt/rocm", "ROCm may not be installed"),
    ("hsa-vmm rocr fetch", "the tests have already fetched the releases"),
    ("hsa-vmm rocr check 7.14.0", "cli/tests/amd.rs checks a stored release"),
    ("hsa-vmm vm ", "cli/tests/vm runs it"),
    ("cargo run --release -- vm ", "cli/tests/vm runs it"),
    ("hsa-vmm record ", "cli/tests/record records programs"),
    ("hsa-vmm lint hsa-calls.jsonl", "cli/tests/record checks recordings"),
    ("hsa-vmm replay hsa-calls.jsonl", "cli/tests/record replays recordings"),
    ("hsa-vmm emulate --rocr 7.2.4 -- hsa-vmm replay", "cli/tests/record replays recordings"),
];
/// Parts of commands that take long, and their replacements.
const REPLACEMENTS: &[(&str, &str)] = &[
    ("fuzz --time 15m", "fuzz --time 1s"),
    ("hsa-vmm stress", "hsa-vmm stress --time 1s"),
    ("conform --profile hip6", "conform --profile hip6 --filter 'hip.*'"),
    ("conform --expect expect.toml", "conform --expect expect.toml --filter 'map.*'"),
    ("conform --format ktap", "conform --format ktap --filter 'map.*'"),
    ("conform --format kcidb", "conform --format kcidb --filter 'map.*'"),
    ("conform --format junit", "conform --format junit --filter 'map.*'"),
    ("conform --format html", "conform --format html --filter 'map.*'"),
    ("--format json > conform.json", "--format json --filter 'map.*' > conform.json"),
    ("target/release/hsa-vmm conform", "hsa-vmm conform --filter 'map.*'"),
];

/// Returns the entry of [`NOT_RUN`] with which a command begins.
fn not_run_entry(line: &str) -> Option<&'static str> {
    NOT_RUN.iter().map(|(beginning, _)| *beginning).find(|beginning| line.starts_with(beginning))
}

/// Replaces the parts of a word that differ from run to run.
fn normalize_word(word: &str) -> String {
    // Replace a decimal fraction such as `0.25`, or a process ID and a thread ID such as `12:34`. Keep versions such as
    // `1.17`.
    let number = word.trim_end_matches([',', ')', '|', ';']).trim_start_matches('(');
    let mut parts = number.split(['.', ':']);
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.clone().count() == 2 && parts.all(digits) && !number.starts_with("1.") {
        return "#".to_owned();
    }
    let mut plain = String::new();
    let mut rest = word;
    while let Some(start) = rest.find("0x") {
        let (before, number) = rest.split_at(start + 2);
        plain.push_str(before);
        rest = number.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
    }
    plain += rest;
    // The number of a descriptor depends on the descriptors that this process inherits.
    match plain.split_once('=') {
        Some((name, _)) if name.ends_with("fd") || name == "descriptor" => format!("{name}="),
        _ => plain,
    }
}

/// Returns the words of a line. Replaces parts that differ from run to run.
fn normalized_words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = line.split_whitespace().map(normalize_word).collect();
    for index in 1..words.len() {
        let unit = words[index].trim_end_matches([',', ')']);
        if ["ms", "us", "s"].contains(&unit) {
            words[index - 1] = "#".to_owned();
        }
    }
    words
}

/// Returns whether the words of a line of output match the words of a line of the page.
fn matches_words(page: &[String], line: &[String]) -> bool {
    match page {
        [] => line.is_empty(),
        [first, rest @ ..] if first.ends_with('…') => {
            let start = first.trim_end_matches('…');
            let begins = start.is_empty() || line.first().is_some_and(|it| it.starts_with(start));
            begins && (0..=line.len()).any(|skipped| matches_words(rest, &line[skipped..]))
        }
        [first, rest @ ..] => line.split_first().is_some_and(|(it, line)| {
            let matches = it == first || (first == "#" && it.bytes().any(|it| it.is_ascii_digit()));
            matches && matches_words(rest, line)
        }),
    }
}

/// Returns the first line of the page that is missing in the output.
fn missing_line<'a>(page: &'a [String], streams: [&str; 2]) -> Option<&'a str> {
    let mut streams = streams.map(|text| text.lines().map(normalized_words).collect::<Vec<_>>());
    page.iter().map(String::as_str).find(|line| {
        let expected = normalized_words(line);
        let found = expected.is_empty()
            || *line == "…"
            || streams.iter_mut().any(|lines| {
                let index = lines.iter().position(|line| matches_words(&expected, line));
                index.map(|index| lines.drain(..=index)).is_some()
            });
        !found
    })
}

/// Runs a command in a folder and compares its output.
fn run_command(folder: &Path, command: &GuideCommand) -> Result<(), String> {
    let mut line = command.line.replace("cargo run --release -- ", "hsa-vmm ");
    for (long, short) in REPLACEMENTS {
        line = line.replace(long, short);
    }
    line = line.replace("target/release/hsa-vmm", "hsa-vmm");
    let bin_folder = Path::new(HSA_VMM).parent().unwrap().to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [bin_folder].into_iter().chain(std::env::split_paths(&path));
    let mut shell = Command::new("sh");
    for variable in ["HSA_VMM_RUNTIME", "HSA_SIM", "HSA_VMM_PROFILE", "HSA_VMM_LOG", "HSA_KFD"] {
        shell.env_remove(variable);
    }
    shell.env("PATH", std::env::join_paths(path).unwrap());
    shell.env("HSA_VMM_ROCR", hsa_rocr::folder().unwrap()).env("LC_ALL", "C.UTF-8");
    let output = shell.current_dir(folder).args(["-c", &line]).output().unwrap();
    let (stdout, stderr) = (stdout(&output), stderr(&output));
    // If the page shows the output of a command, the command may fail.
    if command.output.is_empty() && !output.status.success() {
        return Err(format!("{line}: {}\n{stdout}{stderr}", output.status));
    }
    match missing_line(&command.output, [&stdout, &stderr]) {
        // If the test's log is truncated, only its end remains. Therefore, the missing line comes last.
        Some(missing) => {
            let printed = excerpt(&format!("{stdout}{stderr}"));
            Err(format!("{line}\nprints\n{printed}\nbut not\n{missing}"))
        }
        None => Ok(()),
    }
}

/// Returns the first lines of a text, and the number of omitted lines.
fn excerpt(text: &str) -> String {
    const SHOWN: usize = 30;
    let mut lines: Vec<_> = text.lines().take(SHOWN).collect();
    let more = text.lines().count() - lines.len();
    let rest = format!("… {more} lines more");
    if more > 0 {
        lines.push(&rest);
    }
    lines.join("\n")
}

#[derive(Default)]
struct PageResult {
    failures: Vec<String>,
    /// The number of commands that ran.
    count: usize,
    /// The entries of [`NOT_RUN`] that occur in the page.
    not_run: Vec<&'static str>,
}

/// Runs the commands of a page in a temporary folder. Without AMD's runtime, omits the commands that need the runtime.
fn run_page(path: &Path, page: &str, has_amd: bool) -> PageResult {
    let mut result = PageResult::default();
    let folder = tempfile::tempdir().unwrap();
    for name in ["capi", "conformance", "docs", "examples"] {
        std::os::unix::fs::symlink(root().join(name), folder.path().join(name)).unwrap();
    }
    // Write `expect.toml` with the contents that the page shows.
    if let Some(toml) = page.split("```toml\n").find(|text| text.starts_with("[[expect]]")) {
        let toml = toml.split("```").next().unwrap();
        std::fs::write(folder.path().join("expect.toml"), toml).unwrap();
    }
    for command in commands(page) {
        if let Some(beginning) = not_run_entry(&command.line) {
            result.not_run.push(beginning);
            continue;
        }
        let needs_amd =
            ["emulate", "--rocr", "rocr list"].iter().any(|it| command.line.contains(it));
        if command.line.trim().is_empty() || (needs_amd && !has_amd) {
            continue;
        }
        result.count += 1;
        if let Err(error) = run_command(folder.path(), &command) {
            result.failures.push(format!("{}: {error}", path.file_name().unwrap().display()));
        }
    }
    result
}

#[test]
fn commands_in_guides_print_the_documented_output() {
    let has_amd = test::fetch_releases("commands_in_guides_print_the_documented_output").is_some();
    let (mut failures, mut count, mut unused) = (Vec::new(), 0, BTreeSet::new());
    unused.extend(NOT_RUN.iter().map(|(beginning, _)| *beginning));
    let mut pages = pages();
    pages.retain(|(path, _)| PAGES.iter().any(|name| path.ends_with(name)));
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads =
            pages.iter().map(|(path, page)| scope.spawn(move || run_page(path, page, has_amd)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for result in results {
        failures.extend(result.failures);
        count += result.count;
        result.not_run.iter().for_each(|beginning| {
            unused.remove(beginning);
        });
    }
    assert!(
        failures.is_empty(),
        "{} of {count} commands fail:\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    assert!(count > 20, "{count}");
    assert!(unused.is_empty(), "no page has these commands any more: {unused:?}");
}

#[test]
fn missing_line_is_detected() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let real = "✓ mapped   18 calls   24 ms\nat 0x7f00 now\n341 passed, 0 failed\nOPEN descriptor=6\n\
        ACQUIRE drm_fd=11 gpu_id=4097\n";
    for (page, missing) in [
        ("✓ mapped 18 calls 7 ms\n…\n341 passed, 0 failed", None),
        ("at 0x1 … \n341 …", None),
        ("✓ mapped 19 calls 24 ms", Some("✓ mapped 19 calls 24 ms")),
        ("341 passed, 0 failed\nat 0x7f00 now", Some("at 0x7f00 now")),
        ("340 …", Some("340 …")),
        ("at 0x7f00", Some("at 0x7f00")),
        ("OPEN descriptor=4", None),
        ("ACQUIRE drm_fd=7 gpu_id=4097", None),
        ("ACQUIRE drm_fd=7 gpu_id=4098", Some("ACQUIRE drm_fd=7 gpu_id=4098")),
    ] {
        assert_eq!(missing_line(&lines(page), [real, ""]), missing, "{page}");
    }
}
