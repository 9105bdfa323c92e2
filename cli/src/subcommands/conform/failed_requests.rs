//! Adds to a report which requests to the emulated driver failed, and the command to try next.

use super::background_output::BackgroundOutput;
use crate::driver_log::{
    DRIVER_PREFIX, driver_failures, failed_driver_line, is_gpu_fault, redacted_failures,
};
use crate::subcommands::bringup;
use hsa_vmm_conformance::peer::NO_FAULT;
use hsa_vmm_conformance::{CaseReport, Report, Status};

/// Adds the failed requests to each failed case, and the command `command` if `bringup` can find a cause. Call this
/// before the output of the cases is removed. `background` contains what was logged during cases that passed. With
/// `is_redacting`, a request consists only of the call and the error; GPU faults keep their addresses. If a case failed
/// because a GPU did not fault, omits the GPU faults: the case has provoked them.
pub fn add_failed_requests(
    report: &mut Report,
    background: &BackgroundOutput,
    command: String,
    is_redacting: bool,
) {
    let is_simulation = report.runtime.path.is_none();
    let failed = || report.cases.iter().filter(|case| case.status == Status::Fail);
    let repeats = failed().any(|case| bringup_repeats(case, background, is_simulation));
    report.bringup = repeats.then_some(command);
    for case in report.cases.iter_mut().filter(|case| case.status == Status::Fail) {
        let (lines, _) = background.split(case.output.as_deref().unwrap_or_default());
        let provokes_faults = case.detail.contains(NO_FAULT);
        let lines = lines.into_iter().filter(|line| !provokes_faults || !is_gpu_fault(line));
        case.failed_requests = match is_redacting {
            true => redacted_failures(lines),
            false => driver_failures(lines)
                .iter()
                .map(|line| line.strip_prefix(DRIVER_PREFIX).unwrap_or(line).to_owned())
                .collect(),
        };
    }
}

/// The beginnings of the names of cases whose subject no level of `bringup` uses: IPC, memory of the host, and exported
/// pool memory.
const NOT_IN_BRINGUP: [&str; 3] = ["ipc.", "share.host.", "share.range.pool_memory"];

/// Returns whether `bringup` can repeat the failure of a case: one of its levels makes the failed call, or a request to
/// the driver that failed during the case. If the failure names no call, as for wrong data, returns `true`, because
/// levels also compare data; but not for areas, whose memory of the program no level uses. For cases in
/// [`NOT_IN_BRINGUP`], only a failed request counts: in a level, the same call uses other memory.
fn bringup_repeats(case: &CaseReport, background: &BackgroundOutput, is_simulation: bool) -> bool {
    let last_call = case.lost.as_ref().and_then(|lost| lost.last_call.as_deref());
    let texts = [case.detail.as_str(), last_call.unwrap_or_default()];
    let words = texts.iter().flat_map(|text| text.split(|letter| !is_part_of_name(letter)));
    let mut functions =
        words.filter(|word| word.starts_with("hsa_") && *word != "hsa_vmm").peekable();
    let is_in_bringup = !NOT_IN_BRINGUP.iter().any(|start| case.name.starts_with(start));
    if functions.peek().is_none() {
        return is_in_bringup && !case.name.starts_with("area.");
    }
    let (lines, _) = background.split(case.output.as_deref().unwrap_or_default());
    is_in_bringup && functions.any(|function| bringup::is_called(function, is_simulation))
        || lines
            .into_iter()
            .any(|line| failed_driver_line(line).is_some_and(bringup::is_request_of_a_level))
}

fn is_part_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bringup_is_suggested_only_for_its_calls() {
        let failed = |name: &str, detail: &str, output: &str| CaseReport {
            detail: detail.to_owned(),
            output: Some(output.to_owned()),
            ..CaseReport::new(name, "", Status::Fail)
        };
        let log = "driver: 1:1 0.5 drm0 GEM_VA handle=1 operation=MAP = EIO (1.0 us)";
        let other_log = log.replace("GEM_VA", "GEM_METADATA");
        for (name, detail, output, expected) in [
            ("map.a", "hsa_amd_vmem_map returned HSA_STATUS_ERROR; hsa_vmm::native", "", true),
            ("ipc.a", "hsa_amd_ipc_memory_create returned HSA_STATUS_ERROR", "", false),
            ("ipc.a", "hsa_amd_ipc_memory_create returned HSA_STATUS_ERROR", log, true),
            ("ipc.a", "hsa_amd_ipc_memory_create returned HSA_STATUS_ERROR", &other_log, false),
            ("map.a", "hsa_amd_pointer_info returned HSA_STATUS_ERROR", "", false),
            ("pool.a", "cannot pin memory: hsa_amd_memory_lock returned 0x1", "", false),
            ("map.a", "1 of 4096 32-bit words differs", "", true),
            ("ipc.a", "1 of 4096 32-bit words differs", "", false),
            ("share.host.a", "1 of 4096 32-bit words differs", "", false),
            ("share.host.a", "hsa_amd_vmem_import_shareable_handle returned 0x1000", "", false),
            ("share.range.pool_memory", "1 of 4096 32-bit words differs", "", false),
            ("share.range.segments", "1 of 4096 32-bit words differs", "", true),
        ] {
            let case = failed(name, detail, output);
            let repeats = bringup_repeats(&case, &BackgroundOutput::default(), true);
            assert_eq!(repeats, expected, "{name}: {detail}; {output}");
        }
        let pinned = failed("pool.a", "hsa_amd_memory_lock returned 0x1", "");
        assert!(bringup_repeats(&pinned, &BackgroundOutput::default(), false));
    }
}
