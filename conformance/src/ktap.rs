//! Writes results as KTAP, the format of the Linux kernel's tests (Documentation/dev-tools/ktap.rst).

use crate::{Status, printable};
use std::io::{self, Write};

/// The result of a test.
///
/// ```
/// use hsa_vmm_conformance::{Ktap, KtapTest, Status};
///
/// let mut text = Vec::new();
/// let mut ktap = Ktap::begin(&mut text, 1)?;
/// ktap.begin_subtest("map", 2)?;
/// ktap.write_result(&KtapTest { name: "map.flags.refused", status: Status::Pass, detail: "" })?;
/// let detail = "the machine has one GPU";
/// ktap.write_result(&KtapTest { name: "map.gpu.two", status: Status::Skip, detail })?;
/// ktap.end_subtest()?;
/// drop(ktap);
/// let expected = [
///     "KTAP version 1",
///     "1..1",
///     "  KTAP version 1",
///     "  # Subtest: map",
///     "  1..2",
///     "  ok 1 map.flags.refused",
///     "  ok 2 map.gpu.two # SKIP the machine has one GPU",
///     "ok 1 map",
/// ];
/// assert!(String::from_utf8_lossy(&text).lines().eq(expected));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KtapTest<'a> {
    /// The name of the test.
    pub name: &'a str,
    /// The result. A known failure is written as `ok … # XFAIL`: the kernel's parser counts each `not ok` as
    /// failed.
    pub status: Status,
    /// Why the test failed or was skipped; may have several lines.
    pub detail: &'a str,
}

/// A KTAP document with at most one level of subtests. Each line is flushed, so that no result is lost if
/// the machine stops.
#[derive(Debug)]
pub struct Ktap<W> {
    out: W,
    /// The number of results so far at the top level.
    number: usize,
    subtest: Option<Subtest>,
}

/// A group of tests that has begun.
#[derive(Debug)]
struct Subtest {
    name: String,
    /// The number of results so far.
    number: usize,
    /// Whether a test failed.
    has_failed: bool,
    /// Whether all tests so far were skipped.
    all_skipped: bool,
}

impl<W: Write> Ktap<W> {
    /// Begins a document with `results` results at the top level.
    ///
    /// # Errors
    /// Returns the error of writing.
    pub fn begin(mut out: W, results: usize) -> io::Result<Self> {
        writeln!(out, "KTAP version 1\n1..{results}")?;
        out.flush()?;
        Ok(Self { out, number: 0, subtest: None })
    }

    /// Writes a diagnostic line before the next result.
    ///
    /// # Errors
    /// Returns the error of writing.
    pub fn write_note(&mut self, text: &str) -> io::Result<()> {
        let indent = if self.subtest.is_some() { "  " } else { "" };
        writeln!(self.out, "{indent}# {}", diagnostic(text))?;
        self.out.flush()
    }

    /// Begins a group of `tests` tests.
    ///
    /// # Errors
    /// Returns the error of writing.
    pub fn begin_subtest(&mut self, name: &str, tests: usize) -> io::Result<()> {
        let name = one_line(name);
        writeln!(self.out, "  KTAP version 1\n  # Subtest: {name}\n  1..{tests}")?;
        self.subtest = Some(Subtest { name, number: 0, has_failed: false, all_skipped: true });
        self.out.flush()
    }

    /// Returns the name of the group that has begun and not ended, if any.
    #[must_use]
    pub fn subtest(&self) -> Option<&str> {
        self.subtest.as_ref().map(|it| it.name.as_str())
    }

    /// Writes the result of a test, in the group that has begun, if any.
    ///
    /// # Errors
    /// Returns the error of writing.
    pub fn write_result(&mut self, test: &KtapTest<'_>) -> io::Result<()> {
        let (number, indent) = match &mut self.subtest {
            Some(subtest) => {
                subtest.number += 1;
                subtest.has_failed |= test.status == Status::Fail;
                subtest.all_skipped &= test.status == Status::Skip;
                (subtest.number, "  ")
            }
            None => {
                self.number += 1;
                (self.number, "")
            }
        };
        let name = one_line(test.name);
        let reason = one_line(test.detail.lines().next().unwrap_or_default());
        let (ok, directive) = match test.status {
            Status::Pass => ("ok", String::new()),
            Status::Fail => ("not ok", String::new()),
            Status::Skip => ("ok", format!(" # SKIP {reason}")),
            Status::Known => ("ok", format!(" # XFAIL {reason}")),
        };
        if test.status == Status::Fail {
            for line in test.detail.lines() {
                writeln!(self.out, "{indent}# {}", diagnostic(line))?;
            }
        }
        writeln!(self.out, "{indent}{ok} {number} {name}{}", directive.trim_end())?;
        self.out.flush()
    }

