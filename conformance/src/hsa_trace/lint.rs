//! Finds mistakes in a recording.
//!
//! Tracks the state of the recorded process through its successful calls. Reports a mistake even if the runtime
//! accepted the call, because another release may reject it.

mod state;

use super::{Call, Header, Record, Recording};
use serde::Serialize;
use state::State;
use std::collections::HashMap;

/// A kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Mistake {
    /// Addresses are used after they were unmapped, or a handle after its last release.
    #[serde(rename = "use-after-unmap")]
    UseAfterRelease,
    /// No agent ever gets access to a mapping, or none has access when the mapping is copied or filled.
    #[serde(rename = "never-granted")]
    NoAccess,
    /// The GPU that owns the memory gets access before another GPU.
    OwnerNotLast,
    /// A range begins or ends inside a mapping or a reservation.
    RangeCut,
    /// A handle is never released, a mapping never unmapped, or a reservation never freed.
    Leak,
    /// Virtual memory is passed to `hsa_amd_ipc_memory_create`, which supports only memory of pools.
    VmemInIpc,
}

impl Mistake {
    /// All mistakes.
    pub const ALL: [Self; 6] = [
        Self::UseAfterRelease,
        Self::NoAccess,
        Self::OwnerNotLast,
        Self::RangeCut,
        Self::Leak,
        Self::VmemInIpc,
    ];

    /// Returns the name, such as `use-after-unmap`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UseAfterRelease => "use-after-unmap",
            Self::NoAccess => "never-granted",
            Self::OwnerNotLast => "owner-not-last",
            Self::RangeCut => "range-cut",
            Self::Leak => "leak",
            Self::VmemInIpc => "vmem-in-ipc",
        }
    }
}

/// A mistake, and the call that makes it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The kind.
    pub mistake: Mistake,
    /// The line of the call in the recording. For a leak, the line of the call that created the leaked object.
    pub line: u64,
    /// The name of the function.
    pub call: String,
    /// What is wrong.
    pub message: String,
    /// Whether the program crashed in the call, or ended before the call returned.
    pub pending: bool,
    /// The call stack, if it was recorded.
    pub stack: Vec<String>,
    /// How often the same function made the same mistake, with the same call stack if stacks were recorded.
    pub count: u64,
}

/// Returns the mistakes in a recording, in the order of their first calls.
#[must_use]
pub fn lint(recording: &Recording) -> Vec<Finding> {
    let mut findings = Findings::default();
    let mut state = State::new(&recording.header);
    for (index, record) in recording.calls.iter().enumerate() {
        if is_grant_of_probe(&state, &recording.calls, index) {
            // Count the mapping as granted even if the runtime rejects the grant.
            if let Call::SetAccess { address, .. } = record.call
                && let Some(mapping) = state.mappings.get_mut(&address)
            {
                mapping.was_granted = true;
            }
        } else {
            check_call(&state, record, &recording.header, &mut findings);
        }
        for ungranted in state.apply(record) {
            if probe_mapping(&state, &recording.calls[..=index]) == Some(ungranted.line) {
                continue;
            }
            findings.add(Mistake::NoAccess, ungranted, NEVER_GRANTED.to_owned());
        }
    }
    // A program that crashed or was killed could not release anything.
    if recording.complete {
        for mapping in state.mappings.values() {
            if !mapping.was_granted {
                findings.add(Mistake::NoAccess, mapping.created_by, NEVER_GRANTED.to_owned());
            }
            findings.add(
                Mistake::Leak,
                mapping.created_by,
                "the mapping is never unmapped".to_owned(),
            );
        }
        for handle in state.handles.values().filter(|handle| handle.references > 0) {
            let message = "the handle is never released".to_owned();
            findings.add(Mistake::Leak, handle.created_by, message);
        }
        for reservation in state.reservations.values() {
            let message = "the reservation is never freed".to_owned();
            findings.add(Mistake::Leak, reservation.created_by, message);
        }
    }
    findings.list.sort_by_key(|finding| finding.line);
    findings.list
}

/// More than the number of calls of `hsa_vmm`'s probe from its first mapping to its last unmap.
const MAX_CALLS_OF_PROBE: usize = 16;

const NEVER_GRANTED: &str = "no agent ever gets access to the mapping";

