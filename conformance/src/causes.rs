//! Groups failed cases by cause, so that a report names each cause once.

use crate::contain::CASES;
use crate::run_case::CaseResult;
use crate::{CaseReport, Report, Status};

/// Failed cases with the same cause.
#[derive(Clone, Debug)]
pub struct Cause<'a> {
    /// The cause in a sentence.
    pub description: String,
    /// The cases, in the order of the report.
    pub cases: Vec<&'a CaseReport>,
}

/// How details and causes name a GPU fault.
const GPU_FAULT: &str = "GPU memory access fault";
/// How details and causes name an error of a GPU's engine. AMD's runtime reports this error as a GPU fault.
const ENGINE_ERROR: &str = "GPU engine error";
/// The beginning of AMD's message when a GPU has accessed an address that is not mapped.
const GPU_FAULT_MESSAGE: &str = "Memory access fault";

impl Report {
    /// Groups the failed cases by cause, in the order of [`cases`](crate::cases): a case comes after the cases of the
    /// calls that it depends on, so the first cause often explains the later ones. Failed starts and stops of the
    /// runtime come last, because they follow the failures of cases.
    #[must_use]
    pub fn causes(&self) -> Vec<Cause<'_>> {
        let mut causes: Vec<(String, Cause<'_>)> = Vec::new();
        let mut failed: Vec<_> =
            self.cases.iter().filter(|case| case.status == Status::Fail).collect();
        // The sort is stable: other cases stay in the order of the report, which is the order of the cases.
        failed.sort_by_key(|case| is_about_process(&case.name));
        for case in failed {
            let description = describe_cause(case);
            let key = without_numbers(&description);
            match causes.iter_mut().find(|(existing, _)| *existing == key) {
                Some((_, cause)) => cause.cases.push(case),
                None => causes.push((key, Cause { description, cases: vec![case] })),
            }
        }
        causes.into_iter().map(|(_, cause)| cause).collect()
    }
}

/// Returns whether a result describes the start or stop of the runtime's process, not a case.
fn is_about_process(name: &str) -> bool {
    CASES.iter().any(|case| case.name == name)
}

/// Names the GPU fault that the output of a case reports. If the emulated driver logged an error of an engine, names this
/// error instead: no page-table entry is missing then.
fn fault_in(output: &str) -> Option<&'static str> {
    let is_engine_error = |line: &str| {
        let is_engine = line.contains(" engine COPY ") || line.contains(" engine FILL ");
        is_engine && line.contains(" = E")
    };
    output.contains(GPU_FAULT_MESSAGE).then(|| match output.lines().any(is_engine_error) {
        true => ENGINE_ERROR,
        false => GPU_FAULT,
    })
}

/// Begins the detail of a failed case with the GPU fault, if the output of the case reports one and a process of the
/// case has aborted: AMD's runtime aborts a process after a GPU fault. The detail then names the fault even if the
/// report does not contain the output.
pub(crate) fn name_gpu_fault(result: &mut CaseResult) {
    let has_aborted = result.lost.is_some() || result.detail.contains("SIGABRT");
    if let Some(fault) = fault_in(&result.output).filter(|_| has_aborted) {
        result.detail = format!("{fault}: {}", result.detail);
    }
}

/// Describes why a case failed: a GPU fault, a crash or hang of the process, a failed native call, or the
/// detail's first line.
fn describe_cause(case: &CaseReport) -> String {
    let first = case.detail.lines().next().unwrap_or_default();
    let named = [ENGINE_ERROR, GPU_FAULT].into_iter().find(|fault| first.contains(fault));
    if let Some(fault) = named.or_else(|| fault_in(case.output.as_deref()?)) {
        // AMD's runtime reports a GPU fault during a later call. This later call is not the cause.
        return fault.to_owned();
    }
    if let Some(lost) = &case.lost {
        return lost.to_string();
    }
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let words = || first.split(|letter| !is_name(letter));
    let call = words().find(|word| word.starts_with("hsa_"));
    let status = words().find(|word| word.starts_with("HSA_STATUS_"));
    match (call, status) {
        (Some(call), Some(status)) => format!("{call} returned {status}"),
        _ => first.to_owned(),
    }
}

