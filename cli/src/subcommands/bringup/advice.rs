//! Advice on what to try after a failure.

use super::data::{LATE_COPY, LATE_MAPPING};
use super::environment::Environment;
use super::failure::{call_and_error, is_failed_request, is_unfinished};
use super::hsa::{COPY, FILL};
use super::interface::{function_of, suspect};
use super::level::Level;
use super::machine::MachineCheck;
use super::supervisor::{Call, Cause, LevelRun};
use std::time::Duration;

/// If the same driver call fails this often, the runtime is assumed to repeat it endlessly.
const ENDLESS_REPETITIONS: usize = 1000;
/// The requests that return a handle or a descriptor, as the driver's log names them.
const WITH_RESULT: [&str; 4] =
    ["ALLOC_MEMORY_OF_GPU", "EXPORT_DMABUF", "PRIME_FD_TO_HANDLE", "PRIME_HANDLE_TO_FD"];

/// Returns whether a request that should return a handle or a descriptor has succeeded without returning one:
/// `… -> ok`, not `… -> handle=1`.
fn has_no_result(line: &str) -> bool {
    let name = line.split(' ').nth(3);
    name.is_some_and(|name| WITH_RESULT.contains(&name)) && line.contains(" -> ok ")
}

/// Names the kernel function that handles the request in a line of the driver's log.
fn kernel_function(line: &str) -> String {
    function_of(line).map_or_else(
        || "the kernel function of this call".to_owned(),
        |function| format!("the kernel's {function}"),
    )
}

/// Returns the operation that an engine of the emulated GPU has not finished: `COPY` or `FILL`.
fn unfinished_operation(line: &str) -> Option<&str> {
    let mut words = line.split(' ').skip(2);
    words.next().filter(|device| *device == "engine").and(words.next())
}

/// Returns the advice for a request that has not returned. `line` is the request's line in the driver's log.
fn advise_unfinished(line: &str) -> String {
    if let Some(operation) = unfinished_operation(line) {
        return format!(
            "the GPU has not finished a {operation}: first suspect the GPU's SDMA engine or, with \
             HSA_ENABLE_SDMA=0, the runtime's blit shader; then the fence, the signal and the interrupt at the \
             end of the operation"
        );
    }
    let (call, _) = call_and_error(line);
    let function = kernel_function(line);
    format!("the driver has not returned from {call}: find where {function} waits, or crashes")
}

