//! Reads and writes docs/detection.md: which tool detects which fault, and the message of the tool.

use crate::call_faults::{CallFault, TARGETS};
use crate::reasons;
use crate::table::Target;
use crate::{RunResult, run, run_within};
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

const HEAD: &str = "\
# Which fault is detected by which tool

A test generates this page. The test runs each tool with each planned fault. `HSA_VMM_PLANTED=all HSA_VMM_WRITE_PAGES=1
cargo test -p hsa-vmm-cli --test planted detection` tests all faults again (about an hour) and writes this page. Without
`HSA_VMM_WRITE_PAGES`, the test compares the results with this page. Any `cargo test` with `HSA_VMM_LONG=1`, as in
`.ci/run --long`, checks that `conform` and `bringup` detect every fault for which this page names a case or level. By
default, `cargo test` checks that each effect of each call has a row. It then tests one row, which a seed chooses.

The column of `conform` names the first case that fails. The column of `bringup` names the level that fails, and the
call that `bringup` reports as the cause. The effects are described in
[`hsa/faults/README.md`](../hsa/faults/README.md). A delay is not a fault: no tool may report it. Without planned faults,
no tool reports a fault.

A cell without a case or level contains the reason why the fault is not detected.

`fuzz` (`--seed 1 --time 20s`) and `stress` (`--time 1s --time-limit 10s`) compare results, resources and contents, too.
The following table has one fault of each effect, on AMD's 7.2.4. A cell of `fuzz` begins with the kind of the finding. A
cell of `stress` begins with the scenario. The message follows.
`HSA_VMM_WRITE_PAGES=1 HSA_VMM_PLANTED=all cargo test -p hsa-vmm-cli --test planted one_fault_of_each_effect` writes
this table (two minutes). `HSA_VMM_TABLE=all.md HSA_VMM_PLANTED=all cargo test -p hsa-vmm-cli --test planted full_table`
runs all four tools with every fault of the tables below and writes the results to `all.md` (several hours).
`HSA_VMM_PLANTED=GEM_CLOSE` selects the faults whose plan contains `GEM_CLOSE`.

";

const MACHINE_INTRODUCTION: &str = "\
The software GPUs' engines in the virtual machine have these faults (`hsa-vmm vm --fault`). The tools run with two GPUs
and Debian's kernel. `conform` runs with `--fail-fast`. `bringup` runs with `amdgpu.vm_update_mode=0` up to the level
`unmapped`. For faults of the kernel's engine and of interrupts, `bringup` runs with `hsa_vmm.tlb=0` up to the level
`shared`. The time limit is one minute. `HSA_VMM_VM_TESTS=all HSA_VMM_WRITE_PAGES=1 cargo test -p hsa-vmm-cli --test
planted software_gpu` writes this table (an hour on a busy computer). Without `HSA_VMM_WRITE_PAGES`, the test compares
the results with this page.

The GPUs' engines and the runtime's threads race with the levels. Therefore, the level that detects a fault can vary
from run to run. `TLB_FLUSH=lost` fails the level `offset` or `unmapped`. `INTERRUPT=lost` fails the first level in
which a thread sleeps until a copy or fill ends: `gpu`, `data`, `sdma` or `blit`. `KERNEL_FILL=late:5ms` fails a level
only if the level writes to reused memory before the late fill ends. Usually, no level fails. Otherwise, the level is
`gpu` or a later one.

";

/// The plan of one fault of each effect, and the reasons why `fuzz` and `stress` do not detect the fault. An empty
/// reason means that the tool detects the fault.
pub const REPRESENTATIVES: [(&str, &str, &str); 16] = [
    ("GEM_VA.MAP=EIO", "", ""),
    ("GEM_VA.MAP=lost", "", ""),
    ("GEM_VA.MAP=late:5ms", "", ""),
    ("GEM_VA.MAP=unseen:50ms", "", ""),
    ("GEM_VA.UNMAP=stale:50ms", "", ""),
    ("PRIME_FD_TO_HANDLE=evict", "", ""),
    ("GEM_VA.UNMAP=hang", "", ""),
    ("GEM_VA.UNMAP=crash", "", ""),
    ("GEM_VA.MAP=narrow", "", ""),
    ("GEM_VA.MAP=shifted", "", ""),
    ("GEM_VA.MAP=half", "", ""),
    ("EXPORT_DMABUF=other", "", ""),
    ("EXPORT_DMABUF=leak", "", ""),
    ("GEM_CLOSE=leak", "", ""),
    ("COPY=garbled", "", ""),
    ("AVAILABLE_MEMORY=double", NO_QUERY, NO_QUERY),
];
const NO_QUERY: &str = "this tool does not query the available memory";

