//! Checks docs/detection.md: which effects of which calls each tool detects.

use crate::call_faults::{self, CallFault};
use crate::page::{self, Cell, Representative, Row};
use crate::table::Target;
use hsa_rocr::test;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The number of rows that a seed chooses.
const SAMPLE_SIZE: usize = 1;
/// The number of rows that are tested at once. This can be more than the number of processors, because faults that hang
/// leave the processors idle.
const THREADS: usize = 4;
/// The number of rows that are tested at once while the page is written.
const WRITING_THREADS: usize = 3;

/// Returns whether the release that docs/detection.md describes is fetched.
fn is_release_fetched(name: &str) -> bool {
    let fetched_releases = test::fetch_releases(name).unwrap_or_default();
    let Target::Release(version) = call_faults::TARGETS[0] else { return false };
    fetched_releases.iter().any(|it| it.release().version() == version)
}

#[test]
fn detection_page_lists_each_effect_of_each_call() {
    if !is_release_fetched("detection_page_lists_each_effect_of_each_call") {
        return;
    }
    for (target, rows) in page::read() {
        let listed: BTreeSet<_> = rows.iter().map(|row| row.call_fault.clone()).collect();
        let all: BTreeSet<_> = call_faults::all_of(target).into_iter().collect();
        let missing: Vec<_> = all.difference(&listed).map(call_faults::CallFault::plan).collect();
        assert!(missing.is_empty(), "{target:?}: docs/detection.md has no row for {missing:?}");
        let outdated: Vec<_> = listed.difference(&all).map(call_faults::CallFault::plan).collect();
        assert!(
            outdated.is_empty(),
            "{target:?}: docs/detection.md has outdated rows for {outdated:?}"
        );
        for Row { call_fault, conform, bringup } in &rows {
            for cell in [conform, bringup] {
                let has_reason = !matches!(cell, Cell::Missed(reason) if reason.len() < 20);
                assert!(has_reason, "{target:?}: {}: no reason", call_fault.plan());
            }
        }
    }
}

/// How results are compared with the page.
#[derive(Clone, Copy)]
enum Comparison {
    /// A tool must detect each fault that the page lists as detected.
    Detected,
    /// A tool must detect exactly the faults that the page lists as detected. `bringup` must detect each fault at the
    /// level that the page lists.
    Full,
}

/// Runs the tools with the fault of a row, and compares the results with the page.
fn compare_with_page(
    target: Target,
    row: &Row,
    limit: &str,
    comparison: Comparison,
) -> Result<(), String> {
    let filter = |cell: &Cell| match cell {
        // `runtime.library.*` are results of the whole run. No filter selects these results.
        Cell::Detected(by, _)
            if !by.starts_with("exit") && by != "no end" && !by.starts_with("runtime.library.") =>
        {
            Some(by.clone())
        }
        _ => None,
    };
    let detected_by = |cell: &Cell| match cell {
        Cell::Detected(by, _) => Some(by.clone()),
        Cell::Missed(_) => None,
    };
    let is_full = matches!(comparison, Comparison::Full);
    // Only the full comparison runs a tool that, according to the row, misses the fault.
    let must_run = |cell: &Cell| is_full || matches!(cell, Cell::Detected(..));
    let mut conform = match must_run(&row.conform) {
        true => page::conform(target, &row.call_fault, filter(&row.conform).as_deref(), limit),
        false => row.conform.clone(),
    };
    if detected_by(&conform).is_none() && detected_by(&row.conform).is_some() {
        // Some cases fail only after other cases. Therefore, any failed case is accepted.
        conform = match page::conform(target, &row.call_fault, None, limit) {
            Cell::Detected(..) => row.conform.clone(),
            missed => missed,
        };
    }
    let mut bringup = match must_run(&row.bringup) {
        true => page::bringup(target, &row.call_fault, filter(&row.bringup).as_deref(), limit),
        false => row.bringup.clone(),
    };
    // A late release is detected only if the tool counts memory during the delay. A lost WAIT_EVENTS is detected only
    // if a thread sleeps. Therefore, `bringup` may detect or miss these faults.
    let is_late_release =
        row.call_fault.effect.starts_with("late") && row.call_fault.call.ends_with("_free");
    if is_late_release || row.call_fault.plan() == "WAIT_EVENTS=lost" {
        bringup = row.bringup.clone();
    }
    // This fault is detected only in runs in which the GPU reads the queue's freed memory. Therefore, each tool may
    // detect or miss the fault.
    if row.call_fault.plan() == "DESTROY_QUEUE=lost" {
        (conform, bringup) = (row.conform.clone(), row.bringup.clone());
    }
    for (found, expected) in [(&conform, &row.conform), (&bringup, &row.bringup)] {
        // Threads of the runtime race with the tools, so different cases or levels can detect a fault. Therefore, only
        // the full comparison compares the case or level.
        let (found_by, expected_by) = (detected_by(found), detected_by(expected));
        let matches = match comparison {
            Comparison::Full => found_by == expected_by,
            Comparison::Detected => found_by.is_some() || expected_by.is_none(),
        };
        if !matches {
            return Err(format!("{}: {found:?} instead of {expected:?}", row.call_fault.plan()));
        }
    }
    Ok(())
}

