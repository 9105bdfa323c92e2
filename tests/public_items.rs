//! Checks that every public enum, and every public struct with public fields, is `non_exhaustive`. Exceptions are types
//! that will get no further variants or fields. Also checks that the documentation of every public type has an example,
//! or that [`WITHOUT_EXAMPLE`] lists the type.
//!
//! The tests parse the sources, so that one list can contain all exceptions with their reasons. Clippy's
//! `exhaustive_enums` and `exhaustive_structs` need an attribute at each exception.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Types that will get no further variants or fields, each with the reason.
const COMPLETE: &[(&str, &str)] = &[
    ("Access", "HIP's three values"),
    ("Granularity", "HIP's two values"),
    ("AccessDescriptor", "HIP's struct, which callers construct"),
    ("NewMapping", "the arguments of Vmm::map, which callers construct"),
    ("MapRequest", "the arguments of Mapping::map_many, which callers construct"),
    ("PciAddress", "four numbers"),
    ("Rejected", "a value and an error, which callers destructure"),
    ("Usage", "the numbers of reservations, handles and mappings"),
    ("FreeSpace", "three numbers about the free addresses of a reservation"),
    ("AccessEntry", "a row of a report"),
    ("UntrustedUser", "the found and the expected user"),
    ("Description", "the message's fields, which senders construct"),
];

/// Public types without an example of their own, and the item whose example shows each of them.
const WITHOUT_EXAMPLE: &[(&str, &str)] = &[
    ("PciAddress", "a field of Agent"),
    ("LinkKind", "a field of Link"),
    ("Peer", "a field of Agent"),
    ("Link", "a field of Peer"),
    ("PagedStatistics", "PagedBuffer::statistics"),
    ("PauseMode", "PausableBuffer::pause"),
    ("Value", "a field of ErrorKind"),
    ("UnavailableReason", "a field of ErrorKind"),
    ("Quarantined", "Vmm::quarantined_ranges"),
    ("BrokenInvariant", "Vmm::check"),
    ("UnknownProfile", "an error of HipProfile"),
    ("PoolMemoryInfo", "Runtime::pool_memory"),
    ("Status", "a field of ErrorKind"),
    ("DriverState", "a variant of Status"),
    ("PoolFlags", "a field of Pool"),
    ("Segment", "Pool"),
    ("Report", "the module's page"),
    ("AgentEntry", "a field of Report"),
    ("FreeSpace", "a field of Report"),
    ("ReservationPart", "a field of Report"),
    ("IdleItem", "a field of Report"),
    ("Runtime", "the page of its module and of the crate"),
    ("Ticket", "Offer"),
    ("UntrustedUser", "a field of ErrorKind"),
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
            found.insert(name, is_non_exhaustive);
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
        let is_non_exhaustive = types.get(*name).unwrap_or_else(|| panic!("no type {name}"));
        assert!(!is_non_exhaustive, "{name} is #[non_exhaustive], but COMPLETE lists it: {reason}");
    }
}

#[test]
fn public_types_have_examples() {
    let mut files = Vec::new();
    add_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let (mut count, mut without) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (index, line) in lines.iter().enumerate() {
            let declared = line.strip_prefix("pub struct ").or(line.strip_prefix("pub enum "));
            let Some(name) = declared else { continue };
            let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            let above = lines[..index].iter().rev();
            let mut above =
                above.take_while(|line| line.starts_with("//") || line.starts_with('#'));
            count += 1;
            if !above.any(|line| line.starts_with("/// ```")) {
                without.push(name.to_owned());
            }
        }
    }
    let listed: Vec<&str> = WITHOUT_EXAMPLE.iter().map(|(name, _)| *name).collect();
    let missing: Vec<_> = without.iter().filter(|it| !listed.contains(&it.as_str())).collect();
    assert!(missing.is_empty(), "without an example: {missing:?}");
    let unneeded: Vec<_> = listed.iter().filter(|it| !without.iter().any(|w| w == *it)).collect();
    assert!(unneeded.is_empty(), "with an example: {unneeded:?}");
    assert!(count > 80, "{count}");
}
