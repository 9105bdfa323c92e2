//! Compares paged and pausable buffers with plain vectors under random operations.

use crate::errors::page_error;
use crate::fault_injection::ERROR;
use crate::machine::{KIB, Machine, generations};
use crate::pausable::run_in_child;
use hsa_vmm::Access;
use hsa_vmm::Error;
use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, PauseMode};
use hsa_vmm::error::{ErrorKind, Problem};
use hsa_vmm::simulation::FaultPlan;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::HashSet;

const PAGE: usize = 4 * KIB;
const PAGES: usize = 12;

/// The contents of memory. A byte that was never written may have any value.
type Bytes = Vec<Option<u8>>;

fn config() -> ProptestConfig {
    let cases = std::env::var("HSA_VMM_BUFFER_CASES").ok();
    let cases = cases.map_or(64, |text| text.parse().unwrap());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

fn matches_model(found: &[u8], expected: &[Option<u8>]) -> bool {
    found
        .iter()
        .zip(expected)
        .all(|(byte, expected)| expected.is_none_or(|expected| expected == *byte))
}

#[derive(Clone, Debug)]
enum PageOperation {
    Map(usize, usize),
    Unmap(usize, usize),
    Write { offset: usize, size: usize, seed: u8 },
    Fill { page: usize, value: u8 },
    Read { offset: usize, size: usize },
    Move { first: usize, count: usize, to: usize, between_buffers: bool },
    Share { first: usize, count: usize, to: usize, between_buffers: bool },
    Exchange { first: usize, count: usize, to: usize, between_buffers: bool },
    Trim,
}

fn page_operation() -> impl Strategy<Value = PageOperation> {
    let range = || (0..PAGES + 1, 0..5usize);
    let bytes = || (0..(PAGES + 1) * PAGE, 0..3 * PAGE);
    prop_oneof![
        4 => range().prop_map(|(first, count)| PageOperation::Map(first, count)),
        3 => range().prop_map(|(first, count)| PageOperation::Unmap(first, count)),
        4 => (bytes(), any::<u8>())
            .prop_map(|((offset, size), seed)| PageOperation::Write { offset, size, seed }),
        1 => (0..PAGES, any::<u8>()).prop_map(|(page, value)| PageOperation::Fill { page, value }),
        2 => bytes().prop_map(|(offset, size)| PageOperation::Read { offset, size }),
        2 => (range(), 0..PAGES, any::<bool>()).prop_map(|((first, count), to, between_buffers)| {
            PageOperation::Move { first, count, to, between_buffers }
        }),
        3 => (range(), 0..PAGES, any::<bool>()).prop_map(|((first, count), to, between_buffers)| {
            PageOperation::Share { first, count, to, between_buffers }
        }),
        2 => (range(), 0..PAGES, any::<bool>()).prop_map(|((first, count), to, between_buffers)| {
            PageOperation::Exchange { first, count, to, between_buffers }
        }),
        1 => Just(PageOperation::Trim),
    ]
}

/// The expected state of two paged buffers.
#[derive(Clone)]
struct Model {
    /// The number of each page's memory. Shared pages have the same number.
    pages: [Vec<Option<usize>>; 2],
    memory: Vec<Bytes>,
    /// Whether each buffer has a zero page.
    zeros: [bool; 2],
}

impl Model {
    /// Returns whether all pages of a range are mapped, or unmapped if `mapped` is false.
    fn all_have_state(&self, buffer: usize, first: usize, count: usize, mapped: bool) -> bool {
        first + count <= PAGES
            && self.pages[buffer][first..first + count].iter().all(|page| page.is_some() == mapped)
    }

    /// Checks the arguments of moving, exchanging and sharing. Returns the index of the target buffer, or `None` if the
    /// arguments are invalid. The pages of the target must be mapped if `mapped` is true, and unmapped otherwise.
    fn target(
        &self,
        (first, count): (usize, usize),
        to: usize,
        between_buffers: bool,
        mapped: bool,
    ) -> Option<usize> {
        let target = usize::from(between_buffers);
        let disjoint = between_buffers || first + count <= to || to + count <= first;
        let is_valid = disjoint
            && self.all_have_state(0, first, count, true)
            && self.all_have_state(target, to, count, mapped);
        is_valid.then_some(target)
    }

    /// Returns the expected byte at an offset of the first buffer. Unmapped pages contain zeros.
    fn byte(&self, offset: usize) -> Option<u8> {
        self.pages[0][offset / PAGE].map_or(Some(0), |index| self.memory[index][offset % PAGE])
    }

    /// Returns the expected bytes of a read, or `None` if the read should fail.
    fn bytes(&self, offset: usize, size: usize, zeros_are_readable: bool) -> Option<Bytes> {
        let end = offset + size;
        if end > PAGES * PAGE {
            return None;
        }
        let mut pages = offset / PAGE..end.div_ceil(PAGE);
        if !zeros_are_readable && pages.any(|page| self.pages[0][page].is_none()) {
            return None;
        }
        Some((offset..end).map(|offset| self.byte(offset)).collect())
    }

    fn write(&mut self, offset: usize, bytes: impl IntoIterator<Item = Option<u8>>) {
        for (offset, byte) in (offset..).zip(bytes) {
            if let Some(index) = self.pages[0][offset / PAGE] {
                self.memory[index][offset % PAGE] = byte;
            }
        }
    }

    /// Returns the number of pages with the same memory as this page, or 0 if this page is not mapped.
    fn users(&self, buffer: usize, page: usize) -> usize {
        let memory = self.pages[buffer][page];
        let has_same_memory = |other: &&Option<usize>| other.is_some() && **other == memory;
        self.pages.iter().flatten().filter(has_same_memory).count()
    }

    /// Applies an operation. Returns the expected bytes of a read, or `None` if the operation should be rejected.
    fn apply(&mut self, operation: &PageOperation) -> Option<Bytes> {
        match *operation {
            PageOperation::Map(first, count) => {
                if !self.all_have_state(0, first, count, false) {
                    return None;
                }
                for page in first..first + count {
                    self.pages[0][page] = Some(self.memory.len());
                    self.memory.push(vec![None; PAGE]);
                }
            }
            PageOperation::Unmap(first, count) => {
                if !self.all_have_state(0, first, count, true) {
                    return None;
                }
                self.pages[0][first..first + count].fill(None);
            }
            PageOperation::Write { offset, size, seed } => {
                self.bytes(offset, size, false)?;
                self.write(offset, test_bytes(size, seed).into_iter().map(Some));
            }
            PageOperation::Fill { page, value } => {
                self.bytes(page * PAGE, PAGE, false)?;
                self.write(page * PAGE, [Some(value); PAGE]);
            }
            PageOperation::Read { offset, size } => {
                return self.bytes(offset, size, self.zeros[0]);
            }
            PageOperation::Move { first, count, to, between_buffers } => {
                let target = self.target((first, count), to, between_buffers, false)?;
                for page in 0..count {
                    self.pages[target][to + page] = self.pages[0][first + page].take();
                }
            }
            PageOperation::Share { first, count, to, between_buffers } => {
                let target = self.target((first, count), to, between_buffers, false)?;
                for page in 0..count {
                    self.pages[target][to + page] = self.pages[0][first + page];
                }
            }
            PageOperation::Exchange { first, count, to, between_buffers } => {
                let target = self.target((first, count), to, between_buffers, true)?;
                for page in 0..count {
                    let page_memory = self.pages[0][first + page].take();
                    self.pages[0][first + page] = self.pages[target][to + page].take();
                    self.pages[target][to + page] = page_memory;
                }
            }
            PageOperation::Trim => {}
        }
        Some(Bytes::new())
    }
}

/// Two buffers, and the model with their expected state.
struct Pair {
    model: Model,
    buffers: [PagedBuffer; 2],
    machine: Machine,
}

impl Pair {
    fn new(generation: usize, zeros: [bool; 2], ahead: usize) -> Self {
        let machine = Machine::new(generations()[generation].1.clone());
        let buffers = zeros.map(|has_zero_page| {
            let options =
                PagedBuffer::builder(PAGES * PAGE).with_page_size(PAGE).with_pages_ahead(ahead);
            let options = if has_zero_page { options.with_zero_page() } else { options };
            let buffer = options.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
            buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
            buffer
        });
        let pages = [vec![None; PAGES], vec![None; PAGES]];
        Self { model: Model { pages, memory: Vec::new(), zeros }, buffers, machine }
    }

    /// Applies an operation to the buffers and the model. If `fault` is a number, the runtime call with this number
    /// fails. If the operation fails for this reason, the buffers must still match the model's previous state.
    fn step(&mut self, operation: &PageOperation, fault: Option<u64>) {
        let faults =
            fault.map_or(FaultPlan::none(), |call| FaultPlan::none().fail_any(call, ERROR));
        let before = self.model.clone();
        let expected = self.model.apply(operation);
        self.machine.simulation.set_faults(faults);
        let (result, found) = self.perform(operation);
        let failed = !self.machine.simulation.failed_calls().is_empty();
        self.machine.simulation.set_faults(FaultPlan::none());
        match (expected, &result) {
            (None, result) => assert!(result.is_err(), "{operation:?} should fail"),
            (Some(_), Err(error)) => {
                assert!(failed, "{operation:?}: {error}");
                assert!(!matches!(error.kind(), ErrorKind::PagesLost { .. }), "{error}");
                self.model = before;
                // A failed fill may have written a part.
                if let PageOperation::Fill { page, .. } = *operation {
                    self.model.write(page * PAGE, [None; PAGE]);
                }
            }
            (Some(expected), Ok(())) => assert!(matches_model(&found, &expected), "{operation:?}"),
        }
        self.assert_equal();
    }

    fn perform(&self, operation: &PageOperation) -> (Result<(), Error>, Vec<u8>) {
        let buffer = &self.buffers[0];
        let target = |between_buffers| &self.buffers[usize::from(between_buffers)];
        let mut found = Vec::new();
        let result = match *operation {
            PageOperation::Map(first, count) => buffer.map(first..first + count),
            PageOperation::Unmap(first, count) => buffer.unmap(first..first + count),
            PageOperation::Write { offset, size, seed } => {
                buffer.write(offset, &test_bytes(size, seed))
            }
            PageOperation::Fill { page, value } => {
                buffer.fill(page * PAGE, u32::from_ne_bytes([value; 4]), PAGE)
            }
            PageOperation::Read { offset, size } => {
                found = vec![0xee; size];
                buffer.read(offset, &mut found)
            }
            PageOperation::Move { first, count, to, between_buffers } => {
                buffer.move_pages(first..first + count, target(between_buffers), to)
            }
            PageOperation::Share { first, count, to, between_buffers } => {
                buffer.share_pages(first..first + count, target(between_buffers), to)
            }
            PageOperation::Exchange { first, count, to, between_buffers } => {
                buffer.exchange_pages(first..first + count, target(between_buffers), to)
            }
            PageOperation::Trim => buffer.trim(),
        };
        (result, found)
    }

    fn assert_equal(&self) {
        self.machine.vmm.check().unwrap();
        let Self { model, buffers, .. } = self;
        for (number, buffer) in buffers.iter().enumerate() {
            let mapped: Vec<usize> = model.pages[number].iter().flatten().copied().collect();
            let distinct: HashSet<usize> = mapped.iter().copied().collect();
            let shared = (0..PAGES).filter(|&page| model.users(number, page) > 1).count();
            let statistics = buffer.statistics();
            assert_eq!((statistics.mapped, statistics.lost), (mapped.len(), 0));
            assert_eq!(
                (statistics.shared, statistics.repeated),
                (shared, mapped.len() - distinct.len())
            );
            for page in 0..PAGES {
                assert_eq!(buffer.page_users(page), Ok(model.users(number, page)), "page {page}");
                let mut bytes = vec![0xee; PAGE];
                let expected = model.pages[number][page].map(|index| &model.memory[index]);
                let has_zero_page = model.zeros[number];
                match (buffer.read(page * PAGE, &mut bytes), expected) {
                    (Ok(()), Some(expected)) => {
                        assert!(matches_model(&bytes, expected), "page {page}")
                    }
                    (Ok(()), None) => {
                        assert!(
                            has_zero_page && bytes.iter().all(|byte| *byte == 0),
                            "page {page}"
                        );
                    }
                    (Err(error), expected) => {
                        assert!(!has_zero_page && expected.is_none(), "page {page}: {error}");
                        assert_eq!(error.into_kind(), page_error(page, Problem::PageNotMapped));
                    }
                }
            }
        }
    }
}

fn test_bytes(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|offset| (offset as u8).wrapping_mul(31) ^ seed).collect()
}

