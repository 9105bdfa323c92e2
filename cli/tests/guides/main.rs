//! Checks the guides: the Markdown pages in `docs/`, and README, CONTRIBUTING and SECURITY. The tests run the commands
//! of some guides, and these commands must print the documented output. Every option must occur in a guide or a test.
//! The links in all Markdown pages of the project must lead to existing files and headings. The pages must name every
//! environment variable that users can set.

mod call_path;
mod help;
mod links;
mod options;
mod output;
#[path = "../hsa_vmm/mod.rs"]
mod run_command;
mod variables;

use run_command::{run, stdout};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Planned subcommands and options. The guides may mention them before they exist. As soon as they exist,
/// `planned_options_do_not_exist` fails.
const PLANNED: &[(&str, &str)] = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the guides with their text.
fn pages() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let others = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name));
    let mut pages: Vec<_> = docs
        .chain(others)
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect();
    pages.sort();
    pages
}

/// A command of a guide, and the output that the guide shows.
#[derive(Clone, Debug)]
struct GuideCommand {
    line: String,
    output: Vec<String>,
}

/// Returns the commands in a page's code blocks, with their output.
fn commands(page: &str) -> Vec<GuideCommand> {
    let mut commands: Vec<GuideCommand> = Vec::new();
    let mut language = None;
    // Ignore output before the first command of a block.
    let mut has_command = false;
    for line in page.lines() {
        if let Some(next) = line.strip_prefix("```") {
            language = if language.is_none() { Some(next) } else { None };
            has_command = false;
            continue;
        }
        let command = match language {
            Some("sh") => Some(line),
            Some("text") => line.strip_prefix("$ "),
            _ => continue,
        };
        match command {
            Some(line) => {
                commands.push(GuideCommand { line: line.to_owned(), output: Vec::new() });
                has_command = true;
            }
            None if has_command => commands.last_mut().unwrap().output.push(line.to_owned()),
            None => {}
        }
    }
    commands
}

/// Returns the invocations of `hsa-vmm` in a line: each subcommand and its long options.
fn invocations(line: &str) -> Vec<(String, Vec<String>)> {
    let line = line.replace("cargo run --release -- ", "hsa-vmm ").replace("target/release/", "");
    let line = line.split(" # ").next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let starts = words.iter().enumerate().filter(|(_, word)| **word == "hsa-vmm");
    starts
        .filter_map(|(start, _)| {
            let rest = &words[start + 1..];
            let end = rest.iter().position(|word| ["--", "|", ">", "2>"].contains(word));
            let arguments = &rest[..end.unwrap_or(rest.len())];
            let subcommand =
                arguments.iter().take_while(|word| word.chars().all(char::is_alphabetic));
            let subcommand =
                subcommand.take(if arguments.first() == Some(&"rocr") { 2 } else { 1 });
            let subcommand = subcommand.copied().collect::<Vec<_>>().join(" ");
            let options = arguments.iter().filter(|word| word.starts_with("--"));
            let option = |word: &&str| word.split('=').next().unwrap_or(word).to_owned();
            (!subcommand.is_empty()).then(|| (subcommand, options.map(option).collect()))
        })
        .collect()
}

/// Returns the long options of a subcommand. Returns `None` if the subcommand does not exist.
fn options(subcommand: &str) -> Option<BTreeSet<String>> {
    let words: Vec<_> = subcommand.split(' ').chain(["--help"]).collect();
    let help = run(&words);
    let text = stdout(&help);
    let names = text.split([' ', ',', '\n', '[', '=']).filter(|word| word.starts_with("--"));
    help.status.success().then(|| names.map(str::to_owned).collect())
}

fn exists(subcommand: &str, option: &str) -> bool {
    options(subcommand).is_some_and(|known| option.is_empty() || known.contains(option))
}

#[test]
fn guides_use_existing_options() {
    let mut checked = 0;
    for (path, page) in pages() {
        for command in commands(&page) {
            let line = &command.line;
            for (subcommand, options) in invocations(line) {
                for option in [String::new()].into_iter().chain(options) {
                    let is_planned = PLANNED.iter().any(|(planned, listed)| {
                        *planned == subcommand && (listed.is_empty() || *listed == option)
                    });
                    let is_valid = is_planned || exists(&subcommand, &option);
                    assert!(is_valid, "{}: {line}: {subcommand} {option}", path.display());
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 30, "{checked}");
}

#[test]
fn planned_options_do_not_exist() {
    for (subcommand, option) in PLANNED {
        assert!(
            !exists(subcommand, option),
            "{subcommand} {option} exists: remove it from PLANNED"
        );
    }
}

#[test]
fn readme_names_every_example() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let list = readme.split("cargo run --example ").nth(1).unwrap();
    let list = list.split("shows more").next().unwrap();
    let names: BTreeSet<_> = list.split(|letter: char| !letter.is_ascii_lowercase()).collect();
    let examples = fs::read_dir(root().join("examples")).unwrap();
    for path in examples.map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(names.contains(name), "{name}: name the example in the README, or delete it");
    }
}
