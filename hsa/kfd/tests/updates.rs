//! Effects of page-table changes on a GPU's engines: permissions and offsets of `GEM_VA`, entries that are
//! written late, a TLB, and entries that amdgpu forgets.

mod fixture;
mod kernel;

use fixture::run_preloaded;
use kernel::engine::Fault;
use kernel::{GTT, Gpu, MAP, PUBLIC, UNMAP, VRAM, call, calls, close, mmap, page_tables};
use libc::{EINVAL, ENOENT};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 2 * MIB;
/// The address of the memory under test.
const AT: u64 = 0x1000_0000;
/// The address of memory that the GPU can always use.
const OTHER: u64 = 0x2000_0000;

/// The address of the page that [`Setup::barrier`] maps.
const BARRIER: u64 = 0x3000_0000;

// Operations and flags of `GEM_VA`.
const CLEAR: u64 = 3;
const REPLACE: u64 = 4;
const NONE: u64 = 0;
const READ: u64 = 2;
const READ_WRITE: u64 = 6;

/// Memory of the first GPU.
struct Buffer {
    /// The memory's handle in amdkfd.
    kfd: u64,
    /// The memory's handle in DRM.
    gem: u64,
    /// The memory's address in this process.
    view: *mut u8,
}

impl Buffer {
    fn new(gpu: Gpu) -> Self {
        let (kfd, offset) = gpu.alloc(SIZE, VRAM | PUBLIC).unwrap();
        let descriptor = gpu.export(kfd).unwrap();
        let gem = gpu.prime(descriptor).unwrap();
        close(descriptor).unwrap();
        Self { kfd, gem, view: mmap(gpu.drm, offset, SIZE as usize).unwrap() }
    }

    fn byte(&self, offset: u64) -> u8 {
        // SAFETY: the byte is inside the mapping, which is never unmapped.
        unsafe { self.view.add(offset as usize).read_volatile() }
    }

    fn set_byte(&self, offset: u64, value: u8) {
        // SAFETY: the byte is inside the mapping, which is never unmapped.
        unsafe { self.view.add(offset as usize).write_volatile(value) };
    }
}

/// The first GPU, memory under test without a mapping, and other memory at `OTHER`.
struct Setup {
    gpu: Gpu,
    memory: Buffer,
    other: Buffer,
    /// The handle of the page that [`Self::barrier`] maps.
    page: u64,
}

impl Setup {
    fn new() -> Self {
        let gpu = Gpu::open();
        let [memory, other] = [(); 2].map(|()| Buffer::new(gpu));
        gpu.gem_va(other.gem, MAP, OTHER, SIZE).unwrap();
        let (page, _) = gpu.alloc_at(BARRIER, 4096, GTT).unwrap();
        let setup = Self { gpu, memory, other, page };
        setup.barrier();
        setup
    }

    /// Calls `GEM_VA` on the memory under test.
    fn va(&self, operation: u64, flags: u64, address: u64, offset: u64, size: u64) {
        let mut va = [self.memory.gem, operation | flags << 32, address, offset, size];
        call(self.gpu.drm, calls::GEM_VA, &mut va).unwrap();
    }

    /// Maps and unmaps a page with amdkfd, which makes all pending changes and flushes the TLB.
    fn barrier(&self) {
        self.gpu.map_memory(self.page).unwrap();
        self.gpu.unmap_memory(self.page).unwrap();
    }

    /// Reads a byte with the GPU.
    fn read(&self, address: u64) -> Result<u8, Fault> {
        self.other.set_byte(0, 0xee);
        self.gpu.copy(address, OTHER, 1).map(|()| self.other.byte(0))
    }

    /// Writes a byte with the GPU.
    fn write(&self, address: u64, value: u8) -> Result<(), Fault> {
        self.other.set_byte(0, value);
        self.gpu.copy(OTHER, address, 1)
    }
}

fn denied(address: u64) -> Fault {
    Fault { address, denied: true }
}

fn not_mapped(address: u64) -> Fault {
    Fault { address, denied: false }
}

/// Runs the body of a test in one child process for each list of keys of `HSA_KFD`.
fn with_keys<const N: usize>(name: &str, lists: [&str; N], body: impl Fn(Setup)) {
    for keys in lists {
        run_preloaded(name, &[("HSA_KFD", keys)], || body(Setup::new()));
        if fixture::is_child() {
            // This is the child process of one list. Its parent continues with the other lists.
            return;
        }
    }
}

#[test]
fn replace_sets_permissions_and_offset() {
    let lists = ["", "split_bug=on"];
    with_keys("replace_sets_permissions_and_offset", lists, |setup| {
        setup.memory.set_byte(MIB, 9);
        assert_eq!(setup.read(AT), Err(not_mapped(AT)));
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!((setup.write(AT, 1), setup.read(AT)), (Ok(()), Ok(1)));
        setup.va(REPLACE, READ, AT, 0, SIZE);
        assert_eq!((setup.write(AT, 2), setup.read(AT)), (Err(denied(AT)), Ok(1)));
        setup.va(REPLACE, NONE, AT, 0, SIZE);
        let both_denied = (Err(denied(AT)), Err(denied(AT)));
        assert_eq!((setup.write(AT, 2), setup.read(AT)), both_denied);
        // Replace the first half of the mapping by the second half of the memory.
        setup.va(REPLACE, READ_WRITE, AT, MIB, MIB);
        assert_eq!((setup.read(AT), setup.write(AT, 3)), (Ok(9), Ok(())));
        assert_eq!(setup.read(AT + MIB), Err(denied(AT + MIB)), "the other half");
        assert_eq!((setup.memory.byte(0), setup.memory.byte(MIB)), (1, 3));
        assert_eq!(page_tables().0.len(), 3);
        setup.va(UNMAP, NONE, AT, 0, SIZE);
        assert_eq!(page_tables().0.len(), 2, "UNMAP removes the part at its address");
        assert_eq!(setup.read(AT), Err(not_mapped(AT)));
        setup.va(UNMAP, NONE, AT + MIB, 0, SIZE);
        assert_eq!(page_tables().0.len(), 1);
    });
}