/// Returns the rows to test.
fn chosen_rows() -> Vec<(Target, Row)> {
    let all: Vec<_> = page::read()
        .into_iter()
        .flat_map(|(target, rows)| rows.into_iter().map(move |row| (target, row)))
        .collect();
    let selection = std::env::var("HSA_VMM_PLANTED").unwrap_or_default();
    match selection.as_str() {
        "all" => all,
        "" if test::is_long() => all,
        "" => choose(all, crate::DEFAULT_SEED),
        selection => match selection.parse() {
            Ok(seed) => choose(all, seed),
            Err(_) => all
                .into_iter()
                .filter(|(_, row)| contains_any(&row.call_fault, selection))
                .collect(),
        },
    }
}

/// Returns whether the plan of a fault contains one of the texts in `texts`. Commas separate the texts.
fn contains_any(call_fault: &CallFault, texts: &str) -> bool {
    let plan = call_fault.plan();
    texts.split(',').any(|text| plan.contains(text))
}

/// Returns the rows that a seed chooses.
fn choose(all: Vec<(Target, Row)>, seed: u64) -> Vec<(Target, Row)> {
    println!("HSA_VMM_PLANTED={seed} repeats this choice");
    // Omit hangs, which take the time limit in each process.
    let without_hangs = all.into_iter().filter(|(_, row)| row.call_fault.effect != "hang");
    fastrand::Rng::with_seed(seed).choose_multiple(without_hangs, SAMPLE_SIZE)
}

