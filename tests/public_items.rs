//! Checks that every public enum, and every public struct with public fields, is `non_exhaustive`, except
//! those that are complete by nature.
//!
//! Parses the sources, because stable compilers do not report it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Types that are complete by nature, and why.
const COMPLETE: &[(&str, &str)] = &[
    ("Access", "HIP's three values"),
    ("Granularity", "HIP's two values"),
    ("AccessDescriptor", "HIP's, which callers write down"),
    ("NewMapping", "what Vmm::map takes, which callers write down"),
    ("MapRequest", "what Mapping::map_many takes, which callers write down"),
    ("PciAddress", "four numbers"),
    ("Rejected", "a value and an error, which callers take apart"),
    ("Usage", "a count of each of the three things that a Vmm has"),
    ("Free", "what is free in one reservation, in three numbers"),
    ("AccessEntry", "a row of a report"),
    ("UntrustedUser", "who it is and who was expected"),
    ("Description", "the message's fields, which senders write down"),
    ("UnknownTicket", "it says nothing more"),
];

fn sources(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            all.push(path);
        }
    }
}

/// Returns every public enum, and struct with a public field, and whether it is `non_exhaustive`.
fn items() -> BTreeMap<String, bool> {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut found = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (at, line) in lines.iter().enumerate() {
            let is_enum = line.starts_with("pub enum ");
            if !is_enum && !line.starts_with("pub struct ") {
                continue;
            }
            let body = lines[at..].iter().skip(1).take_while(|line| **line != "}");
            let shows =
                is_enum || line.ends_with('{') && body.clone().any(|it| it.starts_with("pub "));
            if !shows {
                continue;
            }
            let name: String = line
                .split(' ')
                .nth(2)
                .unwrap()
                .chars()
                .take_while(|it| it.is_alphanumeric())
                .collect();
            let above = lines[..at].iter().rev();
            let above = above.take_while(|it| it.starts_with("#[") || it.starts_with("//"));
            let grows = above.clone().any(|it| *it == "#[non_exhaustive]");
            // Several modules have an `Operation` and a `Problem` of their own.
            *found.entry(name).or_insert(true) &= grows;
        }
    }
    found
}

#[test]
fn public_types_are_non_exhaustive() {
    let items = items();
    assert!(items.len() > 50, "{items:?}");
    let complete = |name: &str| COMPLETE.iter().any(|(it, _)| *it == name);
    let stuck: Vec<_> = items
        .iter()
        .filter(|(name, grows)| !**grows && !complete(name))
        .map(|(name, _)| name)
        .collect();
    assert!(stuck.is_empty(), "neither #[non_exhaustive] nor complete by what they are: {stuck:?}");
    for (name, why) in COMPLETE {
        assert!(!items.get(*name).copied().unwrap_or_default(), "{name} grows; it was said: {why}");
    }
}