/// The target of the page's last section: the virtual machine.
pub const MACHINE: Target = Target::Machine("6.4.3");

/// A row of the page's first table: a fault, and the results of `fuzz` and `stress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Representative {
    pub call_fault: CallFault,
    pub fuzz: Cell,
    pub stress: Cell,
}

/// Returns the time limit of one run. A longer run is recorded as `no end`.
fn run_limit(target: Target) -> Duration {
    Duration::from_secs(if target.is_machine() { 15 * 60 } else { 45 })
}

/// The time limit of a case or level.
pub const SHORT_LIMIT: &str = "4s";
/// The time limit of a case or level in a second try, because the computer may be busy.
pub const LONG_LIMIT: &str = "30s";

/// A row of the page's other tables: a fault, and the results of `conform` and `bringup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub call_fault: CallFault,
    pub conform: Cell,
    pub bringup: Cell,
}

/// Whether a tool detects a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// The case, level, kind of finding or scenario that shows the fault, and the message.
    Detected(String, String),
    /// The reason why the tool does not detect the fault.
    Missed(String),
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Detected(by, message) => format!("`{by}`: {message}"),
            Self::Missed(reason) => reason.clone(),
        }
    }

    fn parse(text: &str) -> Self {
        let found = text.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
        match found {
            Some((by, message)) => Self::Detected(by.to_owned(), message.to_owned()),
            None => Self::Missed(text.to_owned()),
        }
    }
}

/// The maximum length of a message in a cell, in characters.
const MAX_MESSAGE: usize = 90;

/// Shortens a message for a cell. Replaces addresses, which differ from run to run.
fn shorten(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut short = String::new();
    for word in line.split_whitespace() {
        // The addresses of memory and of programs begin with 0x7 and 0x5.
        let word = if word.contains("0x7") || word.contains("0x5") { "…" } else { word };
        if short.chars().count() + word.chars().count() > MAX_MESSAGE {
            short.push_str(" …");
            break;
        }
        if !short.is_empty() {
            short.push(' ');
        }
        short.push_str(word);
    }
    short.replace('|', "/").replace('`', "'")
}

/// Runs `conform` with a fault. The cell contains the first failed case.
pub fn conform(target: Target, call_fault: &CallFault, filter: Option<&str>, limit: &str) -> Cell {
    let mut arguments = vec!["conform", "--format", "json", "--time-limit", limit];
    // With these effects, each case takes its time limit or restarts its process.
    let effects = ["hang", "crash", "EIO", "ERROR"];
    if effects.contains(&call_fault.effect.as_str()) || target.is_machine() {
        arguments.push("--fail-fast");
    }
    arguments.extend(filter.iter().flat_map(|case| ["--filter", case]));
    let plan = call_fault.plan();
    let result = run_within(run_limit(target), target, &plan, &arguments).or_else(|_| {
        // The run took too long, because many cases crash or hang. Only the first failure is needed.
        if !arguments.contains(&"--fail-fast") {
            arguments.push("--fail-fast");
        }
        run_within(run_limit(target), target, &plan, &arguments)
    });
    let result = match result {
        Ok(result) => result,
        Err(reason) => return Cell::Detected("no end".into(), reason),
    };
    if result.status.success() {
        return Cell::Missed(String::new());
    }
    let report: Value = serde_json::from_str(&result.stdout).unwrap_or_default();
    let cases = report["cases"].as_array();
    let failed = cases.into_iter().flatten().find(|case| case["status"] == "fail");
    match failed {
        Some(case) => Cell::Detected(
            case["name"].as_str().unwrap_or_default().to_owned(),
            shorten(case["detail"].as_str().unwrap_or_default()),
        ),
        None => cell_without_report(&result),
    }
}

/// Runs `bringup` with a fault. The cell contains the failed level.
pub fn bringup(target: Target, call_fault: &CallFault, until: Option<&str>, limit: &str) -> Cell {
    let mut arguments = vec!["bringup", "--format", "json", "--time-limit", limit];
    let until = until.map(|level| level.replace('_', "-"));
    arguments.extend(until.iter().flat_map(|level| ["--until", level.as_str()]));
    let result = match run_within(run_limit(target), target, &call_fault.plan(), &arguments) {
        Ok(result) => result,
        Err(reason) => return Cell::Detected("no end".into(), reason),
    };
    if result.status.success() {
        return Cell::Missed(String::new());
    }
    let report: Value = serde_json::from_str(&result.stdout).unwrap_or_default();
    let levels = report["levels"].as_array();
    let failed = levels.into_iter().flatten().find(|level| level["status"] == "failed");
    let level = failed.and_then(|level| level["level"].as_str()).unwrap_or("no level");
    let failure = &report["failure"];
    let call = failure["call"]["name"].as_str().unwrap_or("no call");
    let what = shorten(failure["what"].as_str().unwrap_or_default());
    let what = if what.contains(call) { what } else { format!("{call}: {what}") };
    Cell::Detected(level.to_owned(), what)
}

