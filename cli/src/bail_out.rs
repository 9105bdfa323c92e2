//! Ends a KTAP document if the runtime does not start.

use hsa_vmm_conformance::Ktap;
use std::io::{self, Write};

/// Writes the reason why no further test is run, and ends the document. If the reason has several lines, such as the
/// list of files that were tried, all lines precede the last line of the document.
pub fn bail_out<W: Write>(mut ktap: Ktap<W>, reason: &str) -> io::Result<()> {
    let first = reason.lines().next().unwrap_or_default();
    if reason.lines().count() > 1 {
        reason.lines().try_for_each(|line| ktap.write_note(line))?;
    }
    ktap.bail_out(first.strip_suffix("; tried or ignored:").unwrap_or(first))
}

#[test]
fn bail_out_ends_without_the_list() {
    let mut text = Vec::new();
    let ktap = Ktap::begin(&mut text, 1).unwrap();
    bail_out(ktap, "no library; tried or ignored:\n  /a: missing").unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<_> = text.lines().skip(2).collect();
    let expected = ["# no library; tried or ignored:", "#   /a: missing", "Bail out! no library"];
    assert_eq!(lines, expected);
}