/// Returns the advice to extend the time limit if a level made a call in the last quarter of the limit.
fn advise_longer_limit(run: &LevelRun, limit: Duration) -> Option<String> {
    let calls = run.calls.len();
    (run.idle < limit / 4).then(|| {
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

/// Returns advice on what to try, the most promising first. `command` repeats the level.
pub fn advise(
    run: &LevelRun,
    cause: &Cause,
    call: Option<&Call>,
    driver: &Option<Vec<String>>,
    checks: &[MachineCheck],
    command: &str,
) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    let environment = Environment::of(run);
    let is_simulation = environment == Environment::Simulation;
    if let Cause::NoLibrary(_) = cause {
        advice.push(environment.advise_runtime());
        advice.push("for a run without failures: hsa-vmm bringup --runtime sim".to_owned());
        return advice;
    }
    // The first error usually causes the later errors.
    let is_error = |line: &&String| is_failed_request(line);
    let errors: Vec<_> = driver.iter().flatten().filter(is_error).collect();
    let repeated = errors.first().map_or(0, |first| {
        errors.iter().filter(|line| call_and_error(line) == call_and_error(first)).count()
    });
    // A call that has not returned explains a hang or a crash better than an earlier error does. One of the runtime's
    // threads can have made the call, or an engine can hang, so the log of the whole level is searched.
    let is_crash_or_hang = matches!(cause, Cause::Crash(..) | Cause::Hang(..));
    let lines_of_level =
        run.driver.iter().flatten().map(|(_, line)| line).filter(|_| is_crash_or_hang);
    let mut unfinished =
        errors.iter().copied().chain(lines_of_level).filter(|line| is_unfinished(line));
    let unfinished = unfinished.next_back();
    advice.extend(unfinished.map(|line| advise_unfinished(line)));
    advice.extend(checks.iter().filter_map(|check| {
        let advice = check.advice.as_ref()?;
        Some(format!("{}: {advice}", check.what))
    }));
    if let (Cause::Hang(_, limit), None) = (cause, unfinished) {
        advice.extend(advise_longer_limit(run, *limit));
    }
    if unfinished.is_some() {
        // The list already begins with the advice for this call.
    } else if let Some(line) = driver.iter().flatten().find(|line| has_no_result(line)) {
        let (call, _) = call_and_error(line);
        let function = kernel_function(line);
        advice.push(format!(
            "the driver returned success for {call}, but no result: suspect {function} first"
        ));
    } else if let Some(line) = errors.first() {
        let (call, error) = call_and_error(line);
        let times = if repeated > 1 { format!(" {repeated} times") } else { String::new() };
        let function = kernel_function(line);
        advice.push(format!(
            "the driver returned {error} for {call}{times}: find where {function} returns {error}; \
             if {error} is the right result, an earlier call returned success without taking effect, \
             or returned a wrong handle, offset or size"
        ));
        if call == "kfd ALLOC_MEMORY_OF_GPU" && error == "ENODEV" {
            advice.push(
                "amdkfd returns ENODEV for memory of a GPU without an address space: check that \
                 ACQUIRE_VM (kfd_ioctl_acquire_vm), which returned success, has kept the address space"
                    .to_owned(),
            );
        }
    } else if let (false, Some(_)) = (is_crash_or_hang, driver) {
        advice.extend(call.and_then(|call| suspect(run.level, &call.begin.call)));
        let during = call.map_or("the level", |call| &call.begin.call);
        let mut functions: Vec<_> =
            driver.iter().flatten().filter_map(|line| function_of(line)).collect();
        functions.sort_unstable();
        functions.dedup();
        advice.push(match functions[..] {
            [] => format!("the driver received no request during {during} (--log FILE has all calls)"),
            _ => format!(
                "every request to the driver during {during} returned success: suspect {} first; compare the \
                 results and effects of the calls above with the expected ones (--log FILE has all calls)",
                functions.join(", ")
            ),
        });
    }
    if run.gpu_fault().is_some() && !matches!(cause, Cause::GpuFault(..)) {
        advice.push(environment.advise_gpu_fault());
    }
    match cause {
        Cause::Hang(..) => {
            // If the runtime repeats a failing call endlessly, each repetition returns and is logged.
            if driver.is_some() && unfinished.is_none() && repeated < ENDLESS_REPETITIONS {
                let hint = "the driver's log lists calls that have returned, and calls that a planned fault \
                            makes hang; a driver call that hangs for another reason is not listed";
                advice.push(hint.to_owned());
            }
            advice.push(environment.advise_hang(command));
        }
        Cause::GpuFault(..) => advice.push(environment.advise_gpu_fault()),
        Cause::Wrong(..) if run.level == Level::Unmapped && !is_simulation => {
            advice.push(environment.advise_old_entry());
        }
        Cause::Crash(..) => advice.extend(environment.advise_backtrace()),
        Cause::Wrong(_, what) if what.contains(LATE_MAPPING) && !is_simulation => advice.push(
            "the page-table entry was written only after AMDGPU_GEM_VA had returned: suspect the wait for the fence \
             of the page-table update, not the TLB, which no later call has flushed"
                .to_owned(),
        ),
        Cause::Wrong(_, what) if what.contains(LATE_COPY) => advice.push(
            "the data arrives, but after the signal: suspect the fence at the end of the copy, which must follow the \
             copy's last write, and the flush of caches before it"
                .to_owned(),
        ),
        Cause::Wrong(Some(_), _)
            if !is_simulation && call.is_some_and(|call| uses_data(&call.begin.call)) =>
        {
            advice.push(format!(
                "the destination does not contain the source's data. If it still has its old contents (0, or a value \
                 written before), the engine has not copied, or the copy ended after its signal: suspect the GPU's \
                 engine (SDMA or, with HSA_ENABLE_SDMA=0, the runtime's blit shader: try both) and the fence. If it has \
                 other contents, also suspect the page tables of both addresses ({}), missing flushes of caches or \
                 HDP, and other mappings",
                environment.page_tables()
            ));
        }
        Cause::Wrong(Some(_), _)
            if call.is_some_and(|call| call.begin.call == "hsa_system_get_info") =>
        {
            advice.push(
                "virtual memory needs amdkfd's interface 1.15 or later (AMDKFD_IOC_GET_VERSION), \
                 dma-bufs, and amdgpu_device_get_fd of libdrm_amdgpu 2.4.109 or later"
                    .to_owned(),
            );
        }
        _ => {}
    }
    advice.extend(environment.advise_trace(command));
    if run.kernel.is_err() {
        advice.extend(environment.advise_kernel_log().map(str::to_owned));
    }
    if is_simulation {
        advice.push("this is a simulation: check its configuration (--sim, HSA_SIM)".to_owned());
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_result_is_recognised() {
        let line =
            |end| format!("1:1 0.123772 drm0 PRIME_FD_TO_HANDLE handle=0 flags=0x0 fd=7 {end}");
        assert!(has_no_result(&line("-> ok (9.6 us)")));
        assert!(!has_no_result(&line("-> handle=1 (9.6 us)")));
        assert!(!has_no_result(&line("= ENOENT (9.6 us)")));
        assert!(!has_no_result("1:1 0.1 drm0 GEM_VA handle=1 operation=MAP -> ok (9.1 us)"));
    }

    #[test]
    fn unfinished_operation_of_an_engine_is_recognised() {
        let line = "2:3 1.6 engine COPY to=0x7fea4c2c3000 length=0x1000 = ? (has not returned)";
        assert_eq!(unfinished_operation(line), Some("COPY"));
        let line = "2:3 1.6 kfd MMAP length=0x1000 = ? (has not returned)";
        assert_eq!(unfinished_operation(line), None);
    }
}