#[test]
fn paged_buffers_match_vectors() {
    let operations = proptest::collection::vec(
        (page_operation(), proptest::option::weighted(0.2, 1..10u64)),
        1..30,
    );
    let case = (0..5usize, any::<[bool; 2]>(), 0..3usize, operations);
    TestRunner::new(config())
        .run(&case, |(generation, zeros, ahead, operations)| {
            let mut pair = Pair::new(generation, zeros, ahead);
            for (operation, fault) in &operations {
                // If a thread maps pages ahead, the fault could hit a call of that thread.
                pair.step(operation, fault.filter(|_| ahead == 0));
            }
            let Pair { buffers, machine, .. } = pair;
            drop(buffers);
            machine.assert_everything_freed();
            assert_eq!(machine.used_by(0), 0);
            Ok(())
        })
        .unwrap();
}

#[derive(Clone, Debug)]
enum PauseOperation {
    Pause(PauseMode),
    Resume,
    ResumeAnywhere,
    Write { offset: usize, size: usize, seed: u8 },
    Read { offset: usize, size: usize },
    Grant(usize, Access),
}

const SIZE: usize = 3 * PAGE - 100;

fn pause_operation() -> impl Strategy<Value = PauseOperation> {
    let bytes = || (0..SIZE + 100, 0..SIZE);
    let access = prop_oneof![Just(Access::None), Just(Access::Read), Just(Access::ReadWrite)];
    let mode = prop_oneof![3 => Just(PauseMode::Save), 1 => Just(PauseMode::Discard)];
    prop_oneof![
        3 => mode.prop_map(PauseOperation::Pause),
        3 => Just(PauseOperation::Resume),
        1 => Just(PauseOperation::ResumeAnywhere),
        4 => (bytes(), any::<u8>())
            .prop_map(|((offset, size), seed)| PauseOperation::Write { offset, size, seed }),
        2 => bytes().prop_map(|(offset, size)| PauseOperation::Read { offset, size }),
        1 => (0..3usize, access).prop_map(|(agent, access)| PauseOperation::Grant(agent, access)),
    ]
}

