//! Advice on what to try after a failure.

use super::data::{DAMAGED, LATE_FILL};
use super::engine;
use super::environment::Environment;
use super::host_buffer::{FIRST_COPY, LATE_COPY, LATE_MAPPING, LATER_RIGHT};
use super::hsa::{COPY, FAILED, FILL, NEITHER_ENDED_NOR_FAULTED};
use super::interface::{function_of, is_open, request, suspect};
use super::kernel_trace;
use super::level::Level;
use super::machine::MachineCheck;
use super::page_table::{ADVICE_ON_DIFFERENT_PAGES, DIFFERENT_PAGES, LATE_ENTRY, WRONG_HALF};
use super::requests::{call_and_error, failed_lines, is_unfinished};
use super::run_level::NO_GPU;
use super::supervisor::{Call, Cause, LevelRun};
use super::suspicion::{
    advise_last_request, advise_successful_requests, call_without_result, lacks_address_space,
    last_user, missing_result, uses_address_again,
};
use hsa_vmm_conformance::PlannedFault;
use hsa_vmm_conformance::worker::End;
use std::path::Path;
use std::time::Duration;

/// Names the kernel function that handles the request in a line of the driver's log.
fn kernel_function(line: &str) -> String {
    function_of(line).map_or_else(
        || "the kernel function of this call".to_owned(),
        |function| format!("the kernel's {function}"),
    )
}

/// Returns the advice for a request that has not returned in a level. `line` is the request's line in the driver's log.
fn advise_unfinished(line: &str, level: Level) -> String {
    if let Some(operation) = engine::operation(line) {
        return engine::advise_unfinished(operation, level);
    }
    let (call, _) = call_and_error(line);
    let function = kernel_function(line);
    format!("the driver has not returned from {call}: find where {function} waits, or crashes")
}

/// Returns the advice to extend the time limit if a level may be slow.
fn advise_longer_limit(run: &LevelRun, limit: Duration) -> Option<String> {
    let calls = run.calls.len();
    run.may_be_slow(limit).then(|| {
        format!(
            "this level may be slow instead of hanging: it made {calls} calls, the last {:.1} s before the \
             time limit of {limit:?}; extend the limit (--time-limit 10min)",
            run.idle.as_secs_f64()
        )
    })
}

/// Returns whether a step copies, fills or compares data.
fn uses_data(call: &str) -> bool {
    [COPY, FILL, "compare"].contains(&call)
}

/// Returns the advice for a request that failed `times` times.
fn advise_failed_request(run: &LevelRun, line: &str, times: usize) -> String {
    let (call, error) = call_and_error(line);
    let function = kernel_function(line);
    let repeated = if times > 1 { format!(" {times} times") } else { String::new() };
    let lines = run.driver.iter().flatten().map(|(_, line)| line.as_str());
    let suspect = last_user(lines, line).and_then(|earlier| Some((earlier, function_of(earlier)?)));
    let suspect = suspect.map(|(earlier, function)| {
        let (call, _) = call_and_error(earlier);
        format!(": perhaps {call} ({function}), the last other request for the same object")
    });
    let start = format!(
        "the driver returned {error} for {call}{repeated}: find where {function} returns {error}"
    );
    // OPEN uses no object of an earlier request.
    if call.ends_with(" OPEN") {
        return start;
    }
    format!(
        "{start}; if {error} is the right result, an earlier call returned success without taking effect, or returned \
         a wrong handle, offset or size{}",
        suspect.unwrap_or_default()
    )
}

/// Returns the advice for a hang without a failed or unfinished request.
fn advise_silent_hang(run: &LevelRun, call: Option<&Call>, driver: &[String]) -> Option<String> {
    let name = &call?.begin.call;
    if run.level == Level::Permission && run.has_logged_fault() {
        return Some(ADVICE_ON_UNNOTICED_FAULT.to_owned());
    }
    if name.starts_with("hsa_signal_") {
        return Some(
            "no request failed, so the GPU's operation has not ended, or its end was not signalled: suspect the \
             queue and its doorbell (kfd_ioctl_create_queue, kfd_mmap), the engine, the interrupt at the end \
             (kfd_signal_event_interrupt) and kfd_ioctl_wait_events"
                .to_owned(),
        );
    }
    advise_last_request(name, driver)
}

/// Returns the advice for a crash by SIGBUS.
fn advise_bus_error(end: End) -> Option<String> {
    end.to_string().starts_with("SIGBUS").then(|| {
        "SIGBUS means that the address is mapped, but has no memory: suspect the kernel's functions for mmap \
         (drm_gem_mmap, kfd_mmap), the offset and length they receive, and amdgpu_gem_fault"
            .to_owned()
    })
}

