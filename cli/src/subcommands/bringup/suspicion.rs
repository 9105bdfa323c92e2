//! Finds the call or request to suspect:
//! * a call of the runtime, or a request in the emulated driver's log, that succeeded without a result;
//! * the last request that used an object before another request with the same object failed;
//! * a request of a call with a wrong result, if all requests of the call succeeded.

use super::data::{DAMAGED, DIFFERENT_VIEWS, MOVED};
use super::gpu_fault::parse_hex;
use super::host_buffer::GRANT;
use super::interface::{GEM_VA, function_of, is_logged, named_in, suspect};
use super::level::Level;
use super::record::Argument;
use super::requests::{call_and_error, returned_final_error};
use super::supervisor::{Call, Cause, LevelRun, Outcome};

/// The requests that must return a value other than 0. Each row contains the name of the request in the driver's log,
/// and the name of the value's field in the kernel's header.
const RESULTS: [(&str, &str); 12] = [
    ("ALLOC_MEMORY_OF_GPU", "handle"),
    ("CREATE_EVENT", "event_id"),
    ("CREATE_QUEUE", "queue_id"),
    ("EXPORT_DMABUF", "dmabuf_fd"),
    ("GEM_MMAP", "addr_ptr"),
    ("GET_DMABUF_INFO", "size"),
    ("GET_PROCESS_APERTURES_NEW", "num_of_nodes"),
    ("IMPORT_DMABUF", "handle"),
    ("MAP_MEMORY_TO_GPU", "n_success"),
    ("PRIME_FD_TO_HANDLE", "handle"),
    ("PRIME_HANDLE_TO_FD", "fd"),
    ("UNMAP_MEMORY_FROM_GPU", "n_success"),
];

/// The fields of the driver's log that identify an object of the driver.
const IDENTIFIERS: [&str; 4] = ["handle", "event_id", "queue_id", "fd"];

/// The requests that amdkfd rejects with ENODEV for a GPU without an address space.
const NEED_ADDRESS_SPACE: [&str; 9] = [
    "ALLOC_MEMORY_OF_GPU",
    "CREATE_QUEUE",
    "FREE_MEMORY_OF_GPU",
    "IMPORT_DMABUF",
    "IPC_IMPORT_HANDLE",
    "MAP_MEMORY_TO_GPU",
    "SET_MEMORY_POLICY",
    "SET_SCRATCH_BACKING_VA",
    "UNMAP_MEMORY_FROM_GPU",
];

fn device_and_name(line: &str) -> (Option<&str>, Option<&str>) {
    let mut words = line.split(' ').skip(2);
    (words.next(), words.next())
}

/// Returns the field that a request has not set although it returned success: the line ends with `-> ok`, not with
/// `-> handle=1`.
pub fn missing_result(line: &str) -> Option<&'static str> {
    let name = device_and_name(line).1?;
    let (_, field) = RESULTS.iter().find(|row| row.0 == name)?;
    line.contains(" -> ok ").then_some(field)
}

/// Returns the identifiers in a line of the driver's log, such as `handle=0x1`. Omits identifiers that are 0.
fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').filter(|word| {
        word.split_once('=').is_some_and(|(name, value)| {
            IDENTIFIERS.contains(&name) && !matches!(value, "0" | "0x0")
        })
    })
}

/// Returns the last request that succeeded before `failed`, in the same process and with the same object. This request
/// has returned the object, or used it. Ignores requests with the same name as `failed`.
pub fn last_user<'a>(lines: impl Iterator<Item = &'a str>, failed: &str) -> Option<&'a str> {
    let process = failed.split_inclusive(':').next()?;
    let (device, name) = device_and_name(failed);
    let arguments = failed.split(" = ").next()?;
    let uses_object = |line: &str| {
        let (other_device, other_name) = device_and_name(line);
        // Descriptors belong to the process, other identifiers to a device.
        let has_same_meaning = |id: &str| id.starts_with("fd=") || other_device == device;
        other_name != name
            && line.contains(" -> ")
            && identifiers(arguments)
                .any(|id| has_same_meaning(id) && line.split(' ').any(|word| word == id))
    };
    // For example "1:1 0.1 drm0 OPEN descriptor=8".
    let device_file = arguments.split(' ').find_map(|word| word.strip_prefix("drm_fd="));
    let opens_device = |line: &str| {
        device_and_name(line).1 == Some("OPEN")
            && device_file.is_some_and(|number| line.ends_with(&format!(" descriptor={number}")))
    };
    lines
        .take_while(|line| *line != failed)
        .filter(|line| line.starts_with(process) && (uses_object(line) || opens_device(line)))
        .last()
}