/// The expected state of a pausable buffer.
#[derive(Clone)]
struct PausableModel {
    bytes: Bytes,
    paused: bool,
    access: [Access; 3],
}

impl PausableModel {
    /// Applies an operation. Returns the expected bytes of a read, or `None` if the operation should be rejected.
    fn apply(&mut self, operation: &PauseOperation) -> Option<Bytes> {
        let has_access = |size: usize, access| size == 0 || self.access[0] >= access;
        match *operation {
            PauseOperation::Pause(mode) => {
                if std::mem::replace(&mut self.paused, true) {
                    return None;
                }
                if mode == PauseMode::Discard {
                    self.bytes.fill(None);
                }
            }
            PauseOperation::Resume | PauseOperation::ResumeAnywhere => {
                if !std::mem::replace(&mut self.paused, false) {
                    return None;
                }
            }
            PauseOperation::Write { offset, size, seed } => {
                if self.paused || offset + size > SIZE || !has_access(size, Access::ReadWrite) {
                    return None;
                }
                for (expected, byte) in self.bytes[offset..].iter_mut().zip(test_bytes(size, seed))
                {
                    *expected = Some(byte);
                }
            }
            PauseOperation::Read { offset, size } => {
                if self.paused || offset + size > SIZE || !has_access(size, Access::Read) {
                    return None;
                }
                return Some(self.bytes[offset..offset + size].to_vec());
            }
            PauseOperation::Grant(agent, access) => self.access[agent] = access,
        }
        Some(Bytes::new())
    }
}

