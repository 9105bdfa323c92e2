//! Page tables on AMD's runtime and the emulated kernel driver.

use super::{AddressSpace, DriverError, KernelGpu, KfdPage, Libdrm, PagePermissions};
use crate::native::{CopyEngine, Native, NativeAccess, NativeAgent, NativeHandle, NativePool};
use hsa_rocr::Emulation;
use hsa_rocr::test::{Fixture, run_on_releases};
use hsa_sys as sys;
use hsa_sys::Search;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const HALF: usize = 2 << 20;
const SIZE: usize = 2 * HALF;

/// AMD's runtime, its GPUs, and two mappings of memory of the first GPU.
struct RuntimeWithMemory {
    native: Native,
    gpus: Vec<(NativeAgent, KernelGpu)>,
    memory: MappedMemory,
    /// The destination of copies.
    copy_target: MappedMemory,
}

/// Memory that every GPU can access at an address.
struct MappedMemory {
    address: usize,
    handle: NativeHandle,
    descriptor: OwnedFd,
}

fn start(fixture: &Fixture) -> Native {
    // SAFETY: the file is AMD's runtime.
    let native = unsafe { Native::load(&Search::only(fixture.runtime())) }.unwrap();
    native.init().unwrap();
    native
}

fn gpus(native: &Native) -> Vec<(NativeAgent, KernelGpu)> {
    let agents = native.agents().unwrap().into_iter();
    let attribute =
        |agent, attribute| native.agent_attribute(agent, attribute).unwrap().number::<u32>();
    let is_gpu =
        |agent: &_| attribute(*agent, sys::HSA_AGENT_INFO_DEVICE) == sys::HSA_DEVICE_TYPE_GPU;
    let node = |agent| attribute(agent, sys::HSA_AMD_AGENT_INFO_DRIVER_NODE_ID);
    let with_kernel_gpu = |agent| (agent, KernelGpu::of_node(node(agent)).unwrap());
    agents.filter(is_gpu).map(with_kernel_gpu).collect()
}

fn map_memory(native: &Native, pool: NativePool, gpus: &[NativeAgent]) -> MappedMemory {
    let address = native.address_reserve(SIZE, 0, 0).unwrap();
    let handle = native.handle_create(pool, SIZE, sys::MEMORY_TYPE_PINNED, 0).unwrap();
    let access = gpus.iter().map(|gpu| NativeAccess::new(*gpu, 3)).collect::<Vec<_>>();
    // SAFETY: the range is reserved and empty, the handle has its size, and the range is one mapping.
    native.with_shared_lock(|native| unsafe {
        native.map(address, SIZE, handle).unwrap();
        native.set_access(address, SIZE, &access).unwrap();
    });
    // SAFETY: the handle is alive.
    let descriptor =
        native.with_exclusive_lock(|native| unsafe { native.export(handle, 0, false) });
    let descriptor = descriptor.unwrap().unwrap();
    MappedMemory { address, handle, descriptor }
}

impl RuntimeWithMemory {
    fn new(fixture: &Fixture) -> Self {
        let native = start(fixture);
        let gpus = gpus(&native);
        let pools = native.pools(gpus[0].0).unwrap().into_iter();
        let flag = sys::HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS;
        let coarse = sys::HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
        let mut pools = pools.filter(|pool| {
            native.pool_attribute(*pool, flag).unwrap().number::<u32>() & coarse != 0
        });
        let pool = pools.next().unwrap();
        // The owner is last, because some releases require that.
        let agents: Vec<_> = gpus.iter().rev().map(|(agent, _)| *agent).collect();
        let [memory, copy_target] = [(); 2].map(|()| map_memory(&native, pool, &agents));
        Self { native, gpus, memory, copy_target }
    }

    fn space(&self, gpu: usize) -> AddressSpace {
        let mut found = Libdrm::find_loaded().unwrap();
        assert_eq!(found.len(), 1);
        AddressSpace::open(Arc::new(found.remove(0)), self.gpus[gpu].1).unwrap()
    }

    fn barrier(&self) -> KfdPage {
        KfdPage::open(&self.gpus.iter().map(|(_, gpu)| gpu.id).collect::<Vec<_>>()).unwrap()
    }

    /// Sets the first bytes of both halves of the memory to 1 and 2.
    fn write_pattern(&self) {
        let engine = CopyEngine::Agent(self.gpus[0].0);
        for (half, value) in [(0, 1), (1, 2)] {
            let to = self.memory.address + half * HALF;
            // SAFETY: the mapping is allocated and the GPU has access.
            unsafe { self.native.write(engine, to, &[value; 64]) }.unwrap();
        }
    }

