//! Advice on what to try after a failure.

use super::failure::{call_and_error, is_unfinished, returned_error};
use super::interface::{first_suspect, function_of};
use super::machine::Finding;
use super::supervisor::{Call, Cause, LevelRun};

/// If the same driver call fails this often, the runtime is assumed to repeat it endlessly.
const ENDLESS_REPETITIONS: usize = 1000;
/// The requests that return a handle or a descriptor, as the driver's log names them.
const WITH_RESULT: [&str; 4] =
    ["ALLOC_MEMORY_OF_GPU", "EXPORT_DMABUF", "PRIME_FD_TO_HANDLE", "PRIME_HANDLE_TO_FD"];

/// Returns whether a request that should return a handle or a descriptor has succeeded without: `… -> ok`, not
/// `… -> handle=1`.
fn has_no_result(line: &str) -> bool {
    let name = line.split(' ').nth(3);
    name.is_some_and(|name| WITH_RESULT.contains(&name)) && line.contains(" -> ok ")
}

/// Returns advice on what to try, the most promising first.
pub fn advise(
    run: &LevelRun,
    cause: &Cause,
    call: Option<&Call>,
    driver: &Option<Vec<String>>,
    findings: &[Finding],
    kernel: &Result<Vec<String>, String>,
) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    let is_simulation = run.runtime == Some(None);
    if let Cause::NoLibrary(_) = cause {
        advice.push(
            "install ROCm's runtime (hsa-rocr, libhsa-runtime64-1), or name the library: --runtime \
             FILE; `hsa-vmm rocr fetch` downloads three releases without installing them"
                .to_owned(),
        );
        advice.push("for a run without failures: hsa-vmm bringup --runtime sim".to_owned());
        return advice;
    }
    advice.extend(findings.iter().filter_map(|finding| {
        let advice = finding.advice.as_ref()?;
        Some(format!("{}: {advice}", finding.what))
    }));
    // The first error usually causes the later ones. Ignore optional calls that the driver does not support.
    let is_error = |line: &&String| returned_error(line) && !line.contains("NOT EMULATED");
    let errors: Vec<_> = driver.iter().flatten().filter(is_error).collect();
    let repeated = errors.first().map_or(0, |first| {
        errors.iter().filter(|line| call_and_error(line) == call_and_error(first)).count()
    });
    // A call that has not returned explains a hang or a crash better than an earlier error does.
    let unfinished = errors.iter().rev().find(|line| is_unfinished(line));
    if let Some(line) = unfinished {
        let (call, _) = call_and_error(line);
        advice.push(format!(
            "the driver has not returned from {call}: find where the kernel function of this call waits, or crashes"
        ));
    } else if let Some(line) = driver.iter().flatten().find(|line| has_no_result(line)) {
        let (call, _) = call_and_error(line);
        let function = function_of(line).unwrap_or("kernel function of this call");
        advice.push(format!(
            "the driver returned success for {call}, but no result: suspect the kernel's {function} first"
        ));
    } else if let Some(line) = errors.first() {
        let (call, error) = call_and_error(line);
        let times = if repeated > 1 { format!(" {repeated} times") } else { String::new() };
        advice.push(format!(
            "the driver returned {error} for {call}{times}: find where the kernel function of this \
             call returns {error}; if the arguments of the call are wrong, an earlier call returned \
             success and a wrong handle, offset or size"
        ));
    } else if let (false, Some(_)) = (matches!(cause, Cause::Crash(..) | Cause::Hang(..)), driver) {
        let suspect = call.and_then(|call| first_suspect(run.level, &call.begin.call));
        let suspect = suspect.map(|function| format!("suspect the kernel's {function} first"));
        advice.extend(suspect);
        advice.push(
            "every call of the driver returned success: compare the results and effects of the calls \
             above with the expected ones (--log FILE has all calls)"
                .to_owned(),
        );
    }
    match cause {
        Cause::Hang(..) => {
            // If the runtime repeats a failing call endlessly, each repetition returns and is logged.
            if driver.is_some() && unfinished.is_none() && repeated < ENDLESS_REPETITIONS {
                let hint = "the driver's log lists a call when it returns: a call that hangs for \
                            another reason than a planned fault is not listed";
                advice.push(hint.to_owned());
            }
            advice.push(
                "extend the time limit (--time-limit 1h) and find where it hangs: /proc/PID/task/*/stack (as \
                 root), gdb -p PID -batch -ex 'thread apply all bt'; check /proc/interrupts for a \
                 missing interrupt"
                    .to_owned(),
            );
        }
        Cause::GpuFault(..) => advice.push(
            "the GPU accessed an address without a page, or without permission: check the page table \
             (/sys/kernel/debug/dri/*/amdgpu_vm_info), the GEM_VA or MAP_MEMORY_TO_GPU call for the \
             address, the wait for the fence of that call, and the flush of the TLB"
                .to_owned(),
        ),
        Cause::Crash(..) => advice.push(
            "get a backtrace: write a C program with --program repeat.c, build it as its first lines \
             say, and run gdb -ex run -ex bt ./repeat"
                .to_owned(),
        ),
        Cause::Wrong(Some(_), _) if call.is_some_and(|call| call.begin.call == "compare") => {
            advice.push(
                "the data was changed on the way: check page tables (amdgpu_vm_info in \
                 /sys/kernel/debug/dri/*), missing flushes of caches or HDP, and other mappings; \
                 HSA_ENABLE_SDMA=0 copies by kernels instead of DMA"
                    .to_owned(),
            );
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
    if driver.is_none() && !is_simulation {
        advice.push(format!(
            "trace the system calls: strace -f -e trace=openat,ioctl,mmap hsa-vmm bringup --until {}",
            run.level.name()
        ));
    }
    if let (Err(_), false) = (kernel, is_simulation) {
        advice.push("read the kernel log as root: dmesg | grep -i -e kfd -e amdgpu".to_owned());
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
}
