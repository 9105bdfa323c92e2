//! Mappings of a part of a handle's memory, with control of page tables.

use crate::amd_runtime::raw::{Fault, RawRuntime};
use crate::amd_runtime::{PAGE_TABLE_MODES, fail_driver_calls, page_table_modes, set_variable};
use crate::machine::{Library, access, at};
use crate::process::{End, in_child, page_table};
use hsa_rocr::Emulation;
use hsa_rocr::test::{Fixture, run_on_releases};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, Address, ErrorKind, Handle, Runtime};

/// The size of a part, a multiple of the granule.
const PART: usize = 64 << 10;
const PARTS: usize = 4;
const SIZE: usize = PARTS * PART;

/// The library with control of page tables, and a handle whose parts contain the numbers 1 to 4.
struct Machine {
    library: Library,
    raw: RawRuntime,
    handle: Handle,
    /// A mapping of the whole handle, which GPU 0 can write.
    full_mapping: Address,
    /// Reserved addresses for the parts.
    base: Address,
}

impl Machine {
    fn new(fixture: &Fixture, mode: &str) -> Self {
        set_variable("HSA_KFD", &format!("gpus=2,{mode}"));
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let library = Library::open(runtime, VmmOptions::new().with_page_tables(true));
        let raw = RawRuntime::start(fixture);
        let (full_mapping, handle) = library.map_new_memory(0, SIZE);
        library.grant(full_mapping, SIZE, library.gpu(0), Access::ReadWrite);
        let machine = Self { base: library.reserve(SIZE), library, raw, handle, full_mapping };
        for part in 0..PARTS {
            machine.write(0, at(machine.full_mapping, part * PART), part as u64 + 1).unwrap();
        }
        machine
    }

    /// Maps parts of the handle, in this order.
    fn map(&self, parts: [usize; PARTS]) {
        for (index, part) in parts.into_iter().enumerate() {
            let address = at(self.base, index * PART);
            self.library.vmm.map(address, PART, part * PART, self.handle).unwrap();
        }
    }

    fn read(&self, gpu: usize, address: Address) -> Result<u64, Fault> {
        self.raw.read_by(self.raw.gpus[gpu], address.get())
    }

    fn write(&self, gpu: usize, address: Address, value: u64) -> Result<(), Fault> {
        self.raw.write_by(self.raw.gpus[gpu], address.get(), value)
    }

    /// Returns the numbers that a GPU reads at the addresses of the parts.
    fn read_all(&self, gpu: usize) -> [Result<u64, Fault>; PARTS] {
        [0, 1, 2, 3].map(|part| self.read(gpu, at(self.base, part * PART)))
    }

    /// Returns the numbers that the CPU reads at the addresses of the parts.
    fn load_all(&self) -> [u64; PARTS] {
        [0, 1, 2, 3].map(|part| {
            let mut number = [0; 8];
            self.library.vmm.read(at(self.base, part * PART), &mut number).unwrap();
            u64::from_ne_bytes(number)
        })
    }

    /// Fails unless everything can be unmapped and freed, and the page tables are empty afterwards.
    fn close(self) {
        let vmm = &self.library.vmm;
        vmm.unmap(self.base, SIZE).unwrap();
        vmm.unmap(self.full_mapping, SIZE).unwrap();
        vmm.release(self.handle).unwrap();
        for address in [self.base, self.full_mapping] {
            for gpu in 0..2 {
                let entries = page_table::entries(gpu);
                let range = address.get()..address.get() + SIZE;
                assert!(!entries.iter().any(|entry| range.contains(&entry.start)), "GPU {gpu}");
            }
            vmm.address_free(address, SIZE).unwrap();
        }
        assert!(vmm.quarantined_ranges().is_empty());
    }
}

fn in_each_mode(test: &str, body: impl Fn(Machine)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        for mode in page_table_modes() {
            let end = in_child(|| body(Machine::new(fixture, mode)));
            assert_eq!(end, End::Success, "{} {mode:?}", fixture.release());
        }
    });
}

#[test]
fn parts_appear_at_their_addresses() {
    in_each_mode("offsets::parts_appear_at_their_addresses", |machine| {
        let library = &machine.library;
        machine.map([3, 1, 0, 1]);
        let list = [
            access(library.gpu(0), Access::ReadWrite),
            access(library.gpu(1), Access::Read),
            access(library.cpu(0), Access::ReadWrite),
        ];
        library.vmm.set_access(machine.base, SIZE, &list).unwrap();
        let expected = [4, 2, 1, 2];
        assert_eq!([0, 1].map(|gpu| machine.read_all(gpu)), [expected.map(Ok); 2]);
        assert_eq!(machine.load_all(), expected);
        // Each agent's writes appear in every mapping of the part.
        machine.write(0, at(machine.base, PART), 20).unwrap();
        library.vmm.write(machine.base, &40u64.to_ne_bytes()).unwrap();
        let expected = [40, 20, 1, 20];
        assert_eq!([0, 1].map(|gpu| machine.read_all(gpu)), [expected.map(Ok); 2]);
        assert_eq!(machine.load_all(), expected);
        assert_eq!(machine.read(0, at(machine.full_mapping, PART)), Ok(20));
        // The owner loses access and regains it.
        for reduced in [Access::Read, Access::None] {
            library.grant(machine.base, SIZE, library.gpu(0), reduced);
            library.grant(machine.base, SIZE, library.gpu(0), Access::ReadWrite);
            assert_eq!(machine.read_all(0), expected.map(Ok));
        }
        library.grant(machine.base, SIZE, library.gpu(1), Access::ReadWrite);
        machine.write(1, at(machine.base, 2 * PART), 10).unwrap();
        assert_eq!(machine.read(0, machine.full_mapping), Ok(10));
        machine.close();
    });
}

