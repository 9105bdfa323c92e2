//! Paged buffers and pausable buffers on AMD's runtime, including pages that move or are exchanged.

use super::failed_driver_calls::{NamedOperation, Setup, fail_each_driver_call};
use crate::amd_runtime::{on_each, set_variable};
use crate::machine::{Library, MIB, at};
use crate::process::{End, assert_inaccessible, descriptors, in_child, regions};
use hsa_vmm::Access;
use hsa_vmm::buffer::{PageState, PagedBuffer, PausableBuffer, PauseMode};
use hsa_vmm::error::ErrorKind;
use hsa_vmm::vmm::MappingInfo;
use std::time::{Duration, Instant};

const PAGE: usize = 64 << 10;

fn test_bytes(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| (index % 253) as u8 ^ seed).collect()
}

fn new_pausable(library: &Library, size: usize) -> PausableBuffer {
    let buffer = PausableBuffer::create(&library.vmm, size, &library.shareable_on(0)).unwrap();
    buffer.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
    buffer.write(0, &test_bytes(size.min(MIB), 1)).unwrap();
    buffer
}

fn has_test_bytes(buffer: &PausableBuffer) -> bool {
    let mut found = vec![0; buffer.size().min(MIB)];
    buffer.read(0, &mut found).unwrap();
    found == test_bytes(found.len(), 1)
}

#[test]
fn pausable_buffer_resumes_at_its_address() {
    on_each("pages::pausable_buffer_resumes_at_its_address", |fixture| {
        let library = Library::load(fixture.runtime());
        for size in [1, 32, 4096, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 << 30] {
            let mut buffer = new_pausable(&library, size);
            buffer.grant(&[library.gpu(1)], Access::Read).unwrap();
            let (address, extent) = (buffer.address(), buffer.extent());
            // Copying three gibibytes would take too long.
            let mode = if size > 1 << 30 { PauseMode::Discard } else { PauseMode::Save };
            buffer.pause(mode).unwrap();
            assert_eq!(library.vmm.usage().handles, 0, "{size:#x}");
            assert_inaccessible(address.get(), extent, "paused");
            buffer.resume().unwrap();
            assert_eq!(buffer.address(), address, "{size:#x}");
            assert!(mode == PauseMode::Discard || has_test_bytes(&buffer), "{size:#x}");
            for (agent, expected) in [
                (library.cpu(0), Access::ReadWrite),
                (library.gpu(0), Access::ReadWrite),
                (library.gpu(1), Access::Read),
            ] {
                assert_eq!(library.vmm.get_access(agent, address), Ok(expected), "{size:#x}");
            }
            buffer.write(size - 1, b"z").unwrap();
        }
        library.assert_everything_freed();
    });
}

/// Pauses and resumes two buffers in turn. The GPU's memory has room for only one of them.
fn pause_in_turn(library: &Library) {
    let size = 40 * MIB;
    let mut first = new_pausable(library, size);
    first.write(size - 4, b"last").unwrap();
    for round in 0..4 {
        first.pause(PauseMode::Save).unwrap();
        let mut second = PausableBuffer::create(&library.vmm, size, &library.shareable_on(0))
            .unwrap_or_else(|error| panic!("{round}: the memory was not freed: {error}"));
        let error = first.resume().unwrap_err();
        let is_out_of_memory = matches!(error.kind(), ErrorKind::OutOfMemory { .. });
        assert!(is_out_of_memory && first.is_paused(), "{round}: {error}");
        second.pause(PauseMode::Discard).unwrap();
        first.resume().unwrap();
        let mut last = [0; 4];
        first.read(size - 4, &mut last).unwrap();
        assert!(&last == b"last" && has_test_bytes(&first), "{round}");
    }
    drop(first);
    library.assert_everything_freed();
}

#[test]
fn pause_frees_memory_for_others() {
    on_each("pages::pause_frees_memory_for_others", |fixture| {
        set_variable("HSA_KFD", "gpus=2,vram=64MiB");
        pause_in_turn(&Library::load(fixture.runtime()));
    });
}

/// `HSA_VMM_PAUSE_ROUNDS=10000` runs 10,000 rounds.
#[test]
fn pause_rounds_keep_address_and_contents() {
    let rounds = std::env::var("HSA_VMM_PAUSE_ROUNDS").ok();
    let rounds = rounds.map_or(200, |text| text.parse::<u32>().unwrap());
    on_each("pages::pause_rounds_keep_address_and_contents", |fixture| {
        set_variable("HSA_KFD", "gpus=2,vram=64MiB");
        let library = Library::load(fixture.runtime());
        let mut buffer = new_pausable(&library, PAGE);
        let address = buffer.address();
        let free_mebibytes = |library: &Library| {
            let handles =
                std::iter::from_fn(|| library.vmm.create(MIB, &library.shareable_on(0)).ok());
            let handles: Vec<_> = handles.take(100).collect();
            handles.iter().for_each(|&handle| library.vmm.release(handle).unwrap());
            handles.len()
        };
        let before = (descriptors(), regions().len(), free_mebibytes(&library));
        for round in 0..rounds {
            let saved = round % 10 == 0;
            buffer.pause(if saved { PauseMode::Save } else { PauseMode::Discard }).unwrap();
            buffer.resume().unwrap();
            assert!(!saved || has_test_bytes(&buffer), "round {round}");
            buffer.write(0, &test_bytes(PAGE, 1)).unwrap();
            assert_eq!(buffer.address(), address, "round {round}");
        }
        let after = (descriptors(), regions().len(), free_mebibytes(&library));
        println!("{}: {rounds} rounds, {before:?} then {after:?}", fixture.release());
        assert_eq!((after.0, after.2), (before.0, before.2), "descriptors and memory");
        // Heaps and stacks also change the number of regions. A leak would add a region in each round.
        let limit = before.1 + rounds as usize / 4;
        assert!(after.1 < limit, "{} regions instead of {}", after.1, before.1);
        library.vmm.check().unwrap();
        drop(buffer);
        library.assert_everything_freed();
    });
}

