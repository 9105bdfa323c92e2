//! Growable buffers and rings on AMD's runtime.

use super::failed_driver_calls::{NamedOperation, Setup, fail_each_driver_call};
use crate::amd_runtime::{on_each, set_variable};
use crate::machine::{Library, MIB, at};
use crate::process::assert_inaccessible;
use crate::process::limit::{limit_free_descriptors, raise_limit};
use hsa_vmm::buffer::{GrowableVec, RingBuffer};
use hsa_vmm::error::{ErrorKind, Problem};
use hsa_vmm::vmm::MappingInfo;
use hsa_vmm::{Access, GrowableBuffer};

const GIB: usize = 1 << 30;
const STEP: usize = 64 << 10;

/// Returns bytes with a period of 253 bytes, which divides no page size.
fn test_bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 253) as u8 + 1).collect()
}

#[test]
fn buffers_accept_any_size() {
    on_each("buffers::buffers_accept_any_size", |fixture| {
        let library = Library::load(fixture.runtime());
        let options = GrowableBuffer::builder(4 * GIB);
        let mut buffer = options.reserve(&library.vmm, &library.shareable_on(0)).unwrap();
        let agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
        buffer.grant(&agents, Access::ReadWrite).unwrap();
        let address = buffer.address();
        for size in [1, 32, 4096, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * GIB] {
            buffer.resize(size).unwrap();
            buffer.write(size - 1, b"z").unwrap();
            let mut byte = [0];
            buffer.read(size - 1, &mut byte).unwrap();
            assert_eq!((&byte, buffer.address()), (b"z", address), "{size:#x}");
            assert!(buffer.read(size, &mut byte).is_err(), "{size:#x}");
            let ring = RingBuffer::create(&library.vmm, size, 2, &library.shareable_on(1)).unwrap();
            ring.grant(&agents, Access::ReadWrite).unwrap();
            ring.write(ring.size() as u64 - 1, b"ab").unwrap();
            ring.read(0, &mut byte).unwrap();
            assert_eq!(&byte, b"b", "{size:#x}");
            buffer.resize(size % 2).unwrap();
        }
        drop(buffer);
        library.assert_everything_freed();
    });
}

#[test]
fn growth_keeps_address_and_contents() {
    on_each("buffers::growth_keeps_address_and_contents", |fixture| {
        let library = Library::load(fixture.runtime());
        let options = GrowableBuffer::builder(64 * STEP).with_step(STEP).with_handle_pool(3);
        let buffer = options.reserve(&library.vmm, &library.shareable_on(0)).unwrap();
        buffer.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
        let mut words = GrowableVec::<u64>::new(buffer);
        let address = words.buffer.address();
        let values: Vec<u64> = (0..(60 * STEP / 8) as u64).map(|word| word * 0x9e37_79b9).collect();
        for round in 0..3 {
            for (number, part) in values.chunks(1000).enumerate() {
                words.extend(part).unwrap();
                if number == 100 {
                    words.buffer.grant(&[library.gpu(1)], Access::ReadWrite).unwrap();
                }
            }
            assert!(words.to_vec().unwrap() == values, "round {round}");
            // The second GPU copies across several mappings. Some were made before this GPU got access, others
            // afterwards.
            let (source, target) = (at(address, 3 * STEP - 8), at(address, 40 * STEP - 16));
            library.vmm.copy(library.gpu(1), target, source, 2 * STEP).unwrap();
            let copied = &values[3 * STEP / 8 - 1..][..2 * STEP / 8];
            let mut found = vec![0; copied.len()];
            words.read(40 * STEP / 8 - 2, &mut found).unwrap();
            assert!(found == copied, "round {round}");
            words.buffer.fill(STEP - 8, 7, 16).unwrap();
            assert_eq!(words.get(STEP / 8), Ok(7 << 32 | 7), "round {round}");
            words.write(STEP / 8 - 1, &values[STEP / 8 - 1..][..2]).unwrap();
            words.truncate(STEP / 8 + 1).unwrap();
            assert!(words.to_vec().unwrap() == values[..STEP / 8 + 1], "round {round}");
            assert_inaccessible(address.get() + 2 * STEP, 62 * STEP, "truncated");
            words.truncate(0).unwrap();
            assert_eq!(words.buffer.address(), address);
        }
        drop(words);
        library.assert_everything_freed();
    });
}