/// Runs `fuzz` with a fault. The cell contains the kind of the finding.
pub fn fuzz(target: Target, call_fault: &CallFault, time: &str) -> Cell {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("found.jsonl");
    let save = ["--shrink", "1s", "--save", file.to_str().expect("text")];
    let fuzz =
        ["fuzz", "--format", "json", "--seed", "1", "--processes", "2", "--time-limit", "3s"];
    let arguments = [&fuzz[..], &["--time", time], &save].concat();
    let result = match run(target, &call_fault.plan(), &arguments) {
        Ok(result) => result,
        Err(reason) => return Cell::Detected("no end".into(), reason),
    };
    if result.status.success() {
        return Cell::Missed(String::new());
    }
    let report: Value = serde_json::from_str(&result.stdout).unwrap_or_default();
    let finding = &report["finding"];
    match (finding["kind"].as_str(), finding["words"].as_str()) {
        (Some(kind), Some(words)) => Cell::Detected(kind.to_owned(), shorten(words)),
        _ => cell_without_report(&result),
    }
}

/// Runs `stress` with a fault. The cell contains the scenario with an unexpected error or a leak.
pub fn stress(target: Target, call_fault: &CallFault) -> Cell {
    let arguments = ["stress", "--format", "json", "--time", "1s", "--time-limit", "10s"];
    let result = match run(target, &call_fault.plan(), &arguments) {
        Ok(result) => result,
        Err(reason) => return Cell::Detected("no end".into(), reason),
    };
    if result.status.success() {
        return Cell::Missed(String::new());
    }
    let report: Value = serde_json::from_str(&result.stdout).unwrap_or_default();
    let scenarios = report["scenes"].as_array();
    let failure = scenarios.into_iter().flatten().find_map(|scenario| {
        let error = scenario["unexpected"].as_object().and_then(|errors| errors.keys().next());
        let leak = || Some(format!("leaked: {}", scenario["leaks"][0]["what"].as_str()?));
        let what = error.cloned().or_else(leak)?;
        Some(Cell::Detected(scenario["scene"].as_str()?.to_owned(), shorten(&what)))
    });
    let leak = report["leaks"][0]["what"].as_str();
    let machine_leak = leak.map(|what| Cell::Detected("memory".to_owned(), shorten(what)));
    failure.or(machine_leak).unwrap_or_else(|| cell_without_report(&result))
}

/// Describes a run that ended without a report.
fn cell_without_report(result: &RunResult) -> Cell {
    let last = result.stderr.trim_end().lines().rfind(|line| line.contains("error"));
    let ended = format!("exit {}", result.status.code().unwrap_or(-1));
    Cell::Detected(ended, shorten(last.unwrap_or("nothing ran")))
}

/// If a tool missed a fault, replaces the text of the cell by the reason from [`reasons`].
pub fn with_reason(tool: &str, call_fault: &CallFault, cell: Cell) -> Cell {
    match cell {
        Cell::Missed(_) => {
            Cell::Missed(reasons::find(tool, call_fault).unwrap_or("NOT DETECTED").to_owned())
        }
        cell => cell,
    }
}

/// Runs `conform` and `bringup` with a fault.
pub fn measure(target: Target, call_fault: &CallFault) -> Row {
    let conform =
        with_reason("conform", call_fault, conform(target, call_fault, None, SHORT_LIMIT));
    let bringup =
        with_reason("bringup", call_fault, bringup(target, call_fault, None, SHORT_LIMIT));
    Row { call_fault: call_fault.clone(), conform, bringup }
}

fn title(target: Target) -> String {
    match target {
        Target::Release(release) => format!("AMD's {release} on the emulated driver"),
        Target::Simulation(_) => "The simulation".to_owned(),
        Target::Machine(release) => format!("AMD's {release} on AMD's kernel driver"),
    }
}

fn page_path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/detection.md"))
}