fn new_paged(library: &Library, has_zero_page: bool, ahead: usize) -> PagedBuffer {
    let options = PagedBuffer::builder(16 * PAGE).with_page_size(PAGE).with_pages_ahead(ahead);
    let options = if has_zero_page { options.with_zero_page() } else { options };
    let buffer = options.reserve(&library.vmm, &library.shareable_on(0)).unwrap();
    buffer.grant(&[library.cpu(0), library.gpu(0)], Access::ReadWrite).unwrap();
    buffer
}

#[test]
fn unmapped_pages_read_as_zeros() {
    on_each("pages::unmapped_pages_read_as_zeros", |fixture| {
        let library = Library::load(fixture.runtime());
        for has_zero_page in [false, true] {
            let buffer = new_paged(&library, has_zero_page, 0);
            for round in 0..20u8 {
                buffer.map(2..8).unwrap();
                (2..8).for_each(|page| {
                    buffer.write(page * PAGE, &test_bytes(100, page as u8 ^ round)).unwrap();
                });
                buffer.unmap(3..5).unwrap();
                for page in 0..10 {
                    let mut found = [0xee; 100];
                    match (buffer.read(page * PAGE, &mut found), page) {
                        (Ok(()), 2 | 5..8) => {
                            assert!(found[..] == test_bytes(100, page as u8 ^ round), "{page}");
                        }
                        (Ok(()), _) => assert!(has_zero_page && found == [0; 100], "{page}"),
                        (Err(error), _) => {
                            assert!(!has_zero_page, "{error}");
                            let address = buffer.address_of(page).unwrap().get();
                            assert_inaccessible(address, PAGE, "not mapped");
                        }
                    }
                }
                if has_zero_page {
                    // A GPU also reads zeros, directly after the mapped pages.
                    let copy_address = library.map_new_memory(0, PAGE).0;
                    library.grant(copy_address, PAGE, library.gpu(0), Access::ReadWrite);
                    library.grant(copy_address, PAGE, library.cpu(0), Access::ReadWrite);
                    let edge = at(buffer.address(), 8 * PAGE);
                    library.vmm.fill(copy_address, u32::MAX, PAGE).unwrap();
                    library.vmm.copy(library.gpu(0), copy_address, edge, PAGE).unwrap();
                    let mut bytes = vec![0xee; PAGE];
                    library.vmm.read(copy_address, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|&byte| byte == 0));
                    assert!(buffer.zero_page_is_clean().unwrap());
                }
                buffer.unmap(2..3).unwrap();
                buffer.unmap(5..8).unwrap();
            }
        }
    });
}