/// Returns whether a request may have failed because the GPU has no address space: it returned ENODEV, although an
/// earlier ACQUIRE_VM of the same process succeeded, and no memory was allocated or mapped on this GPU.
pub fn lacks_address_space<'a>(lines: impl Iterator<Item = &'a str>, failed: &str) -> bool {
    let Some(process) = failed.split_inclusive(':').next() else { return false };
    let needs_address_space = |line: &str| {
        let (device, name) = device_and_name(line);
        device == Some("kfd") && name.is_some_and(|name| NEED_ADDRESS_SPACE.contains(&name))
    };
    if !needs_address_space(failed) || !failed.contains(" = ENODEV ") {
        return false;
    }
    let uses_memory = |line: &str| {
        matches!(device_and_name(line).1, Some("ALLOC_MEMORY_OF_GPU" | "MAP_MEMORY_TO_GPU"))
    };
    let gpu = failed.split(' ').find(|word| word.starts_with("gpu_id="));
    let is_same_gpu = |line: &str| gpu.is_none_or(|gpu| line.split(' ').any(|word| word == gpu));
    let mut is_acquired = false;
    for line in lines.take_while(|line| *line != failed) {
        if !line.starts_with(process) || !line.contains(" -> ") {
            continue;
        }
        // The emulated driver accepts SET_MEMORY_POLICY without an address space.
        if uses_memory(line) && is_same_gpu(line) {
            return false;
        }
        is_acquired |= device_and_name(line) == (Some("kfd"), Some("ACQUIRE_VM"));
    }
    is_acquired
}

/// Returns the last earlier call that returned success, but set an argument of `call` to 0, and the name of this
/// argument.
pub fn call_without_result<'a>(run: &'a LevelRun, call: &Call) -> Option<(&'a Call, &'a str)> {
    let is_argument = |output: &Argument| {
        output.value == "0x0" && call.begin.arguments.iter().any(|it| it == output)
    };
    let is_before = |other: &&Call| {
        other.begin.id.process == call.begin.id.process
            && other.begin.id.number < call.begin.id.number
            && other.end.as_ref().is_some_and(|end| end.status == Some(0))
    };
    run.calls.iter().filter(is_before).rev().find_map(|other| {
        let output = other.end.iter().flat_map(|end| &end.outputs).find(|it| is_argument(it))?;
        Some((other, output.name.as_str()))
    })
}

/// Finds the earlier calls that returned an argument of `call`. Returns the kernel functions that handled the driver
/// requests of these earlier calls, those of the latest call first. A reservation of addresses comes last: in ROCm
/// 6.1, it makes a request, but it is hardly the cause.
fn functions_of_arguments(run: &LevelRun, call: &Call) -> Vec<&'static str> {
    let arguments = &call.begin.arguments;
    let is_argument = |value: &str| {
        value.starts_with("0x") && value != "0x0" && arguments.iter().any(|it| it.value == value)
    };
    let returned_argument = |other: &&Call| {
        let is_before = other.begin.id.process == call.begin.id.process
            && other.begin.id.number < call.begin.id.number;
        let mut outputs = other.end.iter().flat_map(|end| &end.outputs);
        is_before && outputs.any(|output| is_argument(&output.value))
    };
    let mut calls: Vec<_> = run.calls.iter().rev().filter(returned_argument).collect();
    calls.sort_by_key(|other| other.begin.call == "hsa_amd_vmem_address_reserve");
    let lines = calls.into_iter().flat_map(|other| run.driver_during(other));
    let mut functions: Vec<_> = Vec::new();
    for function in lines.filter_map(function_of) {
        if !functions.contains(&function) {
            functions.push(function);
        }
    }
    functions
}

