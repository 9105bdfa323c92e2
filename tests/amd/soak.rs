//! Threads use several `Vmm`s, runtimes and areas of one process at the same time.
//!
//! `HSA_VMM_SOAK_SECONDS` sets the duration on each release.

use crate::amd_runtime::on_each_within;
use crate::machine::{Library, access, at};
use crate::process::descriptors;
use hsa_vmm::area::{AreaFlags, MmapOptions};
use hsa_vmm::error::Problem;
use hsa_vmm::{Access, Area, Error, HandleType, Runtime, Vmm};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const SIZE: usize = 64 << 10;
const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;
/// The number of threads that use each of the three `Vmm`s. The same number of threads uses areas.
const THREADS: usize = 3;

/// Returns the duration of the test on one release: the value of `HSA_VMM_SOAK_SECONDS`, or two seconds.
fn duration() -> Duration {
    let seconds = std::env::var("HSA_VMM_SOAK_SECONDS");
    let seconds = seconds.map(|text| text.parse().expect("HSA_VMM_SOAK_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(2))
}

#[test]
fn vmms_runtimes_and_areas_share_a_library() {
    let time_limit = duration() + Duration::from_secs(240);
    on_each_within("soak::vmms_runtimes_and_areas_share_a_library", time_limit, |fixture| {
        let first = Library::load(fixture.runtime());
        // SAFETY: the file is the release of AMD's runtime that this process has loaded.
        let second = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let second = Library { vmm: Vmm::open(&second).unwrap(), runtime: second };
        let third =
            Library { vmm: Vmm::open(&first.runtime).unwrap(), runtime: first.runtime.clone() };
        let all = [&first, &second, &third];
        // Uses everything once, because the runtime creates its queues on first use.
        for library in all {
            use_vmm(library, 0).unwrap();
            use_area(library, 0).unwrap();
        }
        let before = descriptors();
        let barrier = Barrier::new(THREADS * (all.len() + 1));
        let failures = Mutex::new(Vec::new());
        let rounds = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 1..=THREADS * (all.len() + 1) {
                let library = all[number % all.len()];
                let use_library = if number <= THREADS { use_area } else { use_vmm };
                let (barrier, failures, rounds) = (&barrier, &failures, &rounds);
                scope.spawn(move || {
                    barrier.wait();
                    let begun = Instant::now();
                    while begun.elapsed() < duration() {
                        match use_library(library, number as u8) {
                            Ok(()) => rounds.fetch_add(1, Ordering::Relaxed),
                            Err(failure) => return failures.lock().unwrap().push(failure),
                        };
                    }
                });
            }
        });
        let rounds = rounds.into_inner();
        println!("{}: {rounds} rounds in {:?}", fixture.release(), duration());
        assert_eq!(failures.into_inner().unwrap(), [""; 0], "after {rounds} rounds");
        assert!(rounds > 100, "only {rounds} rounds");
        assert_eq!(descriptors(), before);
        all.into_iter().for_each(Library::assert_everything_freed);
    });
}

fn failed(call: &str) -> impl Fn(Error) -> String {
    move |error| format!("{call}: {error}")
}

/// Creates, maps, shares, uses and releases memory, which contains the thread's number.
fn use_vmm(library: &Library, number: u8) -> Result<(), String> {
    let vmm = &library.vmm;
    let (gpu, peer) = (number as usize % 2, 1 - number as usize % 2);
    let base = vmm.address_reserve(3 * SIZE, 0, None).map_err(failed("reserve"))?;
    let memory = vmm.create(SIZE, &library.shareable_on(gpu)).map_err(failed("create"))?;
    vmm.map(base, SIZE, 0, memory).map_err(failed("map"))?;
    vmm.map(at(base, 2 * SIZE), SIZE, 0, memory).map_err(failed("map"))?;
    let grants = [library.cpu(0), library.gpu(gpu)].map(|id| access(id, Access::ReadWrite));
    vmm.set_access(base, SIZE, &grants).map_err(failed("set_access"))?;
    vmm.write(base, &[number; 64]).map_err(failed("write"))?;
    vmm.copy(library.gpu(gpu), at(base, 64), base, 64).map_err(failed("copy"))?;
    let read = |agent| [access(agent, Access::Read)];
    vmm.set_access(base, SIZE, &read(library.gpu(peer))).map_err(failed("set_access, a peer"))?;
    let shared = vmm.export_to_shareable_handle(memory, DESCRIPTOR).map_err(failed("export"))?;
    let imported =
        vmm.import_from_shareable_handle(shared, DESCRIPTOR).map_err(failed("import"))?;
    vmm.allocation_properties(imported).map_err(failed("properties"))?;
    vmm.map(at(base, SIZE), SIZE, 0, imported).map_err(failed("map, imported"))?;
    let retained = vmm.retain_allocation_handle(at(base, SIZE)).map_err(failed("retain"))?;
    vmm.release(retained).map_err(failed("release, retained"))?;
    vmm.revoke(base, SIZE, &[library.gpu(gpu)]).map_err(failed("revoke"))?;
    vmm.set_access(at(base, SIZE), 2 * SIZE, &read(library.cpu(0)))
        .map_err(failed("set_access, the CPU"))?;
    for index in 0..3 {
        let mut bytes = [0; 128];
        vmm.read(at(base, index * SIZE), &mut bytes).map_err(failed("read"))?;
        if bytes != [number; 128] {
            return Err(format!("read: bytes other than {number} at {index}: {bytes:?}"));
        }
    }
    vmm.release(imported).map_err(failed("release, imported"))?;
    vmm.unmap(base, 3 * SIZE).map_err(failed("unmap"))?;
    vmm.release(memory).map_err(failed("release"))?;
    let stale = vmm.allocation_properties(memory).map_err(|error| error.problem());
    if stale != Err(Some(Problem::Released)) {
        return Err(format!("a released handle returned {stale:?}"));
    }
    vmm.address_free(base, 3 * SIZE).map_err(failed("free"))
}

/// Creates, uses and frees memory of an area: virtual memory, pool memory, or locked memory.
fn use_area(library: &Library, number: u8) -> Result<(), String> {
    let flags = [AreaFlags::DEFAULT, AreaFlags::UNIFIED, AreaFlags::HOST, AreaFlags::MAPPED];
    for flags in flags {
        let failed = |call: &str| format!("{call} of an area ({flags})");
        // An area with a `Vmm` of its own.
        let area = Vmm::open(&library.runtime)
            .and_then(|vmm| Area::new(&vmm, usize::from(number % 2), flags))
            .map_err(|error| format!("{}: {error}", failed("create")))?;
        let mut host_memory = vec![0; 3 * SIZE];
        let options = if flags == AreaFlags::MAPPED {
            MmapOptions::new().with_host_memory(&mut host_memory)
        } else {
            MmapOptions::new()
        };
        let memory =
            area.mmap(2 * SIZE, options).map_err(|error| format!("{}: {error}", failed("mmap")))?;
        let mut bytes = [0; 16];
        memory
            .write(8, &[number; 16])
            .and_then(|()| memory.read(8, &mut bytes))
            .map_err(|error| format!("{}: {error}", failed("use")))?;
        if bytes != [number; 16] {
            return Err(format!("{}: bytes other than {number}: {bytes:?}", failed("read")));
        }
        memory.munmap().map_err(|rejected| format!("{}: {}", failed("munmap"), rejected.error))?;
    }
    Ok(())
}
