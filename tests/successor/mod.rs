//! Owned values whose mappings were unmapped by address and replaced by another owner's: every
//! method must fail, and the other owner's mappings must stay as they are.

use crate::machine::{Library, MIB, access, at};
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::buffer::{Contents, GrowableVec, PagedBuffer, PausableBuffer, RingBuffer};
use hsa_vmm::error::{Problem, Rejected};
use hsa_vmm::vmm::MappingInfo;
use hsa_vmm::{
    Access, Address, Allocation, Area, Error, GrowableBuffer, Handle, Mapping, Reservation,
};

const SIZE: usize = 2 * MIB;
/// The contents of the other owner's memory.
const THEIRS: u8 = 0x5a;

/// Mappings of another owner at the addresses of an owned value.
struct Successor<'a> {
    library: &'a Library,
    places: Vec<(Address, usize, Handle)>,
    before: Vec<MappingInfo>,
}

impl<'a> Successor<'a> {
    /// Unmaps these ranges by address, and maps other memory there.
    #[track_caller]
    fn replace(library: &'a Library, ranges: &[(Address, usize)]) -> Self {
        let mut places = Vec::new();
        for &(address, size) in ranges {
            library.vmm.unmap(address, size).expect("the range consists of whole mappings");
            let handle = library.create(0, size);
            library.map(address, size, handle);
            library.grant(address, size, library.cpu(0), Access::ReadWrite);
            library.grant(address, size, library.gpu(0), Access::ReadWrite);
            library.vmm.write(address, &vec![THEIRS; size]).expect("it is mapped");
            places.push((address, size, handle));
        }
        let before = places.iter().map(|&(at, ..)| library.vmm.mapping_at(at).expect("there"));
        let before = before.collect();
        Self { library, places, before }
    }

    /// Fails unless all of it is unchanged.
    #[track_caller]
    fn assert_untouched(&self, after: &str) {
        for (&(address, size, _), before) in self.places.iter().zip(&self.before) {
            let now = self.library.vmm.mapping_at(address);
            assert_eq!(now.as_ref(), Some(before), "after {after}");
            let mut bytes = vec![0; size];
            self.library.vmm.read(address, &mut bytes).expect("it is mapped");
            assert!(bytes.iter().all(|&byte| byte == THEIRS), "written to by {after}");
        }
    }

    /// Fails unless a method returned that it is not mapped, and changed nothing.
    #[track_caller]
    fn refused<T>(&self, method: &str, answer: Result<T, impl Into<Error>>) {
        match answer.map_err(Into::into) {
            Ok(_) => panic!("{method} did not fail"),
            Err(error) => {
                let problem = error.problem();
                assert!(matches!(problem, Some(Problem::NotMapped(_))), "{method}: {error}");
            }
        }
        self.assert_untouched(method);
    }

    /// Unmaps it after the owned value was dropped.
    #[track_caller]
    fn end(self) {
        self.assert_untouched("drop");
        for (address, size, handle) in &self.places {
            self.library.vmm.unmap(*address, *size).expect("it exists");
            self.library.vmm.release(*handle).expect("it is ours");
        }
    }
}

/// Frees reservations that an owned value left because something was mapped in them.
#[track_caller]
fn free_the_rest(library: &Library) {
    for (address, size) in library.vmm.reservations() {
        library.vmm.address_free(address, size).expect("nothing is mapped");
    }
    library.assert_nothing_held();
}

fn new_mapping(library: &Library) -> Mapping {
    let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
    let memory = Allocation::create(&library.vmm, SIZE, &library.on(0)).unwrap();
    let mapping = reservation.map(0, &memory).unwrap();
    mapping.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
    mapping
}

pub fn of_mapping(library: &Library) {
    let mut mapping = new_mapping(library);
    let mut other = new_mapping(library);
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    let successor = Successor::replace(library, &[(mapping.address(), SIZE)]);
    let bytes = &mut [0; 100];
    successor.refused("read", mapping.read(50, bytes));
    successor.refused("write", mapping.write(50, bytes));
    successor.refused("fill", mapping.fill(0, 7, 64));
    successor.refused("grant", mapping.grant(&[library.gpu(1)], Access::Read));
    successor.refused("set_access", mapping.set_access(&[access(cpu, Access::None)]));
    successor.refused("revoke", mapping.revoke(&[gpu]));
    successor.refused("access", mapping.access(gpu));
    successor.refused("exchange", mapping.exchange(&mut other));
    successor.refused("exchange with it", other.exchange(&mut mapping));
    let elsewhere = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
    let Rejected { value: mapping, error } = mapping.relocate(&elsewhere, 0).expect_err("relocate");
    successor.refused("relocate", Err::<(), _>(error));
    let Rejected { value: mapping, error } = mapping.unmap().expect_err("unmap");
    successor.refused("unmap", Err::<(), _>(error));
    let error = Mapping::unmap_many(vec![mapping]).map_err(|kept| kept.error);
    successor.refused("unmap_many", error);
    drop((other, elsewhere));
    successor.end();
    free_the_rest(library);
}

