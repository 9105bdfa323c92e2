//! Mappings at an offset into a handle's memory. Such mappings need control of page tables.

use crate::amd_runtime::raw::{Fault, RawRuntime};
use crate::amd_runtime::{PAGE_TABLE_MODES, fail_driver_calls, page_table_modes, set_variable};
use crate::machine::{Library, access, at};
use crate::process::{End, in_child, page_table};
use hsa_rocr::Emulation;
use hsa_rocr::test::{Fixture, run_on_releases};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, Address, ErrorKind, Handle, Runtime};

/// The size of each part of the handle's memory, a multiple of the granule.
const PART: usize = 64 << 10;
const PARTS: usize = 4;
const SIZE: usize = PARTS * PART;

/// The library with control of page tables, and a handle whose parts contain the numbers 1 to 4.
struct Setup {
    library: Library,
    raw: RawRuntime,
    handle: Handle,
    /// A mapping of the whole handle, which GPU 0 can write.
    full_mapping: Address,
    /// Reserved addresses for the parts.
    base: Address,
}

impl Setup {
    fn new(fixture: &Fixture, mode: &str) -> Self {
        set_variable("HSA_KFD", &format!("gpus=2,{mode}"));
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let library = Library::open(runtime, VmmOptions::new().with_page_tables(true));
        let raw = RawRuntime::start(fixture);
        let (full_mapping, handle) = library.map_new_memory(0, SIZE);
        library.grant(full_mapping, SIZE, library.gpu(0), Access::ReadWrite);
        let setup = Self { base: library.reserve(SIZE), library, raw, handle, full_mapping };
        for part in 0..PARTS {
            setup.write(0, at(setup.full_mapping, part * PART), part as u64 + 1).unwrap();
        }
        setup
    }

    /// Maps the parts with these numbers at consecutive addresses.
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

    /// Returns the number that a GPU reads from each mapped part.
    fn read_all(&self, gpu: usize) -> [Result<u64, Fault>; PARTS] {
        [0, 1, 2, 3].map(|part| self.read(gpu, at(self.base, part * PART)))
    }

    /// Returns the number that the CPU reads from each mapped part.
    fn load_all(&self) -> [u64; PARTS] {
        [0, 1, 2, 3].map(|part| {
            let mut number = [0; 8];
            self.library.vmm.read(at(self.base, part * PART), &mut number).unwrap();
            u64::from_ne_bytes(number)
        })
    }

    /// Unmaps and frees everything. Fails if a page table then has an entry in one of the ranges.
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

fn in_each_mode(test: &str, body: impl Fn(Setup)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        for mode in page_table_modes() {
            let end = in_child(|| body(Setup::new(fixture, mode)));
            assert_eq!(end, End::Success, "{} {mode:?}", fixture.release());
        }
    });
}

#[test]
fn parts_appear_at_their_addresses() {
    in_each_mode("offsets::parts_appear_at_their_addresses", |setup| {
        let library = &setup.library;
        setup.map([3, 1, 0, 1]);
        let list = [
            access(library.gpu(0), Access::ReadWrite),
            access(library.gpu(1), Access::Read),
            access(library.cpu(0), Access::ReadWrite),
        ];
        library.vmm.set_access(setup.base, SIZE, &list).unwrap();
        let expected = [4, 2, 1, 2];
        assert_eq!([0, 1].map(|gpu| setup.read_all(gpu)), [expected.map(Ok); 2]);
        assert_eq!(setup.load_all(), expected);
        // Each agent's writes appear in every mapping of the part.
        setup.write(0, at(setup.base, PART), 20).unwrap();
        library.vmm.write(setup.base, &40u64.to_ne_bytes()).unwrap();
        let expected = [40, 20, 1, 20];
        assert_eq!([0, 1].map(|gpu| setup.read_all(gpu)), [expected.map(Ok); 2]);
        assert_eq!(setup.load_all(), expected);
        assert_eq!(setup.read(0, at(setup.full_mapping, PART)), Ok(20));
        // The owner loses access and regains it.
        for reduced in [Access::Read, Access::None] {
            library.grant(setup.base, SIZE, library.gpu(0), reduced);
            library.grant(setup.base, SIZE, library.gpu(0), Access::ReadWrite);
            assert_eq!(setup.read_all(0), expected.map(Ok));
        }
        library.grant(setup.base, SIZE, library.gpu(1), Access::ReadWrite);
        setup.write(1, at(setup.base, 2 * PART), 10).unwrap();
        assert_eq!(setup.read(0, setup.full_mapping), Ok(10));
        setup.close();
    });
}

