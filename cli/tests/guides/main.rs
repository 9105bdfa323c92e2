//! The guides in `docs/`: what they tell people to type is understood and does what they say, and where
//! they point there is something.

mod help;
#[path = "../hsa_vmm/mod.rs"]
mod hsa_vmm;
mod typed;
mod walk;

use hsa_vmm::{out, run};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What the guides already tell and the command does not know yet: verbs, and options of one. Whoever
/// adds one takes it from here, or a test fails.
const NOT_YET: &[(&str, &str)] = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages for people, with their text.
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

/// A command that a page tells people to type, and what it says was printed.
#[derive(Clone, Debug)]
struct Typed {
    line: String,
    printed: Vec<String>,
}

/// What stands in ``` blocks of commands, and of what was typed and printed.
fn commands(page: &str) -> Vec<Typed> {
    let mut commands: Vec<Typed> = Vec::new();
    let mut kind = None;
    // Nothing typed stands above what is printed in a block that begins with something else.
    let mut typed = false;
    for line in page.lines() {
        if let Some(next) = line.strip_prefix("```") {
            kind = if kind.is_none() { Some(next) } else { None };
            typed = false;
            continue;
        }
        let command = match kind {
            Some("sh") => Some(line),
            Some("text") => line.strip_prefix("$ "),
            _ => continue,
        };
        match command {
            Some(line) => {
                commands.push(Typed { line: line.to_owned(), printed: Vec::new() });
                typed = true;
            }
            None if typed => commands.last_mut().unwrap().printed.push(line.to_owned()),
            None => {}
        }
    }
    commands
}

/// Every use of the command in a line: the verb, and its long options.
fn uses(line: &str) -> Vec<(String, Vec<String>)> {
    let line = line.replace("cargo run --release -- ", "hsa-vmm ").replace("target/release/", "");
    let line = line.split(" # ").next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let starts = words.iter().enumerate().filter(|(_, word)| **word == "hsa-vmm");
    starts
        .filter_map(|(start, _)| {
            let rest = &words[start + 1..];
            let end = rest.iter().position(|word| ["--", "|", ">", "2>"].contains(word));
            let mine = &rest[..end.unwrap_or(rest.len())];
            let verb = mine.iter().take_while(|word| word.chars().all(char::is_alphabetic));
            let verb = verb.take(if mine.first() == Some(&"rocr") { 2 } else { 1 });
            let verb = verb.copied().collect::<Vec<_>>().join(" ");
            let options = mine.iter().filter(|word| word.starts_with("--"));
            let option = |word: &&str| word.split('=').next().unwrap_or(word).to_owned();
            (!verb.is_empty()).then(|| (verb, options.map(option).collect()))
        })
        .collect()
}

/// The long options of a verb; `None` if there is no such verb.
fn options(verb: &str) -> Option<BTreeSet<String>> {
    let words: Vec<_> = verb.split(' ').chain(["--help"]).collect();
    let help = run(&words);
    let text = out(&help);
    let names = text.split([' ', ',', '\n']).filter(|word| word.starts_with("--"));
    help.status.success().then(|| names.map(str::to_owned).collect())
}

fn is_known(verb: &str, option: &str) -> bool {
    options(verb).is_some_and(|known| option.is_empty() || known.contains(option))
}

#[test]
fn what_the_guides_say_to_type_is_understood() {
    let mut seen = 0;
    for (path, page) in pages() {
        for line in commands(&page) {
            let line = &line.line;
            for (verb, options) in uses(line) {
                for option in [String::new()].into_iter().chain(options) {
                    let coming = NOT_YET
                        .iter()
                        .any(|(coming, of)| *coming == verb && (of.is_empty() || *of == option));
                    let understood = coming || is_known(&verb, &option);
                    assert!(understood, "{}: {line}: {verb} {option}", path.display());
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn what_is_not_there_yet_is_not_there() {
    for (verb, option) in NOT_YET {
        assert!(!is_known(verb, option), "{verb} {option} is there: take it from NOT_YET");
    }
}

#[test]
fn every_link_leads_somewhere() {
    for (path, page) in pages() {
        let links = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.starts_with("http") && !link.contains(' ')) {
            let file = link.split('#').next().unwrap_or_default();
            let target = path.parent().unwrap().join(file);
            assert!(target.exists(), "{}: {link}", path.display());
        }
    }
}