/// Returns the advice if all requests during a call returned success. `has_suspect` tells whether earlier advice
/// already names a suspect.
pub fn advise_successful_requests(
    run: &LevelRun,
    call: Option<&Call>,
    driver: &[String],
    has_suspect: bool,
) -> String {
    let during = call.map_or("the level", |call| &call.begin.call);
    let mut functions: Vec<_> = driver.iter().filter_map(|line| function_of(line)).collect();
    functions.sort_unstable();
    functions.dedup();
    if functions.is_empty() {
        let start = format!("the driver received no request during {during}");
        let functions =
            call.map(|call| functions_of_arguments(run, call)).unwrap_or_default().join(", ");
        return match functions.is_empty() {
            true => format!("{start} (--log FILE has all calls)"),
            // Earlier advice about a copy names likelier causes.
            false if has_suspect => format!(
                "if the cause is none of these: {start}; the calls that returned its arguments used {functions} \
                 (--log FILE has all calls)"
            ),
            false => format!(
                "{start}: suspect the requests of the calls that returned its arguments: {functions} (--log FILE \
                 has all calls)"
            ),
        };
    }
    let has_moved = [MOVED, DAMAGED].iter().any(|words| has_failed_with(run, words));
    // Suspect only a request that the call has made.
    let suspected = call.and_then(|call| {
        let (interface, mut operation) = suspect(run.level, &call.begin.call, has_moved)?;
        if call.begin.call == GRANT && interface == GEM_VA && uses_address_again(run, call) {
            operation +=
                ", or the earlier operation UNMAP (AMDGPU_VA_OP_UNMAP) at the same address";
        }
        Some((interface, operation))
    });
    let suspected =
        suspected.filter(|(interface, _)| driver.iter().any(|line| is_logged(interface, line)));
    let is_mmap = |function: &&&str| function.starts_with("drm_gem_mmap");
    let mmap =
        functions.iter().find(is_mmap).copied().filter(|_| has_failed_with(run, DIFFERENT_VIEWS));
    let suspects = match (suspected, mmap) {
        // The mapping of the GPU or that of the CPU refers to other memory.
        (Some((interface, operation)), Some(mmap)) => {
            functions.retain(|function| ![interface.function, mmap].contains(function));
            let (function, request) = (interface.function, interface.request);
            let others = functions.join(", ");
            format!(
                "suspect the kernel's {function} (the GPU's mapping; {request}{operation}) and {mmap} (the CPU's \
                 mapping) equally, then {others}"
            )
        }
        (Some((interface, operation)), None) => {
            functions.retain(|function| *function != interface.function);
            let others = match functions[..] {
                [] => String::new(),
                _ => format!(", then {}", functions.join(", ")),
            };
            let (function, request) = (interface.function, interface.request);
            format!("suspect the kernel's {function} first ({request}{operation}){others}")
        }
        (None, _) if has_suspect => format!("also suspect {}", functions.join(", ")),
        (None, _) => suspect_named(run, &functions),
    };
    let others = advise_other_call(run).unwrap_or_default();
    format!(
        "every request to the driver during {during} returned success: {suspects}{others}; compare the results and \
         effects of the calls above with the expected ones (--log FILE has all calls)"
    )
}

/// If the description of a wrong result names another call that can be the cause ("… or hsa_…"), returns the kernel
/// functions of this call's requests, those of the latest request first.
fn advise_other_call(run: &LevelRun) -> Option<String> {
    let Outcome::Failed(Cause::Wrong(_, what)) = &run.outcome else { return None };
    let words: Vec<_> = what.split([' ', ';']).collect();
    let or_call = words.windows(2).find(|pair| pair[0] == "or" && pair[1].starts_with("hsa_"))?;
    let call = run.calls.iter().rfind(|call| call.begin.call == or_call[1])?;
    let functions: Vec<_> =
        run.driver_during(call).into_iter().rev().filter_map(function_of).collect();
    (!functions.is_empty()).then(|| format!(", or {} during {}", functions.join(", "), or_call[1]))
}

/// Returns the advice if a call hangs, and the log of the emulated driver contains no request that has not returned.
pub fn advise_last_request(call: &str, driver: &[String]) -> Option<String> {
    let line = driver.iter().rev().find(|line| function_of(line).is_some())?;
    let (request, function) = (call_and_error(line).0, function_of(line)?);
    Some(format!(
        "the last request before {call} hung was {request}, with success: suspect the kernel's {function} first, then \
         the requests before it"
    ))
}

