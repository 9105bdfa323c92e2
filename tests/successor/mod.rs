//! Tests of owned values whose mappings were unmapped by address. Another owner then maps memory at the same addresses.
//! These new mappings are the successors. Methods of the owned value that use these addresses must fail, and must not
//! change the successors.

use crate::machine::{Library, MIB, access, at};
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::buffer::{GrowableVec, PagedBuffer, PausableBuffer, PauseMode, RingBuffer};
use hsa_vmm::error::{Problem, Rejected};
use hsa_vmm::vmm::MappingInfo;
use hsa_vmm::{
    Access, Address, Allocation, Area, Error, GrowableBuffer, Handle, Mapping, Reservation,
};

const SIZE: usize = 2 * MIB;
/// The byte that fills the other owner's memory.
const SUCCESSOR_BYTE: u8 = 0x5a;

/// Mappings of another owner at the addresses of an owned value.
struct Successor<'a> {
    library: &'a Library,
    mappings: Vec<(Address, usize, Handle)>,
    before: Vec<MappingInfo>,
}

impl<'a> Successor<'a> {
    /// Unmaps these ranges by address, and maps new memory at the same addresses.
    #[track_caller]
    fn replace(library: &'a Library, ranges: &[(Address, usize)]) -> Self {
        let mut mappings = Vec::new();
        for &(address, size) in ranges {
            library.vmm.unmap(address, size).expect("the range consists of whole mappings");
            let handle = library.create(0, size);
            library.map(address, size, handle);
            library.grant(address, size, library.cpu(0), Access::ReadWrite);
            library.grant(address, size, library.gpu(0), Access::ReadWrite);
            library.vmm.write(address, &vec![SUCCESSOR_BYTE; size]).expect("it is mapped");
            mappings.push((address, size, handle));
        }
        let before = mappings
            .iter()
            .map(|&(address, ..)| library.vmm.mapping_at(address).expect("it is mapped"));
        let before = before.collect();
        Self { library, mappings, before }
    }

    /// Fails unless the mappings and their contents are unchanged.
    #[track_caller]
    fn assert_untouched(&self, after: &str) {
        for (&(address, size, _), before) in self.mappings.iter().zip(&self.before) {
            let current = self.library.vmm.mapping_at(address);
            assert_eq!(current.as_ref(), Some(before), "after {after}");
            let mut bytes = vec![0; size];
            self.library.vmm.read(address, &mut bytes).expect("it is mapped");
            assert!(
                bytes.iter().all(|&byte| byte == SUCCESSOR_BYTE),
                "{after} has written to the other owner's memory"
            );
        }
    }

    /// Fails unless a method has returned `NotMapped`, and has not changed the successors.
    #[track_caller]
    fn assert_rejected<T>(&self, method: &str, result: Result<T, impl Into<Error>>) {
        match result.map_err(Into::into) {
            Ok(_) => panic!("{method} did not fail"),
            Err(error) => {
                let problem = error.problem();
                assert!(matches!(problem, Some(Problem::NotMapped(_))), "{method}: {error}");
            }
        }
        self.assert_untouched(method);
    }

    /// Frees the mappings, after the owned value was dropped.
    #[track_caller]
    fn free(self) {
        self.assert_untouched("drop");
        for (address, size, handle) in &self.mappings {
            self.library.vmm.unmap(*address, *size).expect("it is mapped");
            self.library.vmm.release(*handle).expect("a handle of this test");
        }
    }
}

/// Frees the reservations that an owned value did not free because they had mappings.
#[track_caller]
fn free_reservations(library: &Library) {
    for (address, size) in library.vmm.reservations() {
        library.vmm.address_free(address, size).expect("nothing is mapped");
    }
    library.assert_everything_freed();
}

fn new_mapping(library: &Library) -> Mapping {
    let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
    let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
    let mapping = reservation.map(0, &memory).unwrap();
    mapping.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
    mapping
}

pub fn check_mapping(library: &Library) {
    let mut mapping = new_mapping(library);
    let mut second = new_mapping(library);
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    let successor = Successor::replace(library, &[(mapping.address(), SIZE)]);
    let bytes = &mut [0; 100];
    successor.assert_rejected("read", mapping.read(50, bytes));
    successor.assert_rejected("write", mapping.write(50, bytes));
    successor.assert_rejected("fill", mapping.fill(0, 7, 64));
    successor.assert_rejected("grant", mapping.grant(&[library.gpu(1)], Access::Read));
    successor.assert_rejected("set_access", mapping.set_access(&[access(cpu, Access::None)]));
    successor.assert_rejected("revoke", mapping.revoke(&[gpu]));
    successor.assert_rejected("access", mapping.access(gpu));
    successor.assert_rejected("exchange", mapping.exchange(&mut second));
    successor.assert_rejected("exchange as the other mapping", second.exchange(&mut mapping));
    let target = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
    let Rejected { value: mapping, error } = mapping.relocate(&target, 0).expect_err("relocate");
    successor.assert_rejected("relocate", Err::<(), _>(error));
    let Rejected { value: mapping, error } = mapping.unmap().expect_err("unmap");
    successor.assert_rejected("unmap", Err::<(), _>(error));
    let result = Mapping::unmap_many(vec![mapping]).map_err(|rejected| rejected.error);
    successor.assert_rejected("unmap_many", result);
    drop((second, target));
    successor.free();
    free_reservations(library);
}

