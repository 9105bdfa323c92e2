//! A scenario: two reservations with mappings and handles, and a list of operations on them.

#![allow(dead_code, reason = "each test binary uses a different part")]

mod state;

pub use state::StateSnapshot;

use crate::machine::{Library, access, at};
use hsa_vmm::error::Problem;
use hsa_vmm::vmm::NewMapping;
use hsa_vmm::{Access, Address, Error, Handle, HandleType, Reservation};
use std::cell::RefCell;
use std::os::fd::OwnedFd;

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// Two reservations, and mappings in the first one.
///
/// Two mappings have the same memory. One mapping has agents whose access was set to none. One mapping has memory that
/// only this mapping keeps allocated.
pub struct Scenario {
    pub library: Library,
    /// A reservation of eight granules. Four mappings cover its first five granules.
    pub used: Address,
    /// A reservation of two granules, in which nothing is mapped.
    pub empty: Address,
    /// A handle of one granule of memory, which is not mapped.
    pub spare: Handle,
    /// A descriptor that was exported from `spare`.
    pub shared: OwnedFd,
    /// The handles that [`Scenario::tear_down`] releases.
    pub handles: RefCell<Vec<Handle>>,
}

/// The number of mapped granules of the first reservation.
const MAPPED_GRANULES: usize = 5;

impl Scenario {
    pub fn new(library: Library) -> Self {
        let granule = library.granule();
        let (used, empty) = (library.reserve(8 * granule), library.reserve(2 * granule));
        let [mapped_twice, kept_by_mapping, spare] =
            [0, 1, 0].map(|gpu| library.create(gpu, granule));
        let large = library.create(0, 2 * granule);
        // Accesses all memory once, because the runtime opens files on the first access, and the tests count
        // descriptors.
        for (index, handle) in [mapped_twice, kept_by_mapping, spare, large].into_iter().enumerate()
        {
            library.map(used, granule, handle);
            library.grant(used, granule, library.cpu(0), Access::ReadWrite);
            library.vmm.write(used, &[index as u8 + 1; 16]).unwrap();
            library.vmm.unmap(used, granule).unwrap();
        }
        library.map(used, granule, mapped_twice);
        library.map(at(used, granule), granule, kept_by_mapping);
        library.map(at(used, 2 * granule), 2 * granule, large);
        library.map(at(used, 4 * granule), granule, mapped_twice);
        let [cpu, gpu, peer] = [library.cpu(0), library.gpu(0), library.gpu(1)];
        let both = [access(cpu, Access::ReadWrite), access(gpu, Access::ReadWrite)];
        library.vmm.set_access(used, granule, &both).unwrap();
        let gpu_grants = [access(gpu, Access::Read), access(peer, Access::ReadWrite)];
        library.vmm.set_access(at(used, granule), granule, &gpu_grants).unwrap();
        library.grant(at(used, 2 * granule), 2 * granule, cpu, Access::Read);
        for requested in [Access::ReadWrite, Access::None] {
            let both = [access(cpu, requested), access(gpu, requested)];
            library.vmm.set_access(at(used, 4 * granule), granule, &both).unwrap();
        }
        library.vmm.release(kept_by_mapping).unwrap();
        let shared = library.vmm.export_to_shareable_handle(spare, DESCRIPTOR).unwrap();
        let handles = RefCell::new(vec![mapped_twice, spare, large]);
        Self { library, used, empty, spare, shared, handles }
    }

    pub fn granule(&self) -> usize {
        self.library.granule()
    }

    /// Returns four mappings to make: two in each reservation. Three of them map the same memory.
    pub fn new_mappings(&self) -> [NewMapping; 4] {
        let (size, large) = (self.granule(), self.handles.borrow()[2]);
        let new_mapping = |address, handle| NewMapping { address, size, offset: 0, handle };
        [
            new_mapping(at(self.empty, size), large),
            new_mapping(at(self.used, 6 * size), self.spare),
            new_mapping(self.empty, self.spare),
            new_mapping(at(self.used, 5 * size), self.spare),
        ]
    }

    /// Returns the size of the mapped range.
    pub fn mapped_size(&self) -> usize {
        MAPPED_GRANULES * self.granule()
    }

