//! The ladder and what stands below it, for people: 80 columns, colours on a terminal.

use super::ascent::{Ascent, Outcome};
use super::failure::{Answer, Blamed, Failure};
use super::level::Level;
use crate::screen::Screen;
use anstyle::{AnsiColor, Style};
use std::io::{self, Write};
use std::time::Duration;

const WIDTH: usize = 80;
/// Where a level's detail begins, and how wide it is.
const DETAIL: usize = 22;

const fn colour(colour: AnsiColor) -> Style {
    Style::new().fg_color(Some(anstyle::Color::Ansi(colour)))
}
const GREEN: Style = colour(AnsiColor::Green);
const RED: Style = colour(AnsiColor::Red).bold();
const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

/// One rung, when its level has been climbed.
pub fn rung(out: &mut Screen<'_>, ascent: &Ascent) -> io::Result<()> {
    let title = ascent.level.title();
    match &ascent.outcome {
        Outcome::Reached => {
            let fact = ascent.facts.last().cloned().unwrap_or_else(|| calls(ascent));
            line(out, GREEN, "✓", title, &fact, Some(ascent.took))
        }
        Outcome::Skipped(why) => {
            line(out, DIM, "–", title, &format!("does not apply: {why}"), None)
        }
        Outcome::Failed(cause) => {
            let all = cause.describe(&ascent.calls);
            // What was tried stands below.
            let first = all.lines().next().unwrap_or_default();
            let first = first.strip_suffix("; tried:").unwrap_or(first);
            line(out, RED, "✗", title, first, Some(ascent.took))
        }
    }
}

fn calls(ascent: &Ascent) -> String {
    let hsa = ascent.calls.iter().filter(|call| call.begin.call.starts_with("hsa_")).count();
    format!("{hsa} calls")
}

/// The rungs above the one that failed.
pub fn above(out: &mut Screen<'_>, level: Level, until: Level) -> io::Result<()> {
    for title in Level::ALL.into_iter().filter(|other| level < *other && *other <= until) {
        line(out, DIM, "·", title.title(), "not tried", None)?;
    }
    Ok(())
}

fn line(
    out: &mut Screen<'_>,
    style: Style,
    mark: &str,
    title: &str,
    detail: &str,
    took: Option<Duration>,
) -> io::Result<()> {
    let took =
        took.map(|took| format!("{:.0} ms", took.as_secs_f64() * 1000.0)).unwrap_or_default();
    let room = WIDTH - DETAIL - 10;
    let mut parts = wrap(detail, room).into_iter();
    let first = parts.next().unwrap_or_default();
    out.styled(style, mark)?;
    write!(out, " {title:19} ")?;
    match took.is_empty() {
        true => writeln!(out, "{first}")?,
        false => {
            write!(out, "{first:room$} ")?;
            out.styled(DIM, format_args!("{took:>9}"))?;
            writeln!(out)?;
        }
    }
    parts.try_for_each(|part| writeln!(out, "{:DETAIL$}{part}", ""))
}

/// Everything about the failure.
pub fn failure(out: &mut Screen<'_>, level: Level, failure: &Failure) -> io::Result<()> {
    writeln!(out)?;
    out.styled(RED, level.title())?;
    writeln!(out, ": {}", failure.what)?;
    if let Some(call) = &failure.call {
        blamed(out, call)?;
    }
    for other in &failure.also_in {
        writeln!(out, "  meanwhile in {other}")?;
    }
    if !failure.rests_on.is_empty() {
        head(out, "It rests on")?;
        for asked in &failure.rests_on {
            let interface = asked.interface;
            let (style, mark) = match asked.answer {
                Some(Answer::Error) => (RED, "✗"),
                Some(Answer::Well) => (GREEN, "✓"),
                Some(Answer::NotAsked) => (DIM, "·"),
                None => (Style::new(), " "),
            };
            let (file, request) = (short(interface.file), short(interface.request));
            let line = format!("{file:9} {request:29} {}", interface.function);
            out.styled(style, mark)?;
            writeln!(out, " {}", line.trim_end())?;
        }
    }
    match &failure.driver {
        Some(lines) if lines.is_empty() => {
            head(out, "The emulated driver")?;
            writeln!(out, "  was not asked anything during this call")?;
        }
        Some(lines) => log(out, "The emulated driver was asked", lines)?,
        None => {}
    }
    if !failure.runtime.is_empty() {
        log(out, "The runtime said", &failure.runtime)?;
    }
    match &failure.kernel {
        Ok(lines) if lines.is_empty() => aside(out, "The kernel logged nothing.")?,
        Ok(lines) => log(out, "The kernel logged meanwhile", lines)?,
        Err(why) => aside(out, &format!("The kernel's log cannot be read: {why}."))?,
    }
    if !failure.machine.is_empty() {
        head(out, "This machine")?;
        for looked in &failure.machine {
            let (style, mark) = if looked.well { (GREEN, "✓") } else { (RED, "✗") };
            out.styled(style, mark)?;
            writeln!(out, " {}", looked.what)?;
        }
    }
    if !failure.calls.is_empty() {
        log(out, "The fewest calls that repeat it", &failure.calls)?;
    }
    if !failure.try_next.is_empty() {
        head(out, "Try next")?;
        for (number, advice) in (1..).zip(&failure.try_next) {
            let lines = wrap(advice, WIDTH - 4);
            writeln!(out, "{number:2}. {}", lines.join("\n    "))?;
        }
    }
    Ok(())
}

/// The names of the kernel's headers are long, and the device stands before them.
fn short(name: &str) -> &str {
    let prefixes = ["DRM_IOCTL_", "AMDKFD_IOC_", "/dev/dri/", "/sys/…/kfd/"];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

fn blamed(out: &mut Screen<'_>, call: &Blamed) -> io::Result<()> {
    let who = if call.other_process { ", in the other process" } else { "" };
    write!(out, "  ")?;
    out.styled(BOLD, &call.name)?;
    writeln!(out, "{who}")?;
    for argument in &call.arguments {
        writeln!(out, "    {} = {}", argument.name, argument.value)?;
    }
    match (&call.status, call.returned) {
        (Some(status), _) => writeln!(out, "    -> {status}"),
        (None, true) => Ok(()),
        (None, false) => writeln!(out, "    -> does not return"),
    }
}

fn head(out: &mut Screen<'_>, text: &str) -> io::Result<()> {
    writeln!(out)?;
    out.styled(BOLD, text)?;
    writeln!(out)
}

/// A sentence of less weight.
fn aside(out: &mut Screen<'_>, text: &str) -> io::Result<()> {
    writeln!(out)?;
    out.styled(DIM, text)?;
    writeln!(out)
}

/// Lines of a log are not broken: they are to be copied and searched for.
fn log(out: &mut Screen<'_>, title: &str, lines: &[String]) -> io::Result<()> {
    head(out, title)?;
    lines.iter().try_for_each(|line| writeln!(out, "  {line}"))
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    // Only between words: names and paths are to be copied.
    let options = textwrap::Options::new(width)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(std::borrow::Cow::into_owned).collect()
}