#[test]
fn shrink_releases_memory() {
    on_each("buffers::shrink_releases_memory", |fixture| {
        set_variable("HSA_KFD", "gpus=2,vram=64MiB");
        let library = Library::load(fixture.runtime());
        let mut buffers = [0, 1].map(|_| {
            let options = GrowableBuffer::builder(GIB).with_step(MIB);
            let buffer = options.reserve(&library.vmm, &library.shareable_on(0)).unwrap();
            buffer.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
            buffer
        });
        let mut full_size = None;
        for round in 0..6 {
            let buffer = &mut buffers[round % 2];
            let error = loop {
                if let Err(error) = buffer.grow(MIB) {
                    break error;
                }
            };
            let is_out_of_memory = matches!(error.kind(), ErrorKind::OutOfMemory { .. });
            assert!(is_out_of_memory, "{round}: {error}");
            assert!(buffer.size() >= 32 * MIB, "{round}: {:#x}", buffer.size());
            assert_eq!(*full_size.get_or_insert(buffer.size()), buffer.size(), "{round}");
            // Growing by the size of the whole memory also fails, and changes nothing.
            buffer.grow(64 * MIB).expect_err("more than the memory");
            assert_eq!(Some(buffer.size()), full_size, "{round}");
            buffer.write(buffer.size() - 4, b"last").unwrap();
            buffer.resize(0).unwrap();
        }
        drop(buffers);
        library.assert_everything_freed();
    });
}

/// With each number of free file descriptors, growth fails at a different runtime call.
#[test]
fn growth_without_descriptors_changes_nothing() {
    on_each("buffers::growth_without_descriptors_changes_nothing", |fixture| {
        let library = Library::load(fixture.runtime());
        let options = GrowableBuffer::builder(64 * STEP).with_step(STEP);
        let mut buffer = options.reserve(&library.vmm, &library.shareable_on(0)).unwrap();
        let agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
        buffer.grant(&agents, Access::ReadWrite).unwrap();
        buffer.grow(2 * STEP).unwrap();
        buffer.write(0, &test_bytes(2 * STEP)).unwrap();
        let mut failures = 0;
        for free_descriptors in 0.. {
            let before = (library.vmm.usage(), library.vmm.mappings());
            limit_free_descriptors(free_descriptors);
            let result = buffer.grow(20 * STEP);
            raise_limit();
            let Err(error) = result else { break };
            failures += 1;
            let is_shortage = matches!(error.kind(), ErrorKind::OutOfDescriptors);
            assert!(is_shortage, "{free_descriptors}: {error}");
            assert_eq!((library.vmm.usage(), library.vmm.mappings()), before, "{free_descriptors}");
            assert_eq!(
                (buffer.size(), buffer.mapped_size()),
                (2 * STEP, 2 * STEP),
                "{free_descriptors}"
            );
            let mut found = vec![0; 2 * STEP];
            buffer.read(0, &mut found).unwrap();
            assert!(found == test_bytes(2 * STEP), "{free_descriptors}");
            assert!(free_descriptors < 200, "growing eventually succeeds");
        }
        println!("{}: {failures} failures", fixture.release());
        assert!(failures > 0, "growing needs descriptors");
        assert_eq!(buffer.size(), 22 * STEP);
        drop(buffer);
        library.assert_everything_freed();
    });
}

#[test]
fn extend_reserves_exactly_at_the_end() {
    on_each("buffers::extend_reserves_exactly_at_the_end", |fixture| {
        let library = Library::load(fixture.runtime());
        let mut buffer = library.extended_buffer(STEP, &[1, 3]);
        buffer.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
        buffer.grow(8 * STEP).unwrap();
        let test_bytes = test_bytes(8 * STEP);
        buffer.write(0, &test_bytes).unwrap();
        let mut found = vec![0; 8 * STEP];
        buffer.read(0, &mut found).unwrap();
        assert!(found == test_bytes);
        buffer.grant(&[library.gpu(1)], Access::Read).unwrap();
        buffer.revoke(&[library.gpu(0)]).unwrap();
        buffer.shrink(5 * STEP).unwrap();
        buffer.grow(5 * STEP).unwrap();
        buffer.read(0, &mut found).unwrap();
        assert!(found[..3 * STEP] == test_bytes[..3 * STEP]);
        drop(buffer);
        let (mut buffer, neighbour) = library.extended_buffer_and_neighbour(STEP);
        buffer.grow(5 * STEP).unwrap();
        let before = (library.vmm.reservations(), library.vmm.mappings());
        match buffer.extend(STEP) {
            Err(error) => assert_eq!(error.problem(), Some(Problem::AddressTaken), "{error}"),
            result => panic!("the addresses are taken: {result:?}"),
        }
        assert_eq!((library.vmm.reservations(), library.vmm.mappings()), before);
        drop((buffer, neighbour));
        library.assert_everything_freed();
    });
}