#[test]
fn thread_maps_pages_ahead_and_ends() {
    on_each("pages::thread_maps_pages_ahead_and_ends", |fixture| {
        let library = Library::load(fixture.runtime());
        for _ in 0..10 {
            let buffer = new_paged(&library, false, 3);
            buffer.map(0..2).unwrap();
            let begun = Instant::now();
            while buffer.statistics().ahead < 3 {
                assert!(begun.elapsed() < Duration::from_secs(60), "{}", buffer.statistics());
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(buffer.state(4), Ok(PageState::Ahead));
            buffer.map(2..5).unwrap();
            assert_eq!(buffer.statistics().found_ahead, 3);
            buffer.write(4 * PAGE, b"there").unwrap();
            let end = in_child(|| assert!(buffer.map(9..10).is_err()));
            assert_eq!(end, End::Success);
            buffer.unmap(0..5).unwrap();
            drop(buffer);
            library.assert_everything_freed();
        }
    });
}

#[test]
fn moved_pages_keep_their_contents() {
    on_each("pages::moved_pages_keep_their_contents", |fixture| {
        let library = Library::load(fixture.runtime());
        for zeros in [[false, false], [true, false], [false, true]] {
            let [source, target] = zeros.map(|has_zero_page| new_paged(&library, has_zero_page, 0));
            target.grant(&[library.gpu(1)], Access::ReadWrite).unwrap();
            source.map(0..4).unwrap();
            (0..4)
                .for_each(|page| source.write(page * PAGE, &test_bytes(PAGE, page as u8)).unwrap());
            let before = descriptors();
            for _ in 0..10 {
                source.move_pages(1..3, &target, 8).unwrap();
                target.map(0..2).unwrap();
                target.exchange_pages(0..2, &target, 8).unwrap();
                // The other GPU can access the page at its new address.
                library
                    .vmm
                    .copy(library.gpu(1), target.address_of(8).unwrap(), target.address(), PAGE)
                    .unwrap();
                let mut found = vec![0; PAGE];
                for (page, seed) in [(0, 1), (1, 2), (8, 1)] {
                    target.read(page * PAGE, &mut found).unwrap();
                    assert!(found == test_bytes(PAGE, seed), "{page}");
                }
                target.move_pages(0..2, &source, 1).unwrap();
                target.unmap(8..10).unwrap();
            }
            assert_eq!(descriptors(), before);
            for page in 0..4 {
                let mut found = vec![0; PAGE];
                source.read(page * PAGE, &mut found).unwrap();
                assert!(found == test_bytes(PAGE, page as u8), "{page}");
            }
        }
        library.assert_everything_freed();
    });
}

/// Two paged buffers, and two pausable buffers of which one is paused.
struct Buffers {
    plain: PagedBuffer,
    /// Has a zero page.
    zero: PagedBuffer,
    resident: PausableBuffer,
    paused: PausableBuffer,
    library: Library,
}

impl Setup for Buffers {
    type State = (Vec<PageState>, [bool; 2], Vec<MappingInfo>);

    fn new(library: Library) -> Self {
        let [plain, zero] = [false, true].map(|has_zero_page| {
            let buffer = new_paged(&library, has_zero_page, 0);
            buffer.map(1..3).unwrap();
            (1..3)
                .for_each(|page| buffer.write(page * PAGE, &test_bytes(100, page as u8)).unwrap());
            buffer
        });
        let (resident, mut paused) = (new_pausable(&library, PAGE), new_pausable(&library, PAGE));
        paused.pause(PauseMode::Save).unwrap();
        Self { plain, zero, resident, paused, library }
    }

    fn library(&self) -> &Library {
        &self.library
    }

    fn state(&self) -> Self::State {
        let buffers = [&self.plain, &self.zero].into_iter();
        let states = buffers
            .flat_map(|buffer| (0..buffer.page_count()).map(|page| buffer.state(page).unwrap()));
        let paused = [self.resident.is_paused(), self.paused.is_paused()];
        (states.collect(), paused, self.library.vmm.mappings())
    }

    fn assert_contents(&self, context: &str) {
        for buffer in [&self.plain, &self.zero] {
            for page in 1..3 {
                let mut found = [0; 100];
                buffer.read(page * PAGE, &mut found).unwrap();
                assert!(found[..] == test_bytes(100, page as u8), "{context}: page {page}");
            }
        }
        assert!(has_test_bytes(&self.resident), "{context}");
    }

    fn close(mut self, context: &str) -> Library {
        if self.paused.is_paused() {
            self.paused.resume().unwrap();
        }
        assert!(has_test_bytes(&self.paused), "{context}");
        self.library
    }
}

// Each of these operations can grant access, so the entries of `ABORTS` for "grant" apply to all of them.
const OPERATIONS: &[NamedOperation<Buffers>] = &[
    ("map", "grant", |s| s.plain.map(4..6)),
    ("map over zeros", "grant", |s| s.zero.map(4..6)),
    ("unmap", "grant", |s| s.zero.unmap(1..3)),
    ("grant", "grant", |s| s.zero.grant(&[s.library.gpu(1)], Access::Read)),
    ("move", "grant", |s| s.plain.move_pages(1..3, &s.zero, 8)),
    ("exchange", "grant", |s| s.plain.exchange_pages(1..2, &s.zero, 2)),
    ("pause", "grant", |s| s.resident.pause(PauseMode::Save)),
    ("resume", "grant", |s| s.paused.resume()),
];

#[test]
fn one_failed_call_changes_nothing() {
    fail_each_driver_call("pages::one_failed_call_changes_nothing", OPERATIONS, 150);
}

/// A buffer releases the memory that it received from other buffers.
#[test]
fn received_memory_does_not_accumulate() {
    on_each("pages::received_memory_does_not_accumulate", |fixture| {
        set_variable("HSA_KFD", "gpus=2,vram=64MiB");
        let library = Library::load(fixture.runtime());
        let new_buffer = || {
            let buffer = PagedBuffer::builder(4 * MIB).with_page_size(4 * MIB);
            buffer.reserve(&library.vmm, &library.shareable_on(0)).unwrap()
        };
        let target = new_buffer();
        for round in 0..40 {
            let source = new_buffer();
            source.map(0..1).unwrap_or_else(|error| panic!("round {round}: {error}"));
            if round % 2 == 0 {
                source.share_pages(0..1, &target, 0).unwrap();
            } else {
                source.move_pages(0..1, &target, 0).unwrap();
            }
            drop(source);
            target.unmap(0..1).unwrap();
        }
        drop(target);
        library.assert_everything_freed();
    });
}