    /// Unmaps, releases and frees everything.
    pub fn tear_down(&self, context: &str) {
        let vmm = &self.library.vmm;
        for mapping in vmm.mappings() {
            vmm.unmap(mapping.address, mapping.size).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
        for &handle in self.handles.borrow().iter() {
            vmm.release(handle).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
        for (address, size) in vmm.reservations() {
            vmm.address_free(address, size).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
        vmm.check().unwrap_or_else(|e| panic!("{context}: {e}"));
    }

    /// Grants the CPU read access to all mappings. Fails unless the CPU reads the original contents.
    pub fn assert_contents(&self, context: &str) {
        let granule = self.granule();
        for (index, expected) in [(0, 1), (1, 2), (2, 4), (4, 1)] {
            let address = at(self.used, index * granule);
            let size = if index == 2 { 2 * granule } else { granule };
            self.library
                .vmm
                .set_access(address, size, &[access(self.library.cpu(0), Access::Read)])
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let mut bytes = [0; 16];
            self.library.vmm.read(address, &mut bytes).unwrap();
            assert_eq!(bytes, [expected; 16], "{context}: at granule {index}");
        }
    }
}

pub type Operation = fn(&Scenario) -> Result<(), Error>;

/// Operations of `Vmm` that call the runtime, each with a name. Some operations have several variants.
pub const OPERATIONS: &[(&str, Operation)] = &[
    ("reserve", |s| s.library.vmm.address_reserve(2 * s.granule(), 0, None).map(drop)),
    ("reserve aligned", |s| {
        s.library.vmm.address_reserve(2 * s.granule(), 16 << 20, None).map(drop)
    }),
    ("reserve near an unaligned hint", |s| {
        // Below the reservation, not aligned, and probably free.
        let hint = Address::new((s.used.get() & !((1 << 30) - 1)) - (1 << 30) + s.granule());
        s.library.vmm.address_reserve(s.granule(), 2 * s.granule(), Some(hint)).map(drop)
    }),
    ("reserve taken addresses", |s| {
        match Reservation::builder(s.granule()).exactly_at(s.used).reserve(&s.library.vmm) {
            Ok(_) => unreachable!("the addresses are taken"),
            Err(error) if error.problem() == Some(Problem::AddressTaken) => Ok(()),
            Err(error) => Err(error),
        }
    }),
    ("free", |s| s.library.vmm.address_free(s.empty, 2 * s.granule())),
    ("create", |s| {
        let created = s.library.vmm.create(s.granule(), &s.library.shareable_on(1))?;
        s.handles.borrow_mut().push(created);
        Ok(())
    }),
    ("release", |s| {
        s.library.vmm.release(s.spare)?;
        s.handles.borrow_mut().retain(|&handle| handle != s.spare);
        Ok(())
    }),
    ("map", |s| s.library.vmm.map(at(s.used, s.mapped_size()), s.granule(), 0, s.spare)),
    ("grant all agents read and write", |s| {
        let agents = s.library.runtime.agents();
        let all: Vec<_> =
            agents.iter().map(|agent| access(agent.id(), Access::ReadWrite)).collect();
        s.library.vmm.set_access(s.used, s.mapped_size(), &all)
    }),
    ("grant the CPU read access", |s| {
        let cpu = [access(s.library.cpu(0), Access::Read)];
        s.library.vmm.set_access(s.used, s.mapped_size(), &cpu)
    }),
    ("grant the CPU write access", |s| {
        let cpu = [access(s.library.cpu(0), Access::ReadWrite)];
        s.library.vmm.set_access(s.used, s.mapped_size(), &cpu)
    }),
    ("set no access for the CPU", |s| {
        let cpu = [access(s.library.cpu(0), Access::None)];
        s.library.vmm.set_access(s.used, s.mapped_size(), &cpu)
    }),
    ("set no access for a GPU", |s| {
        let gpu = [access(s.library.gpu(0), Access::None)];
        s.library.vmm.set_access(s.used, s.mapped_size(), &gpu)
    }),
    ("grant both GPUs read access", |s| {
        let gpus = [s.library.gpu(0), s.library.gpu(1)].map(|gpu| access(gpu, Access::Read));
        s.library.vmm.set_access(s.used, s.mapped_size(), &gpus)
    }),
    ("change the access of the CPU and a GPU", |s| {
        let both = [s.library.cpu(0), s.library.gpu(0)].map(|id| access(id, Access::Read));
        s.library.vmm.set_access(at(s.used, 2 * s.granule()), 3 * s.granule(), &both)
    }),
    ("unmap several", |s| s.library.vmm.unmap(s.used, s.mapped_size())),
    ("unmap one with CPU access", |s| s.library.vmm.unmap(s.used, s.granule())),
    ("revoke from a GPU", |s| s.library.vmm.revoke(s.used, s.mapped_size(), &[s.library.gpu(0)])),
    ("revoke from the other GPU", |s| {
        s.library.vmm.revoke(s.used, s.mapped_size(), &[s.library.gpu(1)])
    }),
    ("revoke from the CPU", |s| s.library.vmm.revoke(s.used, s.mapped_size(), &[s.library.cpu(0)])),
    ("revoke from all agents", |s| {
        let agents: Vec<_> = s.library.runtime.agents().iter().map(|agent| agent.id()).collect();
        s.library.vmm.revoke(s.used, s.mapped_size(), &agents)
    }),
    ("map many in two reservations with access for all", |s| {
        let agents = s.library.runtime.agents();
        let all: Vec<_> =
            agents.iter().map(|agent| access(agent.id(), Access::ReadWrite)).collect();
        s.library.vmm.map_many(&s.new_mappings(), &all)
    }),
    ("map many without access", |s| s.library.vmm.map_many(&s.new_mappings(), &[])),
    ("grant many", |s| {
        let agents = [s.library.gpu(0), s.library.cpu(0), s.library.gpu(1)];
        let all = agents.map(|agent| access(agent, Access::ReadWrite));
        let last = (at(s.used, 4 * s.granule()), s.granule(), &all[..]);
        s.library.vmm.set_access_many(&[last, (s.used, 2 * s.granule(), &all)])
    }),
    ("unmap many", |s| {
        let last = (at(s.used, 2 * s.granule()), 3 * s.granule());
        s.library.vmm.unmap_many(&[last, (s.used, s.granule())])
    }),
    ("unmap many, one with the last reference", |s| {
        let rest = (at(s.used, s.granule()), 4 * s.granule());
        s.library.vmm.unmap_many(&[(s.used, s.granule()), rest])
    }),
    ("export", |s| s.library.vmm.export_to_shareable_handle(s.spare, DESCRIPTOR).map(drop)),
    ("import", |s| {
        let imported = s.library.vmm.import_from_shareable_handle(&s.shared, DESCRIPTOR)?;
        s.handles.borrow_mut().push(imported);
        Ok(())
    }),
    ("fill", |s| s.library.vmm.fill(s.used, 0x0101_0101, 16)),
    ("copy", |s| {
        let destination = at(s.used, 2048);
        s.library.vmm.copy(s.library.gpu(0), destination, s.used, 16)
    }),
    ("copy to the host and back", |s| {
        let (gpu, mut bytes) = (s.library.gpu(0), [0; 16]);
        s.library.vmm.copy_to_host(gpu, &mut bytes, s.used)?;
        s.library.vmm.copy_from_host(gpu, at(s.used, 2048), &bytes)
    }),
    ("exchange memory of two GPUs", |s| {
        s.library.vmm.exchange(s.used, at(s.used, s.granule()), s.granule())
    }),
    ("exchange memory that one GPU can access", |s| {
        s.library.vmm.exchange(at(s.used, 4 * s.granule()), at(s.used, s.granule()), s.granule())
    }),
    ("relocate to another reservation", |s| {
        s.library.vmm.relocate(s.empty, s.used, 2 * s.granule())
    }),
    ("relocate two mappings with access", |s| {
        let source = at(s.used, 2 * s.granule());
        s.library.vmm.relocate(at(s.used, 5 * s.granule()), source, 3 * s.granule())
    }),
];