#[test]
fn tlb_is_flushed_by_amdkfd_only() {
    with_keys("tlb_is_flushed_by_amdkfd_only", ["tlb=on"], |setup| {
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(setup.write(AT, 1), Ok(()), "entries are written at once");
        setup.va(REPLACE, READ, AT, 0, SIZE);
        assert_eq!(setup.write(AT, 2), Ok(()), "the TLB has the old entry");
        setup.barrier();
        assert_eq!((setup.write(AT, 3), setup.read(AT)), (Err(denied(AT)), Ok(2)));
        setup.va(UNMAP, READ, AT, 0, SIZE);
        assert_eq!(setup.read(AT), Ok(2), "the TLB has the old entry");
        setup.gpu.map_memory(setup.page).unwrap();
        assert_eq!(setup.read(AT), Err(not_mapped(AT)));
        // A second `map_memory` of the same page changes nothing and does not flush the TLB.
        setup.va(MAP, READ, AT, 0, SIZE);
        assert_eq!(setup.read(AT), Ok(2));
        setup.va(UNMAP, READ, AT, 0, SIZE);
        setup.gpu.map_memory(setup.page).unwrap();
        assert_eq!(setup.read(AT), Ok(2));
        setup.gpu.unmap_memory(setup.page).unwrap();
        assert_eq!(setup.read(AT), Err(not_mapped(AT)));
    });
}

#[test]
fn sdma_jobs_write_entries_late() {
    let lists = ["pte_delay=600s", "pte_delay=600s,tlb=on"];
    with_keys("sdma_jobs_write_entries_late", lists, |setup| {
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(setup.write(AT, 1), Err(not_mapped(AT)), "not written yet");
        setup.barrier();
        assert_eq!(setup.write(AT, 1), Ok(()));
        setup.va(REPLACE, READ, AT, 0, SIZE);
        assert_eq!(setup.write(AT, 2), Ok(()), "not written yet");
        setup.barrier();
        assert_eq!((setup.write(AT, 3), setup.read(AT)), (Err(denied(AT)), Ok(2)));
        setup.va(UNMAP, READ, AT, 0, SIZE);
        assert_eq!(setup.read(AT), Ok(2), "not cleared yet");
        setup.gpu.gem_close(setup.memory.gem).unwrap();
        setup.barrier();
        assert_eq!(setup.read(AT), Err(not_mapped(AT)));
    });
}

#[test]
fn sdma_jobs_run_without_a_barrier() {
    with_keys("sdma_jobs_run_without_a_barrier", ["pte_delay=20ms,tlb=on"], |setup| {
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        while setup.write(AT, 1).is_err() {}
        setup.va(UNMAP, READ, AT, 0, SIZE);
        while setup.write(AT, 1).is_ok() {}
    });
}

/// A kernel defect: after `CLEAR` of a mapping's tail, `UNMAP` leaves the head's entries.
#[test]
fn split_bug_leaves_entries_in_the_hardware() {
    let name = "split_bug_leaves_entries_in_the_hardware";
    with_keys(name, ["split_bug=on"], |setup| {
        let (gpu, gem) = (setup.gpu, setup.memory.gem);
        setup.memory.set_byte(0, 7);
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        setup.va(CLEAR, NONE, AT + MIB, 0, MIB);
        setup.va(UNMAP, READ_WRITE, AT, 0, SIZE);
        setup.barrier();
        assert_eq!(page_tables().0.len(), 1, "only `OTHER` is mapped");
        assert_eq!(setup.read(AT), Ok(7), "the GPU can still read the memory");
        assert_eq!(setup.read(AT + MIB), Err(not_mapped(AT + MIB)));
        // A REPLACE of the whole mapping before UNMAP avoids the defect.
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        setup.va(CLEAR, NONE, AT + MIB, 0, MIB);
        setup.va(REPLACE, READ_WRITE, AT, 0, SIZE);
        setup.va(UNMAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(setup.read(AT), Err(not_mapped(AT)));
        // GEM_CLOSE also leaves the entries, which then refer to freed memory.
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        setup.va(CLEAR, NONE, AT, 0, MIB);
        gpu.gem_close(gem).unwrap();
        gpu.free(setup.memory.kfd).unwrap();
        setup.barrier();
        assert_eq!(setup.read(AT + MIB), Ok(0), "freed memory");
        assert_eq!(setup.read(AT), Err(not_mapped(AT)));
    });
}

/// A repeated import returns the same handle. One close frees the handle, and its number is reused.
#[test]
fn handle_numbers_are_reused() {
    with_keys("handle_numbers_are_reused", [""], |setup| {
        let (gpu, first) = (setup.gpu, &setup.memory);
        let descriptor = gpu.export(first.kfd).unwrap();
        assert_eq!(gpu.prime(descriptor), Ok(first.gem), "the same handle");
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        gpu.gem_close(first.gem).unwrap();
        assert_eq!(setup.read(AT), Err(not_mapped(AT)), "one close removes the mapping");
        assert_eq!(gpu.gem_close(first.gem), Err(EINVAL));
        assert_eq!(gpu.gem_va(first.gem, MAP, AT, SIZE), Err(ENOENT));
        let next = Buffer::new(gpu);
        assert_eq!(next.gem, first.gem);
        next.set_byte(0, 5);
        setup.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(setup.read(AT), Ok(5), "the number refers to other memory");
    });
}