/// Returns the advice for a crash by SIGSEGV without a failed request: names the last mapping of a device, if the
/// driver's log contains one. Otherwise, returns advice only for accesses by the CPU, in the steps `fill` and `compare`.
fn advise_segmentation_fault(run: &LevelRun, call: Option<&Call>, end: End) -> Option<String> {
    let task = call.map_or("", |call| &call.begin.task);
    let process = task.split_inclusive(':').next().unwrap_or_default();
    let is_mapping = |line: &&str| {
        let request = request(line);
        matches!(request.as_deref(), Some("kfd MMAP" | "drm MMAP")) && line.starts_with(process)
    };
    let mapping = run.driver.iter().flatten().rev().map(|(_, line)| line.as_str()).find(is_mapping);
    let is_access = call.is_some_and(|call| ["fill", "compare"].contains(&&*call.begin.call));
    let suspect = match mapping {
        Some(line) => {
            let (name, _) = call_and_error(line);
            let function = kernel_function(line);
            format!(
                "The last mapping of a device before the crash was {name}: suspect {function} first"
            )
        }
        None if is_access => "Suspect the kernel's drm_gem_mmap first".to_owned(),
        None => return None,
    };
    end.to_string().starts_with("SIGSEGV").then(|| {
        format!(
            "SIGSEGV means that the process accessed an address that is not mapped, or wrote to a mapping without \
             write permission. {suspect} (the address, the length and the protection of the mapping), then the later \
             requests (--log FILE has all calls)"
        )
    })
}

/// Returns the advice for a wrong result.
fn advise_wrong_result(
    run: &LevelRun,
    what: &str,
    call: Option<&Call>,
    environment: Environment,
) -> Option<String> {
    let is_used_again = call.is_some_and(|call| uses_address_again(run, call));
    let call = call.map_or("", |call| &call.begin.call);
    if call == "hsa_system_get_info" {
        return Some(
            "virtual memory needs amdkfd's interface 1.15 or later (AMDKFD_IOC_GET_VERSION), \
             dma-bufs, and amdgpu_device_get_fd of libdrm_amdgpu 2.4.109 or later"
                .to_owned(),
        );
    }
    // The advice below is about a kernel and a GPU.
    if environment == Environment::Simulation {
        return None;
    }
    // A second copy was right, so the first copy is the cause in each level.
    let is_single_copy = what.contains(LATER_RIGHT);
    if what.contains(LATE_COPY) {
        return Some(
            "the data arrives, but after the signal: suspect the fence at the end of the copy, which must follow the \
             copy's last write, and the flush of caches before it"
                .to_owned(),
        );
    }
    // If a call returned an error, no GPU has accessed the memory.
    let uses_unmapped_address = call == "hsa_amd_vmem_unmap" || (is_used_again && !is_single_copy);
    if run.level == Level::Unmapped && uses_unmapped_address && !run.has_error_status() {
        return Some(environment.advise_old_entry("the unmap"));
    }
    // The emulated driver logs the request that failed.
    if let Some((function, error)) = what.split_once(FAILED).filter(|_| run.driver.is_none())
        && function == call
    {
        let (interface, operation) = suspect(run.level, call, false)?;
        let kernel_function = interface.function;
        return Some(format!(
            "find where the kernel's {kernel_function} returns {error}{operation}"
        ));
    }
    if what.contains(DIFFERENT_PAGES) {
        return Some(ADVICE_ON_DIFFERENT_PAGES.to_owned());
    }
    if what.contains(LATE_ENTRY) {
        return Some(environment.advise_late_entry());
    }
    if what.contains(WRONG_HALF) {
        return Some(environment.advise_wrong_entry());
    }
    if what.contains(NEITHER_ENDED_NOR_FAULTED) && run.has_logged_fault() {
        return Some(ADVICE_ON_UNNOTICED_FAULT.to_owned());
    }
    if what.contains(LATE_MAPPING) {
        let mut advice = match is_used_again {
            true => environment.advise_old_entry_of_earlier_mapping(),
            false => "the page-table entry was written only after AMDGPU_GEM_VA had returned: suspect the wait for \
                      the fence of the page-table update, not the TLB, which has no entry of an address that is used \
                      for the first time"
                .to_owned(),
        };
        if what.contains(FIRST_COPY) {
            advice += ". If the first copy was lost or late instead, suspect the GPU's engine and the fence at the \
                       end of the copy";
        }
        return Some(advice);
    }
    if what.contains(DAMAGED) {
        return Some(
            "both GPUs read wrong data, so the contents are damaged or lost. The driver may move the memory from VRAM \
             to system memory when a second GPU imports the memory: suspect this move (amdgpu_dma_buf_pin, \
             amdgpu_bo_move) and its copy by the kernel's SDMA engine (amdgpu_copy_buffer)"
                .to_owned(),
        );
    }
    if what.contains(LATE_FILL) {
        return Some(
            "the memory is filled, but after the call has returned: suspect the fence at the end of the fill, which \
             must follow the fill's last write, and the flush of caches before it"
                .to_owned(),
        );
    }
    if call == FILL {
        return Some(format!(
            "the memory does not contain the number of the fill. If it still has its old contents (0, or a value \
             written before), the GPU has not filled it: suspect the GPU's engine (the runtime's blit shader). If \
             it has other contents, also suspect the address's page table ({}), missing flushes of caches or HDP, \
             and other mappings",
            environment.page_tables()
        ));
    }
    // An old entry affects the second copy, too.
    let has_old_entry = is_used_again && !is_single_copy;
    let page_tables = environment.page_tables();
    uses_data(call).then(|| engine::advise_wrong_copy(run.level, what, has_old_entry, page_tables))
}