/// Returns whether the level failed because of a wrong result whose description contains `words`.
fn has_failed_with(run: &LevelRun, words: &str) -> bool {
    matches!(&run.outcome, Outcome::Failed(Cause::Wrong(_, what)) if what.contains(words))
}

/// Suspects kernel functions. A function that the runtime's output or the kernel's log names comes first. Quotes only
/// the word that names the function, because `--redact` omits the lines of logs.
fn suspect_named(run: &LevelRun, functions: &[&str]) -> String {
    let kernel = run.kernel_lines().iter().map(String::as_str);
    let mut lines = run.output.lines().chain(kernel);
    let named = lines.find_map(|line| {
        let (interface, word) = named_in(line)?;
        functions.contains(&interface.function).then_some((interface.function, word))
    });
    let Some((first, word)) = named else {
        return format!("suspect {} first", functions.join(", "));
    };
    let others: Vec<_> = functions.iter().filter(|function| **function != first).copied().collect();
    let then =
        if others.is_empty() { String::new() } else { format!(", then {}", others.join(", ")) };
    format!("suspect {first} first, because the log names its request (`{word}`){then}")
}

/// Returns whether an argument of `call` is an address that an earlier call of the same process has unmapped. The page
/// tables and TLBs can then contain an old entry of this address.
pub fn uses_address_again(run: &LevelRun, call: &Call) -> bool {
    let addresses: Vec<_> =
        call.begin.arguments.iter().filter_map(|argument| parse_hex(&argument.value)).collect();
    let is_before = |other: &&Call| {
        other.begin.id.process == call.begin.id.process
            && other.begin.id.number < call.begin.id.number
            && other.begin.call == "hsa_amd_vmem_unmap"
            && other.end.as_ref().is_some_and(|end| end.status == Some(0))
    };
    let mut ranges = run.calls.iter().filter(is_before).filter_map(|other| {
        let mut values = other.begin.arguments.iter().map(|argument| parse_hex(&argument.value));
        let (start, size) = values.next()?.zip(values.next()?)?;
        Some(start..start.saturating_add(size))
    });
    ranges.any(|range| addresses.iter().any(|address| range.contains(address)))
}

/// Returns whether a failed request shows that the address is still mapped: amdgpu rejects overlapping mappings with
/// EINVAL.
fn is_overlap(line: &str) -> bool {
    line.contains(" GEM_VA ")
        && line.contains(" operation=MAP ")
        && call_and_error(line).1 == "EINVAL"
}

