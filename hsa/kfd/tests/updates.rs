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

/// The address of the page that [`Machine::barrier`] maps.
const BARRIER: u64 = 0x3000_0000;

// Operations and flags of `GEM_VA`.
const CLEAR: u64 = 3;
const REPLACE: u64 = 4;
const NONE: u64 = 0;
const READ: u64 = 2;
const READ_WRITE: u64 = 6;

/// Memory of the first GPU.
struct Buffer {
    /// Its handles in amdkfd and DRM.
    kfd: u64,
    gem: u64,
    /// Its address in this process.
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
        // SAFETY: inside the mapping, which is never unmapped.
        unsafe { self.view.add(offset as usize).read_volatile() }
    }

    fn set_byte(&self, offset: u64, value: u8) {
        // SAFETY: as above.
        unsafe { self.view.add(offset as usize).write_volatile(value) };
    }
}

/// The first GPU, memory under test without a mapping, and other memory at `OTHER`.
struct Machine {
    gpu: Gpu,
    memory: Buffer,
    other: Buffer,
    /// The handle of the page that [`Self::barrier`] maps.
    page: u64,
}

impl Machine {
    fn new() -> Self {
        let gpu = Gpu::open();
        let [memory, other] = [(); 2].map(|()| Buffer::new(gpu));
        gpu.gem_va(other.gem, MAP, OTHER, SIZE).unwrap();
        let (page, _) = gpu.alloc_at(BARRIER, 4096, GTT).unwrap();
        let machine = Self { gpu, memory, other, page };
        machine.barrier();
        machine
    }

    /// Calls `GEM_VA` on the memory under test.
    fn va(&self, operation: u64, flags: u64, address: u64, offset: u64, size: u64) {
        let mut va = [self.memory.gem, operation | flags << 32, address, offset, size];
        call(self.gpu.drm, calls::GEM_VA, &mut va).unwrap();
    }

