//! Probes the runtime for quirks when the first [`Vmm`](super::Vmm) opens on it.
//!
//! The probes make at most 20 runtime calls, all on memory of their own, and copy nothing. There is no probe for a
//! quirk if the probe could crash a runtime.

use super::{Quirk, Quirks, VmmOptions};
use crate::agent::Agent;
use crate::native::{
    Failure, Native, NativeAccess, NativeAgent, NativeHandle, block_access, check_room, fill_hole,
    fill_possible_hole_of_map, is_inaccessible, parse_mapping, without_size_signal,
};
use crate::runtime::{Attachment, Implementation, Runtime};
use core::cell::Cell;
use hsa_sys as sys;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::{fs, io};

/// On which runtimes opening a [`Vmm`](super::Vmm) probes for quirks
/// ([`VmmOptions::with_probing`](super::VmmOptions::with_probing)).
///
/// ```
/// use hsa_vmm::vmm::{Probing, VmmOptions};
///
/// let options = VmmOptions::new().with_probing(Probing::Always);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Probing {
    /// On no runtime: the quirks follow from the implementation and its version. An
    /// [unknown](crate::runtime::Implementation::Unknown) runtime then counts as having every quirk that a probe could
    /// exclude ([`VmmOptions::with_probing`](super::VmmOptions::with_probing)).
    Never,
    /// On every runtime except the [simulation](crate::runtime::Implementation::Simulation), whose quirks always match
    /// its version.
    #[default]
    IfNotSimulated,
    /// On every runtime.
    Always,
}

/// A quirk that the runtime was probed for, and the result ([`Vmm::probes`](super::Vmm::probes)).
///
/// ```
/// fn print_unexpected(vmm: &hsa_vmm::Vmm) {
///     for probe in vmm.probes().iter().filter(|probe| probe.found != probe.expected) {
///         println!("{}: {}", probe.quirk.name, probe.found);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Probe {
    /// The quirk.
    pub quirk: &'static Quirk,
    /// Whether this version of this implementation is known to have the quirk.
    pub expected: bool,
    /// Whether the probe found the quirk. The library works around the quirk only if the probe found it or
    /// [`VmmOptions::with_quirks`](super::VmmOptions::with_quirks) adds it. A quirk that the probe could not decide is
    /// not listed.
    pub found: bool,
}

/// The quirks that the runtime was probed for, and the quirks that were found.
#[derive(Clone, Copy, Debug, Default)]
struct Findings {
    decided: Quirks,
    found: Quirks,
}

/// The findings on a runtime, kept for the next [`Vmm`](super::Vmm) that opens on it.
#[derive(Default)]
struct KeptFindings(OnceLock<Findings>);

impl Attachment for KeptFindings {}

/// Records the result of one probe: `record!(findings.unmap_keeps_memory = true)`.
macro_rules! record {
    ($findings:ident.$quirk:ident = $found:expr) => {
        ($findings.decided.$quirk, $findings.found.$quirk) = (true, $found)
    };
}

/// Returns the quirks to work around, and the probes that were made.
pub(super) fn choose_quirks(
    runtime: &Runtime,
    granule: usize,
    options: VmmOptions,
) -> (Quirks, Vec<Probe>) {
    if let Some(exact) = options.exact_quirks {
        return (exact, Vec::new());
    }
    let mut quirks = Quirks::of_runtime(runtime.info());
    let implementation = &runtime.info().implementation;
    let probes = match (options.probing, implementation) {
        (Probing::Never, _) | (Probing::IfNotSimulated, Implementation::Simulation) => Vec::new(),
        _ => probe(runtime, granule, quirks),
    };
    probes.iter().for_each(|probe| quirks.set(probe.quirk, probe.found));
    if let Implementation::Unknown { .. } = implementation {
        quirks = quirks.union(undecided_quirks(&probes));
    }
    (quirks.union(options.more_quirks), probes)
}

/// Returns the quirks that no probe has decided, because no probes were made, a call has failed, or a requirement is
/// missing. An unknown runtime may have these quirks. Without their workarounds, safe code could close descriptors of
/// other code, or replace its mappings.
fn undecided_quirks(probes: &[Probe]) -> Quirks {
    let is_decided = |quirk: &Quirk| probes.iter().any(|probe| probe.quirk.name == quirk.name);
    let mut undecided = Quirks::all_where(|quirk| quirk.probed && !is_decided(quirk));
    // The probe for this quirk decides nothing if it does not find the quirk. The quirk does not affect other code.
    undecided.peer_after_owner_fails = false;
    for quirk in Quirks::KNOWN.iter().filter(|quirk| undecided.has(quirk)) {
        crate::log::event!(
            INFO,
            quirk = quirk.name,
            "no probe could exclude this quirk, so the library works around it"
        );
    }
    undecided
}