/// The advice for a GPU fault while the runtime stops.
const ADVICE_ON_STOP: &str = "hsa_shut_down destroys the GPU's queues, then frees their memory. \
     The GPU faulted meanwhile, so a queue may still exist after it was destroyed: \
     suspect kfd_ioctl_destroy_queue first";

/// The advice for a fault that the level "permission" provokes, if the runtime does not learn of the fault.
const ADVICE_ON_UNNOTICED_FAULT: &str = "the GPU has faulted, as this level expects, but the runtime has not learnt \
     of the fault: suspect kfd_ioctl_wait_events first, then the event of the fault (kfd_signal_vm_fault_event, \
     kfd_ioctl_create_event) and the interrupt of the fault";

/// The advice for requests that fail because the GPU has no address space.
const ADVICE_ON_ENODEV: &str = "amdkfd returns ENODEV for requests to a GPU without an address space: suspect \
     kfd_ioctl_acquire_vm first (ACQUIRE_VM), which returned success, but may not have kept the address space";

/// Returns whether the runtime was stopping when the level failed, in this process or in one that ended early.
fn is_stopping(run: &LevelRun, cause: &Cause, call: Option<&Call>) -> bool {
    let in_flight: &[usize] = match cause {
        Cause::Crash(calls, _) | Cause::Hang(calls, _) | Cause::GpuFault(_, _, calls) => calls,
        _ => &[],
    };
    let is_stop = |call: &Call| call.begin.call == "hsa_shut_down";
    in_flight.iter().map(|index| &run.calls[*index]).chain(call).any(is_stop)
}

/// How a level was run.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The command that repeats the level.
    pub command: &'a str,
    /// The time that the earlier levels took.
    pub earlier: Duration,
    /// The configuration of the simulation, if there is one.
    pub config: Option<&'a str>,
    pub planned_faults: &'a [PlannedFault],
    /// The file of `--program`.
    pub program: Option<&'a Path>,
}

