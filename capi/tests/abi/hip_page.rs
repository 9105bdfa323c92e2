//! Compares `docs/hip.md`, which lists HIP's functions, types and values, with the headers.

use crate::headers::{code, functions, headers};
use crate::program::{Language, Program, expect_success, package};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the first and the last cell of each row of a table. `heading` is the text of the table's first row.
fn table(page: &str, heading: &str) -> BTreeMap<String, String> {
    let rows = page.split_once(heading).expect("the table").1.lines().skip(2);
    let rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].trim_matches('`').to_owned(), cells[cells.len() - 1].to_owned())
    });
    rows.collect()
}

fn page() -> String {
    std::fs::read_to_string(package().join("../docs/hip.md")).unwrap()
}

/// Returns the name by which programs call an exported function. HIP's header renames one function.
fn program_name(name: String) -> String {
    if name == "hipGetDevicePropertiesR0600" { "hipGetDeviceProperties".to_owned() } else { name }
}

/// Returns the functions of the list that follows `heading` in the page.
fn list(page: &str, heading: &str) -> BTreeSet<String> {
    let (_, rest) = page.split_once(heading).expect("the list");
    let (list, _) = rest.split_once("\n\n").unwrap();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

const SUPPORTED: &str = "none of these programs uses them in these files:";
const UNSUPPORTED: &str = "which return `hipErrorNotSupported`:";

#[test]
fn page_lists_every_function() {
    let page = page();
    let table = table(&page, "| function | used by | here |");
    let rest = list(&page, SUPPORTED).into_iter().chain(list(&page, UNSUPPORTED));
    let listed: BTreeSet<String> = table.into_keys().chain(rest).collect();
    let exported = functions().into_iter().filter(|name| name.starts_with("hip"));
    let mut expected: BTreeSet<String> = exported.map(program_name).collect();
    // A macro in `hip/hip_runtime.h`, which `functions` does not read.
    expected.insert("hipLaunchKernelGGL".to_owned());
    assert_eq!(listed, expected);
}

#[test]
fn page_lists_types_and_values_of_the_headers() {
    let all: String = headers().iter().map(|header| code(header)).collect();
    let words: BTreeSet<&str> =
        all.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').collect();
    let listed = table(&page(), "| name | used by |");
    assert!(listed.len() > 50, "{listed:?}");
    let missing: Vec<_> = listed.keys().filter(|name| !words.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Calls the functions that the page lists as unsupported, and those of `src/unsupported.rs`. The functions ignore
/// their arguments.
#[test]
fn unsupported_functions_return_not_supported() {
    let page = page();
    let table = table(&page, "| function | used by | here |");
    let supported = list(&page, SUPPORTED);
    let also_unsupported = list(&page, UNSUPPORTED);
    let rows = table.iter().filter(|(_, status)| *status == "`hipErrorNotSupported`");
    let mut unsupported: BTreeSet<&str> = rows.map(|(name, _)| name.as_str()).collect();
    assert!(unsupported.len() > 10, "{unsupported:?}");
    unsupported.extend(also_unsupported.iter().map(String::as_str));
    let source = std::fs::read_to_string(package().join("src/unsupported.rs")).unwrap();
    let words = source.split(|letter: char| !letter.is_ascii_alphanumeric());
    for name in words.filter(|word| word.starts_with("hip") && functions().contains(*word)) {
        assert!(table.get(name).is_none_or(|status| status.contains("NotSupported")), "{name}");
        assert!(!supported.contains(name), "{name}");
        unsupported.insert(name);
    }
    let mut source = String::from(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <string.h>\n\
         typedef int (*function)(void *, unsigned, void *, void *, void *, void *);\n\
         static long zeros[64];\nint main(void) {\n  function call;\n  void *symbol;\n",
    );
    for name in unsupported {
        source.push_str(&format!(
            "  symbol = dlsym(RTLD_DEFAULT, \"{name}\");\n  memcpy(&call, &symbol, sizeof call);\n\
             \x20 if (call(zeros, 1, zeros, zeros, zeros, zeros) != 801) puts(\"{name}\");\n"
        ));
    }
    source.push_str("  return 0;\n}\n");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("unsupported.c");
    std::fs::write(&file, source).unwrap();
    let flags = ["-Wl,--no-as-needed", "-ldl"];
    let program = Program::compile(file.to_str().unwrap(), Language::C99, &flags);
    assert_eq!(expect_success(&program.on_simulation("").output().unwrap(), "unsupported"), "");
}

/// Returns the attributes of devices in the page, each with its result.
fn listed_attributes(page: &str) -> BTreeMap<String, &str> {
    let (_, table) = page.split_once("| attributes | result |").expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut listed = BTreeMap::new();
    for row in rows {
        let (names, result) = row.trim_matches('|').split_once('|').unwrap();
        for name in names.split('`').skip(1).step_by(2) {
            let before = listed.insert(format!("hipDeviceAttribute{name}"), result.trim());
            assert_eq!(before, None, "{name} is listed twice");
        }
    }
    listed
}

/// Queries every attribute that the header defines, and compares the results with the page.
#[test]
fn page_lists_supported_device_attributes() {
    let header = code("hip/hsavmm/devices.h".as_ref());
    let names = header.lines().filter_map(|line| line.trim().split_once(" = "));
    let names = names.map(|(name, _)| name);
    let names: BTreeSet<&str> = names
        .filter(|name| name.starts_with("hipDeviceAttribute"))
        .filter(|name| !name.ends_with("Begin") && !name.ends_with("End"))
        .collect();
    assert!(names.len() > 100, "{names:?}");
    let mut source = String::from(
        "#include <hip/hip_runtime_api.h>\n#include <stdio.h>\n\
         static void query(const char *name, hipDeviceAttribute_t attribute) {\n  int value = 0;\n\
         \x20 int result = hipDeviceGetAttribute(&value, attribute, 0);\n\
         \x20 printf(\"%s %d %d\\n\", name, result, value);\n}\nint main(void) {\n",
    );
    for name in &names {
        source.push_str(&format!("  query(\"{name}\", {name});\n"));
    }
    source.push_str("  return 0;\n}\n");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("attributes.c");
    std::fs::write(&file, source).unwrap();
    let program = Program::compile(file.to_str().unwrap(), Language::C99, &[]);
    let printed = expect_success(&program.on_simulation("").output().unwrap(), "attributes");

    let page = page();
    let mut listed = listed_attributes(&page);
    for line in printed.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let expected = match listed.remove(words[0]) {
            None => ("1", "0"),
            Some("`hipErrorNotSupported`") => ("801", "0"),
            Some(result) if result.starts_with("0,") => ("0", "0"),
            Some("1") => ("0", "1"),
            Some(_) => ("0", words[2]),
        };
        assert_eq!((words[1], words[2]), expected, "{line}");
    }
    assert!(listed.is_empty(), "not in the header: {listed:?}");
}
