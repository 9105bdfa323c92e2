//! Replaced entries of GPUs' page tables, and changes of entries that take effect late.

mod setup;

use setup::*;
use std::os::fd::BorrowedFd;

const PAGE: usize = 4 * KIB;

/// Permissions of an entry: the sum of 1 (readable) and 2 (writable).
const READ: u32 = 1;
const READ_WRITE: u32 = 3;

/// A simulation with a mapping of three pages that GPU 0 can access.
struct Mapped {
    setup: Setup,
    base: usize,
    descriptor: i32,
}

impl Mapped {
    fn new(config: &str) -> Self {
        let setup = start(config);
        let (base, handle) = setup.mapped(3 * PAGE, &[]);
        assert_eq!(setup.set(base, 3 * PAGE, &[(setup.gpus[0], RW)]), OK);
        let descriptor = setup.export(handle).expect("a descriptor");
        let mapped = Self { setup, base, descriptor };
        mapped.flush();
        mapped
    }

    /// Maps `count` pages of the memory, from `memory_page` on, at the page `page` of the range.
    fn replace(
        &self,
        page: usize,
        count: usize,
        memory_page: usize,
        permissions: u32,
    ) -> hsa_status_t {
        let start = self.base + page * PAGE;
        // SAFETY: the descriptor stays open until the end of the test.
        let memory = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        let (gpu, range) = (self.setup.gpus[0], start..start + count * PAGE);
        match self.setup.simulation.replace_entries(
            gpu,
            memory,
            range,
            memory_page * PAGE,
            permissions,
        ) {
            Ok(()) => OK,
            Err(status) => status,
        }
    }

    /// Returns an element for each of the three pages of addresses: the page of the memory that the
    /// GPU accesses through these addresses, and whether the GPU can write. `None` if the GPU
    /// cannot read.
    fn pages(&self) -> [Option<(usize, bool)>; 3] {
        [0, 1, 2].map(|page| {
            let page = self.setup.simulation.page(0, self.base + page * PAGE)?;
            page.readable.then_some((page.offset as usize / PAGE, page.writable))
        })
    }

    /// Makes earlier changes take effect.
    fn flush(&self) {
        let page = [0u8; PAGE];
        let address = page.as_ptr().addr();
        self.setup.lock(address, PAGE).expect("the page is locked");
        self.setup.unlock(address);
    }
}

const UNCHANGED: [Option<(usize, bool)>; 3] = [Some((0, true)), Some((1, true)), Some((2, true))];

#[test]
fn replace_splits_the_surrounding_entry() {
    let mapped = Mapped::new("");
    assert_eq!(mapped.pages(), UNCHANGED);
    assert_eq!(mapped.replace(1, 1, 2, READ), OK);
    assert_eq!(mapped.pages(), [Some((0, true)), Some((2, false)), Some((2, true))]);
    assert_eq!(mapped.replace(0, 3, 0, 0), OK);
    assert_eq!(mapped.pages(), [None; 3]);
    assert_eq!(mapped.replace(0, 3, 0, READ_WRITE), OK);
    assert_eq!(mapped.pages(), UNCHANGED);
    assert_eq!(mapped.setup.unmap(mapped.base, 3 * PAGE), OK);
    assert_eq!(mapped.pages(), [None; 3]);
}

/// A defect of AMD's kernel driver: an unmap removes only the entry that starts at the address.
#[test]
fn unmap_leaves_entries_that_replaced_a_part() {
    let mapped = Mapped::new("");
    assert_eq!(mapped.replace(1, 1, 1, READ), OK);
    assert_eq!(mapped.setup.unmap(mapped.base, 3 * PAGE), OK);
    assert_eq!(mapped.pages(), [None, Some((1, false)), Some((2, true))]);
}

#[test]
fn invalid_replacements_change_nothing() {
    let mapped = Mapped::new("");
    let replace = |gpu, descriptor, range, offset| {
        // SAFETY: the descriptors are open: the process's standard input, and the descriptor of the memory.
        let memory = unsafe { BorrowedFd::borrow_raw(descriptor) };
        mapped.setup.simulation.replace_entries(gpu, memory, range, offset, READ)
    };
    let (gpu, memory, base) = (mapped.setup.gpus[0], mapped.descriptor, mapped.base);
    assert_eq!(
        replace(gpu, memory, base..base + 3 * PAGE, PAGE),
        Err(INVALID_ARGUMENT),
        "too large"
    );
    assert_eq!(replace(gpu, memory, base..base + 1, 0), Err(INVALID_ARGUMENT), "not a whole page");
    assert_eq!(replace(gpu, memory, base..base, 0), Err(INVALID_ARGUMENT), "an empty range");
    assert_eq!(
        replace(gpu, memory, base..base + PAGE, usize::MAX - PAGE + 1),
        Err(INVALID_ARGUMENT)
    );
    assert_eq!(replace(gpu, 0, base..base + PAGE, 0), Err(INVALID_ARGUMENT), "no memory");
    assert_eq!(replace(mapped.setup.cpus[0], memory, base..base + PAGE, 0), Err(INVALID_AGENT));
    assert_eq!(mapped.pages(), UNCHANGED);
}

#[test]
fn used_entries_stay_in_effect_until_a_flush() {
    let mapped = Mapped::new("page-tables=not-flushed");
    // The GPU has not used the entry since the last flush, so the entry is not in its TLB. The
    // change takes effect at once.
    assert_eq!(mapped.replace(0, 3, 0, READ), OK);
    assert_eq!(mapped.pages().map(|page| page.map(|(_, writable)| writable)), [Some(false); 3]);
    assert_eq!(mapped.replace(0, 3, 0, READ_WRITE), OK);
    assert_eq!(mapped.pages().map(|page| page.map(|(_, writable)| writable)), [Some(false); 3]);
    mapped.flush();
    assert_eq!(mapped.pages(), UNCHANGED);
    assert_eq!(mapped.setup.unmap(mapped.base, 3 * PAGE), OK);
    assert_eq!(mapped.pages(), UNCHANGED, "the GPU can still use the memory");
    mapped.flush();
    assert_eq!(mapped.pages(), [None; 3]);
}

#[test]
fn late_entries_take_effect_at_a_flush() {
    let mapped = Mapped::new("page-tables=late");
    assert_eq!(mapped.replace(0, 1, 1, READ), OK);
    assert_eq!(mapped.pages(), UNCHANGED);
    mapped.flush();
    assert_eq!(mapped.pages()[0], Some((1, false)));
    let (second, _) = mapped.setup.mapped(PAGE, &[(mapped.setup.gpus[0], RW)]);
    assert_eq!(mapped.setup.simulation.page(0, second), None);
    mapped.flush();
    assert!(mapped.setup.simulation.page(0, second).is_some());
}
