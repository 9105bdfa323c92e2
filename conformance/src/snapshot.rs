//! The state that a rejected operation must not change.

use crate::case::describe_quarantined;
use crate::{descriptors, hexdump};
use hsa_vmm::vmm::{MappingInfo, Quarantined, Usage};
use hsa_vmm::{Address, Vmm};
use std::fmt;

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

    /// Explains why the state changed while a call was rejected with `error`. `difference` is the change right after
    /// the call, and `later` the state some time afterwards. A free that takes effect late can open a descriptor for
    /// some time, or close one only during the call.
    pub fn explain(&self, later: &Self, difference: &str, error: &impl fmt::Display) -> String {
        const LATE_FREE: &str = "suspect a free that takes effect late (hsa_amd_vmem_handle_release, \
                                 FREE_MEMORY_OF_GPU, GEM_CLOSE)";
        let closed = Self { descriptors: self.descriptors, ..later.clone() };
        let has_closed = self.descriptors > later.descriptors && closed == *self;
        match self.difference(later) {
            None => format!(
                "{difference}, and back again, while a call was rejected ({error}): {LATE_FREE}, not this call"
            ),
            Some(_) if has_closed => {
                format!(
                    "{difference} while a call was rejected ({error}): first {LATE_FREE}, then this call"
                )
            }
            Some(_) => format!("was rejected ({error}) and changed something: {difference}"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use hsa_vmm::Runtime;
    use hsa_vmm::simulation::Config;

    #[test]
    fn rejected_call_is_not_blamed_for_late_free() {
        let runtime = Runtime::simulated(Config::mi300x(1)).unwrap();
        let empty = Snapshot::of(&Vmm::open(&runtime).unwrap(), false);
        let with = |count| Snapshot { descriptors: Some(count), ..empty.clone() };
        for (before, after, later, expected) in [
            (
                16,
                17,
                16,
                "16 became 17, and back again, while a call was rejected (E): suspect a free",
            ),
            (17, 16, 16, "17 became 16 while a call was rejected (E): first suspect a free"),
            (
                16,
                17,
                17,
                "was rejected (E) and changed something: open file descriptors: 16 became 17",
            ),
        ] {
            let difference = with(before).difference(&with(after)).unwrap();
            let why = with(before).explain(&with(later), &difference, &"E");
            assert!(why.contains(expected), "{why}");
        }
    }
}