/// Tests a growable buffer and a growable vector.
pub fn check_growable_buffer(library: &Library) {
    let options = GrowableBuffer::builder(8 * SIZE).with_step(SIZE);
    let mut buffer = options.reserve(&library.vmm, &library.shareable_on(0)).unwrap();
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    buffer.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
    buffer.grow(3 * SIZE).unwrap();
    buffer.write(0, b"own").unwrap();
    let successor = Successor::replace(library, &[(at(buffer.address(), SIZE), SIZE)]);
    let bytes = &mut [0; 100];
    successor.assert_rejected("read", buffer.read(SIZE, bytes));
    successor.assert_rejected(
        "read across the start of the replaced mapping",
        buffer.read(SIZE - 50, bytes),
    );
    successor.assert_rejected(
        "read across the end of the replaced mapping",
        buffer.read(2 * SIZE - 50, bytes),
    );
    successor.assert_rejected("write", buffer.write(SIZE, bytes));
    successor.assert_rejected(
        "write across the start of the replaced mapping",
        buffer.write(SIZE - 50, bytes),
    );
    successor.assert_rejected("fill", buffer.fill(SIZE, 7, 64));
    successor.assert_rejected("grant", buffer.grant(&[library.gpu(1)], Access::Read));
    successor.assert_rejected("revoke", buffer.revoke(&[gpu]));
    successor.assert_rejected("access", buffer.access(gpu));
    successor.assert_rejected("shrink", buffer.shrink(2 * SIZE));
    buffer.read(0, &mut bytes[..3]).expect("this step is still the buffer's");
    assert_eq!(&bytes[..3], b"own");

    let mut values = GrowableVec::<u64>::new(buffer);
    let index = SIZE / 8;
    successor.assert_rejected("get", values.get(index));
    successor.assert_rejected("set", values.set(index, 7));
    successor.assert_rejected("to_vec", values.to_vec());
    successor.assert_rejected("truncate", values.truncate(index));
    drop(values);
    successor.free();
    free_reservations(library);
}

pub fn check_ring_buffer(library: &Library) {
    let ring = RingBuffer::create(&library.vmm, SIZE, 2, &library.shareable_on(0)).unwrap();
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    ring.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
    let successor = Successor::replace(library, &[(at(ring.address(), SIZE), SIZE)]);
    let (bytes, position) = (&mut [0; 100], SIZE as u64 - 64);
    successor.assert_rejected("read", ring.read(position, bytes));
    successor.assert_rejected("write", ring.write(position, bytes));
    successor.assert_rejected("fill", ring.fill(position, 7, 100));
    successor.assert_rejected("grant", ring.grant(&[library.gpu(1)], Access::Read));
    successor.assert_rejected("revoke", ring.revoke(&[gpu]));
    successor.assert_rejected("access", ring.access(gpu));
    ring.read(position, &mut bytes[..64]).expect("this part is still the ring's");
    drop(ring);
    successor.free();
    free_reservations(library);
}

pub fn check_pausable_buffer(library: &Library) {
    let mut buffer = PausableBuffer::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    buffer.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
    let successor = Successor::replace(library, &[(buffer.address(), SIZE)]);
    let bytes = &mut [0; 100];
    successor.assert_rejected("read", buffer.read(0, bytes));
    successor.assert_rejected("write", buffer.write(0, bytes));
    successor.assert_rejected("fill", buffer.fill(0, 7, 64));
    successor.assert_rejected("grant", buffer.grant(&[library.gpu(1)], Access::Read));
    successor.assert_rejected("revoke", buffer.revoke(&[gpu]));
    successor.assert_rejected("access", buffer.access(gpu));
    for mode in [PauseMode::Save, PauseMode::Discard] {
        successor.assert_rejected("pause", buffer.pause(mode));
        assert!(!buffer.is_paused());
    }
    drop(buffer);
    successor.free();
    free_reservations(library);
}