    /// Reads a byte with a GPU. Makes no call that changes page tables before the read.
    fn read(&self, gpu: usize, address: usize) -> u8 {
        let engine = CopyEngine::Agent(self.gpus[gpu].0);
        let mut byte = [0];
        // SAFETY: both mappings are allocated and the GPU has access.
        unsafe {
            self.native.copy(engine, self.copy_target.address, address, 64).unwrap();
            self.native.read(engine, self.copy_target.address, &mut byte).unwrap();
        }
        byte[0]
    }

    /// Unmaps and frees everything, and stops the runtime.
    fn end(self) {
        for MappedMemory { address, handle, descriptor } in [self.memory, self.copy_target] {
            // SAFETY: nothing uses the mappings or the memory any more.
            unsafe {
                self.native.unmap(address, SIZE).unwrap();
                self.native.handle_release(handle).unwrap();
                self.native.address_free(address, SIZE).unwrap();
            }
            drop(descriptor);
        }
        // SAFETY: nothing is mapped any more.
        unsafe { self.native.shut_down() }.unwrap();
    }
}

/// Returns a GPU's page table, as the emulated driver shows it.
fn page_table(render_minor: u32) -> String {
    let path = format!("/sys/kernel/debug/dri/{render_minor}/amdgpu_vm_info");
    std::fs::read_to_string(path).unwrap()
}

/// Returns the offset and the permissions of the entry that starts at an address.
fn entry(render_minor: u32, address: usize) -> Option<String> {
    let text = page_table(render_minor);
    let start = format!("  {address:#018x} ");
    let line = text.lines().find(|line| line.starts_with(&start))?;
    line.split_once("offset ").map(|(_, rest)| rest.to_owned())
}

fn emulation(keys: &str) -> Emulation {
    Emulation::with_gpus(2).with_setting(keys)
}

#[test]
fn replace_changes_entries_of_one_gpu() {
    let name = "native::page_table::tests::replace_changes_entries_of_one_gpu";
    run_on_releases(name, &emulation("split_bug=on"), |fixture| {
        let runtime = RuntimeWithMemory::new(fixture);
        let address = runtime.memory.address;
        let [first, second] = [0, 1].map(|gpu| runtime.gpus[gpu].1.render_minor);
        let (read, write) = (PagePermissions::READ, PagePermissions::WRITE);
        for gpu in [0, 1] {
            let (space, changed) = (runtime.space(gpu), runtime.gpus[gpu].1.render_minor);
            let other = if gpu == 0 { second } else { first };
            for (permissions, letters) in
                [(read, "r--"), (PagePermissions::empty(), "---"), (read | write, "rw-")]
            {
                let buffer = space.import(runtime.memory.descriptor.as_fd()).unwrap();
                // SAFETY: the range extends past the end of the memory, so the call fails and changes
                // nothing.
                let too_large = unsafe { buffer.write_entries(address, SIZE, HALF, permissions) };
                assert!(too_large.is_err());
                // SAFETY: the range is the whole mapping, and no GPU uses it.
                unsafe { buffer.write_entries(address, SIZE, 0, permissions) }.unwrap();
                drop(buffer);
                assert_eq!(entry(changed, address), Some(format!("0x0 {letters}")));
                let unchanged = if gpu == 0 { "0x0 rwx" } else { "0x0 rw-" };
                assert_eq!(entry(other, address).as_deref(), Some(unchanged));
            }
        }
        runtime.end();
    });
}

/// The driver writes entries late; after the barrier, they are written.
#[test]
fn barrier_waits_for_late_writes() {
    let name = "native::page_table::tests::barrier_waits_for_late_writes";
    run_on_releases(name, &emulation("pte_delay=600s,tlb=on"), |fixture| {
        let runtime = RuntimeWithMemory::new(fixture);
        let barrier = runtime.barrier();
        // Without this wait, the copies of `write_pattern` would fault.
        barrier.wait().unwrap();
        runtime.write_pattern();
        let address = runtime.memory.address;
        let space = runtime.space(0);
        let buffer = space.import(runtime.memory.descriptor.as_fd()).unwrap();
        for offset in [HALF, 0, HALF, 0] {
            // SAFETY: the range is the first half of the mapping, and no GPU uses it. A call below
            // replaces the whole mapping.
            unsafe { buffer.write_entries(address, HALF, offset, PagePermissions::READ) }.unwrap();
            let before = runtime.read(0, address);
            barrier.wait().unwrap();
            let after = runtime.read(0, address);
            assert_eq!(after, if offset == 0 { 1 } else { 2 }, "after {before}");
            assert_ne!(before, after, "the driver writes late");
            assert_eq!(runtime.read(1, address), 1, "the other GPU");
        }
        // SAFETY: the range is the whole mapping, and no GPU uses it.
        unsafe { buffer.write_entries(address, SIZE, 0, PagePermissions::READ) }.unwrap();
        drop(buffer);
        drop((space, barrier));
        runtime.end();
    });
}