/// Returns the result of each probe, and the result that the version predicts. Probes the runtime unless findings were
/// kept. If no descriptor is free, or near the kernel's limit of mappings, returns nothing. If a call of the runtime
/// fails, omits the remaining results.
fn probe(runtime: &Runtime, granule: usize, expected: Quirks) -> Vec<Probe> {
    let kept_findings = runtime.attachment::<KeptFindings>();
    let known = kept_findings.0.get().copied();
    let probe_now = || look_for_quirks(runtime, granule, expected, &kept_findings);
    let findings = known.unwrap_or_else(probe_now);
    let probed = Quirks::KNOWN.iter().filter(|quirk| findings.decided.has(quirk));
    let probes = probed.map(|quirk| {
        let (expected, found) = (expected.has(quirk), findings.found.has(quirk));
        if expected != found && known.is_none() {
            crate::log::event!(WARN, quirk = quirk.name, expected, found, "the probe decides");
        }
        Probe { quirk, expected, found }
    });
    probes.collect()
}

/// Probes for quirks, and keeps the findings. If a call fails, keeps nothing, so that the next [`Vmm`](super::Vmm)
/// probes again.
fn look_for_quirks(
    runtime: &Runtime,
    granule: usize,
    expected: Quirks,
    kept_findings: &KeptFindings,
) -> Findings {
    /// More mappings than the probes need.
    const MAPPINGS: usize = 16;
    let mut findings = Findings::default();
    // Without a free descriptor, a grant to a GPU could abort the process. At the kernel's limit of mappings, a grant
    // to a CPU could (ROCm 6.0 to 6.3).
    if runtime.spare_descriptors().none_free() || check_room(MAPPINGS).is_err() {
        crate::log::event!(
            DEBUG,
            "quirks are not looked for: no file descriptor or mapping is free"
        );
        return findings;
    }
    let run = || Prober::run(runtime, granule, expected, &mut findings);
    match crate::log::with_expected_failures(run) {
        // If another thread has kept its findings in the meantime, drops the findings of this thread.
        Ok(()) => drop(kept_findings.0.set(findings)),
        Err(failure) => {
            crate::log::event!(DEBUG, ?failure, "not all quirks could be looked for");
        }
    }
    findings
}

/// The runtime, the agents and the size that the probes use.
struct Prober<'a> {
    native: &'a Native,
    /// The GPU whose memory the probes use.
    gpu: NativeAgent,
    /// Another GPU that can access that memory.
    peer: Option<NativeAgent>,
    /// The first CPU, if it can access that memory.
    cpu: Option<NativeAgent>,
    /// The size of the memory in bytes: the granule of reservations.
    size: usize,
    /// Whether this version is known to have the quirk `cpu_unmap_leaves_hole`.
    expects_hole: bool,
    /// Whether other code may have mapped memory at the reserved addresses.
    has_foreign_mapping: Cell<bool>,
}

