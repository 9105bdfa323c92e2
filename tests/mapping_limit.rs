//! Calls of a process that has reached the kernel's limit of mappings (`vm.max_map_count`).

mod machine;
mod process;

use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::error::ErrorKind;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR;
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::transport::Channel;
use hsa_vmm::vmm::{Probing, RetireQueue, VmmOptions};
use hsa_vmm::{Access, Error, Vmm};
use machine::{MIB, Machine, access, at, without_cpu_mapping};
use process::End;

/// Holds as many mappings as the kernel allows, until this value is dropped.
struct ExhaustedMappings(Vec<*mut libc::c_void>);

impl ExhaustedMappings {
    fn new() -> Self {
        // Allocates the vector before the limit is reached.
        let mut pages = Vec::with_capacity(1 << 20);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        while pages.len() < pages.capacity() {
            // The kernel does not merge adjacent mappings with different protection.
            let protection = if pages.len() % 2 == 0 { libc::PROT_READ } else { libc::PROT_NONE };
            // SAFETY: the kernel chooses a free address, so it replaces no mapping.
            let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
            if page == libc::MAP_FAILED {
                return Self(pages);
            }
            pages.push(page);
        }
        panic!("the kernel's limit of mappings is not reached");
    }
}

impl ExhaustedMappings {
    /// Unmaps some of the pages, so that the kernel allows that many mappings.
    fn release(&mut self, count: usize) {
        for page in self.0.drain(self.0.len() - count..) {
            // SAFETY: this value mapped the page, and nothing else uses it.
            unsafe { libc::munmap(page, 4096) };
        }
    }
}

impl Drop for ExhaustedMappings {
    fn drop(&mut self) {
        for &page in &self.0 {
            // SAFETY: this value mapped the page, and nothing else uses it.
            unsafe { libc::munmap(page, 4096) };
        }
    }
}

#[test]
fn state_matches_results_at_the_mapping_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    // The library maps memory for the CPU, or else the runtime.
    let by_runtime =
        machine::generations().into_iter().map(|(name, it)| (name, without_cpu_mapping(it)));
    for (name, config) in machine::generations().into_iter().chain(by_runtime) {
        let end = process::in_child(|| {
            let machine = Machine::new(config.clone());
            let granule = machine.granule();
            let base = machine.reserve(2 * granule);
            for address in [base, at(base, granule)] {
                machine.map(address, granule, machine.create(0, granule));
            }
            let grants = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
            machine.vmm.set_access(base, granule, &grants).unwrap();
            machine.vmm.write(base, b"text").unwrap();
            let exhausted = ExhaustedMappings::new();
            // Calls that need a new mapping of this process may fail or succeed. The state must match their results.
            let cpu = [access(machine.cpu(0), Access::ReadWrite)];
            let granted = machine.vmm.set_access(at(base, granule), granule, &cpu);
            let unmapped = machine.vmm.unmap(base, granule);
            drop(exhausted);
            match granted {
                Ok(()) => machine.vmm.write(at(base, granule), b"text").unwrap(),
                Err(_) => {
                    let start = at(base, granule).get();
                    process::assert_inaccessible(start, granule, "rejected");
                }
            }
            match unmapped {
                Ok(()) => {
                    process::assert_inaccessible(base.get(), granule, "unmapped");
                    // A view, whose name is a file, would keep the memory allocated.
                    let is_view =
                        |it: &process::Region| it.start == base.get() && !it.name.is_empty();
                    assert!(!process::regions().iter().any(is_view), "{name}");
                }
                Err(error) if matches!(error.kind(), ErrorKind::Quarantined { now: true, .. }) => {}
                Err(_) => {
                    let mut text = [0; 4];
                    machine.vmm.read(base, &mut text).unwrap();
                    assert_eq!(&text, b"text");
                }
            }
            machine.vmm.check().unwrap();
        });
        assert_eq!(end, End::Success, "{name}");
    }
}

/// At the limit, ROCm 6.0 to 6.3 would abort the process if it were asked to map memory for the CPU.
#[test]
fn runtime_maps_nothing_for_the_cpu_at_the_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in machine::generations() {
        let end = process::in_child(|| {
            let machine = Machine::new(without_cpu_mapping(config.clone()));
            let granule = machine.granule();
            let (base, _) = machine.map_new_memory(0, granule);
            let cpu = [access(machine.cpu(0), Access::ReadWrite)];
            let calls = || machine.simulation.calls("hsa_amd_vmem_set_access");
            let calls_before = calls();
            let exhausted = ExhaustedMappings::new();
            let result = machine.vmm.set_access(base, granule, &cpu);
            let calls_after = calls();
            drop(exhausted);
            let kind = result.as_ref().map_err(Error::kind);
            assert!(matches!(kind, Err(ErrorKind::System { call: "mmap", .. })), "{result:?}");
            assert_eq!(calls_after, calls_before);
            machine.vmm.set_access(base, granule, &cpu).unwrap();
            assert_eq!(calls(), calls_before + 1);
        });
        assert_eq!(end, End::Success, "{name}");
    }
}