#[test]
fn moved_parts_keep_their_memory() {
    in_each_mode("offsets::moved_parts_keep_their_memory", |mut setup| {
        let library = &setup.library;
        setup.map([0, 1, 2, 3]);
        let grants = [0, 1].map(|gpu| access(library.gpu(gpu), Access::ReadWrite));
        library.vmm.set_access(setup.base, SIZE, &grants).unwrap();
        let second_half = at(setup.base, 2 * PART);
        library.vmm.exchange(setup.base, second_half, 2 * PART).unwrap();
        assert_eq!([0, 1].map(|gpu| setup.read_all(gpu)), [[3, 4, 1, 2].map(Ok); 2]);
        let target = library.reserve(SIZE);
        library.vmm.relocate(target, setup.base, SIZE).unwrap();
        library.vmm.address_free(setup.base, SIZE).unwrap();
        setup.base = target;
        assert_eq!([0, 1].map(|gpu| setup.read_all(gpu)), [[3, 4, 1, 2].map(Ok); 2]);
        setup.close();
    });
}

#[test]
fn parts_are_inaccessible_without_grant() {
    in_each_mode("offsets::parts_are_inaccessible_without_grant", |setup| {
        setup.map([3, 2, 1, 0]);
        setup.library.grant(setup.base, SIZE, setup.library.gpu(0), Access::Read);
        assert_eq!(setup.read_all(0), [4, 3, 2, 1].map(Ok));
        assert_eq!(setup.read(1, setup.base), Err(Fault));
    });
}

#[test]
fn read_only_parts_reject_writes() {
    in_each_mode("offsets::read_only_parts_reject_writes", |setup| {
        setup.map([3, 2, 1, 0]);
        let gpu = setup.library.gpu(0);
        setup.library.grant(setup.base, SIZE, gpu, Access::ReadWrite);
        setup.write(0, setup.base, 44).unwrap();
        setup.library.grant(setup.base, SIZE, gpu, Access::Read);
        assert_eq!(setup.read_all(0), [44, 3, 2, 1].map(Ok));
        assert_eq!(setup.write(0, setup.base, 45), Err(Fault));
    });
}

#[test]
fn invalid_offsets_are_rejected() {
    let test = "offsets::invalid_offsets_are_rejected";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let end = in_child(|| {
            let setup = Setup::new(fixture, "");
            let rejection = |size, offset| {
                let result = setup.library.vmm.map(setup.base, size, offset, setup.handle);
                match result.unwrap_err().into_kind() {
                    ErrorKind::InvalidArgument { argument, problem, .. } => (argument, problem),
                    kind => panic!("{kind:?}"),
                }
            };
            let whole = Argument::Handle;
            let granule = setup.library.granule();
            assert_eq!(rejection(PART, 1), (Argument::Offset, Problem::NotAligned { granule }));
            let too_large = |maximum| Problem::TooLarge { maximum, whole };
            assert_eq!(rejection(PART, SIZE + PART), (Argument::Offset, too_large(SIZE)));
            let out_of_bounds = |size| Problem::OutOfBounds { size, end: SIZE };
            assert_eq!(rejection(PART, SIZE), (Argument::Offset, out_of_bounds(PART)));
            assert_eq!(
                rejection(2 * PART, SIZE - PART),
                (Argument::Offset, out_of_bounds(2 * PART))
            );
            let last = usize::MAX - granule + 1;
            assert_eq!(rejection(PART, last), (Argument::Offset, too_large(SIZE)));
        });
        assert_eq!(end, End::Success, "{}", fixture.release());
    });
}

/// After a failed grant, the GPU has no access, not even to mappings whose entries were replaced before the failure.
#[test]
fn failed_grants_are_rolled_back() {
    let test = "offsets::failed_grants_are_rolled_back";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        // Opening a `Vmm` replaces entries four times, twice for each GPU. The fifth call is the first of `set_access`.
        // A GPU that has faulted reads nothing more, so another child makes the next grant.
        let children = (5..5 + PARTS).flat_map(|call| [(call, true), (call, false)]);
        for (failing_call, reads_at_once) in children {
            let end = in_child(|| {
                fail_driver_calls(&format!("GEM_VA.REPLACE#{failing_call}=ENOMEM"));
                let setup = Setup::new(fixture, PAGE_TABLE_MODES[1]);
                // Does not map part 0, because the library need not replace the entry of a mapping at offset 0.
                setup.map([3, 2, 1, 1]);
                let gpu = setup.library.gpu(0);
                let grant = [access(gpu, Access::ReadWrite)];
                setup.library.vmm.set_access(setup.base, SIZE, &grant).unwrap_err();
                assert_eq!(setup.library.vmm.get_access(gpu, setup.base), Ok(Access::None));
                if reads_at_once {
                    // The first part is the one whose entry the grant replaces first.
                    return assert_eq!(setup.read(0, setup.base), Err(Fault));
                }
                setup.library.vmm.set_access(setup.base, SIZE, &grant).unwrap();
                assert_eq!(setup.read_all(0), [4, 3, 2, 2].map(Ok));
                let none = [access(gpu, Access::None)];
                setup.library.vmm.set_access(setup.base, SIZE, &none).unwrap();
                setup.close();
            });
            assert_eq!(end, End::Success, "{} {failing_call}", fixture.release());
        }
    });
}