/// Held while the page is read and written, because several tests write parts of the page.
static PAGE_LOCK: Mutex<()> = Mutex::new(());

/// Writes the beginning of the page with the results of `fuzz` and `stress`, and keeps the other sections.
pub fn write_representatives(rows: &[Representative]) {
    let _lock = PAGE_LOCK.lock().expect("no panic");
    let old_page = std::fs::read_to_string(page_path()).expect("docs/detection.md");
    let rest = old_page.find("\n## ").map_or("", |start| &old_page[start..]);
    std::fs::write(page_path(), beginning(rows) + rest).expect("a page");
}

fn beginning(rows: &[Representative]) -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| fault | `fuzz` | `stress` |\n|---|---|---|\n");
    for Representative { call_fault, fuzz, stress } in rows {
        let _ = writeln!(page, "| `{}` | {} | {} |", call_fault.plan(), fuzz.text(), stress.text());
    }
    page
}

/// Writes all results of four tools to a file.
pub fn write_table(file: &str, rows: &[(Target, Row, Representative)]) {
    let head = "| target | fault | `conform` | `bringup` | `fuzz` | `stress` |\n|---|---|---|---|---|---|\n";
    let mut table = head.to_owned();
    for (target, Row { call_fault, conform, bringup }, Representative { fuzz, stress, .. }) in rows
    {
        let cells = [conform, bringup, fuzz, stress].map(Cell::text).join(" | ");
        let _ = writeln!(table, "| {} | `{}` | {cells} |", title(*target), call_fault.plan());
    }
    std::fs::write(file, table).expect("a table");
}

/// Writes the page. Keeps the first table and the section of the virtual machine.
pub fn write(rows: &[(Target, Vec<Row>)]) {
    let _lock = PAGE_LOCK.lock().expect("no panic");
    let mut page = beginning(&read_representatives());
    for (target, rows) in rows {
        let _ = write!(page, "\n## {}\n\n", title(*target));
        write_rows(&mut page, rows);
    }
    let old_page = std::fs::read_to_string(page_path()).expect("docs/detection.md");
    page.push_str(old_page.find(&heading(MACHINE)).map_or("", |start| &old_page[start..]));
    std::fs::write(page_path(), page).expect("a page");
}

/// Writes the last section of the page: the virtual machine.
pub fn write_machine(rows: &[Row]) {
    let _lock = PAGE_LOCK.lock().expect("no panic");
    let mut page = std::fs::read_to_string(page_path()).expect("docs/detection.md");
    let heading = heading(MACHINE);
    page.truncate(page.find(&heading).unwrap_or(page.len()));
    page.push_str(&heading);
    page.push('\n');
    page.push_str(MACHINE_INTRODUCTION);
    write_rows(&mut page, rows);
    std::fs::write(page_path(), page).expect("a page");
}

fn heading(target: Target) -> String {
    format!("\n## {}\n", title(target))
}

fn write_rows(page: &mut String, rows: &[Row]) {
    page.push_str("| fault | `conform` | `bringup` |\n|---|---|---|\n");
    for Row { call_fault, conform, bringup } in rows {
        let (plan, conform, bringup) = (call_fault.plan(), conform.text(), bringup.text());
        let _ = writeln!(page, "| `{plan}` | {conform} | {bringup} |");
    }
}

/// Reads the rows of the page, without the section of the virtual machine.
pub fn read() -> Vec<(Target, Vec<Row>)> {
    TARGETS.iter().map(|target| (*target, read_rows(*target))).collect()
}

pub fn read_rows(target: Target) -> Vec<Row> {
    let page = std::fs::read_to_string(page_path()).expect("docs/detection.md");
    let section = page.split(&heading(target)).nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    section.lines().filter_map(parse_row).collect()
}

/// Reads the results of `fuzz` and `stress`.
pub fn read_representatives() -> Vec<Representative> {
    let page = std::fs::read_to_string(page_path()).expect("docs/detection.md");
    let section = page.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(parse_row);
    rows.map(|Row { call_fault, conform, bringup }| Representative {
        call_fault,
        fuzz: conform,
        stress: bringup,
    })
    .collect()
}

/// Reads a row: a fault, and the results of two tools.
fn parse_row(line: &str) -> Option<Row> {
    let mut cells = line.strip_prefix("| `")?.trim_end_matches(" |").split(" | ");
    let call_fault = CallFault::parse(cells.next()?.trim_end_matches('`'))?;
    let (conform, bringup) = (Cell::parse(cells.next()?), Cell::parse(cells.next()?));
    Some(Row { call_fault, conform, bringup })
}