/// The probes also grant the CPU access.
#[test]
fn probes_are_skipped_near_the_mapping_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    for free in [0, 8] {
        let end = process::in_child(|| {
            let machine = Machine::new(Config::mi300x(1));
            let options = VmmOptions::new().with_probing(Probing::Always);
            let mut exhausted = ExhaustedMappings::new();
            exhausted.release(free);
            let opened = Vmm::open_with(&machine.runtime, options);
            drop(exhausted);
            assert!(opened.unwrap().probes().is_empty());
            let vmm = Vmm::open_with(&machine.runtime, options).unwrap();
            assert!(!vmm.probes().is_empty());
        });
        assert_eq!(end, End::Success, "{free} free mappings");
    }
}

/// A copy by an agent needs memory of this process, which `malloc` cannot allocate at the limit: the process does not
/// end.
#[test]
fn copies_at_the_mapping_limit_fail_cleanly() {
    if process::rerun_in_own_process() {
        return;
    }
    let end = process::in_child(|| {
        let machine = Machine::new(Config::mi300x(1));
        let size = 4 * MIB;
        let (base, _) = machine.map_new_memory(0, size);
        let grants = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
        machine.vmm.set_access(base, size, &grants).unwrap();
        let gpu = machine.gpu(0);
        let mut bytes = vec![1; size];
        let (vmm, half) = (&machine.vmm, size / 2);
        let exhausted = ExhaustedMappings::new();
        // Uses up the memory that `malloc` has already mapped.
        let mut blocks = Vec::with_capacity(1 << 10);
        for block_size in [1 << 20, 64 << 10, 4096] {
            while blocks.len() < blocks.capacity() {
                let mut block = Vec::<u8>::new();
                if block.try_reserve_exact(block_size).is_err() {
                    break;
                }
                blocks.push(block);
            }
        }
        let results = [
            vmm.copy_from_host(gpu, base, &bytes),
            vmm.copy_to_host(gpu, &mut bytes, base),
            vmm.fill(base, 7, size),
        ];
        // Copies by this process need no memory.
        let by_cpu = vmm.copy(machine.cpu(0), base, at(base, half), half);
        drop((blocks, exhausted));
        for result in results {
            let kind = result.as_ref().map_err(Error::kind);
            assert!(matches!(kind, Err(ErrorKind::OutOfMemory { .. })), "{result:?}");
        }
        by_cpu.unwrap();
        vmm.copy_from_host(gpu, base, &bytes).unwrap();
    });
    assert_eq!(end, End::Success);
}

/// Dropping a channel starts a thread, which needs mappings. If they are missing, the socket stays open, or the thread
/// closes it: the process does not end.
#[test]
fn channels_are_dropped_near_the_mapping_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    for free in 0..8 {
        let end = process::in_child(|| {
            let (first, second) = Channel::pair().unwrap();
            let mut exhausted = ExhaustedMappings::new();
            exhausted.release(free);
            drop(first);
            drop(exhausted);
            drop(second);
        });
        assert_eq!(end, End::Success, "{free} free mappings");
    }
}

/// Starting a thread needs mappings. If they are missing, the call fails: the process does not end.
#[test]
fn threads_do_not_end_the_process_near_the_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    for free in 0..24 {
        let end = process::in_child(|| {
            let machine = Machine::new(Config::mi300x(1));
            let mut exhausted = ExhaustedMappings::new();
            exhausted.release(free);
            let queue = RetireQueue::builder(1).open(&machine.vmm);
            let queue_error = queue.as_ref().err().map(Error::kind).cloned();
            drop(queue);
            let pages =
                PagedBuffer::builder(4 * machine.granule()).with_page_size(machine.granule());
            let buffer = pages.with_pages_ahead(1).reserve(&machine.vmm, &machine.shareable_on(0));
            drop(exhausted);
            if free == 0 {
                let is_thread = |kind: &ErrorKind| {
                    matches!(kind, ErrorKind::System { call: "pthread_create", .. })
                };
                assert!(queue_error.as_ref().is_some_and(is_thread), "{queue_error:?}");
            }
            drop(buffer);
            machine.assert_empty();
        });
        assert_eq!(end, End::Success, "{free} free mappings");
    }
}

