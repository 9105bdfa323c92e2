//! Checks that no module of `src/` imports a module of a higher layer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the lowest to the highest. Each layer consists of groups of modules. A module may import the
/// modules of its own group and those of lower layers.
const LAYERS: &[&[&[&str]]] = &[
    &[&["native", "log", "sync"]],
    &[&["address"], &["access", "agent", "pool"], &["handle"], &["signal"], &["trust"], &["hip"]],
    &[&["error"]],
    &[&["runtime"]],
    &[&["memory"]],
    &[&["vmm"]],
    &[&["report"], &["buffer"], &["area"], &["ipc"], &["transport"]],
];

/// Names that the crate's root exports, and the modules that define them.
const ROOT_EXPORTS: &[(&str, &str)] = &[
    ("Access", "access"),
    ("AccessDescriptor", "access"),
    ("Address", "address"),
    ("AgentId", "agent"),
    ("Error", "error"),
    ("ErrorKind", "error"),
    ("Handle", "handle"),
    ("HandleType", "handle"),
    ("Runtime", "runtime"),
    ("Vmm", "vmm"),
    ("Mapping", "vmm"),
    ("PoolMemory", "memory"),
];

/// Adds every file in a folder and its subfolders.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_files(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// Returns the top-level module that a source file belongs to.
fn module_of(path: &Path) -> String {
    let relative = path.strip_prefix(root()).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// Returns the folder of the sources.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns a file's code without comments and unit tests.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").or_else(|| text.find("#[cfg(all(test"));
    let lines = text[..tests.unwrap_or(text.len())].lines();
    lines
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Returns the top-level modules that the code imports.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (start, _) in code.match_indices("crate::") {
        let before = code[..start].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[start + "crate::".len()..];
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
            None => vec![rest],
        };
        for name in names {
            let end = name.trim_start().find(|c: char| !c.is_alphanumeric() && c != '_');
            let name = &name.trim_start()[..end.unwrap_or(name.trim_start().len())];
            if !name.is_empty() {
                let export = ROOT_EXPORTS.iter().find(|(export, _)| *export == name);
                found.insert(export.map_or(name, |(_, module)| module).to_owned());
            }
        }
    }
    found
}

/// Returns the layer of a module, and the index of its group in the layer.
fn layer_and_group(module: &str) -> Option<(usize, usize)> {
    LAYERS.iter().enumerate().find_map(|(layer, groups)| {
        let group = groups.iter().position(|group| group.contains(&module))?;
        Some((layer, group))
    })
}

#[test]
fn modules_import_only_lower_layers() {
    let mut files = Vec::new();
    add_files(&root(), &mut files);
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with("lib.rs")) {
        let module = module_of(file);
        let Some(importer) = layer_and_group(&module) else {
            violations.push(format!("{module} is in no layer"));
            continue;
        };
        for import in imports(&code(&fs::read_to_string(file).unwrap())) {
            match layer_and_group(&import) {
                _ if import == module => {}
                Some(imported) if imported.0 < importer.0 || imported == importer => {}
                Some(_) => violations.push(format!("{} imports {import}", file.display())),
                None => violations
                    .push(format!("{} imports {import}, which is in no layer", file.display())),
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

/// The highest layer uses only the public items of the core.
#[test]
fn upper_layers_use_the_public_api() {
    let allowed = |module: &str, import: &str| match import {
        "native" => matches!(module, "area" | "ipc" | "transport"),
        _ => true,
    };
    let internal_names = ["vmm::ledger", "vmm::journal", "ledger::", "Journal", "Shared"];
    let mut files = Vec::new();
    add_files(&root(), &mut files);
    for file in files {
        let module = module_of(&file);
        if layer_and_group(&module).is_none_or(|(layer, _)| layer + 1 < LAYERS.len()) {
            continue;
        }
        let code = code(&fs::read_to_string(&file).unwrap());
        for import in imports(&code) {
            assert!(allowed(&module, &import), "{} imports {import}", file.display());
        }
        for name in internal_names {
            assert!(!code.contains(&format!("crate::{name}")), "{} uses {name}", file.display());
        }
    }
}

#[test]
fn files_named_in_architecture_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let is_path = |word: &&str| {
        word.contains('/')
            && !word.starts_with('/')
            && !word.contains(['<', '*', ' ', ':', '(', '='])
    };
    let named: BTreeSet<&str> = page.split('`').skip(1).step_by(2).filter(is_path).collect();
    assert!(named.len() > 30, "{named:?}");
    let missing: Vec<_> = named.iter().filter(|path| !root.join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:?}");
}

#[test]
fn imports_returns_all_modules() {
    let code = "use crate::vmm::Vmm;\nuse crate::{Error, log::x};\nfn f() { crate::native::g() }\n";
    let found: Vec<String> = imports(code).into_iter().collect();
    assert_eq!(found, ["error", "log", "native", "vmm"]);
}