#[test]
fn moved_parts_keep_their_memory() {
    in_each_mode("offsets::moved_parts_keep_their_memory", |mut machine| {
        let library = &machine.library;
        machine.map([0, 1, 2, 3]);
        let grants = [0, 1].map(|gpu| access(library.gpu(gpu), Access::ReadWrite));
        library.vmm.set_access(machine.base, SIZE, &grants).unwrap();
        let second_half = at(machine.base, 2 * PART);
        library.vmm.exchange(machine.base, second_half, 2 * PART).unwrap();
        assert_eq!([0, 1].map(|gpu| machine.read_all(gpu)), [[3, 4, 1, 2].map(Ok); 2]);
        let target = library.reserve(SIZE);
        library.vmm.relocate(target, machine.base, SIZE).unwrap();
        library.vmm.address_free(machine.base, SIZE).unwrap();
        machine.base = target;
        assert_eq!([0, 1].map(|gpu| machine.read_all(gpu)), [[3, 4, 1, 2].map(Ok); 2]);
        machine.close();
    });
}

#[test]
fn parts_are_inaccessible_without_grant() {
    in_each_mode("offsets::parts_are_inaccessible_without_grant", |machine| {
        machine.map([3, 2, 1, 0]);
        machine.library.grant(machine.base, SIZE, machine.library.gpu(0), Access::Read);
        assert_eq!(machine.read_all(0), [4, 3, 2, 1].map(Ok));
        assert_eq!(machine.read(1, machine.base), Err(Fault));
    });
}

#[test]
fn read_only_parts_reject_writes() {
    in_each_mode("offsets::read_only_parts_reject_writes", |machine| {
        machine.map([3, 2, 1, 0]);
        let gpu = machine.library.gpu(0);
        machine.library.grant(machine.base, SIZE, gpu, Access::ReadWrite);
        machine.write(0, machine.base, 44).unwrap();
        machine.library.grant(machine.base, SIZE, gpu, Access::Read);
        assert_eq!(machine.read_all(0), [44, 3, 2, 1].map(Ok));
        assert_eq!(machine.write(0, machine.base, 45), Err(Fault));
    });
}

#[test]
fn invalid_offsets_are_rejected() {
    let test = "offsets::invalid_offsets_are_rejected";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let end = in_child(|| {
            let machine = Machine::new(fixture, "");
            let rejection = |size, offset| {
                let result = machine.library.vmm.map(machine.base, size, offset, machine.handle);
                match result.unwrap_err().into_kind() {
                    ErrorKind::InvalidArgument { argument, problem, .. } => (argument, problem),
                    kind => panic!("{kind:?}"),
                }
            };
            let whole = Argument::Handle;
            let granule = machine.library.granule();
            assert_eq!(rejection(PART, 1), (Argument::Offset, Problem::NotAligned { granule }));
            let too_large = |maximum| Problem::TooLarge { maximum, whole };
            assert_eq!(rejection(PART, SIZE + PART), (Argument::Offset, too_large(SIZE)));
            assert_eq!(rejection(PART, SIZE), (Argument::Size, too_large(0)));
            assert_eq!(rejection(2 * PART, SIZE - PART), (Argument::Size, too_large(PART)));
            let last = usize::MAX - granule + 1;
            assert_eq!(rejection(PART, last), (Argument::Offset, too_large(SIZE)));
        });
        assert_eq!(end, End::Success, "{}", fixture.release());
    });
}

/// A failed grant leaves a GPU without access, even to the start of the memory.
#[test]
fn failed_grants_are_rolled_back() {
    let test = "offsets::failed_grants_are_rolled_back";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        // Opening a `Vmm` replaces entries twice for each GPU.
        for failing_call in 5..5 + PARTS {
            let end = in_child(|| {
                fail_driver_calls(&format!("GEM_VA.REPLACE#{failing_call}=ENOMEM"));
                let machine = Machine::new(fixture, PAGE_TABLE_MODES[1]);
                // Leaves out the part at offset 0: the library replaces no entry for it.
                machine.map([3, 2, 1, 1]);
                let gpu = machine.library.gpu(0);
                let grant = [access(gpu, Access::ReadWrite)];
                machine.library.vmm.set_access(machine.base, SIZE, &grant).unwrap_err();
                assert_eq!(machine.library.vmm.get_access(gpu, machine.base), Ok(Access::None));
                machine.library.vmm.set_access(machine.base, SIZE, &grant).unwrap();
                assert_eq!(machine.read_all(0), [4, 3, 2, 2].map(Ok));
                let none = [access(gpu, Access::None)];
                machine.library.vmm.set_access(machine.base, SIZE, &none).unwrap();
                machine.close();
            });
            assert_eq!(end, End::Success, "{} {failing_call}", fixture.release());
        }
    });
}
