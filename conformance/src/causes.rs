//! Groups failed cases by cause, so that a report names each cause once.

use crate::{CaseReport, Report, Status};

/// Failed cases with the same cause.
#[derive(Clone, Debug)]
pub struct Cause<'a> {
    /// The cause in a sentence.
    pub description: String,
    /// The cases, in the order of the report.
    pub cases: Vec<&'a CaseReport>,
}

/// The beginning of AMD's message when a GPU has accessed an address that is not mapped.
const GPU_FAULT: &str = "Memory access fault";

impl Report {
    /// Groups the failed cases by cause, the most frequent cause first.
    #[must_use]
    pub fn causes(&self) -> Vec<Cause<'_>> {
        let mut causes: Vec<(String, Cause<'_>)> = Vec::new();
        for case in self.cases.iter().filter(|case| case.status == Status::Fail) {
            let description = describe_cause(case);
            let key = without_numbers(&description);
            match causes.iter_mut().find(|(existing, _)| *existing == key) {
                Some((_, cause)) => cause.cases.push(case),
                None => causes.push((key, Cause { description, cases: vec![case] })),
            }
        }
        let mut causes: Vec<_> = causes.into_iter().map(|(_, cause)| cause).collect();
        // The sort is stable: causes with equally many cases stay in the order of the report.
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.cases.len()));
        causes
    }
}

/// Describes why a case failed: a GPU fault, a crash or hang of the process, a failed native call, or the
/// detail's first line.
fn describe_cause(case: &CaseReport) -> String {
    let first = case.detail.lines().next().unwrap_or_default();
    if case.output.as_ref().is_some_and(|output| output.contains(GPU_FAULT)) {
        // AMD's runtime reports a GPU fault during a later call. This later call is not the cause.
        return "GPU memory access fault".to_owned();
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

    #[test]
    fn failures_are_grouped_by_cause() {
        let runtime = describe(&Runtime::simulated(Config::mi300x(1)).unwrap());
        let gpu_fault = |name| {
            let how = Ended::Signal("SIGABRT".to_owned());
            let last_call = Some("in hsa_signal_wait_scacquire".to_owned());
            CaseReport {
                output: Some("Memory access fault by GPU node-1 on address 0x7f00".to_owned()),
                lost: Some(Lost { how, last_call }),
                ..failed(name, "crashed: SIGABRT, in hsa_signal_wait_scacquire")
            }
        };
        let cases = vec![
            failed("a", "0x7f00 holds 3 instead of 5"),
            failed("b", "cannot map 0x7f00: hsa_amd_vmem_map failed: HSA_STATUS_ERROR (0x1000)"),
            gpu_fault("c"),
            CaseReport::new("d", "", Status::Pass),
            failed("e", "cannot map 0x7fff, 2 MiB: hsa_amd_vmem_map failed: HSA_STATUS_ERROR"),
            gpu_fault("f"),
            gpu_fault("g"),
        ];
        let (run, runtime, agents) = (None, runtime.runtime, runtime.agents);
        let report = Report { run, runtime, agents, cases, summary: Summary::default() };
        let causes = report.causes();
        let found: Vec<_> = causes
            .iter()
            .map(|cause| {
                let names: Vec<_> = cause.cases.iter().map(|case| case.name.as_str()).collect();
                (cause.description.as_str(), names.join(" "))
            })
            .collect();
        let expected = [
            ("GPU memory access fault", "c f g"),
            ("hsa_amd_vmem_map returned HSA_STATUS_ERROR", "b e"),
            ("0x7f00 holds 3 instead of 5", "a"),
        ];
        assert_eq!(found, expected.map(|(cause, names)| (cause, names.to_owned())));
    }
}
