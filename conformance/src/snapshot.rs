//! The state that a rejected operation must not change.

use crate::case::describe_quarantined;
use crate::{descriptors, hexdump};
use hsa_vmm::vmm::{MappingInfo, Quarantined, Usage};
use hsa_vmm::{Address, Vmm};

/// The maximum number of bytes to compare per mapping, half of them at each end.
const MAX_COMPARED: usize = 64 << 10;

/// The state of a `Vmm`, the memory that the CPU can read, and the number of open descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    usage: Usage,
    reservations: Vec<(Address, usize)>,
    mappings: Vec<MappingInfo>,
    quarantine: Vec<Quarantined>,
    descriptors: Option<usize>,
    contents: Vec<Option<Vec<u8>>>,
}

impl Snapshot {
    pub fn of(vmm: &Vmm, count_descriptors: bool) -> Self {
        let mappings = vmm.mappings();
        let contents = mappings.iter().map(|mapping| contents(vmm, mapping)).collect();
        Self {
            usage: vmm.usage(),
            reservations: vmm.reservations(),
            contents,
            mappings,
            quarantine: vmm.quarantined_ranges(),
            descriptors: count_descriptors.then(descriptors::count).flatten(),
        }
    }

    /// Describes the first difference from a later state. Returns `None` if the states are equal.
    pub fn difference(&self, later: &Self) -> Option<String> {
        if self.usage != later.usage {
            let [before, after] = [self.usage, later.usage].map(describe_usage);
            return Some(format!("{before} became {after}"));
        }
        if self.reservations != later.reservations {
            return Some("the reservations changed".to_owned());
        }
        if self.mappings != later.mappings {
            let changed = |(before, after): &(&MappingInfo, &MappingInfo)| before != after;
            let mut pairs = self.mappings.iter().zip(&later.mappings);
            let text = match pairs.find(changed) {
                Some((before, after)) => {
                    format!("{} became {}", describe_mapping(before), describe_mapping(after))
                }
                None => format!("{} mappings became {}", self.mappings.len(), later.mappings.len()),
            };
            return Some(text);
        }
        if self.quarantine != later.quarantine {
            return Some(describe_quarantined(&later.quarantine));
        }
        if self.descriptors != later.descriptors {
            let [before, after] =
                [self.descriptors, later.descriptors].map(descriptors::format_count);
            return Some(format!("open file descriptors: {before} became {after}"));
        }
        let contents = self.contents.iter().zip(&later.contents);
        let changed =
            self.mappings.iter().zip(contents).find(|(_, (before, after))| before != after);
        changed.map(|(mapping, contents)| {
            let bytes = match contents {
                (Some(before), Some(after)) => hexdump::difference(before, after),
                _ => None,
            };
            let bytes = bytes.unwrap_or_else(|| {
                "the CPU can read them only before or only after the call".to_owned()
            });
            format!("the contents of {} changed: {bytes}", describe_mapping(mapping))
        })
    }
}

/// Describes how much of a `Vmm` is in use.
fn describe_usage(usage: Usage) -> String {
    let Usage { reservations, handles, mappings, .. } = usage;
    format!("{reservations} reservations, {handles} handles and {mappings} mappings")
}

/// Describes a mapping: its range, its offset in the memory, and each agent's access.
fn describe_mapping(mapping: &MappingInfo) -> String {
    let MappingInfo { address, size, offset, access, .. } = mapping;
    let access: Vec<_> = access.iter().map(|(agent, access)| format!("{agent} {access}")).collect();
    let access = if access.is_empty() { "no access".to_owned() } else { access.join(", ") };
    format!("the mapping of {size:#x} bytes at {address}, offset {offset:#x} ({access})")
}

/// Returns both ends of a mapping's contents; `None` if the CPU cannot read the mapping.
fn contents(vmm: &Vmm, mapping: &MappingInfo) -> Option<Vec<u8>> {
    let half = MAX_COMPARED.min(mapping.size) / 2;
    let mut bytes = vec![0; 2 * half];
    let (head, tail) = bytes.split_at_mut(half);
    vmm.read(mapping.address, head).ok()?;
    vmm.read(mapping.address.checked_add(mapping.size - half)?, tail).ok()?;
    Some(bytes)
}
