//! Checks that every public enum, and every public struct with public fields, is `non_exhaustive`, except types
//! that will get no further variants or fields.
//!
//! Parses the sources, so that one list has the reasons: clippy's `exhaustive_enums` and `exhaustive_structs` need an
//! attribute at each exception.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Types that will get no further variants or fields, and the reason.
const COMPLETE: &[(&str, &str)] = &[
    ("Access", "HIP's three values"),
    ("Granularity", "HIP's two values"),
    ("AccessDescriptor", "HIP's struct, which callers construct"),
    ("NewMapping", "the arguments of Vmm::map, which callers construct"),
    ("MapRequest", "the arguments of Mapping::map_many, which callers construct"),
    ("PciAddress", "four numbers"),
    ("Rejected", "a value and an error, which callers destructure"),
    ("Usage", "the numbers of reservations, handles and mappings"),
    ("Free", "three numbers about the free addresses of a reservation"),
    ("AccessEntry", "a row of a report"),
    ("UntrustedUser", "the found and the expected user"),
    ("Description", "the message's fields, which senders construct"),
    ("UnknownTicket", "an error without details"),
];

/// Adds the Rust files of a folder and its subfolders, without unit tests.
fn add_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
        {
            files.push(path);
        }
    }
}

/// Returns the name of every public enum and every struct with a public field, and whether it is
/// `non_exhaustive`.
fn extensible_types() -> BTreeMap<String, bool> {
    let mut files = Vec::new();
    add_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut found = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (index, line) in lines.iter().enumerate() {
            let is_enum = line.starts_with("pub enum ");
            if !is_enum && !line.starts_with("pub struct ") {
                continue;
            }
            let body = lines[index..].iter().skip(1).take_while(|line| **line != "}");
            let has_public_parts =
                is_enum || line.ends_with('{') && body.clone().any(|part| part.starts_with("pub "));
            if !has_public_parts {
                continue;
            }
            let name: String = line
                .split(' ')
                .nth(2)
                .unwrap()
                .chars()
                .take_while(|c| c.is_alphanumeric())
                .collect();
            let attributes = lines[..index].iter().rev();
            let attributes =
                attributes.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
            let is_non_exhaustive = attributes.clone().any(|line| *line == "#[non_exhaustive]");
            // Several modules have an `Operation` and a `Problem` of their own.
            *found.entry(name).or_insert(true) &= is_non_exhaustive;
        }
    }
    found
}

#[test]
fn public_types_are_non_exhaustive() {
    let types = extensible_types();
    assert!(types.len() > 50, "{types:?}");
    let is_complete = |name: &str| COMPLETE.iter().any(|(complete, _)| *complete == name);
    let exhaustive: Vec<_> = types
        .iter()
        .filter(|(name, is_non_exhaustive)| !**is_non_exhaustive && !is_complete(name))
        .map(|(name, _)| name)
        .collect();
    assert!(exhaustive.is_empty(), "neither #[non_exhaustive] nor in COMPLETE: {exhaustive:?}");
    for (name, reason) in COMPLETE {
        let is_non_exhaustive = types.get(*name).copied().unwrap_or_default();
        assert!(!is_non_exhaustive, "{name} is #[non_exhaustive], but COMPLETE lists it: {reason}");
    }
}