impl LevelRun {
    /// The level `unmapped` attributes a failed map to the unmap before. Attributes the failure to the map instead in two
    /// cases: the driver returned an error other than that of an overlap, or an earlier call returned no memory to map.
    pub fn attribute_failed_map(&mut self) {
        if self.level != Level::Unmapped
            || !matches!(self.outcome, Outcome::Failed(Cause::Wrong(..)))
        {
            return;
        }
        let status = |call: &Call| call.end.as_ref()?.status.filter(|status| *status != 0);
        let mut calls = self.calls.iter().enumerate().rev();
        let failed = calls.find_map(|(index, call)| Some((index, status(call)?)));
        let Some((index, status)) = failed else { return };
        let requests = self.requests_during(&self.calls[index]);
        let first_error = requests.into_iter().find(|line| returned_final_error(line));
        let has_no_memory = call_without_result(self, &self.calls[index]).is_some();
        if has_no_memory || first_error.is_some_and(|line| !is_overlap(line)) {
            self.outcome = Outcome::Failed(Cause::Status(index, status));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_recognised() {
        let line = |end| {
            format!("1:1 0.1 drm0 GEM_VA handle=2 operation=MAP flags=R address=0x7f00 = {end}")
        };
        assert!(is_overlap(&line("EINVAL (3.5 us)")));
        assert!(!is_overlap(&line("EIO (3.5 us)")));
        assert!(!is_overlap("1:1 0.1 kfd EXPORT_DMABUF handle=0x1 fd=0 = EINVAL (12.0 us)"));
    }

    #[test]
    fn missing_result_is_recognised() {
        let line =
            |end| format!("1:1 0.123772 drm0 PRIME_FD_TO_HANDLE handle=0 flags=0x0 fd=7 {end}");
        assert_eq!(missing_result(&line("-> ok (9.6 us)")), Some("handle"));
        assert_eq!(missing_result(&line("-> handle=1 (9.6 us)")), None);
        assert_eq!(missing_result(&line("= ENOENT (9.6 us)")), None);
        assert_eq!(missing_result("1:1 0.1 drm0 GEM_VA handle=1 -> ok (9.1 us)"), None);
        let unmap = "1:1 0.1 kfd UNMAP_MEMORY_FROM_GPU handle=0x5 count=2 done=0 -> ok (1.0 us)";
        assert_eq!(missing_result(unmap), Some("n_success"));
    }

    #[test]
    fn missing_address_space_is_recognised() {
        let acquired = "1:1 0.1 kfd ACQUIRE_VM drm_fd=11 gpu_id=4097 -> ok (6.3 us)";
        let rejected = "1:1 0.1 kfd ACQUIRE_VM drm_fd=11 gpu_id=4097 = ENODEV (6.3 us)";
        let alloc = "1:1 0.2 kfd ALLOC_MEMORY_OF_GPU address=0x0 size=0x1000 = ENODEV (1.0 us)";
        let no_memory = "1:1 0.2 kfd ALLOC_MEMORY_OF_GPU address=0x0 size=0x1000 = ENOMEM (1.0 us)";
        for (log, failed, expected) in [
            ([acquired, alloc], alloc, true),
            ([rejected, alloc], alloc, false),
            ([alloc, acquired], alloc, false),
            ([acquired, no_memory], no_memory, false),
            ([acquired, rejected], rejected, false),
        ] {
            assert_eq!(lacks_address_space(log.into_iter(), failed), expected, "{log:?}");
        }
        let earlier =
            "1:1 0.1 kfd ALLOC_MEMORY_OF_GPU gpu_id=4097 size=0x1000 -> handle=0x5 (1.0 us)";
        let queue = |gpu| format!("1:1 0.2 kfd CREATE_QUEUE gpu_id={gpu} = ENODEV (1.0 us)");
        for (gpu, expected) in [(4097, false), (4098, true)] {
            let queue = queue(gpu);
            let log = [acquired, earlier, &queue];
            assert_eq!(lacks_address_space(log.into_iter(), &queue), expected, "{log:?}");
        }
    }

    #[test]
    fn last_user_of_the_object_is_found() {
        let failed = "1:2 0.5 kfd FREE_MEMORY_OF_GPU handle=0x5 = EBUSY (1.0 us)";
        let log = [
            "1:1 0.1 kfd ALLOC_MEMORY_OF_GPU handle=0x0 -> handle=0x5 (1.0 us)",
            "1:1 0.2 kfd UNMAP_MEMORY_FROM_GPU handle=0x5 done=0 -> done=2 (1.0 us)",
            "1:1 0.3 kfd UNMAP_MEMORY_FROM_GPU handle=0x55 done=0 -> done=2 (1.0 us)",
            "1:1 0.4 drm0 GEM_VA handle=0x5 -> ok (1.0 us)",
            "9:9 0.4 kfd MAP_MEMORY_TO_GPU handle=0x5 done=0 -> done=2 (1.0 us)",
            failed,
            "1:1 0.6 kfd MAP_MEMORY_TO_GPU handle=0x5 done=0 -> done=2 (1.0 us)",
        ];
        assert_eq!(last_user(log.into_iter(), failed), Some(log[1]));
        let without_object = "1:2 0.5 kfd FREE_MEMORY_OF_GPU handle=0x0 = EINVAL (1.0 us)";
        assert_eq!(last_user(log.into_iter(), without_object), None);
        let import = "1:1 0.5 drm0 PRIME_FD_TO_HANDLE handle=0 fd=7 = EIO (1.0 us)";
        let export = "1:1 0.4 kfd EXPORT_DMABUF handle=0x5 fd=0 -> fd=7 (1.0 us)";
        assert_eq!(last_user([export, import].into_iter(), import), Some(export));
        let acquire = "1:1 0.2 kfd ACQUIRE_VM drm_fd=8 gpu_id=4097 = EINVAL (1.8 us)";
        let open = ["1:1 0.1 drm0 OPEN descriptor=8", "1:1 0.1 drm0 OPEN descriptor=7"];
        assert_eq!(last_user([open[0], open[1], acquire].into_iter(), acquire), Some(open[0]));
    }
}