pub fn of_growable_buffer(library: &Library) {
    let options = GrowableBuffer::builder(8 * SIZE).with_step(SIZE);
    let mut buffer = options.reserve(&library.vmm, &library.on(0)).unwrap();
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    buffer.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
    buffer.grow(3 * SIZE).unwrap();
    buffer.write(0, b"own").unwrap();
    let successor = Successor::replace(library, &[(at(buffer.address(), SIZE), SIZE)]);
    let bytes = &mut [0; 100];
    successor.refused("read", buffer.read(SIZE, bytes));
    successor.refused("read over its beginning", buffer.read(SIZE - 50, bytes));
    successor.refused("read over its end", buffer.read(2 * SIZE - 50, bytes));
    successor.refused("write", buffer.write(SIZE, bytes));
    successor.refused("write over its beginning", buffer.write(SIZE - 50, bytes));
    successor.refused("fill", buffer.fill(SIZE, 7, 64));
    successor.refused("grant", buffer.grant(&[library.gpu(1)], Access::Read));
    successor.refused("revoke", buffer.revoke(&[gpu]));
    successor.refused("access", buffer.access(gpu));
    successor.refused("shrink", buffer.shrink(2 * SIZE));
    buffer.read(0, &mut bytes[..3]).expect("this step is its own");
    assert_eq!(&bytes[..3], b"own");

    let mut values = GrowableVec::<u64>::new(buffer);
    let index = SIZE / 8;
    successor.refused("get", values.get(index));
    successor.refused("set", values.set(index, 7));
    successor.refused("to_vec", values.to_vec());
    successor.refused("truncate", values.truncate(index));
    drop(values);
    successor.end();
    free_the_rest(library);
}

pub fn of_ring_buffer(library: &Library) {
    let ring = RingBuffer::create(&library.vmm, SIZE, 2, &library.on(0)).unwrap();
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    ring.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
    let successor = Successor::replace(library, &[(at(ring.address(), SIZE), SIZE)]);
    let (bytes, over) = (&mut [0; 100], SIZE as u64 - 64);
    successor.refused("read", ring.read(over, bytes));
    successor.refused("write", ring.write(over, bytes));
    successor.refused("fill", ring.fill(over, 7, 100));
    successor.refused("grant", ring.grant(&[library.gpu(1)], Access::Read));
    successor.refused("revoke", ring.revoke(&[gpu]));
    successor.refused("access", ring.access(gpu));
    ring.read(over, &mut bytes[..64]).expect("this turn is its own");
    drop(ring);
    successor.end();
    free_the_rest(library);
}

pub fn of_pausable_buffer(library: &Library) {
    let mut buffer = PausableBuffer::create(&library.vmm, SIZE, &library.on(0)).unwrap();
    let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
    buffer.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
    let successor = Successor::replace(library, &[(buffer.address(), SIZE)]);
    let bytes = &mut [0; 100];
    successor.refused("read", buffer.read(0, bytes));
    successor.refused("write", buffer.write(0, bytes));
    successor.refused("fill", buffer.fill(0, 7, 64));
    successor.refused("grant", buffer.grant(&[library.gpu(1)], Access::Read));
    successor.refused("revoke", buffer.revoke(&[gpu]));
    successor.refused("access", buffer.access(gpu));
    successor.refused("pause", buffer.pause(Contents::Drop));
    successor.refused("resume", buffer.resume());
    drop(buffer);
    successor.end();
    free_the_rest(library);
}

