//! `hipMemExportToShareableHandle`.

use super::sharing::{FD, create_filled, export, import, map_for_default_agents};
use crate::case::{Case, TestResult, ensure};
use crate::hip_calls::HipCalls as _;
use crate::{Context, NotPassed};
use hsa_vmm::error::Argument;
use hsa_vmm::hip::HipError;
use hsa_vmm::{ErrorKind, Handle, HandleType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::os::fd::AsRawFd;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "share.export.gives_a_descriptor",
        "hip-tests: hipMemExportToShareableHandle_Positive_Basic",
        "an export is an open file descriptor that is closed on exec",
        returns_cloexec_descriptor,
    ),
    Case::new(
        "share.export.twice",
        "recorded: cuda_h200_edges export_distinct_fds; reference 6.2 #55",
        "every export returns a new descriptor",
        each_export_is_new_descriptor,
    ),
    Case::new(
        "share.export.leaves_the_memory_alone",
        "invariant 16 (src/vmm/ledger/check.rs)",
        "closing the descriptor does not affect the memory",
        closing_keeps_memory,
    ),
    Case::new(
        "share.export.not_requested",
        "recorded: cuda_h200_edges export_not_requested; reference 6.2 #54",
        "memory that was not created as shareable is rejected",
        rejects_unshareable_memory,
    ),
    Case::new(
        "share.export.wrong_type",
        "hip-tests: hipMemExportToShareableHandle_Negative_Parameters",
        "a handle type other than the requested one is rejected",
        rejects_other_handle_type,
    ),
    Case::new(
        "share.export.flags",
        "hip-tests: hipMemExportToShareableHandle_Negative_Parameters",
        "flags are rejected",
        rejects_flags,
    ),
    Case::new(
        "share.export.handle_zero",
        "HIP: hipMemExportToShareableHandle",
        "handle 0 is rejected",
        |c| rejects_handle(c, Handle::from_bits(0)),
    ),
    Case::new(
        "share.export.handle_released",
        "recorded: cuda_h200_edges risky_5 (CUDA crashes)",
        "a released handle is rejected",
        rejects_released_handle,
    ),
    Case::new(
        "share.export.no_descriptor_left",
        "reference 6.2 #62: ROCr returns out of resources",
        "a lack of descriptors returns operating system error, not out of memory",
        fails_without_descriptors,
    ),
    Case::new(
        "share.export.of_an_import",
        "reference 6.2 #56",
        "imported memory can be exported again",
        exports_an_import,
    ),
];

fn returns_cloexec_descriptor(context: &Context) -> TestResult {
    let handle = context.create_shareable(1)?;
    let descriptor = export(context, handle)?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    // The bit 0o2000000 is `O_CLOEXEC`.
    let is_cloexec = flags.is_some_and(|flags| flags & 0o2_000_000 != 0);
    ensure!(is_cloexec, "the descriptor stays open on exec: {info:?}");
    Ok(())
}

fn each_export_is_new_descriptor(context: &Context) -> TestResult {
    let handle = context.create_shareable(1)?;
    let descriptors = [export(context, handle)?, export(context, handle)?];
    let [first, second] = descriptors.each_ref().map(AsRawFd::as_raw_fd);
    ensure!(first != second, "both exports are descriptor {first}");
    let [first, second] = descriptors;
    drop(first);
    import(context, &second).map(|_| ())
}

fn closing_keeps_memory(context: &Context) -> TestResult {
    let (at, handle) = create_filled(context, 1, 0xa1a1_a1a1)?;
    for _ in 0..4 {
        drop(export(context, handle)?);
    }
    context.check_contents(at, 1, 0xa1a1_a1a1)?;
    import(context, &export(context, handle)?).map(|_| ())
}

fn rejects_unshareable_memory(context: &Context) -> TestResult {
    let handle = context.create(1)?;
    let export = || context.vmm().export_to_shareable_handle(handle, FD);
    context.expect_invalid_argument(Argument::HandleType, export)
}

fn rejects_other_handle_type(context: &Context) -> TestResult {
    let handle = context.create_shareable(1)?;
    for kind in [HandleType::WIN32, HandleType::WIN32_KMT, HandleType::FABRIC] {
        let export = || context.vmm().export_to_shareable_handle(handle, kind);
        context.expect_invalid_argument(Argument::HandleType, export)?;
    }
    Ok(())
}

fn rejects_flags(context: &Context) -> TestResult {
    let handle = context.create_shareable(1)?;
    let export = || context.vmm().export_with_flags(handle, FD, 1);
    context.expect_invalid_argument(Argument::Flags, export)
}

fn rejects_handle(context: &Context, handle: Handle) -> TestResult {
    let export = || context.vmm().export_to_shareable_handle(handle, FD);
    context.expect_invalid_argument(Argument::Handle, export)
}

fn rejects_released_handle(context: &Context) -> TestResult {
    let handle = context.create_shareable(1)?;
    context.vmm().release(handle)?;
    rejects_handle(context, handle)?;
    let (_, mapped) = create_filled(context, 1, 0xa2a2_a2a2)?;
    context.vmm().release(mapped)?;
    rejects_handle(context, mapped)
}

fn fails_without_descriptors(context: &Context) -> TestResult {
    if !context.counts_descriptors() {
        let reason = "other threads of this process may need descriptors at the same time";
        return Err(NotPassed::Skipped(reason.to_owned()));
    }
    let (at, handle) = create_filled(context, 1, 0xb0b0_b0b0)?;
    // Lower the limit, which can be a million descriptors: opening 20,000 files takes half a minute on a busy machine.
    let limit = DescriptorLimit::lower()?;
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let result = context.expect_error(HipError::OperatingSystem, || {
        context.vmm().export_to_shareable_handle(handle, FD)
    });
    drop(files);
    drop(limit);
    let error = result?;
    ensure!(*error.kind() == ErrorKind::OutOfDescriptors, "{error}");
    context.check_contents(at, 1, 0xb0b0_b0b0)?;
    export(context, handle).map(|_| ())
}

/// Lowers the limit of open descriptors to just above the lowest free number. Restores the previous limit when dropped.
struct DescriptorLimit {
    previous: Rlimit,
}

impl DescriptorLimit {
    fn lower() -> Result<Self, NotPassed> {
        // Use the lowest free number, but at least 8. With a lower limit, the standard library returns another error
        // when the library under test duplicates a descriptor.
        let next = File::open("/dev/null")?.as_raw_fd().unsigned_abs().max(8);
        let previous = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: Some(u64::from(next) + 2), ..previous };
        setrlimit(Resource::Nofile, limit).map_err(std::io::Error::from)?;
        Ok(Self { previous })
    }
}

impl Drop for DescriptorLimit {
    fn drop(&mut self) {
        // Restoring the previous limit cannot fail.
        let _ = setrlimit(Resource::Nofile, self.previous);
    }
}

fn exports_an_import(context: &Context) -> TestResult {
    let (at, handle) = create_filled(context, 1, 0xa3a3_a3a3)?;
    let first = import(context, &export(context, handle)?)?;
    let second = import(context, &export(context, first)?)?;
    let at_second_import = map_for_default_agents(context, second, 1)?;
    context.check_contents(at_second_import, 1, 0xa3a3_a3a3)?;
    context.fill(at, 1, 0xa4a4_a4a4)?;
    context.check_contents(at_second_import, 1, 0xa4a4_a4a4)
}