    /// Ends the document before the planned number of results: no further test is run. Writes `Bail out!` and the first
    /// line of `reason` as the last line of the document. The other lines of `reason` precede it as diagnostic lines.
    ///
    /// # Errors
    /// Returns the error of writing.
    pub fn bail_out(mut self, reason: &str) -> io::Result<()> {
        let mut lines = reason.lines();
        let first = one_line(lines.next().unwrap_or_default());
        for line in lines {
            writeln!(self.out, "# {}", diagnostic(line))?;
        }
        writeln!(self.out, "Bail out! {first}")?;
        self.out.flush()
    }

    /// Ends the group that has begun, if any, and writes the result of the group. The group has failed if one of its
    /// tests has failed. The group was skipped if each test was skipped. Otherwise, the group has passed.
    ///
    /// # Errors
    /// Returns the error of writing.
    pub fn end_subtest(&mut self) -> io::Result<()> {
        let Some(Subtest { name, has_failed, all_skipped, number }) = self.subtest.take() else {
            return Ok(());
        };
        let status = match (has_failed, all_skipped && number > 0) {
            (true, _) => Status::Fail,
            (false, true) => Status::Skip,
            (false, false) => Status::Pass,
        };
        let detail = if status == Status::Skip { "each of its tests was skipped" } else { "" };
        self.write_result(&KtapTest { name: &name, status, detail })
    }
}

/// Joins the lines of a text and escapes `#`, so that a KTAP parser finds no directive in the text.
fn one_line(text: &str) -> String {
    printable(text).replace('\n', " ").replace('#', "\\#")
}

/// Returns the text of a diagnostic line, which must not look like the header of a subtest. Keeps `#`: parsers find no
/// directives in diagnostic lines, and commands can be copied.
fn diagnostic(text: &str) -> String {
    let indent = if text.starts_with("Subtest:") { " " } else { "" };
    format!("{indent}{}", printable(text).replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Ktap<&mut Vec<u8>>)) -> String {
        let mut text = Vec::new();
        write(&mut Ktap::begin(&mut text, 1).unwrap());
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn hostile_text_stays_in_its_line() {
        let detail = "a # TODO b\nnot ok 7 c\u{1b}[0m\nSubtest: d";
        let status = Status::Fail;
        let text = written(|ktap| {
            ktap.write_result(&KtapTest { name: "x # SKIP", status, detail }).unwrap()
        });
        let lines: Vec<_> = text.lines().skip(2).collect();
        let expected =
            ["# a # TODO b", "# not ok 7 c\\u001b[0m", "#  Subtest: d", "not ok 1 x \\# SKIP"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn bail_out_is_the_last_line() {
        let mut text = Vec::new();
        let mut ktap = Ktap::begin(&mut text, 2).unwrap();
        ktap.begin_subtest("g", 1).unwrap();
        ktap.bail_out("cannot start # 1\ntried: a\nBail out! b").unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().skip(5).collect();
        assert_eq!(lines, ["# tried: a", "# Bail out! b", "Bail out! cannot start \\# 1"]);
    }

    #[test]
    fn group_fails_with_its_tests() {
        use Status::{Fail, Known, Pass, Skip};
        for (statuses, expected) in [
            (&[Pass, Fail, Skip][..], "not ok 1 g"),
            (&[Pass, Known], "ok 1 g"),
            (&[Skip, Skip], "ok 1 g # SKIP each of its tests was skipped"),
            (&[Skip, Pass], "ok 1 g"),
            (&[], "ok 1 g"),
        ] {
            let text = written(|ktap| {
                ktap.begin_subtest("g", statuses.len()).unwrap();
                for &status in statuses {
                    ktap.write_result(&KtapTest { name: "t", status, detail: "" }).unwrap();
                }
                assert_eq!(ktap.subtest(), Some("g"));
                ktap.end_subtest().unwrap();
                assert_eq!(ktap.subtest(), None);
            });
            assert_eq!(text.lines().last(), Some(expected));
        }
    }
}