#[test]
fn barrier_flushes_the_tlb() {
    let name = "native::page_table::tests::barrier_flushes_the_tlb";
    run_on_releases(name, &emulation("tlb=on"), |fixture| {
        let runtime = RuntimeWithMemory::new(fixture);
        let barrier = runtime.barrier();
        runtime.write_pattern();
        let address = runtime.memory.address;
        let [space, peer] = [0, 1].map(|gpu| runtime.space(gpu));
        let descriptor = runtime.memory.descriptor.as_fd();
        let buffers = [space.import(descriptor).unwrap(), peer.import(descriptor).unwrap()];
        let read = || [0, 1].map(|gpu| runtime.read(gpu, address));
        assert_eq!(read(), [1, 1]);
        for offset in [HALF, 0, HALF, 0] {
            for buffer in &buffers {
                // SAFETY: the range is the first half of the mapping, and no GPU uses it. A call
                // below replaces the whole mapping.
                unsafe { buffer.write_entries(address, HALF, offset, PagePermissions::READ) }
                    .unwrap();
            }
            barrier.wait().unwrap();
            let expected = if offset == 0 { 1 } else { 2 };
            assert_eq!(read(), [expected; 2], "one barrier for both GPUs");
        }
        for buffer in &buffers {
            // SAFETY: the range is the whole mapping, and no GPU uses it.
            unsafe { buffer.write_entries(address, SIZE, 0, PagePermissions::READ) }.unwrap();
        }
        drop(buffers);
        drop((space, peer, barrier));
        runtime.end();
    });
}

/// ROCr and this library import and free the same memory from several threads.
#[test]
fn concurrent_imports_keep_runtime_handles() {
    let name = "native::page_table::tests::concurrent_imports_keep_runtime_handles";
    run_on_releases(name, &emulation("split_bug=on"), |fixture| {
        let native = start(fixture);
        let gpus = gpus(&native);
        let pool = native.pools(gpus[0].0).unwrap()[0];
        let library = Arc::new(Libdrm::find_loaded().unwrap().remove(0));
        let space = AddressSpace::open(library, gpus[0].1).unwrap();
        let round = |number| {
            let MappedMemory { address, handle, descriptor } =
                map_memory(&native, pool, &[gpus[0].0]);
            let buffer = space.import(descriptor.as_fd()).unwrap();
            // SAFETY: the range is the whole mapping, and no GPU uses it.
            unsafe { buffer.write_entries(address, SIZE, 0, PagePermissions::READ) }.unwrap();
            assert_eq!(entry(gpus[0].1.render_minor, address).as_deref(), Some("0x0 r--"));
            // In even rounds, frees this import after ROCr's unmap, otherwise before. The last import
            // that is freed closes the handle.
            let freed_last = if number % 2 == 0 { Some(buffer) } else { None };
            // SAFETY: nothing uses the mapping or the memory any more.
            native.with_shared_lock(|native| unsafe {
                native.unmap(address, SIZE).unwrap();
                assert_eq!(entry(gpus[0].1.render_minor, address), None);
                native.handle_release(handle).unwrap();
                native.address_free(address, SIZE).unwrap();
            });
            drop(freed_last);
        };
        let thread = || (0..hsa_rocr::test::count_to_run(250)).for_each(round);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(thread);
            }
        });
        drop(space);
        // SAFETY: nothing uses the runtime any more.
        unsafe { native.shut_down() }.unwrap();
    });
}

#[test]
fn unshared_libdrm_and_wrong_nodes_are_rejected() {
    let name = "native::page_table::tests::unshared_libdrm_and_wrong_nodes_are_rejected";
    run_on_releases(name, &Emulation::with_gpus(1), |fixture| {
        assert_eq!(Libdrm::find_loaded().map(drop), Err(DriverError::NoLibrary));
        // SAFETY: loads AMD's runtime without starting it, so that libdrm has no device.
        let native = unsafe { Native::load(&Search::only(fixture.runtime())) }.unwrap();
        let gpu = KernelGpu { id: 0x1001, render_minor: 128 };
        let open = || {
            let library = Arc::new(Libdrm::find_loaded().unwrap().remove(0));
            AddressSpace::open(library, gpu).map(drop)
        };
        let error = open().unwrap_err();
        assert!(matches!(error, DriverError::NotShared { .. }), "{error}");
        native.init().unwrap();
        assert_eq!(open(), Ok(()));
        let error = KernelGpu::of_node(7).unwrap_err();
        assert!(matches!(error, DriverError::File { .. }), "{error}");
        let error = KernelGpu::of_node(0).unwrap_err();
        assert!(matches!(error, DriverError::NoProperty { .. }), "a CPU: {error}");
        let error = KfdPage::open(&[7]).unwrap_err();
        assert!(matches!(error, DriverError::Call(_)), "{error}");
        // SAFETY: nothing uses the runtime any more.
        unsafe { native.shut_down() }.unwrap();
    });
}