#[test]
fn rings_are_contiguous_for_all_agents() {
    on_each("buffers::rings_are_contiguous_for_all_agents", |fixture| {
        let library = Library::load(fixture.runtime());
        let test_bytes = test_bytes(STEP);
        for times in [2, 3, 7] {
            let ring =
                RingBuffer::create(&library.vmm, STEP, times, &library.shareable_on(0)).unwrap();
            let agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
            ring.grant(&agents, Access::ReadWrite).unwrap();
            let source = library.map_new_memory(1, STEP).0;
            library.grant(source, STEP, library.gpu(1), Access::ReadWrite);
            library.grant(source, STEP, library.cpu(0), Access::ReadWrite);
            library.vmm.write(source, &test_bytes).unwrap();
            // A GPU writes across the end of the ring. The CPU reads on both sides of the end.
            let position = (5 * STEP - 1000) as u64;
            library.vmm.copy(library.gpu(1), ring.address_of(position), source, STEP).unwrap();
            let mut found = vec![0; STEP];
            ring.read(0, &mut found).unwrap();
            assert!(
                found[..STEP - 1000] == test_bytes[1000..]
                    && found[STEP - 1000..] == test_bytes[..1000]
            );
            ring.read(position, &mut found).unwrap();
            assert!(found == test_bytes, "{times} times");
            ring.revoke(&[library.gpu(1)]).unwrap();
            ring.read(position + 9 * STEP as u64, &mut found).unwrap();
            assert!(found == test_bytes, "{times} times, after a revocation");
        }
    });
}

/// A partly used buffer, a full buffer, and a ring. Each buffer has two reservations.
struct Buffers {
    small: GrowableBuffer,
    full: GrowableBuffer,
    ring: RingBuffer,
    library: Library,
}

impl Setup for Buffers {
    type State = ([(usize, usize); 2], Vec<MappingInfo>);

    fn new(library: Library) -> Self {
        let agents = [library.cpu(0), library.gpu(0)];
        let [small, full] = [2, 6].map(|steps| {
            let mut buffer = library.extended_buffer(STEP, &[2]);
            buffer.grant(&agents, Access::ReadWrite).unwrap();
            buffer.grow(steps * STEP).unwrap();
            buffer.write(0, &test_bytes(steps * STEP)).unwrap();
            buffer
        });
        let ring = RingBuffer::create(&library.vmm, STEP, 2, &library.shareable_on(1)).unwrap();
        ring.grant(&[library.cpu(0), library.gpu(1)], Access::ReadWrite).unwrap();
        ring.write(0, &test_bytes(STEP)).unwrap();
        Self { small, full, ring, library }
    }

    fn library(&self) -> &Library {
        &self.library
    }

    fn state(&self) -> Self::State {
        let sizes = [&self.small, &self.full].map(|buffer| (buffer.size(), buffer.mapped_size()));
        (sizes, self.library.vmm.mappings())
    }

    fn assert_contents(&self, context: &str) {
        for buffer in [&self.small, &self.full] {
            let mut found = vec![0; buffer.size()];
            buffer.read(0, &mut found).unwrap();
            assert!(found == test_bytes(buffer.size()), "{context}");
        }
        let mut found = vec![0; STEP];
        self.ring.read(2 * STEP as u64, &mut found).unwrap();
        assert!(found == test_bytes(STEP), "{context}");
    }

    fn close(self, _: &str) -> Library {
        self.library
    }
}

const OPERATIONS: &[NamedOperation<Buffers>] = &[
    // Growing also grants access, so the entries of `ABORTS` for "grant" also apply to "grow".
    ("grow", "grant", |s| s.small.grow(4 * STEP)),
    ("shrink", "shrink", |s| s.full.shrink(3 * STEP)),
    ("grant", "grant", |s| s.full.grant(&[s.library.gpu(1)], Access::Read)),
    ("revoke", "revoke", |s| s.full.revoke(&[s.library.gpu(0)])),
    ("grant the ring", "grant", |s| s.ring.grant(&[s.library.gpu(0)], Access::ReadWrite)),
];

#[test]
fn one_failed_call_changes_nothing() {
    fail_each_driver_call("buffers::one_failed_call_changes_nothing", OPERATIONS, 90);
}
