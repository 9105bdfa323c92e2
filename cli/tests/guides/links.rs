//! Links in Markdown pages lead to existing files and headings.

use crate::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Adds all Markdown pages below a folder to `found`. Omits build results and hidden folders.
pub fn markdown_pages(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_symlink() || name.starts_with('.') || name == "target" || name == "corpus" {
            continue;
        }
        if path.is_dir() {
            markdown_pages(&path, found);
        } else if name.ends_with(".md") {
            let text = fs::read_to_string(&path).unwrap();
            found.insert(path.canonicalize().unwrap(), text);
        }
    }
}

/// Returns the lines of a page that are not in code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the anchors of a page's headings, as GitHub forms them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for heading in prose(page).filter_map(|line| line.strip_prefix('#')) {
        let heading = heading.trim_start_matches('#').trim();
        let anchor: String = heading
            .chars()
            .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter))
            .map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() })
            .collect();
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns the targets of a page's links. Omits links in code.
fn links(page: &str) -> Vec<String> {
    let text = prose(page).collect::<Vec<_>>().join("\n");
    let mut links = Vec::new();
    for (start, _) in text.match_indices("](") {
        let Some((link, _)) = text[start + 2..].split_once(')') else { continue };
        // If the number of backticks between the start of the paragraph and the link is odd, the link is code.
        let paragraph = text[..start].rsplit("\n\n").next().unwrap_or_default();
        if paragraph.matches('`').count() % 2 == 0 {
            links.push(link.to_owned());
        }
    }
    links
}

/// Returns why a link of a page is broken. Returns `None` if the link leads to a file or heading, or to another site.
fn problem(path: &Path, link: &str, pages: &BTreeMap<PathBuf, String>) -> Option<String> {
    if link.starts_with("https://") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { path.to_owned() } else { path.parent()?.join(file) };
    let Ok(target) = target.canonicalize() else { return Some("no such file".to_owned()) };
    match pages.get(&target) {
        _ if anchor.is_empty() => None,
        Some(page) if anchors(page).contains(anchor) => None,
        Some(page) => Some(format!("no such heading; there are {:?}", anchors(page))),
        None => Some("only Markdown pages have headings".to_owned()),
    }
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut pages = BTreeMap::new();
    markdown_pages(&root(), &mut pages);
    let (mut problems, mut checked) = (Vec::new(), 0);
    for (path, page) in &pages {
        for link in links(page) {
            let problem = problem(path, &link, &pages);
            problems.extend(problem.map(|it| format!("{}: {link}: {it}", path.display())));
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn links_without_target_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.md");
    let page = "# `map`, and more\n[a](#map-and-more)\n[b](#map)\n[c](other.md) `[d](x)`\n```\n[e](y)\n```\n# Twice\n# Twice\n[f](#twice-1)\n";
    fs::write(&path, page).unwrap();
    let mut pages = BTreeMap::new();
    markdown_pages(folder.path(), &mut pages);
    let (path, page) = pages.first_key_value().unwrap();
    assert_eq!(links(page), ["#map-and-more", "#map", "other.md", "#twice-1"]);
    let broken = links(page).into_iter().filter(|link| problem(path, link, &pages).is_some());
    assert_eq!(broken.collect::<Vec<_>>(), ["#map", "other.md"]);
}

/// The list of known failures quotes rows of docs/defects.md as its sources.
#[test]
fn known_failures_quote_rows_of_defects() {
    let list = fs::read_to_string(root().join("conformance/data/known.toml")).unwrap();
    let defects = fs::read_to_string(root().join("docs/defects.md")).unwrap();
    let quoted = list.split("docs/defects.md: ").skip(1);
    let quoted: Vec<_> = quoted.filter_map(|rest| rest.split('"').next()).collect();
    assert!(quoted.len() > 1, "{quoted:?}");
    for text in quoted {
        assert!(defects.contains(&format!("| {text} |")), "{text}");
    }
}
