//! Checks the layers of `src/`, the lengths of files, the paths in ARCHITECTURE.md, and the list of locks in
//! `src/sync.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the lowest to the highest. Each layer consists of groups of modules. A module may import the other
/// modules of its group, and all modules of lower layers.
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
    let relative = path.strip_prefix(source_folder()).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns a file's code without comments and unit tests.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        if !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test") {
            code += line;
            code += "\n";
        } else if lines.find(|line| line.starts_with("mod ")).is_some_and(|it| it.ends_with('{')) {
            lines.find(|line| *line == "}");
        }
    }
    code
}

/// Returns the identifiers in some code, each with the text before it.
fn identifiers(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next + code[next..].find(is_part)?;
        let rest = &code[start..];
        next = start + rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        Some((&code[..start], &code[start..next]))
    })
}

/// Returns the names of the items, methods and fields that are declared with this visibility.
fn declared(code: &str, visibility: &str) -> BTreeSet<String> {
    let keywords = ["unsafe", "const", "fn", "struct", "enum", "type", "static", "trait"];
    let declarations = code.lines().filter_map(|line| line.trim_start().strip_prefix(visibility));
    let others = ["use ", "mod ", "(", "extern "];
    let declarations = declarations.filter(|it| !others.iter().any(|other| it.starts_with(other)));
    let name = |line| identifiers(line).map(|it| it.1).find(|word| !keywords.contains(word));
    declarations.filter_map(name).map(str::to_owned).collect()
}

/// Returns the names in some code that can belong to other types or modules: names after `.` or `::`, and names that
/// are imported from the crate.
fn used(code: &str) -> BTreeSet<&str> {
    let is_imported = |before: &str| {
        let statement = &before[before.rfind(';').map_or(0, |end| end + 1)..];
        statement.trim_start().starts_with("use crate::")
    };
    let is_of_std = |before: &str| {
        let path = before.rfind(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':'));
        let path = &before[path.map_or(0, |end| end + 1)..];
        path.starts_with("std::") || path.starts_with("core::")
    };
    let names = identifiers(code).filter(|(before, _)| {
        before.ends_with('.') || before.ends_with("::") && !is_of_std(before) || is_imported(before)
    });
    names.map(|(_, name)| name).collect()
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
    add_files(&source_folder(), &mut files);
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

/// The internal names of the core that the highest layer uses, each with the reason. The test ignores an internal name
/// if a public item has the same name.
const INTERNAL: &[(&str, &str)] = &[
    ("attachment", "memory that other processes open: one registry for each started runtime"),
    ("Attachment", "see `attachment`"),
    ("Exported", "see `attachment`"),
    ("Record", "see `attachment`"),
    ("Registry", "see `attachment`"),
    ("State", "see `attachment`"),
    ("spawn", "a thread starts only if there is room for its mappings"),
    ("stay_started", "a runtime that exports memory does not stop"),
    ("check_not_forked", "the check at the start of every call"),
    ("device_start", "locked memory has another address for devices"),
    ("check_copy", "an area checks its own arguments before it chooses the agent that copies"),
    ("copier", "see `check_copy`"),
    ("Process", "the process at the other end of a socket"),
    ("check_all", "see `Process`"),
    ("pid_namespace", "see `Process`"),
    ("of_each", "the descriptors of a list of agents"),
    (
        "has_mapping",
        "a retiring page is empty once its mapping is gone; a new one may have its address",
    ),
    ("mapping_count", "the users of a page's memory, in this and other buffers"),
    ("mark_as_zero_page", "a message says that the page of a buffer has no memory"),
    ("into_unused", "memory that a retire queue still unmaps is not used again"),
    ("has_quarantined", "see `has_mapping`"),
    ("for_pages", "the constructors of errors"),
    ("of_call", "the constructors of errors"),
    ("of_io", "the constructors of errors"),
    ("of_system", "the constructors of errors"),
    ("with_operation", "the constructors of errors"),
    ("without_value", "the constructors of errors"),
    ("check_bounds", "the checks of arguments"),
    ("check_not_zero", "see `check_bounds`"),
    ("ipc_mode", "the IPC mode with which the runtime started"),
];