#[test]
fn detection_page_is_up_to_date() {
    if !is_release_fetched("detection_page_is_up_to_date") {
        return;
    }
    if std::env::var_os("HSA_VMM_WRITE_PAGES").is_some() {
        return write_page();
    }
    // By default, a seed chooses the rows, and the test prints the seed. Compare in the same way if `HSA_VMM_PLANTED`
    // contains a seed, so that the printed seed repeats the result.
    let selection = std::env::var("HSA_VMM_PLANTED").unwrap_or_default();
    let comparison = match selection.parse::<u64>() {
        Err(_) if !selection.is_empty() => Comparison::Full,
        _ => Comparison::Detected,
    };
    let check_row = |target: Target, row: &Row| {
        // If the computer is busy, a case may take longer than the short limit.
        compare_with_page(target, row, page::SHORT_LIMIT, comparison)
            .or_else(|_| compare_with_page(target, row, page::LONG_LIMIT, comparison))
    };
    let rows = chosen_rows();
    let results = in_parallel(&rows, |(target, row)| {
        check_row(*target, row).map_err(|reason| format!("{target:?}: {reason}"))
    });
    let wrong: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs `fuzz` and `stress` with a fault. If a tool misses the fault, the tool's cell contains the tool's entry of
/// `reasons`, or `NOT DETECTED` if this entry is empty.
fn measure_fuzz_and_stress(
    target: Target,
    call_fault: &CallFault,
    reasons: [&str; 2],
    fuzz_time: &str,
) -> Representative {
    let with_reason = |cell: Cell, reason: &str| match (cell, reason) {
        (Cell::Missed(_), "") => Cell::Missed("NOT DETECTED".to_owned()),
        (Cell::Missed(_), reason) => Cell::Missed(reason.to_owned()),
        (detected, _) => detected,
    };
    let fuzz = with_reason(page::fuzz(target, call_fault, fuzz_time), reasons[0]);
    let stress = with_reason(page::stress(target, call_fault), reasons[1]);
    Representative { call_fault: call_fault.clone(), fuzz, stress }
}

/// Calls `act` on each item in several threads. Returns the results in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (pending, results) = (Mutex::new(items.iter().enumerate()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let Some((index, item)) = pending.lock().unwrap().next() else { break };
                    let result = act(item);
                    results.lock().unwrap().push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn fuzz_and_stress_detect_one_fault_of_each_effect() {
    if !is_release_fetched("fuzz_and_stress_detect_one_fault_of_each_effect") {
        return;
    }
    let all = page::REPRESENTATIVES.to_vec();
    let selection = std::env::var("HSA_VMM_PLANTED").unwrap_or_default();
    let chosen = match selection.as_str() {
        "all" => all,
        "" if test::is_long() => all,
        selection => {
            let seed = selection.parse().unwrap_or(crate::DEFAULT_SEED);
            println!("HSA_VMM_PLANTED={seed} repeats this choice");
            fastrand::Rng::with_seed(seed).choose_multiple(all, 1)
        }
    };
    let is_as_expected = |row: &Representative, reasons: [&str; 2]| {
        [&row.fuzz, &row.stress].into_iter().zip(reasons).all(|(cell, reason)| match cell {
            Cell::Detected(..) => reason.is_empty(),
            Cell::Missed(_) => !reason.is_empty(),
        })
    };
    let rows = in_parallel(&chosen, |(plan, by_fuzz, by_stress)| {
        let (call_fault, reasons) = (CallFault::parse(plan).unwrap(), [*by_fuzz, *by_stress]);
        let row = measure_fuzz_and_stress(call_faults::TARGETS[0], &call_fault, reasons, "20s");
        // If the computer is busy, `fuzz` may run too few sequences in the shorter time.
        let row = match is_as_expected(&row, reasons) {
            true => row,
            false => measure_fuzz_and_stress(call_faults::TARGETS[0], &call_fault, reasons, "90s"),
        };
        (is_as_expected(&row, reasons), row)
    });
    if std::env::var_os("HSA_VMM_WRITE_PAGES").is_some() && selection == "all" {
        page::write_representatives(&rows.iter().map(|(_, row)| row.clone()).collect::<Vec<_>>());
    }
    let wrong: Vec<_> = rows.iter().filter(|(is_expected, _)| !is_expected).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn detection_page_lists_representatives() {
    let rows = page::read_representatives();
    for (plan, fuzz, stress) in page::REPRESENTATIVES {
        let row = rows.iter().find(|row| row.call_fault.plan() == plan);
        let Some(row) = row else { panic!("docs/detection.md has no row for {plan}") };
        for (cell, reason) in [(&row.fuzz, fuzz), (&row.stress, stress)] {
            let matches = match cell {
                Cell::Detected(_, message) => reason.is_empty() && !message.is_empty(),
                Cell::Missed(text) => !reason.is_empty() && text == reason,
            };
            assert!(matches, "{plan}: {cell:?}, reason {reason:?}");
        }
    }
    assert_eq!(rows.len(), page::REPRESENTATIVES.len());
}

/// Runs all four tools with the faults that `HSA_VMM_PLANTED` selects, and writes the file that `HSA_VMM_TABLE` names.
#[test]
fn full_table_of_four_tools() {
    let name = "full_table_of_four_tools";
    let selection = std::env::var("HSA_VMM_PLANTED").unwrap_or_default();
    let (Ok(file), false) = (std::env::var("HSA_VMM_TABLE"), selection.is_empty()) else {
        test::report(&format!(
            "SKIPPED {name}: takes several hours; HSA_VMM_TABLE=FILE HSA_VMM_PLANTED=all runs it"
        ));
        return;
    };
    if !is_release_fetched(name) {
        return;
    }
    let call_faults = call_faults::TARGETS.into_iter().flat_map(|target| {
        call_faults::all_of(target).into_iter().map(move |call_fault| (target, call_fault))
    });
    let is_selected = |(_, call_fault): &(Target, CallFault)| {
        selection == "all" || contains_any(call_fault, &selection)
    };
    let selected: Vec<_> = call_faults.filter(is_selected).collect();
    assert!(!selected.is_empty(), "no fault contains {selection}");
    let rows = in_parallel(&selected, |(target, call_fault)| {
        let row = page::measure(*target, call_fault);
        let both = measure_fuzz_and_stress(*target, call_fault, ["no reason is listed"; 2], "20s");
        println!("{row:?} {both:?}");
        (*target, row, both)
    });
    page::write_table(&file, &rows);
}

/// Returns a row with the current reasons of missed faults.
fn with_reasons(row: &Row) -> Row {
    let Row { call_fault, conform, bringup } = row.clone();
    let conform = page::with_reason("conform", &call_fault, conform);
    let bringup = page::with_reason("bringup", &call_fault, bringup);
    Row { call_fault, conform, bringup }
}

/// Runs the tools with each fault that `HSA_VMM_PLANTED` selects, and with each fault that has no row. Writes the page.
fn write_page() {
    let selection = std::env::var("HSA_VMM_PLANTED").unwrap_or_default();
    let is_selected = |call_fault: &CallFault| {
        selection == "all" || (!selection.is_empty() && contains_any(call_fault, &selection))
    };
    let before = page::read();
    let mut sections = Vec::new();
    for target in call_faults::TARGETS {
        let is_of_target = |it: &&(Target, Vec<Row>)| it.0 == target;
        let known_rows =
            before.iter().find(is_of_target).map(|it| it.1.clone()).unwrap_or_default();
        let pending = Mutex::new(call_faults::all_of(target).into_iter());
        let rows = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..WRITING_THREADS {
                scope.spawn(|| {
                    loop {
                        let Some(call_fault) = pending.lock().unwrap().next() else { break };
                        let known_row = known_rows.iter().find(|row| row.call_fault == call_fault);
                        let row = match known_row {
                            Some(row) if !is_selected(&call_fault) => with_reasons(row),
                            _ => page::measure(target, &call_fault),
                        };
                        if known_row != Some(&row) {
                            println!("{row:?}");
                        }
                        rows.lock().unwrap().push(row);
                    }
                });
            }
        });
        let mut rows = rows.into_inner().unwrap();
        rows.sort_by(|a, b| a.call_fault.cmp(&b.call_fault));
        sections.push((target, rows));
        // Write the page after each target, so that an interrupted test keeps the results of complete targets.
        let unmeasured =
            before.iter().filter(|it| !sections.iter().any(|done| done.0 == it.0)).cloned();
        page::write(&sections.iter().cloned().chain(unmeasured).collect::<Vec<_>>());
    }
}
