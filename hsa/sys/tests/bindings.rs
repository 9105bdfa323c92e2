//! Checks that the checked-in bindings match the header, and that both match the table.

mod agreement;
mod assertions;
mod compiler;
mod header;

use agreement::Agreement;
use assertions::BINDINGS;
use header::Header;
use hsa_sys::{Core, Vmem};
use std::collections::BTreeSet;
use std::path::Path;

/// The command that regenerates the checked-in file.
const UPDATE_COMMAND: &str =
    "HSA_SYS_BLESS=1 cargo test -p hsa-sys --features bindgen --test bindings up_to_date";

#[test]
fn header_agrees_with_bindings() {
    let assertions = assertions::read_all(BINDINGS, |name| format!("__typeof__((({name}_fn)0))"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let agreements = agreement::check(&["hsa_abi.h"], &[&folder], &assertions);
    let differing: Vec<_> = assertions
        .iter()
        .zip(agreements)
        .filter(|(_, agreement)| *agreement != Agreement::Agrees)
        .map(|(assertion, agreement)| {
            format!("{} {} ({agreement:?})", assertion.subject, assertion.description)
        })
        .collect();
    assert!(
        differing.is_empty(),
        "not true in the header:\n{}\nTo update: {UPDATE_COMMAND}",
        differing.join("\n")
    );
}

#[test]
fn bindings_cover_the_header() {
    let header = Header::read();
    let assertions = assertions::read_all(BINDINGS, str::to_owned);
    let asserted: BTreeSet<_> = assertions.iter().map(|assertion| &*assertion.subject).collect();
    let declared = header.constants.iter().map(|(name, _)| name);
    let declared = declared.chain(&header.types).chain(&header.fields).chain(&header.functions);
    let missing: Vec<_> = declared.filter(|name| !asserted.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "not in the bindings: {missing:?}\nTo update: {UPDATE_COMMAND}");
    assert!(header.constants.len() > 100 && header.functions.len() > 40, "misread: {header:?}");
}

/// Compares the values of constants without a compiler.
#[test]
fn constants_agree_with_header() {
    let assertions = assertions::read_all(BINDINGS, str::to_owned);
    for (name, value) in Header::read().constants {
        let expected = format!("{name} == {value}");
        let found: Vec<_> = assertions
            .iter()
            .filter(|assertion| assertion.subject == name)
            .map(|assertion| &assertion.condition)
            .collect();
        assert_eq!(found, [&expected], "To update: {UPDATE_COMMAND}");
    }
}

#[test]
fn table_lists_each_function_once() {
    let listed = || Core::SYMBOLS.iter().chain(Vmem::SYMBOLS).map(|symbol| symbol.name);
    let declared = Header::read().functions;
    for name in &declared {
        assert_eq!(listed().filter(|listed| listed == name).count(), 1, "{name} in the table");
    }
    for name in listed() {
        assert!(declared.iter().any(|declared| declared == name), "{name} is not in the header");
    }

    // The compiler does not check that the table has the right type for each name.
    let tokens = assertions::token::tokens(include_str!("../src/table.rs"));
    for name in &declared {
        let types: Vec<_> = tokens
            .windows(3)
            .filter(|window| window[..2] == [name, ":"])
            .map(|window| window[2])
            .collect();
        assert_eq!(types, [format!("{name}_fn")], "{name}");
    }
}

/// Compares the generated and the checked-in files byte by byte.
#[cfg(feature = "bindgen")]
#[test]
fn bindings_are_up_to_date() {
    let generated = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    check_up_to_date("src/bindings.rs", generated);
    check_up_to_date("src/driver.rs", include_str!(concat!(env!("OUT_DIR"), "/driver.rs")));
}

#[cfg(feature = "bindgen")]
fn check_up_to_date(file: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("HSA_SYS_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(path, generated).expect("the repository is writable");
        return;
    }
    let checked_in = std::fs::read_to_string(path).expect("the file is checked in");
    if generated != checked_in {
        let pairs = generated.lines().zip(checked_in.lines());
        let line = pairs.take_while(|(generated, checked_in)| generated == checked_in).count();
        panic!(
            "{file} is outdated from line {}:\n  generated:  {:?}\n  checked in: {:?}\nTo update: \
             {UPDATE_COMMAND}",
            line + 1,
            generated.lines().nth(line),
            checked_in.lines().nth(line),
        );
    }
}