/// Tests a paged buffer, with and without a zero page.
pub fn check_paged_buffer(library: &Library) {
    for has_zero_page in [false, true] {
        let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
        let new_buffer = || {
            let options = PagedBuffer::builder(8 * SIZE).with_page_size(SIZE);
            let options = if has_zero_page { options.with_zero_page() } else { options };
            let buffer = options.reserve(&library.vmm, &library.shareable_on(0)).unwrap();
            buffer.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
            buffer.map(0..3).unwrap();
            buffer
        };
        let (buffer, second) = (new_buffer(), new_buffer());
        buffer.write(0, b"own").unwrap();
        let mut ranges = vec![(at(buffer.address(), SIZE), SIZE)];
        if has_zero_page {
            ranges.push((at(buffer.address(), 3 * SIZE), SIZE));
        }
        let successor = Successor::replace(library, &ranges);
        let bytes = &mut [0; 100];
        successor.assert_rejected("read", buffer.read(SIZE, bytes));
        successor.assert_rejected(
            "read across the start of the replaced mapping",
            buffer.read(SIZE - 50, bytes),
        );
        successor.assert_rejected("write", buffer.write(SIZE, bytes));
        successor.assert_rejected("fill", buffer.fill(SIZE, 7, 64));
        successor.assert_rejected("grant", buffer.grant(&[library.gpu(1)], Access::Read));
        successor.assert_rejected("revoke", buffer.revoke(&[gpu]));
        successor.assert_rejected("access", buffer.access(gpu));
        successor.assert_rejected("unmap", buffer.unmap(1..2));
        successor.assert_rejected("move_pages", buffer.move_pages(1..2, &second, 5));
        successor.assert_rejected("share_pages", buffer.share_pages(1..2, &second, 5));
        successor.assert_rejected("exchange_pages", buffer.exchange_pages(1..2, &second, 0));
        successor.assert_rejected(
            "exchange_pages of the other buffer",
            second.exchange_pages(0..1, &buffer, 1),
        );
        if has_zero_page {
            successor.assert_rejected("read of zeros", buffer.read(3 * SIZE, bytes));
            successor.assert_rejected("zero_page_is_clean", buffer.zero_page_is_clean());
            successor.assert_rejected("map", buffer.map(3..4));
        }
        buffer.read(0, &mut bytes[..3]).expect("this page is still the buffer's");
        assert_eq!(&bytes[..3], b"own");
        drop((buffer, second));
        successor.free();
        free_reservations(library);
    }
}

pub fn check_area_memory(library: &Library) {
    let area = Area::new(&library.vmm, 0, AreaFlags::UNIFIED).unwrap();
    let memory = area.mmap(SIZE, MmapOptions::new()).unwrap();
    let second = area.mmap(SIZE, MmapOptions::new()).unwrap();
    let range = (memory.address(), memory.allocated_size());
    let successor = Successor::replace(library, &[range]);
    let assert_rejected = |method: &str, result: Result<(), hsa_vmm::Error>| {
        let error = result.expect_err(method);
        assert!(matches!(error.problem(), Some(Problem::NotMapped(_))), "{method}: {error}");
        successor.assert_untouched(method);
    };
    let bytes = &mut [0; 100];
    assert_rejected("read", memory.read(0, bytes));
    assert_rejected("write", memory.write(0, bytes));
    assert_rejected("fill", memory.fill(0, 7, 64));
    assert_rejected("copy to the replaced memory", memory.copy(0, &second, 0, 100));
    assert_rejected("copy from the replaced memory", second.copy(0, &memory, 0, 100));
    assert_rejected("copy inside the replaced memory", memory.copy(0, &memory, 100, 100));
    assert_rejected("munmap", memory.munmap().map_err(|rejected| rejected.error));
    drop(second);
    successor.free();
    free_reservations(library);
}

/// Tests a reservation that was freed by address and that another owner has reserved again.
pub fn check_reservation(library: &Library) {
    // Retries if another thread takes the addresses.
    for _ in 0..1000 {
        let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
        let address = reservation.address();
        library.vmm.address_free(address, SIZE).unwrap();
        if library.vmm.address_reserve_at(address, SIZE).is_err() {
            continue;
        }
        let handle = library.create(0, SIZE);
        library.map(address, SIZE, handle);
        let memory = Allocation::create(&library.vmm, SIZE, &library.shareable_on(0)).unwrap();
        let problem = |error: Error| error.problem();
        let mapped = reservation.map(0, &memory).map_err(problem).map(drop);
        assert_eq!(mapped, Err(Some(Problem::NotReserved)));
        let clone = reservation.clone();
        let freed = reservation.free().map_err(|rejected| problem(rejected.error));
        assert_eq!(freed, Err(Some(Problem::NotAReservation)), "while there is a clone");
        let freed = clone.named("mine").free().map_err(|rejected| problem(rejected.error));
        assert_eq!(freed, Err(Some(Problem::NotAReservation)));
        assert_eq!(library.vmm.reservation_at(address), Some((address, SIZE)));
        library.vmm.unmap(address, SIZE).unwrap();
        library.vmm.release(handle).unwrap();
        drop(memory);
        return free_reservations(library);
    }
    panic!("the freed addresses were taken each time");
}