/// Returns advice on what to try, the most promising first.
pub fn advise(
    run: &LevelRun,
    cause: &Cause,
    call: Option<&Call>,
    driver: &Option<Vec<String>>,
    checks: &[MachineCheck],
    setup: Setup<'_>,
) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    let command = setup.command;
    let environment = Environment::of(run);
    let is_simulation = environment == Environment::Simulation;
    let has_failed_to_load = run.level == Level::Library && matches!(cause, Cause::Wrong(..));
    if has_failed_to_load || matches!(cause, Cause::NoLibrary(_)) {
        advice.push(environment.advise_runtime());
        advice.push("for a run without failures: hsa-vmm bringup --runtime sim".to_owned());
        return advice;
    }
    if matches!(cause, Cause::Wrong(_, what) if what == NO_GPU) {
        advice.extend(environment.advise_hidden_gpus());
    }
    // The kernel's log names the function more exactly than any request does.
    advice.extend(kernel_trace::advise(run.kernel_lines()));
    // The first error usually causes the later errors.
    let mut errors = driver.as_deref().map(failed_lines).unwrap_or_default();
    // The runtime can have ignored an error during an earlier call.
    let until_end = call.map(|call| run.requests_until_end(call)).unwrap_or_default();
    if errors.is_empty() {
        errors = failed_lines(&until_end);
    }
    let repeated = errors.first().map_or(0, |first| {
        errors.iter().filter(|line| call_and_error(line) == call_and_error(first)).count()
    });
    // A call that has not returned explains a hang or a crash better than an earlier error does. One of the runtime's
    // threads can have made the call, or an engine can hang, so the log of the whole level is searched.
    let is_crash_or_hang = matches!(cause, Cause::Crash(..) | Cause::Hang(..));
    let lines = || run.driver.iter().flatten().map(|(_, line)| line);
    let mut unfinished = errors.iter().copied().chain(lines().filter(|_| is_crash_or_hang));
    let unfinished = unfinished.rfind(|line| is_unfinished(line));
    let without_result = lines().find_map(|line| Some((line, missing_result(line)?)));
    if let Some((other, field)) = call.and_then(|call| call_without_result(run, call)) {
        let name = &other.begin.call;
        advice.push(format!(
            "{name} returned success, but set the argument `{field}` to 0: suspect {name} first"
        ));
    }
    let mut wrong_result = match cause {
        Cause::Wrong(Some(_), what) => advise_wrong_result(run, what, call, environment),
        _ => None,
    };
    let is_stop = is_stopping(run, cause, call);
    let advise_gpu_fault = || match run.gpu_fault().filter(|_| !is_simulation)? {
        _ if is_stop => Some(ADVICE_ON_STOP.to_owned()),
        fault => {
            let is_used_again = call.is_some_and(|call| uses_address_again(run, call));
            Some(environment.advise_gpu_fault(fault, is_used_again))
        }
    };
    advice.extend(run.engine_error().map(|error| error.advise(run.level)));
    // Other advice about a fault follows the advice about requests.
    if is_stop {
        advice.extend(advise_gpu_fault());
    }
    let stuck = run.stuck_copy().filter(|_| !is_simulation).and_then(|copy| {
        engine::advise_stuck_copy(copy, environment.page_tables(), run.has_unfinished_operation())
    });
    // The runtime makes no request while it waits for the fault.
    if matches!(cause, Cause::Wrong(_, what) if what.contains(NEITHER_ENDED_NOR_FAULTED)) {
        advice.extend(wrong_result.take());
    }
    let names_engine = stuck.is_some();
    advice.extend(stuck);
    // The state of the copy says more than the engine's unfinished operation.
    let is_told = |line: &&String| !names_engine || engine::operation(line).is_none();
    advice.extend(unfinished.filter(is_told).map(|line| advise_unfinished(line, run.level)));
    // A device that cannot be opened also fails the checks of this machine.
    let failed_open = errors.first().filter(|line| is_open(line) && !is_unfinished(line)).copied();
    advice.extend(failed_open.map(|line| advise_failed_request(run, line, repeated)));
    advice.extend(checks.iter().filter_map(|check| {
        let advice = check.advice.as_ref()?;
        Some(format!("{}: {advice}", check.what))
    }));
    if let (Cause::Hang(_, limit), None) = (cause, unfinished) {
        let longer_limit = advise_longer_limit(run, *limit);
        // Only the emulated driver logs whether a GPU has finished a fill.
        let is_fill = call.is_some_and(|call| call.begin.call == FILL) && !is_simulation;
        let hanging_fill = is_fill && driver.is_none() && longer_limit.is_none();
        advice.extend(longer_limit);
        advice.extend(hanging_fill.then(|| engine::advise_unfinished("FILL", run.level)));
    }
    if unfinished.is_some() {
        // The list already begins with the advice for this call.
    } else if let Some((line, field)) = without_result {
        let (call, function) = (call_and_error(line).0, kernel_function(line));
        advice.push(format!(
            "the driver returned success for {call}, but did not set {field}: suspect {function} first"
        ));
    } else if let Some(line) = errors.first() {
        // A request for several GPUs does not show which GPU has no address space, but a later error can.
        let mut lacking = errors.iter().map(|it| lacks_address_space(lines().map(|it| &**it), it));
        let is_first = call_and_error(line).1 == "ENODEV";
        advice.extend((is_first && lacking.any(|it| it)).then(|| ADVICE_ON_ENODEV.to_owned()));
        let is_told = failed_open.is_some() || engine::operation(line).is_some();
        advice.extend((!is_told).then(|| advise_failed_request(run, line, repeated)));
    } else if let Some(driver) = driver {
        match cause {
            Cause::Hang(..) if names_engine => {}
            Cause::Hang(..) => advice.extend(advise_silent_hang(run, call, driver)),
            Cause::Crash(_, end) => advice.extend(advise_segmentation_fault(run, call, *end)),
            _ => {
                if call.is_some_and(|call| uses_data(&call.begin.call)) {
                    advice.extend(wrong_result.take());
                }
                let has_suspect = !advice.is_empty();
                advice.push(advise_successful_requests(run, call, driver, has_suspect));
            }
        }
    }
    advice.extend(wrong_result);
    if !is_stop {
        advice.extend(advise_gpu_fault());
    }
    match cause {
        Cause::Hang(..) => {
            advice.extend(run.advise_unkillable());
            advice.push(environment.advise_hang(command, setup.earlier));
        }
        Cause::Crash(_, end) => {
            advice.extend(advise_bus_error(*end).filter(|_| !is_simulation));
            let is_told = driver.is_some() || is_simulation;
            advice.extend((!is_told).then(|| advise_segmentation_fault(run, call, *end)).flatten());
            let backtrace = || environment.advise_backtrace(setup.program);
            advice.extend(run.is_repeatable_in_c().then(backtrace).flatten());
        }
        _ => {}
    }
    advice.extend(environment.advise_trace(command));
    if run.kernel.is_err() {
        advice.extend(environment.advise_kernel_log().map(str::to_owned));
    }
    advice.extend(environment.advise_configuration(setup.config, setup.planned_faults));
    advice
}