impl Prober<'_> {
    fn run(
        runtime: &Runtime,
        size: usize,
        expected: Quirks,
        findings: &mut Findings,
    ) -> Result<(), Failure> {
        let with_pool = || runtime.gpus().filter_map(|gpu| Some((gpu, gpu.vmem_pool()?)));
        // The probes of the CPU's access need memory that the CPU can access.
        let chosen = with_pool().find(|(gpu, _)| gpu.large_bar).or_else(|| with_pool().next());
        let Some((gpu, pool)) = chosen else { return Ok(()) };
        let is_peer = |other: &&Agent| other.id() != gpu.id() && other.can_access(gpu.id());
        let native = runtime.native();
        let prober = Prober {
            native,
            gpu: gpu.native,
            peer: runtime.gpus().find(is_peer).map(|peer| peer.native),
            cpu: Some(runtime.host()).filter(|_| gpu.large_bar).map(|cpu| cpu.native),
            size,
            expects_hole: expected.cpu_unmap_leaves_hole,
            has_foreign_mapping: Cell::new(false),
        };
        let base = native.with_shared_lock(|native| native.address_reserve(2 * size, 0, size))?;
        if !native.reserves_aligned() {
            // ROCm 6.1 leaves reserved addresses writable.
            // SAFETY: the runtime has just reserved this range, and nothing is mapped in it.
            let blocked = unsafe { block_access(base, 2 * size) };
            // Unless the limit of mappings was reached, another thread may have mapped memory in the range.
            let may_be_foreign = blocked.is_err_and(|errno| errno != Errno::NOMEM);
            prober.has_foreign_mapping.set(may_be_foreign);
        }
        let handle = native.with_shared_lock(|native| {
            native.handle_create(pool.native, size, sys::MEMORY_TYPE_PINNED, 0)
        });
        // If the memory may still be mapped, it is not released, and its addresses are not freed.
        let may_be_mapped =
            |it: &Result<(), Failure>| it.is_err_and(|it| it.call == "hsa_amd_vmem_unmap");
        let result = handle.and_then(|handle| {
            let mapped = native.with_shared_lock(|_| prober.probe_mappings(base, handle, findings));
            let sharing = native.with_exclusive_lock(|_| prober.probe_sharing(handle, findings));
            if may_be_mapped(&mapped) {
                return mapped;
            }
            // SAFETY: nothing is mapped, and the handle is not used again.
            native.with_shared_lock(|native| unsafe { native.handle_release(handle) })?;
            mapped.and(sharing)
        });
        if may_be_mapped(&result) || prober.has_foreign_mapping.get() {
            // Stopping a runtime with live mappings can crash the process (ROCm 6.4.3). When the tested releases stop,
            // they do not unmap reserved addresses. A later release could unmap them, and with them a foreign mapping.
            runtime.stay_started();
        } else {
            // SAFETY: exactly this range is reserved, and nothing is mapped in it.
            native.with_shared_lock(|native| unsafe { native.address_free(base, 2 * size) })?;
        }
        result
    }

    /// Maps the memory at reserved and free addresses. If a failed map has left an address-space hole, fills the hole.
    fn map(&self, address: usize, handle: NativeHandle) -> Result<(), Failure> {
        // SAFETY: the caller passes reserved and free addresses, and the handle has this size.
        let mapped = unsafe { self.native.map(address, self.size, handle) };
        if mapped.is_err() && fill_possible_hole_of_map(address, self.size).is_err() {
            // The addresses are not freed.
            self.has_foreign_mapping.set(true);
        }
        mapped
    }

    /// Sets the access of agents to the mapping at `base`, in the order of `access`.
    fn grant(&self, base: usize, access: &[(NativeAgent, u32)]) -> Result<(), Failure> {
        let access: Vec<_> = access.iter().map(|it| NativeAccess::new(it.0, it.1)).collect();
        // SAFETY: the range is one mapping of the probe's own.
        let result = unsafe { self.native.set_access(base, self.size, &access) };
        if result.is_err() {
            // A failed grant can leave an address-space hole.
            let _ = fill_hole(base, self.size);
        }
        result
    }

    /// Maps the memory twice, changes the access to it, and unmaps it.
    fn probe_mappings(
        &self,
        base: usize,
        handle: NativeHandle,
        findings: &mut Findings,
    ) -> Result<(), Failure> {
        let (size, second) = (self.size, base + self.size);
        let file_before = file_mapped_at(base).ok();
        self.map(base, handle)?;
        let mapped_second = self.map(second, handle);
        let cpu_has_access =
            self.probe_access(base, mapped_second.is_ok().then_some(second), findings);
        // A release that revokes the access of unnamed agents has already unmapped the memory for the CPU, and may have
        // left a hole.
        let mut leaves_hole = fill_hole(base, size).is_ok();
        let mut unmap = |address, length| {
            // SAFETY: nothing uses these mappings of the probe's own.
            let result = unsafe { self.native.unmap(address, length) };
            // Fills the hole immediately, before another thread maps memory in it.
            leaves_hole |= fill_hole(base, size).is_ok();
            result
        };
        if mapped_second.is_err() {
            unmap(base, size)?;
        } else {
            let unmapped_both = unmap(base, 2 * size);
            record!(findings.unmap_of_several_fails = unmapped_both.is_err());
            if unmapped_both.is_err() {
                unmap(base, size)?;
                unmap(second, size)?;
            }
        }
        let file_after = file_mapped_at(base).ok();
        if !is_inaccessible(base, size) {
            crate::log::event!(
                WARN,
                base,
                "other code has mapped memory in a hole of the probe's reservation"
            );
            self.has_foreign_mapping.set(true);
            return mapped_second;
        }
        if let (Some(before), Some(after)) = (file_before, file_after) {
            record!(findings.unmap_keeps_memory = after.is_some() && after != before);
        }
        if !cpu_has_access {
            return mapped_second;
        }
        if self.expects_hole && !leaves_hole {
            // The version predicts a hole, but the kernel rejected each mapping that would fill a hole. Another thread
            // may have mapped memory in the hole: memory without access looks like reserved addresses. Records nothing,
            // so that the version decides. The addresses are not freed.
            self.has_foreign_mapping.set(true);
        } else {
            record!(findings.cpu_unmap_leaves_hole = leaves_hole);
        }
        mapped_second
    }

    /// Changes the access to the first mapping and, if it exists, to the second mapping. Returns whether the runtime
    /// has granted the CPU access, and has made each later change to the first mapping.
    fn probe_access(&self, base: usize, second: Option<usize>, findings: &mut Findings) -> bool {
        const READ: u32 = sys::HSA_ACCESS_PERMISSION_RO;
        const READ_WRITE: u32 = sys::HSA_ACCESS_PERMISSION_RW;
        // The owner is last: some releases do not grant a peer access after the owner.
        let others: Vec<_> = [self.peer, self.cpu].into_iter().flatten().collect();
        let granted: Vec<_> = others.iter().map(|&agent| (agent, READ_WRITE)).collect();
        if granted.is_empty() || self.grant(base, &granted).is_err() {
            return false;
        }
        // A release with `set_access_drops_unnamed_agents` revokes the access of the other agents when a permission
        // changes.
        let changed = self.grant(base, &[(self.gpu, READ_WRITE)]).is_ok()
            && self.grant(base, &[(self.gpu, READ)]).is_ok();
        if let Some(peer) = self.peer.filter(|_| changed) {
            let kept = self.native.access_of(base, peer).is_ok_and(|access| access == READ_WRITE);
            record!(findings.set_access_drops_unnamed_agents = !kept);
            // Does not record a successful grant, because some releases with the quirk return success, but corrupt the
            // mapping (openxla/xla#46576).
            let owner_first = [(self.gpu, READ_WRITE), (peer, READ_WRITE)];
            if second.is_some_and(|second| self.grant(second, &owner_first).is_err()) {
                record!(findings.peer_after_owner_fails = true);
            }
        }
        // If a grant failed, `grant` has filled any hole, so that the unmap shows nothing.
        changed && self.cpu.is_some()
    }

    /// Creates a file that is not memory of a GPU. The file is not empty, because rocddi rejects empty files
    /// immediately.
    fn file_of_the_same_size(&self) -> Option<OwnedFd> {
        let file = memfd_create("hsa-vmm probe", MemfdFlags::CLOEXEC).ok()?;
        let resized = without_size_signal(|| ftruncate(&file, self.size as u64));
        resized.is_ok().then_some(file)
    }

    /// Exports the memory twice, imports a file that is not memory of a GPU, and imports the exported memory.
    fn probe_sharing(&self, handle: NativeHandle, findings: &mut Findings) -> Result<(), Failure> {
        // SAFETY: the handle is alive.
        let Ok((exported, is_same_descriptor)) = (unsafe { self.native.export_twice(handle) })?
        else {
            return Ok(());
        };
        record!(findings.export_keeps_descriptor = is_same_descriptor);
        let Some(other_file) = self.file_of_the_same_size() else { return Ok(()) };
        if let Ok(handle) = self.native.import(other_file.as_fd()) {
            record!(findings.import_is_lazy = true);
            record!(findings.import_needs_descriptor = true);
            // SAFETY: the handle is not used again.
            return unsafe { self.native.handle_release(handle) };
        }
        record!(findings.import_is_lazy = false);
        let imported = self.native.import(exported.as_fd())?;
        // SAFETY: the handle is alive.
        let exported_again = unsafe { self.native.export(imported, 0, is_same_descriptor) };
        record!(findings.import_needs_descriptor = exported_again.is_err());
        // SAFETY: the handle is not used again.
        unsafe { self.native.handle_release(imported) }
    }
}

/// Returns the device and the inode of the file that is mapped at an address, if any.
fn file_mapped_at(address: usize) -> io::Result<Option<String>> {
    // The path of a mapped file need not be UTF-8.
    let maps = fs::read("/proc/self/maps")?;
    Ok(String::from_utf8_lossy(&maps).lines().find_map(|line| {
        let (mapping, rest) = parse_mapping(line)?;
        if !mapping.contains(&address) {
            return None;
        }
        // Permissions, offset, device, inode, name.
        let mut words = rest.split_whitespace().skip(2);
        let (device, inode) = (words.next()?, words.next()?);
        (inode != "0").then(|| format!("{device} {inode}"))
    }))
}