/// The highest layer uses only the public items of the core, and those that [`INTERNAL`] lists. Three of its modules
/// may also use `native`.
#[test]
fn upper_layers_use_the_public_api() {
    let mut files = Vec::new();
    add_files(&source_folder(), &mut files);
    let is_upper =
        |module: &str| layer_and_group(module).is_some_and(|(layer, _)| layer + 1 == LAYERS.len());
    let (mut internal, mut public) = (BTreeSet::new(), BTreeSet::new());
    let mut upper = Vec::new();
    for file in files {
        let (module, code) = (module_of(&file), code(&fs::read_to_string(&file).unwrap()));
        if is_upper(&module) {
            upper.push((file, module, code));
        } else if module != "native" {
            internal.extend(declared(&code, "pub(crate) "));
            public.extend(declared(&code, "pub "));
        }
    }
    let internal: BTreeSet<String> = internal.difference(&public).cloned().collect();
    assert!(internal.len() > 40, "{internal:?}");
    let listed = |name: &str| INTERNAL.iter().any(|(it, _)| *it == name);
    let mut found = BTreeSet::new();
    for (file, module, code) in &upper {
        let may_use_native = matches!(module.as_str(), "area" | "ipc" | "transport");
        let native = imports(code).contains("native");
        assert!(!native || may_use_native, "{} imports native", file.display());
        let own: BTreeSet<String> =
            ["", "pub ", "pub(super) "].iter().flat_map(|it| declared(code, it)).collect();
        for name in used(code) {
            if internal.contains(name) && !own.contains(name) {
                assert!(listed(name), "{} uses {name}, which is internal", file.display());
                found.insert(name);
            }
        }
    }
    let unused: Vec<_> = INTERNAL.iter().filter(|(name, _)| !found.contains(name)).collect();
    assert!(unused.is_empty(), "no longer used: {unused:?}");
}

#[test]
fn code_omits_only_tests_and_comments() {
    let text = "// x\n#[cfg(all(test, unix))]\nmod tests;\nuse a;\n#[cfg(test)]\nmod tests {\n    b\n}\nc\n";
    assert_eq!(code(text), "use a;\nc\n");
}

#[test]
fn declared_and_used_names_are_found() {
    let code = "use crate::x::{A, B};\nuse std::C;\npub(crate) const fn f() {}\n    pub(crate) g: u8,\nh.i(E::j)\nuse core::k;";
    let declared: Vec<_> = declared(code, "pub(crate) ").into_iter().collect();
    assert_eq!(declared, ["f", "g"]);
    let names = used(code);
    assert!(["A", "B", "i", "j"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(!["h", "g", "k"].iter().any(|name| names.contains(name)), "{names:?}");
}

/// Files that may have more lines, and the reason.
const LONG_FILES: &[(&str, &str)] = &[("hsa/sys/src/bindings.rs", "generated")];

#[test]
fn files_have_at_most_500_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if folder.is_dir() && !name.starts_with('.') && name != "target" {
            add_files(&folder, &mut files);
        }
    }
    let is_source = |file: &&PathBuf| {
        let relative = file.strip_prefix(root).unwrap();
        file.extension().is_some_and(|it| it == "rs")
            && !relative.components().any(|it| it.as_os_str() == "target")
    };
    let sources: Vec<_> = files.iter().filter(is_source).collect();
    assert!(sources.len() > 300, "{}", sources.len());
    let is_long = |file: &&&PathBuf| {
        let may_be_long = LONG_FILES.iter().any(|(path, _)| file.ends_with(path));
        !may_be_long && fs::read_to_string(file).unwrap().lines().count() > 500
    };
    let long: Vec<_> = sources.iter().filter(is_long).collect();
    assert!(long.is_empty(), "split by subject: {long:#?}");
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

/// The documentation of `src/sync.rs` lists every file that declares a lock.
#[test]
fn every_lock_is_listed() {
    let page = fs::read_to_string(source_folder().join("sync.rs")).unwrap();
    let mut files = Vec::new();
    add_files(&source_folder(), &mut files);
    let declares_lock = |line: &str| {
        let line = line.trim_start();
        let types = [": Mutex<", ": RwLock<", "(Mutex<", "= RwLock<"];
        types.iter().any(|it| line.contains(it)) && !line.contains("fn ")
    };
    let mut count = 0;
    for file in files.iter().filter(|file| !file.ends_with("sync.rs")) {
        if code(&fs::read_to_string(file).unwrap()).lines().any(declares_lock) {
            let path = file.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().display().to_string();
            assert!(page.contains(&format!("`{path}`")), "src/sync.rs does not list {path}");
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn imports_returns_all_modules() {
    let code = "use crate::vmm::Vmm;\nuse crate::{Error, log::x};\nfn f() { crate::native::g() }\n";
    let found: Vec<String> = imports(code).into_iter().collect();
    assert_eq!(found, ["error", "log", "native", "vmm"]);
}
