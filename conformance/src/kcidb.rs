//! Formats reports for KCIDB, the database of the Linux kernel's test results (schema 4.0).

use crate::{CaseReport, Report, Status};
use serde_json::{Value, json};

/// Returns the tests of a report as a document for `kcidb-submit`. `build` is the build's identifier,
/// in the form `ORIGIN:ID`.
pub(crate) fn kcidb(report: &Report, build: &str) -> Value {
    let origin = build.split(':').next().unwrap_or_default();
    let began = report.run.as_ref().map(|run| run.began.to_rfc3339());
    let timestamp = report.run.as_ref().map_or(0, |run| run.began.timestamp());
    let tests = report.cases.iter().map(|case| {
        let mut test = json!({
            "build_id": build,
            "id": format!("{origin}:hsa-vmm-{timestamp}-{}", case.name),
            "origin": origin,
            "path": format!("hsa-vmm.conform.{}", case.name),
            "status": status(case.status),
            "waived": case.status == Status::Known,
            "duration": case.duration_us as f64 / 1e6,
            "environment": environment(report),
            "misc": { "source": case.source, "detail": case.detail },
        });
        if !case.failed_requests.is_empty() {
            test["misc"]["failed_requests"] = json!(case.failed_requests);
        }
        if let (Some(began), Some(test)) = (&began, test.as_object_mut()) {
            test.insert("start_time".to_owned(), json!(began));
        }
        if let (Some(excerpt), Some(test)) = (excerpt(case), test.as_object_mut()) {
            test.insert("log_excerpt".to_owned(), json!(excerpt));
        }
        test
    });
    let interruption = report.interruption().map(|text| {
        json!({
            "build_id": build,
            "id": format!("{origin}:hsa-vmm-{timestamp}-process"),
            "origin": origin,
            "path": "hsa-vmm.conform.process",
            "status": "ERROR",
            "waived": false,
            "environment": environment(report),
            "misc": { "detail": text },
        })
    });
    let tests: Vec<_> = tests.chain(interruption).collect();
    json!({ "version": { "major": 4, "minor": 0 }, "tests": tests })
}

fn status(status: Status) -> &'static str {
    match status {
        Status::Pass => "PASS",
        Status::Fail | Status::Known => "FAIL",
        Status::Skip => "SKIP",
    }
}

fn environment(report: &Report) -> Value {
    let runtime = &report.runtime;
    let gpus = report.agents.iter().filter(|agent| agent.kind == "gpu");
    let mut environment = json!({
        "comment": format!("{} {}", runtime.name, runtime.extension),
        "misc": {
            "gpus": gpus.map(|agent| agent.name.as_str()).collect::<Vec<_>>(),
            "driver": runtime.driver,
            "kernel": report.run.as_ref().map(|run| run.kernel.as_str()),
            "build": runtime.build,
            "planned_faults": report.provenance().map(|it| &it.planned_faults),
        },
    });
    if let Some(bringup) = &report.bringup {
        environment["misc"]["bringup"] = json!(bringup);
    }
    environment
}

/// Returns the end of the log of a failed case. KCIDB accepts at most 16 KiB.
fn excerpt(case: &CaseReport) -> Option<&str> {
    const MAX: usize = 16 << 10;
    let output = case.output.as_deref()?;
    let start = output.len().saturating_sub(MAX);
    let start = (start..=output.len()).find(|&index| output.is_char_boundary(index))?;
    output.get(start..)
}