/// The simulation copies in a thread of its own.
#[test]
fn copies_do_not_end_the_process_near_the_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    for free in 0..24 {
        let end = process::in_child(|| {
            let machine = Machine::new(Config::mi300x(1));
            let (base, _) = machine.map_new_memory(0, machine.granule());
            machine.grant(base, machine.granule(), machine.gpu(0), Access::ReadWrite);
            machine.vmm.copy_from_host(machine.gpu(0), base, b"text").unwrap();
            let mut exhausted = ExhaustedMappings::new();
            exhausted.release(free);
            let mut text = [0; 4];
            let copied = machine.vmm.copy_to_host(machine.gpu(0), &mut text, base);
            drop(exhausted);
            match copied {
                Ok(()) => assert_eq!(&text, b"text"),
                Err(error) => {
                    let is_shortage = matches!(error.kind(), ErrorKind::OutOfMemory { .. });
                    assert!(
                        is_shortage && error.to_string().contains("vm.max_map_count"),
                        "{error}"
                    );
                }
            }
        });
        assert_eq!(end, End::Success, "{free} free mappings");
    }
}

/// AMD's runtime 7.2 returns `HSA_STATUS_ERROR` if it cannot map memory of this process.
#[test]
fn messages_name_the_mapping_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    let end = process::in_child(|| {
        let machine = Machine::new(Config::mi300x(1));
        let granule = machine.granule();
        let (base, handle) = (machine.reserve(granule), machine.create(0, granule));
        let map = || machine.vmm.map(base, granule, 0, handle);
        let fault = || FaultPlan::none().fail("hsa_amd_vmem_map", 1, HSA_STATUS_ERROR);
        machine.simulation.set_faults(fault());
        let failed = map().unwrap_err();
        machine.simulation.set_faults(fault());
        let exhausted = ExhaustedMappings::new();
        let errors = [
            map().unwrap_err(),
            machine.vmm.address_reserve(granule, 0, None).unwrap_err(),
            RetireQueue::builder(1).open(&machine.vmm).map(drop).unwrap_err(),
        ];
        drop(exhausted);
        for error in errors {
            assert!(error.to_string().contains("`sysctl vm.max_map_count`"), "{error}");
        }
        assert!(!failed.to_string().contains("max_map_count"), "{failed}");
    });
    assert_eq!(end, End::Success);
}

/// At the kernel's limit of mappings, calls fail or succeed, but lose no page.
#[test]
fn calls_at_the_mapping_limit_lose_no_page() {
    if process::rerun_in_own_process() {
        return;
    }
    for generation in [Generation::A, Generation::B, Generation::D] {
        let end = process::in_child(|| {
            let machine = Machine::new(Config::mi300x(2).with_generation(generation));
            let size = machine.granule();
            let buffer = PagedBuffer::builder(8 * size).with_page_size(size);
            let buffer = buffer.reserve(&machine.vmm, &machine.shareable_on(0)).unwrap();
            buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
            buffer.map(0..4).unwrap();
            (0..4).for_each(|page| buffer.write(page * size, b"text").unwrap());
            let exhausted = ExhaustedMappings::new();
            let results = [
                buffer.exchange_pages(0..1, &buffer, 2),
                buffer.move_pages(1..2, &buffer, 5),
                buffer.revoke(&[machine.gpu(0)]),
                buffer.unmap(3..4),
                buffer.map(6..7),
            ];
            drop(exhausted);
            assert!(results[3].is_ok(), "{results:?}");
            assert_eq!(machine.vmm.quarantined_ranges(), [], "{results:?}");
            let mapped = (0..8).filter(|&page| buffer.state(page) == Ok(PageState::Mapped));
            let mapped: Vec<_> = mapped.collect();
            assert_eq!(mapped.len(), 3 + usize::from(results[4].is_ok()), "{results:?}");
            for page in mapped.into_iter().filter(|&page| page != 6) {
                let mut text = [0; 4];
                buffer.read(page * size, &mut text).unwrap();
                assert_eq!(&text, b"text", "{page}: {results:?}");
            }
            machine.vmm.check().unwrap();
        });
        assert_eq!(end, End::Success, "{generation:?}");
    }
}