pub fn of_paged_buffer(library: &Library) {
    for zeros in [false, true] {
        let [cpu, gpu] = [library.cpu(0), library.gpu(0)];
        let new = || {
            let options = PagedBuffer::builder(8 * SIZE).with_page_size(SIZE);
            let options = if zeros { options.with_zero_page() } else { options };
            let buffer = options.reserve(&library.vmm, &library.on(0)).unwrap();
            buffer.grant(&[cpu, gpu], Access::ReadWrite).unwrap();
            buffer.map(0..3).unwrap();
            buffer
        };
        let (buffer, other) = (new(), new());
        buffer.write(0, b"own").unwrap();
        let mut ranges = vec![(at(buffer.address(), SIZE), SIZE)];
        if zeros {
            ranges.push((at(buffer.address(), 3 * SIZE), SIZE));
        }
        let successor = Successor::replace(library, &ranges);
        let bytes = &mut [0; 100];
        successor.refused("read", buffer.read(SIZE, bytes));
        successor.refused("read over its beginning", buffer.read(SIZE - 50, bytes));
        successor.refused("write", buffer.write(SIZE, bytes));
        successor.refused("fill", buffer.fill(SIZE, 7, 64));
        successor.refused("grant", buffer.grant(&[library.gpu(1)], Access::Read));
        successor.refused("revoke", buffer.revoke(&[gpu]));
        successor.refused("access", buffer.access(gpu));
        successor.refused("unmap", buffer.unmap(1..2));
        successor.refused("move_pages", buffer.move_pages(1..2, &other, 5));
        successor.refused("share_pages", buffer.share_pages(1..2, &other, 5));
        successor.refused("exchange_pages", buffer.exchange_pages(1..2, &other, 0));
        successor.refused("exchange_pages with it", other.exchange_pages(0..1, &buffer, 1));
        if zeros {
            successor.refused("read of zeros", buffer.read(3 * SIZE, bytes));
            successor.refused("zero_page_is_clean", buffer.zero_page_is_clean());
            successor.refused("map", buffer.map(3..4));
        }
        buffer.read(0, &mut bytes[..3]).expect("this page is its own");
        assert_eq!(&bytes[..3], b"own");
        drop((buffer, other));
        successor.end();
        free_the_rest(library);
    }
}

pub fn of_area_memory(library: &Library) {
    let area = Area::new(&library.vmm, 0, AreaFlags::UNIFIED).unwrap();
    let memory = area.mmap(SIZE, MmapOptions::new()).unwrap();
    let other = area.mmap(SIZE, MmapOptions::new()).unwrap();
    let (address, whole) = (memory.address(), memory.allocated_size());
    let successor = Successor::replace(library, &[(address, whole)]);
    let refused = |method: &str, answer: Result<(), hsa_vmm::Error>| {
        let error = answer.expect_err(method).to_string();
        assert!(error.contains("apped"), "{method}: {error}");
        successor.assert_untouched(method);
    };
    let bytes = &mut [0; 100];
    refused("read", memory.read(0, bytes));
    refused("write", memory.write(0, bytes));
    refused("fill", memory.fill(0, 7, 64));
    refused("copy to it", memory.copy(0, &other, 0, 100));
    refused("copy from it", other.copy(0, &memory, 0, 100));
    refused("copy inside it", memory.copy(0, &memory, 100, 100));
    refused("munmap", memory.munmap().map_err(|kept| kept.error));
    drop(other);
    successor.end();
    free_the_rest(library);
}

/// The whole reservation was freed and reserved again by another owner.
pub fn of_reservation(library: &Library) {
    // Another thread of the process may take the addresses in between.
    for _ in 0..1000 {
        let reservation = Reservation::builder(SIZE).reserve(&library.vmm).unwrap();
        let address = reservation.address();
        library.vmm.address_free(address, SIZE).unwrap();
        if library.vmm.address_reserve_at(address, SIZE).is_err() {
            continue;
        }
        let handle = library.create(0, SIZE);
        library.map(address, SIZE, handle);
        let memory = Allocation::create(&library.vmm, SIZE, &library.on(0)).unwrap();
        let problem = |error: Error| error.problem();
        let mapped = reservation.map(0, &memory).map_err(problem).map(drop);
        assert_eq!(mapped, Err(Some(Problem::NotReserved)));
        let clone = reservation.clone();
        let freed = reservation.free().map_err(|kept| problem(kept.error));
        assert_eq!(freed, Err(Some(Problem::NotAReservation)), "while there is a clone");
        let freed = clone.named("mine").free().map_err(|kept| problem(kept.error));
        assert_eq!(freed, Err(Some(Problem::NotAReservation)));
        assert_eq!(library.vmm.reservation_at(address), Some((address, SIZE)));
        library.vmm.unmap(address, SIZE).unwrap();
        library.vmm.release(handle).unwrap();
        drop(memory);
        return free_the_rest(library);
    }
    panic!("freed addresses are never free");
}
