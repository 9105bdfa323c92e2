//! Prints the levels and the report of a failure: 80 columns, colours on a terminal.

use super::failure::{DriverResult, FailedCall, Failure};
use super::host_buffer::LATER_RIGHT;
use super::kernel_trace;
use super::level::Level;
use super::supervisor::{LevelRun, Outcome};
use crate::screen::Screen;
use anstyle::{AnsiColor, Style};
use std::io::{self, Write};
use std::time::Duration;

/// The width of the output in columns.
const WIDTH: usize = 80;
/// The column of a level's detail.
const DETAIL_COLUMN: usize = 22;
/// The width of a level's duration, with the space before it.
const DURATION_WIDTH: usize = 10;

/// Parts of the commands in the advice. Advice that contains a command is not broken into lines, so that the command can
/// be copied.
const COMMANDS: [&str; 8] =
    [" -- ", "hsa-vmm ", "gdb ", "dmesg ", "modprobe ", "lspci ", "usermod ", "cat /proc/"];

const fn foreground(colour: AnsiColor) -> Style {
    Style::new().fg_color(Some(anstyle::Color::Ansi(colour)))
}
const GREEN: Style = foreground(AnsiColor::Green);
const RED: Style = foreground(AnsiColor::Red).bold();
const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();

/// Prints the line of a level that has run.
pub fn print_level(out: &mut Screen<'_>, run: &LevelRun) -> io::Result<()> {
    let title = run.level.title();
    match &run.outcome {
        Outcome::Reached => {
            let fact = run.facts.last().cloned().unwrap_or_else(|| call_count(run));
            print_line(out, GREEN, "✓", title, &fact, Some(run.took))
        }
        Outcome::Skipped(why) => {
            print_line(out, DIM, "–", title, &format!("does not apply: {why}"), None)
        }
        Outcome::Failed(cause) => {
            let description = run.describe(cause);
            // Print only the first line. The report of the failure lists the rejected files.
            let first = description.lines().next().unwrap_or_default();
            let first = first.strip_suffix("; tried or ignored:").unwrap_or(first);
            print_line(out, RED, "✗", title, first, Some(run.took))
        }
    }
}

/// Returns the number of HSA calls as text.
fn call_count(run: &LevelRun) -> String {
    let hsa = run.calls.iter().filter(|call| call.begin.call.starts_with("hsa_")).count();
    format!("{hsa} call{}", if hsa == 1 { "" } else { "s" })
}

/// Prints the levels that have not run.
pub fn print_not_tried(
    out: &mut Screen<'_>,
    mut levels: impl Iterator<Item = Level>,
    reason: &str,
) -> io::Result<()> {
    levels.try_for_each(|level| print_line(out, DIM, "·", level.title(), reason, None))
}

fn print_line(
    out: &mut Screen<'_>,
    style: Style,
    mark: &str,
    title: &str,
    detail: &str,
    took: Option<Duration>,
) -> io::Result<()> {
    let took =
        took.map(|took| format!("{:.0} ms", took.as_secs_f64() * 1000.0)).unwrap_or_default();
    let width = WIDTH - DETAIL_COLUMN - DURATION_WIDTH;
    let mut parts = wrap(detail, width).into_iter();
    let first = parts.next().unwrap_or_default();
    out.write_styled(style, mark)?;
    write!(out, " {title:19} ")?;
    match took.is_empty() {
        true => writeln!(out, "{first}")?,
        false => {
            write!(out, "{first:width$} ")?;
            out.write_styled(DIM, format_args!("{took:>9}"))?;
            writeln!(out)?;
        }
    }
    parts.try_for_each(|part| writeln!(out, "{:DETAIL_COLUMN$}{part}", ""))
}

