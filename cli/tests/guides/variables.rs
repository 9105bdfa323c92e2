//! The pages name every environment variable of the project that the code reads, except those of [`INTERNAL`], and no
//! other variable of the project.

use crate::links::markdown_pages;
use crate::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Prefixes of variables that no page documents, because users do not set them. Each entry also contains the purpose of
/// the variables.
const INTERNAL: &[(&str, &str)] = &[
    ("HSA_KFD_TEST_INSIDE", "a test restarts itself"),
    ("HSA_SIM_PROFILE", "cargo's profile for a test's build of the library"),
    ("HSA_SIM_TEST_OVERLAPPING", "a test restarts itself"),
    ("HSA_SIM_WORK", "a test's work for its worker process"),
    ("HSA_VMM_EXAMPLE_", "an example restarts itself"),
    ("HSA_VMM_HSA_ABI_H", "the include guard of a generated header"),
    ("HSA_VMM_ROCM_LIBRARIES", "set when the library is built, from ROCM_PATH"),
    ("HSA_VMM_TEST_ALONE", "a test restarts itself"),
    ("HSA_VMM_TEST_EXAMPLE", "a test restarts itself"),
    ("HSA_VMM_WORKS_FOR", "the process that started a worker"),
];

/// Returns the words of a text that are names of the project's environment variables.
fn variables(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_uppercase() || letter == '_';
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words
        .filter(|word| word.chars().all(is_part))
        .filter(|word| {
            ["HSA_VMM_", "HSA_SIM_", "HSA_KFD_"]
                .iter()
                .any(|start| word.strip_prefix(start).is_some_and(|rest| !rest.is_empty()))
                || ["HSA_SIM", "HSA_KFD"].contains(word)
        })
        .map(str::to_owned)
        .collect()
}

/// Adds the variables of all sources and scripts below a folder to `found`. Omits C headers, whose include guards look
/// like variables.
fn variables_below(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_symlink() || ["target", ".git", "corpus"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            variables_below(&path, found);
            continue;
        }
        let is_source = [".rs", ".c", ".py", ".sh"].iter().any(|end| name.ends_with(end));
        let is_script = !name.contains('.');
        if !(is_source || is_script) || path.ends_with("guides/variables.rs") {
            continue;
        }
        if let Ok(text) = fs::read_to_string(&path) {
            found.extend(variables(&text));
        }
    }
}

#[test]
fn variables_of_code_and_pages_are_the_same() {
    let mut pages = BTreeMap::new();
    markdown_pages(&root(), &mut pages);
    pages.retain(|path, _| !path.ends_with("CHANGELOG.md"));
    let documented: BTreeSet<String> = pages.values().flat_map(|page| variables(page)).collect();
    let mut read = BTreeSet::new();
    variables_below(&root(), &mut read);
    assert!(documented.len() > 30, "{documented:?}");

    let is_internal = |name: &&String| INTERNAL.iter().any(|(start, _)| name.starts_with(start));
    let undocumented: Vec<_> =
        read.difference(&documented).filter(|name| !is_internal(name)).collect();
    assert!(undocumented.is_empty(), "no page has {undocumented:?}");
    let unread: Vec<_> = documented.difference(&read).collect();
    assert!(unread.is_empty(), "no code reads {unread:?}");
    for (start, _) in INTERNAL {
        assert!(read.iter().any(|name| name.starts_with(start)), "no code has {start}");
        assert!(!documented.iter().any(|name| name.starts_with(start)), "a page has {start}");
    }
}