    /// Maps and unmaps a page with amdkfd.
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

/// Runs the body of a test in a process for each list of keys.
fn with_keys<const N: usize>(name: &str, lists: [&str; N], body: impl Fn(Machine)) {
    for keys in lists {
        run_preloaded(name, &[("HSA_KFD", keys)], || body(Machine::new()));
        if fixture::is_child() {
            // This child process has the keys of one list.
            return;
        }
    }
}

#[test]
fn replace_sets_permissions_and_offset() {
    let lists = ["", "split_bug=on"];
    with_keys("replace_sets_permissions_and_offset", lists, |machine| {
        machine.memory.set_byte(MIB, 9);
        assert_eq!(machine.read(AT), Err(not_mapped(AT)));
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!((machine.write(AT, 1), machine.read(AT)), (Ok(()), Ok(1)));
        machine.va(REPLACE, READ, AT, 0, SIZE);
        assert_eq!((machine.write(AT, 2), machine.read(AT)), (Err(denied(AT)), Ok(1)));
        machine.va(REPLACE, NONE, AT, 0, SIZE);
        let both_denied = (Err(denied(AT)), Err(denied(AT)));
        assert_eq!((machine.write(AT, 2), machine.read(AT)), both_denied);
        // Replace the first half of the mapping by the second half of the memory.
        machine.va(REPLACE, READ_WRITE, AT, MIB, MIB);
        assert_eq!((machine.read(AT), machine.write(AT, 3)), (Ok(9), Ok(())));
        assert_eq!(machine.read(AT + MIB), Err(denied(AT + MIB)), "the other half");
        assert_eq!((machine.memory.byte(0), machine.memory.byte(MIB)), (1, 3));
        assert_eq!(page_tables().0.len(), 3);
        machine.va(UNMAP, NONE, AT, 0, SIZE);
        assert_eq!(page_tables().0.len(), 2, "UNMAP removes the part at its address");
        assert_eq!(machine.read(AT), Err(not_mapped(AT)));
        machine.va(UNMAP, NONE, AT + MIB, 0, SIZE);
        assert_eq!(page_tables().0.len(), 1);
    });
}

#[test]
fn tlb_is_flushed_by_amdkfd_only() {
    with_keys("tlb_is_flushed_by_amdkfd_only", ["tlb=on"], |machine| {
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(machine.write(AT, 1), Ok(()), "entries are written at once");
        machine.va(REPLACE, READ, AT, 0, SIZE);
        assert_eq!(machine.write(AT, 2), Ok(()), "the TLB has the old entry");
        machine.barrier();
        assert_eq!((machine.write(AT, 3), machine.read(AT)), (Err(denied(AT)), Ok(2)));
        machine.va(UNMAP, READ, AT, 0, SIZE);
        assert_eq!(machine.read(AT), Ok(2), "the TLB has the old entry");
        machine.gpu.map_memory(machine.page).unwrap();
        assert_eq!(machine.read(AT), Err(not_mapped(AT)));
        // A second `map_memory` of the same page changes nothing and does not flush the TLB.
        machine.va(MAP, READ, AT, 0, SIZE);
        assert_eq!(machine.read(AT), Ok(2));
        machine.va(UNMAP, READ, AT, 0, SIZE);
        machine.gpu.map_memory(machine.page).unwrap();
        assert_eq!(machine.read(AT), Ok(2));
        machine.gpu.unmap_memory(machine.page).unwrap();
        assert_eq!(machine.read(AT), Err(not_mapped(AT)));
    });
}

#[test]
fn sdma_jobs_write_entries_late() {
    let lists = ["pte_delay=600s", "pte_delay=600s,tlb=on"];
    with_keys("sdma_jobs_write_entries_late", lists, |machine| {
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(machine.write(AT, 1), Err(not_mapped(AT)), "not written yet");
        machine.barrier();
        assert_eq!(machine.write(AT, 1), Ok(()));
        machine.va(REPLACE, READ, AT, 0, SIZE);
        assert_eq!(machine.write(AT, 2), Ok(()), "not written yet");
        machine.barrier();
        assert_eq!((machine.write(AT, 3), machine.read(AT)), (Err(denied(AT)), Ok(2)));
        machine.va(UNMAP, READ, AT, 0, SIZE);
        assert_eq!(machine.read(AT), Ok(2), "not cleared yet");
        machine.gpu.gem_close(machine.memory.gem).unwrap();
        machine.barrier();
        assert_eq!(machine.read(AT), Err(not_mapped(AT)));
    });
}

#[test]
fn sdma_jobs_run_without_a_barrier() {
    with_keys("sdma_jobs_run_without_a_barrier", ["pte_delay=20ms,tlb=on"], |machine| {
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        while machine.write(AT, 1).is_err() {}
        machine.va(UNMAP, READ, AT, 0, SIZE);
        while machine.write(AT, 1).is_ok() {}
    });
}

/// A kernel defect: after `CLEAR` of a mapping's tail, `UNMAP` leaves the head's entries.
#[test]
fn split_bug_leaves_entries_in_the_hardware() {
    let name = "split_bug_leaves_entries_in_the_hardware";
    with_keys(name, ["split_bug=on"], |machine| {
        let (gpu, gem) = (machine.gpu, machine.memory.gem);
        machine.memory.set_byte(0, 7);
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        machine.va(CLEAR, NONE, AT + MIB, 0, MIB);
        machine.va(UNMAP, READ_WRITE, AT, 0, SIZE);
        machine.barrier();
        assert_eq!(page_tables().0.len(), 1, "amdgpu has no mapping");
        assert_eq!(machine.read(AT), Ok(7), "the GPU can still read the memory");
        assert_eq!(machine.read(AT + MIB), Err(not_mapped(AT + MIB)));
        // A REPLACE of the whole mapping before UNMAP avoids the defect.
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        machine.va(CLEAR, NONE, AT + MIB, 0, MIB);
        machine.va(REPLACE, READ_WRITE, AT, 0, SIZE);
        machine.va(UNMAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(machine.read(AT), Err(not_mapped(AT)));
        // GEM_CLOSE also leaves the entries, which then refer to freed memory.
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        machine.va(CLEAR, NONE, AT, 0, MIB);
        gpu.gem_close(gem).unwrap();
        gpu.free(machine.memory.kfd).unwrap();
        machine.barrier();
        assert_eq!(machine.read(AT + MIB), Ok(0), "freed memory");
        assert_eq!(machine.read(AT), Err(not_mapped(AT)));
    });
}

/// A repeated import returns the same handle. One close frees the handle, and its number is reused.
#[test]
fn handle_numbers_are_reused() {
    with_keys("handle_numbers_are_reused", [""], |machine| {
        let (gpu, first) = (machine.gpu, &machine.memory);
        let descriptor = gpu.export(first.kfd).unwrap();
        assert_eq!(gpu.prime(descriptor), Ok(first.gem), "the same handle");
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        gpu.gem_close(first.gem).unwrap();
        assert_eq!(machine.read(AT), Err(not_mapped(AT)), "one close removes the mapping");
        assert_eq!(gpu.gem_close(first.gem), Err(EINVAL));
        assert_eq!(gpu.gem_va(first.gem, MAP, AT, SIZE), Err(ENOENT));
        let next = Buffer::new(gpu);
        assert_eq!(next.gem, first.gem);
        next.set_byte(0, 5);
        machine.va(MAP, READ_WRITE, AT, 0, SIZE);
        assert_eq!(machine.read(AT), Ok(5), "the number refers to other memory");
    });
}