#[test]
fn pausable_buffer_matches_a_vector() {
    let operations = proptest::collection::vec(
        (pause_operation(), proptest::option::weighted(0.2, 1..12u64)),
        1..30,
    );
    run_in_child(|| {
        TestRunner::new(config())
            .run(&(0..5usize, operations), |(generation, operations)| {
                check_pausable(generation, &operations);
                Ok(())
            })
            .unwrap();
    });
}

fn check_pausable(generation: usize, operations: &[(PauseOperation, Option<u64>)]) {
    let machine = Machine::new(generations()[generation].1.clone());
    let mut buffer = PausableBuffer::create(&machine.vmm, SIZE, &machine.shareable_on(0)).unwrap();
    let mut model =
        PausableModel { bytes: vec![None; SIZE], paused: false, access: [Access::None; 3] };
    let agents = [machine.cpu(0), machine.gpu(0), machine.gpu(1)];
    for (operation, fault) in operations {
        let before = model.clone();
        let expected = model.apply(operation);
        let plan = fault.map_or(FaultPlan::none(), |call| FaultPlan::none().fail_any(call, ERROR));
        machine.simulation.set_faults(plan);
        let mut found = Vec::new();
        let result = match *operation {
            PauseOperation::Pause(mode) => buffer.pause(mode),
            PauseOperation::Resume => buffer.resume(),
            PauseOperation::ResumeAnywhere => buffer.resume_anywhere().map(drop),
            PauseOperation::Write { offset, size, seed } => {
                buffer.write(offset, &test_bytes(size, seed))
            }
            PauseOperation::Read { offset, size } => {
                found = vec![0xee; size];
                buffer.read(offset, &mut found)
            }
            PauseOperation::Grant(agent, access) => buffer.grant(&[agents[agent]], access),
        };
        let failed = !machine.simulation.failed_calls().is_empty();
        machine.simulation.set_faults(FaultPlan::none());
        match (expected, result) {
            (None, result) => assert!(result.is_err(), "{operation:?} should fail"),
            (Some(expected), Ok(())) => assert!(matches_model(&found, &expected), "{operation:?}"),
            (Some(_), Err(error)) => {
                assert!(failed, "{operation:?}: {error}");
                model = before;
            }
        }
        machine.vmm.check().unwrap();
        assert_eq!(buffer.is_paused(), model.paused, "{operation:?}");
        for (agent, access) in agents.into_iter().zip(model.access) {
            assert_eq!(buffer.access(agent), Ok(access));
            if !model.paused {
                assert_eq!(machine.vmm.get_access(agent, buffer.address()), Ok(access));
            }
        }
    }
    if buffer.is_paused() {
        buffer.resume().unwrap();
    }
    buffer.grant(&agents[..1], Access::Read).unwrap();
    let mut found = vec![0; SIZE];
    buffer.read(0, &mut found).unwrap();
    assert!(matches_model(&found, &model.bytes), "after all operations");
    drop(buffer);
    // A planned fault may have prevented the unlock of this process's memory. The checks ignore locked memory.
    machine.assert_everything_freed();
    assert_eq!(machine.used_by(0), 0);
}