pub fn print_failure(out: &mut Screen<'_>, level: Level, failure: &Failure) -> io::Result<()> {
    writeln!(out)?;
    out.write_styled(RED, level.title())?;
    writeln!(out, ": {}", failure.what)?;
    if let Some(call) = &failure.call {
        print_failed_call(out, call)?;
    }
    for call in &failure.other_calls {
        writeln!(out, "  at the same time in {call}")?;
    }
    if !failure.failed_requests.is_empty() {
        let title = match failure.failed_requests_are_later {
            false => "Requests to the emulated driver that failed or have not returned",
            true => "Requests that failed after this call: a result of the failure, not its cause",
        };
        print_log(out, title, &failure.failed_requests)?;
    }
    if !failure.interfaces.is_empty() {
        print_heading(out, "Kernel interfaces of this call")?;
        for used in &failure.interfaces {
            let interface = used.interface;
            let (style, mark) = match used.result {
                Some(DriverResult::Error) => (RED, "✗"),
                Some(DriverResult::Succeeded) => (GREEN, "✓"),
                Some(DriverResult::NoRequest) => (DIM, "·"),
                None => (Style::new(), " "),
            };
            let (file, request) =
                (without_prefix(interface.file), without_prefix(interface.request));
            let line = format!("{file:9} {request:29} {}", interface.function);
            out.write_styled(style, mark)?;
            writeln!(out, " {}", line.trim_end())?;
        }
    }
    match &failure.driver {
        Some(lines) if lines.is_empty() => {
            print_heading(out, "The emulated driver")?;
            writeln!(out, "  received no request during this call")?;
        }
        Some(lines) => print_log(out, "Requests to the emulated driver", lines)?,
        None => {}
    }
    if !failure.runtime.is_empty() {
        print_log(out, "The runtime logged", &failure.runtime)?;
    }
    match &failure.kernel {
        Ok(lines) if lines.is_empty() => {
            print_note(out, "The kernel logged nothing during this level.")?
        }
        Ok(lines) if kernel_trace::is_about_amdgpu(lines) => {
            print_log(out, "Logged by the kernel during this level", lines)?
        }
        // The kernel also logs messages about other processes.
        Ok(lines) => {
            print_log(out, "Logged by the kernel during this level, perhaps unrelated", lines)?
        }
        Err(why) => print_note(out, &format!("The kernel's log cannot be read: {why}."))?,
    }
    if !failure.machine.is_empty() {
        print_heading(out, "This machine")?;
        for check in &failure.machine {
            let (style, mark) = match (check.known, check.passed) {
                (false, _) => (BOLD, "?"),
                (true, true) => (GREEN, "✓"),
                (true, false) => (RED, "✗"),
            };
            out.write_styled(style, mark)?;
            writeln!(out, " {}", check.what)?;
        }
    }
    if !failure.calls.is_empty() {
        let title = match failure.kind {
            "wrong" if failure.what.contains(LATER_RIGHT) => {
                "The calls that repeat the failure; a repeated check at the end is right"
            }
            "wrong" | "gpu_fault" => "The calls that repeat the failure; the last ones show it",
            _ => "The calls that repeat the failure",
        };
        print_log(out, title, &failure.calls)?;
    }
    if !failure.try_next.is_empty() {
        print_heading(out, "Try next")?;
        for (number, advice) in (1..).zip(&failure.try_next) {
            let has_command = COMMANDS.iter().any(|command| advice.contains(command));
            let text = match has_command {
                true => advice.clone(),
                false => wrap(advice, WIDTH - 4).join("\n    "),
            };
            writeln!(out, "{number:2}. {text}")?;
        }
    }
    Ok(())
}

/// Removes the prefix of a request or a file. The table has a column for the device, so the prefix is not needed.
fn without_prefix(name: &str) -> &str {
    let prefixes = ["DRM_IOCTL_", "AMDKFD_IOC_", "/dev/dri/", "/sys/…/kfd/"];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

fn print_failed_call(out: &mut Screen<'_>, call: &FailedCall) -> io::Result<()> {
    let suffix = if call.other_process { ", in the other process" } else { "" };
    write!(out, "  ")?;
    out.write_styled(BOLD, &call.name)?;
    writeln!(out, "{suffix}")?;
    for argument in &call.arguments {
        writeln!(out, "    {} = {}", argument.name, argument.value)?;
    }
    match (&call.status, call.returned) {
        (Some(status), _) => writeln!(out, "    -> {status}"),
        (None, true) => Ok(()),
        (None, false) => writeln!(out, "    -> does not return"),
    }
}

fn print_heading(out: &mut Screen<'_>, text: &str) -> io::Result<()> {
    writeln!(out)?;
    out.write_styled(BOLD, text)?;
    writeln!(out)
}

/// Prints a dimmed paragraph.
fn print_note(out: &mut Screen<'_>, text: &str) -> io::Result<()> {
    writeln!(out)?;
    out.write_styled(DIM, text)?;
    writeln!(out)
}

/// Prints lines of a log without breaking them, so that they can be copied.
fn print_log(out: &mut Screen<'_>, title: &str, lines: &[String]) -> io::Result<()> {
    print_heading(out, title)?;
    lines.iter().try_for_each(|line| writeln!(out, "  {line}"))
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    // Break only between words, so that names and paths can be copied.
    let options = textwrap::Options::new(width)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(std::borrow::Cow::into_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Failure {
        Failure {
            kind: "crash",
            what: "SIGSEGV in hsa_init".to_owned(),
            call: None,
            other_calls: Vec::new(),
            failed_requests: Vec::new(),
            failed_requests_are_later: false,
            interfaces: Vec::new(),
            driver: None,
            runtime: Vec::new(),
            kernel: Ok(Vec::new()),
            machine: Vec::new(),
            try_next: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn printed(failure: &Failure) -> String {
        let mut text = Vec::new();
        print_failure(&mut Screen::plain(&mut text), Level::Runtime, failure).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn commands_to_try_are_not_broken() {
        let words = "find where the kernel returns ENOMEM, ".repeat(3);
        for command in [
            "hsa-vmm emulate --rocr 7.2.4 -- gdb -ex run -ex bt ./repeat",
            "gdb -p PID -batch -ex 'thread apply all bt'",
            "dmesg | grep -i -e kfd -e amdgpu",
            "cat /proc/7/task/*/stack",
            "usermod -aG render,video USER",
        ] {
            let advice = format!("{words}{command}");
            let try_next = vec![words.clone(), advice.clone()];
            let text = printed(&Failure { try_next, ..failure() });
            assert!(text.ends_with(&format!("\n 2. {advice}\n")), "{text}");
            assert!(text.contains("\n    "), "{text}");
        }
    }

    #[test]
    fn kernel_lines_are_perhaps_unrelated() {
        let kernel = Ok(vec!["eth0: link down".to_owned()]);
        let text = printed(&Failure { kernel, ..failure() });
        let expected =
            "\nLogged by the kernel during this level, perhaps unrelated\n  eth0: link down\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