#[cfg(test)]
mod tests {
    use super::super::hsa::REPLACE;
    use super::*;

    #[test]
    fn single_wrong_copy_is_no_old_entry() {
        let copy = Call::with_name(COPY);
        for (level, what, expected) in [
            (Level::Unmapped, LATE_COPY, "after the signal"),
            (Level::Unmapped, LATER_RIGHT, "suspect the GPU's engine"),
            (Level::Offset, LATE_COPY, "after the signal"),
            (Level::Offset, LATER_RIGHT, "suspect the GPU's engine"),
            (Level::Offset, "wrong data", "suspect the GPU's engine"),
        ] {
            let run = LevelRun::passed(level, vec![copy.clone()]);
            let advice = advise_wrong_result(&run, what, run.calls.first(), Environment::Real);
            assert!(
                advice.as_deref().is_some_and(|advice| advice.contains(expected)),
                "{advice:?}"
            );
        }
        let unmap = Call::with_name("hsa_amd_vmem_unmap");
        let run = LevelRun::passed(Level::Unmapped, vec![unmap]);
        let advice = advise_wrong_result(&run, "wrong", run.calls.first(), Environment::Real);
        assert!(advice.unwrap().contains("not flushed after the unmap"));
    }

    #[test]
    fn failed_replacement_is_no_old_entry() {
        let run = LevelRun::passed(Level::Offset, vec![Call::with_name(REPLACE)]);
        for (what, expected) in [
            ("gpu[0] does not read the second half", "has written no entry"),
            ("gpu[0] reads it only some time after the entries were replaced", "fence"),
            (
                "amdgpu_bo_va_op_raw failed: EIO",
                "amdgpu_gem_va_ioctl returns EIO with the operation REPLACE",
            ),
        ] {
            let advice = advise_wrong_result(&run, what, run.calls.first(), Environment::Real);
            let advice = advice.unwrap();
            assert!(advice.contains(expected), "{advice}");
        }
    }

    /// Only the emulated driver logs a fill that does not end.
    #[test]
    fn hanging_fill_names_the_engine() {
        let mut run = LevelRun::passed(Level::Blit, vec![Call::with_name(FILL)]);
        run.runtime = Some(Some("libhsa-runtime64.so.1".to_owned()));
        let limit = Duration::from_secs(80);
        let cause = Cause::Hang(vec![0], limit);
        let (command, earlier) = ("hsa-vmm bringup", Duration::ZERO);
        let setup = Setup { command, earlier, config: None, planned_faults: &[], program: None };
        for (idle, expected) in [
            (limit, "suspect the GPU's engine first (the runtime's blit shader)"),
            (Duration::ZERO, "this level may be slow"),
        ] {
            run.idle = idle;
            let advice = advise(&run, &cause, run.calls.first(), &None, &[], setup);
            assert!(advice[0].contains(expected), "{advice:?}");
        }
    }

    #[test]
    fn bus_error_is_explained_by_mmap() {
        assert!(advise_bus_error(End::Signal(7)).unwrap().contains("drm_gem_mmap, kfd_mmap"));
        assert_eq!(advise_bus_error(End::Signal(11)), None);
    }
}