/// At the kernel's limit of mappings, the kernel cannot replace the CPU's view when the CPU loses its access. The unmap
/// replaces the view. Otherwise the memory would stay allocated after its release.
#[test]
fn view_kept_at_the_mapping_limit_ends_with_unmap() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in machine::generations() {
        let end = process::in_child(|| {
            let machine = Machine::new(config.clone());
            let granule = machine.granule();
            let (base, handle) = machine.map_new_memory(0, granule);
            machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
            let exhausted = ExhaustedMappings::new();
            let no_access = [access(machine.cpu(0), Access::None)];
            let revoked = machine.vmm.set_access(base, granule, &no_access);
            drop(exhausted);
            revoked.unwrap();
            process::assert_inaccessible(base.get(), granule, "revoked");
            machine.vmm.unmap(base, granule).unwrap();
            let is_view = |it: &process::Region| it.start == base.get() && !it.name.is_empty();
            assert!(!process::regions().iter().any(is_view), "{name}");
            machine.vmm.release(handle).unwrap();
            machine.vmm.check().unwrap();
        });
        assert_eq!(end, End::Success, "{name}");
    }
}

/// Without a free descriptor, an unmap uses the spare descriptor to find out whether it may unmap the view first.
#[test]
fn view_is_removed_at_both_limits() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in machine::generations() {
        let end = process::in_child(|| {
            let machine = Machine::new(config.clone());
            let granule = machine.granule();
            let (base, _) = machine.map_new_memory(0, granule);
            let grants = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
            machine.vmm.set_access(base, granule, &grants).unwrap();
            let mappings = ExhaustedMappings::new();
            let unmapped = process::with_free_descriptors(0, || machine.vmm.unmap(base, granule));
            drop(mappings);
            unmapped.unwrap();
            process::assert_inaccessible(base.get(), granule, "unmapped");
        });
        assert_eq!(end, End::Success, "{name}");
    }
}

/// The kernel merges adjacent views of the same memory. At the limit, it cannot unmap a part of the merged view.
#[test]
fn merged_view_stays_at_the_mapping_limit() {
    if process::rerun_in_own_process() {
        return;
    }
    for (name, config) in machine::generations() {
        let end = process::in_child(|| {
            let options = VmmOptions::new().with_page_tables(true);
            let machine = Machine::with_options(config.clone(), options);
            let granule = machine.granule();
            let handle = machine.create(0, 2 * granule);
            let base = machine.reserve(3 * granule);
            let cpu = [access(machine.cpu(0), Access::ReadWrite)];
            for offset in [0, granule] {
                machine.vmm.map(at(base, offset), granule, offset, handle).unwrap();
                machine.vmm.set_access(at(base, offset), granule, &cpu).unwrap();
            }
            let mappings = ExhaustedMappings::new();
            let unmapped = machine.vmm.unmap(base, granule);
            drop(mappings);
            let error = unmapped.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Quarantined { now: true, .. }), "{error}");
            assert!(error.to_string().contains("mmap failed: Cannot allocate memory"), "{error}");
            machine.vmm.check().unwrap();
        });
        assert_eq!(end, End::Success, "{name}");
    }
}

/// Calls `act` while `mmap` fails because the process locks all new memory.
fn with_locked_memory<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: changes only the user and a flag of this child process. Root may lock any memory. Without PR_SET_DUMPABLE,
    // the process could not read its list of mappings.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        }
    }
    process::with_limit(libc::RLIMIT_MEMLOCK, 4096, || {
        // SAFETY: changes only how the kernel maps memory of this process.
        assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
        let result = act();
        // SAFETY: as above.
        unsafe { libc::munlockall() };
        result
    })
}

/// If locked memory is limited, or if the limit of addresses is below what the process uses, `mmap` fails even if it
/// would only replace a mapping.
#[test]
fn unmap_removes_access_without_mmap() {
    if process::rerun_in_own_process() {
        return;
    }
    let generations = machine::generations().into_iter();
    for ((name, config), is_locked) in generations.flat_map(|it| [(it.clone(), false), (it, true)])
    {
        let end = process::in_child(|| {
            let machine = Machine::new(config.clone());
            let granule = machine.granule();
            let (base, _) = machine.map_new_memory(0, granule);
            let grants = [machine.cpu(0), machine.gpu(0)].map(|id| access(id, Access::ReadWrite));
            machine.vmm.set_access(base, granule, &grants).unwrap();
            let unmap = || machine.vmm.unmap(base, granule);
            match is_locked {
                true => with_locked_memory(unmap).unwrap(),
                false => process::with_limit(libc::RLIMIT_AS, 4096, unmap).unwrap(),
            }
            process::assert_inaccessible(base.get(), granule, "unmapped");
            // The reservation can be used, and the next unmap removes the view.
            machine.map(base, granule, machine.create(0, granule));
            machine.vmm.unmap(base, granule).unwrap();
            let is_view = |it: &process::Region| it.start == base.get() && !it.name.is_empty();
            assert!(!process::regions().iter().any(is_view));
        });
        assert_eq!(end, End::Success, "{name}, {is_locked}");
    }
}
