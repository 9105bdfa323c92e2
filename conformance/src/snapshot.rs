//! The state that a rejected operation must not change.

use crate::case::quarantined;
use crate::descriptors;
use hsa_vmm::vmm::{MappingInfo, Quarantined, Usage};
use hsa_vmm::{Address, Vmm};

/// The maximum number of bytes to compare per mapping, half of them at each end.
const MAX_COMPARED: usize = 64 << 10;

/// The state of a `Vmm`, the memory that the CPU can read, and the descriptor table.
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
            quarantine: vmm.quarantine(),
            descriptors: count_descriptors.then(descriptors::count).flatten(),
        }
    }

    /// Describes the first difference from a later state. Returns `None` if the states are equal.
    pub fn difference(&self, later: &Self) -> Option<String> {
        if self.usage != later.usage {
            return Some(format!("{:?} became {:?}", self.usage, later.usage));
        }
        if self.reservations != later.reservations {
            return Some("the reservations changed".to_owned());
        }
        if self.mappings != later.mappings {
            return Some(format!("the mappings {:?} became {:?}", self.mappings, later.mappings));
        }
        if self.quarantine != later.quarantine {
            return Some(quarantined(&later.quarantine));
        }
        if self.descriptors != later.descriptors {
            let [before, after] = [self.descriptors, later.descriptors].map(descriptors::text);
            return Some(format!("open file descriptors: {before} became {after}"));
        }
        (self.contents != later.contents).then(|| "the contents of memory changed".to_owned())
    }
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
