//! The checked-in bindings match the checked-in header, and both match the table.

mod claims;
mod compiler;
mod header;
mod verdict;

use claims::BINDINGS;
use header::Header;
use hsa_sys::{Core, Vmem};
use std::collections::BTreeSet;
use std::path::Path;
use verdict::Verdict;

/// The command that regenerates the checked-in file.
const BLESS: &str =
    "HSA_SYS_BLESS=1 cargo test -p hsa-sys --features bindgen --test bindings up_to_date";

/// A C compiler confirms that the header agrees with the bindings.
#[test]
fn header_agrees_with_bindings() {
    let claims = claims::read_all(BINDINGS, |name| format!("__typeof__((({name}_fn)0))"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let verdicts = verdict::judge(&["hsa_abi.h"], &[&folder], &claims);
    let wrong: Vec<_> = claims
        .iter()
        .zip(verdicts)
        .filter(|(_, verdict)| *verdict != Verdict::Agrees)
        .map(|(claim, verdict)| format!("{} {} ({verdict:?})", claim.subject, claim.what))
        .collect();
    assert!(wrong.is_empty(), "not true in the header:\n{}\nTo update: {BLESS}", wrong.join("\n"));
}

/// Every name of the header is in the bindings.
#[test]
fn bindings_cover_the_header() {
    let header = Header::read();
    let claims = claims::read_all(BINDINGS, str::to_owned);
    let claimed: BTreeSet<_> = claims.iter().map(|claim| &*claim.subject).collect();
    let wanted = header.constants.iter().map(|(name, _)| name);
    let wanted = wanted.chain(&header.types).chain(&header.fields).chain(&header.functions);
    let missing: Vec<_> = wanted.filter(|name| !claimed.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "not in the bindings: {missing:?}\nTo update: {BLESS}");
    assert!(header.constants.len() > 100 && header.functions.len() > 40, "misread: {header:?}");
}

/// Compares constants without a compiler.
#[test]
fn constants_agree_with_header() {
    let claims = claims::read_all(BINDINGS, str::to_owned);
    for (name, value) in Header::read().constants {
        let wanted = format!("{name} == {value}");
        let found: Vec<_> = claims
            .iter()
            .filter(|claim| claim.subject == name)
            .map(|claim| &claim.condition)
            .collect();
        assert_eq!(found, [&wanted], "To update: {BLESS}");
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

    // The compiler accepts any function type for any name of the table, so compare the names.
    let tokens = claims::token::tokens(include_str!("../src/table.rs"));
    for name in &declared {
        let types: Vec<_> = tokens
            .windows(3)
            .filter(|window| window[..2] == [name, ":"])
            .map(|window| window[2])
            .collect();
        assert_eq!(types, [format!("{name}_fn")], "{name}");
    }
}

/// Compares the generated file byte for byte.
#[cfg(feature = "bindgen")]
#[test]
fn bindings_are_up_to_date() {
    let made = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    if std::env::var_os("HSA_SYS_BLESS").is_some_and(|value| value == "1") {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bindings.rs");
        std::fs::write(file, made).expect("the repository is writable");
        return;
    }
    if made != BINDINGS {
        let pairs = made.lines().zip(BINDINGS.lines());
        let line = pairs.take_while(|(made, checked_in)| made == checked_in).count();
        panic!(
            "src/bindings.rs is outdated from line {}:\n  made now:   {:?}\n  checked in: \
             {:?}\nTo update: {BLESS}",
            line + 1,
            made.lines().nth(line),
            BINDINGS.lines().nth(line),
        );
    }
}