/// The findings so far: one for each kind, function and call stack.
#[derive(Default)]
struct Findings<'a> {
    list: Vec<Finding>,
    index_of: HashMap<(Mistake, &'a str, &'a [String]), usize>,
}

impl<'a> Findings<'a> {
    fn add(&mut self, mistake: Mistake, record: &'a Record, message: String) {
        let key = (mistake, record.name.as_str(), record.stack.as_slice());
        if let Some(&earlier) = self.index_of.get(&key) {
            self.list[earlier].count += 1;
            return;
        }
        self.index_of.insert(key, self.list.len());
        self.list.push(Finding {
            mistake,
            line: record.line,
            call: record.name.clone(),
            message,
            pending: record.pending,
            stack: record.stack.clone(),
            count: 1,
        });
    }
}

/// Checks a call in the state before the call.
fn check_call<'a>(
    state: &State<'_>,
    record: &'a Record,
    header: &Header,
    findings: &mut Findings<'a>,
) {
    let mut add = |mistake, message| findings.add(mistake, record, message);
    match record.call {
        Call::SetAccess { address, size, ref access, .. } => {
            check_not_unmapped(state, address, size, &mut add);
            check_whole_mappings(state, address, size, &mut add);
            for mapping in state.overlapping(address, size) {
                if let Some((owner, agent)) = state.grant_after_owner(mapping, access) {
                    let [owner, agent] = [owner, agent].map(|it| header.agent_name(it));
                    let message = format!(
                        "{agent} gets access after {owner}, which owns the memory; grant the owner access last"
                    );
                    add(Mistake::OwnerNotLast, message);
                    break;
                }
            }
        }
        Call::Unmap { address, size } => {
            check_not_unmapped(state, address, size, &mut add);
            check_whole_mappings(state, address, size, &mut add);
        }
        Call::GetAccess { address, .. } | Call::Retain { address, .. } => {
            check_not_unmapped(state, address, 1, &mut add);
        }
        Call::ExportMemory { address, size, .. } => {
            check_not_unmapped(state, address, size, &mut add)
        }
        Call::IpcCreate { address, size } => {
            check_not_unmapped(state, address, size, &mut add);
            if state.reservation(address).is_some() {
                let message = format!(
                    "{address:#x} is virtual memory; export its handle with \
                     hsa_amd_vmem_export_shareable_handle"
                );
                add(Mistake::VmemInIpc, message);
            }
        }
        Call::Free { address, size } => {
            if let Some((start, length)) = state.reservation(address)
                && (start, length) != (address, size)
            {
                let message = format!(
                    "the range {} is not the whole reservation {}",
                    format_range(address, size),
                    format_range(start, length)
                );
                add(Mistake::RangeCut, message);
            }
        }
        Call::Map { handle, .. }
        | Call::Export { handle, .. }
        | Call::Properties { handle, .. } => {
            check_not_released(state, handle, &mut add);
        }
        Call::Release { handle } => check_not_released(state, handle, &mut add),
        Call::Copy { destination, source, size } => {
            check_accessed_memory(state, destination, size, &mut add);
            check_accessed_memory(state, source, size, &mut add);
        }
        Call::Fill { address, count, .. } => {
            check_accessed_memory(state, address, count.saturating_mul(4), &mut add);
        }
        _ => {}
    }
}

/// Returns whether a call is the grant of access in the probe of `hsa_vmm` (`hsa_vmm::vmm::Probing`). `hsa_vmm` probes
/// the runtime when a `Vmm` is opened. The probe deliberately grants access to the owner first.
///
/// The probe maps the same memory twice, at adjacent addresses that fill a reservation. The probe then queries a GPU's
/// access to the first mapping, and grants the owner and this GPU access to the second mapping. Last, the probe unmaps
/// both mappings.
fn is_grant_of_probe(state: &State<'_>, calls: &[Record], index: usize) -> bool {
    let record = &calls[index];
    let Call::SetAccess { address, size, ref access, .. } = record.call else { return false };
    let Some(first) = address.checked_sub(size) else { return false };
    let is_same_thread = |it: &&Record| it.tid == record.tid;
    let before = calls[..index].iter().rev().find(is_same_thread).map(|it| &it.call);
    let after = calls[index + 1..].iter().find(is_same_thread).map(|it| &it.call);
    let handle = |start: u64| match state.mappings.get(&start)?.created_by.call {
        Call::Map { handle, size: mapped, .. } if mapped == size => Some(handle),
        _ => None,
    };
    let &[_, peer] = access.as_slice() else { return false };
    matches!(before, Some(&Call::GetAccess { address, agent, .. }) if (address, agent) == (first, peer.agent))
        && matches!(after, Some(&Call::Unmap { address, .. }) if address == first)
        && handle(first).is_some_and(|it| handle(address) == Some(it))
        && state.reservation(first) == Some((first, size.saturating_mul(2)))
}