/// Removes punctuation and words with digits: addresses, sizes and counts differ from case to case.
fn without_numbers(text: &str) -> String {
    let has_digit = |word: &&str| word.contains(|letter: char| letter.is_ascii_digit());
    // Keep a function's name, such as `hsa_amd_vmem_map`, as one word: the name is part of the cause.
    let is_separator = |letter: char| !letter.is_alphanumeric() && letter != '_';
    text.split(is_separator).filter(|word| !has_digit(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::describe;
    use crate::{Ended, Lost, Summary};
    use hsa_vmm::Runtime;
    use hsa_vmm::simulation::Config;

    fn failed(name: &str, detail: &str) -> CaseReport {
        CaseReport { detail: detail.to_owned(), ..CaseReport::new(name, "", Status::Fail) }
    }

    fn report(cases: Vec<CaseReport>) -> Report {
        let runtime = describe(&Runtime::simulated(Config::mi300x(1)).unwrap());
        let (run, runtime, agents) = (None, runtime.runtime, runtime.agents);
        Report { run, runtime, agents, cases, bringup: None, summary: Summary::default() }
    }

    /// Returns the description of each cause, and the names of its cases.
    fn causes(report: &Report) -> Vec<(String, String)> {
        let names = |cause: &Cause<'_>| {
            let names: Vec<_> = cause.cases.iter().map(|case| case.name.as_str()).collect();
            names.join(" ")
        };
        let causes = report.causes();
        causes.iter().map(|cause| (cause.description.clone(), names(cause))).collect()
    }

    fn lost(output: &str) -> CaseResult {
        let how = Ended::Signal("SIGABRT".to_owned());
        let last_call = Some("in hsa_signal_wait_scacquire".to_owned());
        CaseResult { output: output.to_owned(), ..CaseResult::lost(Lost { how, last_call }, 1) }
    }

    const FAULT_OUTPUT: &str = "Memory access fault by GPU node-1 on address 0x7f00";

    #[test]
    fn failures_are_grouped_by_cause() {
        let gpu_fault = |name| {
            let result = lost(FAULT_OUTPUT);
            CaseReport {
                output: Some(result.output),
                lost: result.lost,
                ..failed(name, &result.detail)
            }
        };
        let report = report(vec![
            failed("runtime.library.stops", "crashed: SIGSEGV, in hsa_shut_down"),
            failed("a", "0x7f00 holds 3 instead of 5"),
            failed("b", "cannot map 0x7f00: hsa_amd_vmem_map failed: HSA_STATUS_ERROR (0x1000)"),
            gpu_fault("c"),
            CaseReport::new("d", "", Status::Pass),
            failed("e", "cannot map 0x7fff, 2 MiB: hsa_amd_vmem_map failed: HSA_STATUS_ERROR"),
            gpu_fault("f"),
            gpu_fault("g"),
        ]);
        let expected = [
            ("0x7f00 holds 3 instead of 5", "a"),
            ("hsa_amd_vmem_map returned HSA_STATUS_ERROR", "b e"),
            ("GPU memory access fault", "c f g"),
            ("crashed: SIGSEGV, in hsa_shut_down", "runtime.library.stops"),
        ];
        assert_eq!(causes(&report), expected.map(|(it, names)| (it.to_owned(), names.to_owned())));
    }

    #[test]
    fn gpu_fault_is_named_without_output() {
        let mut result = lost(FAULT_OUTPUT);
        name_gpu_fault(&mut result);
        let detail = "GPU memory access fault: crashed: SIGABRT, in hsa_signal_wait_scacquire";
        assert_eq!(result.detail, detail);
        let report = report(vec![CaseReport { lost: result.lost, ..failed("a", detail) }]);
        assert_eq!(causes(&report), [("GPU memory access fault".to_owned(), "a".to_owned())]);
        let engine = "driver: 1:2 0.1 engine COPY to=0x7f00 length=0x1000 = EIO";
        let mut result = lost(&format!("{FAULT_OUTPUT}\n{engine}"));
        name_gpu_fault(&mut result);
        assert!(result.detail.starts_with("GPU engine error: crashed: "), "{}", result.detail);
        let mut result = lost("an assertion failed");
        name_gpu_fault(&mut result);
        assert_eq!(result.detail, "crashed: SIGABRT, in hsa_signal_wait_scacquire");
    }
}