/// Returns the line of the second mapping of `hsa_vmm`'s probe (see [`is_grant_of_probe`]) if the last call of `calls`
/// belongs to the probe. With one GPU, the probe grants no agent access to this mapping.
///
/// Between this mapping and the last call, the thread makes only a few calls, which set or query access, or unmap.
fn probe_mapping(state: &State<'_>, calls: &[Record]) -> Option<u64> {
    let tid = calls.last()?.tid;
    let is_of_probe = |it: &&Record| {
        matches!(it.call, Call::SetAccess { .. } | Call::GetAccess { .. } | Call::Unmap { .. })
    };
    let mut mapped = calls
        .iter()
        .rev()
        .filter(|it| it.tid == tid)
        .take(MAX_CALLS_OF_PROBE)
        .skip_while(is_of_probe);
    let (second, first) = (mapped.next()?, mapped.next()?);
    let &Call::Map { address, size, handle, .. } = &second.call else { return None };
    let start = address.checked_sub(size)?;
    let is_first = matches!(first.call, Call::Map { address, size: mapped, handle: of, .. }
        if (address, mapped, of) == (start, size, handle));
    let fills_reservation = state.reservation(start) == Some((start, size.saturating_mul(2)));
    (is_first && fills_reservation).then_some(second.line)
}

fn format_range(address: u64, size: u64) -> String {
    format!("{address:#x}..{:#x}", address.saturating_add(size))
}

/// Reports the use of a range that was unmapped. Reports nothing if a mapping overlaps the range.
fn check_not_unmapped(
    state: &State<'_>,
    address: u64,
    size: u64,
    add: &mut impl FnMut(Mistake, String),
) {
    if state.overlapping(address, size).next().is_some() {
        return;
    }
    if let Some(unmapped) = state.unmapped(address, size) {
        let message =
            format!("{address:#x} was unmapped by the call of line {}", unmapped.unmapped_by.line);
        add(Mistake::UseAfterRelease, message);
    }
}

/// Reports that a call copies or fills memory that was unmapped, or memory to which no agent has access.
fn check_accessed_memory(
    state: &State<'_>,
    address: u64,
    size: u64,
    add: &mut impl FnMut(Mistake, String),
) {
    if let Some(unmapped) = state.unmapped(address, size).filter(|unmapped| !unmapped.is_freed) {
        let message =
            format!("{address:#x} was unmapped by the call of line {}", unmapped.unmapped_by.line);
        add(Mistake::UseAfterRelease, message);
    }
    if let Some(mapping) = state.overlapping(address, size).find(|it| it.granted.is_empty()) {
        let message = format!(
            "no agent has access to {address:#x}, which the call of line {} mapped",
            mapping.created_by.line
        );
        add(Mistake::NoAccess, message);
    }
}

/// Reports a range that begins or ends inside a mapping.
fn check_whole_mappings(
    state: &State<'_>,
    address: u64,
    size: u64,
    add: &mut impl FnMut(Mistake, String),
) {
    let end = address.saturating_add(size);
    let is_cut = |start: u64, length: u64| start < address || start.saturating_add(length) > end;
    let cut = state.overlapping(address, size).find(|mapping| is_cut(mapping.start, mapping.size));
    if let Some(mapping) = cut {
        let message = format!(
            "the range {} splits the mapping {} of line {}",
            format_range(address, size),
            format_range(mapping.start, mapping.size),
            mapping.created_by.line
        );
        add(Mistake::RangeCut, message);
    }
}

/// Reports the use of a handle without references.
fn check_not_released(state: &State<'_>, handle: u64, add: &mut impl FnMut(Mistake, String)) {
    if let Some(released) = state.handles.get(&handle).filter(|handle| handle.references == 0) {
        let message = format!(
            "the handle {handle:#x} was released before; the call of line {} returned it",
            released.created_by.line
        );
        add(Mistake::UseAfterRelease, message);
    }
}
