//! The memory is real: mappings alias, the kernel enforces protection, contents stay, descriptors
//! work in other processes, and video memory is finite.
#![allow(clippy::undocumented_unsafe_blocks)] // system calls on locals and on mapped memory

mod rig;
use core::ptr::null_mut;
use rig::*;

const N: usize = 4 * MIB;

fn cpu(rig: &Rig, permission: u32) -> [(hsa_agent_t, u32); 1] {
    [(rig.cpus[0], permission)]
}

fn gpu(rig: &Rig, number: usize, permission: u32) -> [(hsa_agent_t, u32); 1] {
    [(rig.gpus[number], permission)]
}

/// Checks that an access kills the process with SIGSEGV, or SIGBUS depending on the kernel.
#[track_caller]
fn assert_faults(access: impl FnOnce()) {
    match in_child(access) {
        Ended::Signal(libc::SIGSEGV | libc::SIGBUS) => {}
        other => panic!("the access did not fault: {other:?}"),
    }
}

#[test]
fn mappings_of_one_handle_alias() {
    let r = start("era=b");
    let (base, handle) = (r.reserve(2 * N), r.create(N));
    for half in [base, base + N] {
        assert_eq!(r.map(half, N, handle), OK);
        assert_eq!(r.set(half, N, &cpu(&r, RW)), OK);
    }
    write(base + 4096, 7);
    assert_eq!(read(base + N + 4096), 7);
    assert_eq!(r.unmap(base, 2 * N), OK);
    assert_faults(|| write(base, 1));
    assert_eq!(r.map(base + N, N, handle), OK);
    assert_eq!(r.set(base + N, N, &cpu(&r, RO)), OK);
    assert_eq!(read(base + N + 4096), 7);
}

#[test]
fn cpu_access_is_enforced() {
    let r = start("era=d");
    let (base, _) = r.mapped(N, &[]);
    assert_faults(|| drop(core::hint::black_box(vec![read(base)])));
    assert_eq!(r.set(base, N, &cpu(&r, RO)), OK);
    assert_eq!(read(base), 0);
    assert_faults(|| write(base, 1));
    assert_eq!(r.set(base, N, &cpu(&r, RW)), OK);
    write(base, 1);
    assert_eq!(r.set(base, N, &cpu(&r, NONE)), OK);
    assert!(!readable(base));
    assert_eq!(r.get(base, r.cpus[0]), Ok(NONE), "generation D returns the access of CPUs");
}

#[test]
fn descriptor_works_in_another_process() {
    let r = start("era=b,gpus=2");
    let handle = r.try_create(r.vram[1], N, MEMORY_TYPE_PINNED, 0).expect("memory");
    let (base, descriptor) = (r.reserve(N), r.export(handle).expect("a descriptor"));
    assert_eq!(r.map(base, N, handle), OK);
    assert_eq!(r.set(base, N, &[(r.cpus[0], RW), (r.gpus[1], RW)]), OK);
    write(base, 1234);
    let child = || {
        // A separate runtime, in which the parent's handles are invalid.
        let other = start("era=b,gpus=2");
        assert_ne!(other.gpus[1], r.gpus[1]);
        let imported = other.import(descriptor).expect("an import");
        let (pool, _) = other.properties(imported).expect("properties");
        assert!(
            pools(other.hsa, other.gpus[1]).iter().any(|p| p.handle == pool),
            "the owner is the same"
        );
        let address = other.reserve(N);
        assert_eq!(other.map(address, N, imported), OK);
        assert_eq!(other.set(address, N, &[(other.cpus[0], RW), (other.gpus[1], RW)]), OK);
        assert_eq!((read(address), other.peek(address)), (1234, 1234));
        write(address, 4321);
        let one_gpu = start("era=b,gpus=1");
        assert_eq!(one_gpu.import(descriptor), Err(INVALID_ALLOCATION), "no such GPU");
    };
    assert_eq!(in_child(child), Ended::Exit(0));
    assert_eq!(r.peek(base), 4321, "the GPU reads it, too");
}

#[test]
fn descriptor_outlives_its_handle() {
    let r = start("era=b,dmabuf-cpu-mapping=off");
    let (base, handle) = r.mapped(N, &gpu(&r, 0, RW));
    r.poke(base, 5);
    let descriptor = r.export(handle).expect("a descriptor");
    let mmap = |protection| unsafe {
        libc::mmap(null_mut(), N, protection, libc::MAP_SHARED, descriptor, 0)
    };
    assert_eq!(mmap(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
    assert_eq!(read(mmap(libc::PROT_READ).addr()), 5);
    assert_eq!(unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) }, N as i64, "its size");
    assert_eq!(unsafe { libc::ftruncate(descriptor, 0) }, -1, "sealed");
    assert_eq!((r.unmap(base, N), r.release(handle)), (OK, OK));
    let imported = r.import(descriptor).expect("an import");
    assert_eq!(r.map(base, N, imported), OK);
    assert_eq!(r.set(base, N, &[(r.gpus[0], RW), (r.cpus[0], RW)]), OK);
    assert_eq!(read(base), 5);
    write(base, 6);
}

#[test]
fn generations_c_and_d_import_lazily() {
    for (generation, survives_close) in [("era=c", false), ("era=d", true)] {
        let r = start(generation);
        let (base, handle) = (r.reserve(2 * N), r.create(N));
        let plain = unsafe { libc::memfd_create(c"plain".as_ptr(), 0) };
        let invalid = r.import(plain).expect("import does not check");
        assert_eq!(r.map(base, N, invalid), OK);
        assert_eq!(r.set(base, N, &gpu(&r, 0, RW)), ERROR, "{generation}");
        let own = r.export(handle).expect("a descriptor");
        let descriptor = unsafe { libc::fcntl(own, libc::F_DUPFD_CLOEXEC, 900) };
        let imported = r.import(descriptor).expect("an import");
        assert_eq!(r.properties(imported), Ok((0, MEMORY_TYPE_NONE)));
        unsafe { libc::close(descriptor) };
        assert_eq!(r.map(base + N, N, imported), OK);
        let set = r.set(base + N, N, &gpu(&r, 0, RW));
        assert_eq!(set, if survives_close { OK } else { ERROR }, "{generation}");
        // A size larger than the handle's is an error too.
        assert_eq!(r.unmap(base, N), OK);
        assert_eq!(r.unmap(base + N, N), OK);
        assert_eq!(r.map(base, 2 * N, handle), OK);
        assert_eq!(r.set(base, 2 * N, &gpu(&r, 0, RW)), ERROR, "{generation}");
    }
}

#[test]
fn generation_c_needs_the_owner_last() {
    let r = start("era=c");
    let (base, handle) = r.mapped(N, &[]);
    assert_eq!(r.export(handle), r.export(handle));
    assert_eq!(r.simulation.usage().descriptors, 2);
    assert_eq!(r.set(base, N, &gpu(&r, 0, RW)), OK);
    assert_eq!(r.set(base, N, &gpu(&r, 1, RW)), ERROR);
    assert_eq!((r.unmap(base, N), r.map(base, N, handle)), (OK, OK));
    assert_eq!(r.set(base, N, &[(r.gpus[1], RW), (r.gpus[0], RW)]), OK);
    let d = start("era=d");
    let (base, handle) = d.mapped(N, &gpu(&d, 0, RW));
    assert_eq!(d.set(base, N, &gpu(&d, 1, RW)), OK);
    assert_ne!(d.export(handle), d.export(handle));
    let imported = d.import(d.export(handle).expect("a descriptor")).expect("an import");
    assert_eq!(d.export(imported), Err(INCOMPATIBLE));
}

#[test]
fn generation_d_has_cpu_memory() {
    let r = start("era=d");
    let handle = r.try_create(r.system, N, MEMORY_TYPE_PINNED, 0).expect("memory");
    let base = r.reserve(N);
    assert_eq!(r.map(base, N, handle), OK);
    assert_eq!(r.set(base, N, &[(r.gpus[0], RW), (r.cpus[0], RW)]), OK);
    write(base, 11);
    assert!(r.simulation.page(0, base).is_some());
    assert_eq!(r.simulation.usage().vram_used, [0, 0]);
    let no_gpus = start("era=d,gpus=0");
    let create = no_gpus.try_create(no_gpus.system, N, MEMORY_TYPE_PINNED, 0);
    assert_eq!(create, Err(OUT_OF_RESOURCES), "CPU memory needs a GPU");
    assert_eq!(no_gpus.try_reserve(N, 0, 0, 0), Err(OUT_OF_RESOURCES), "reservations need a GPU");
}

#[test]
fn video_memory_is_limited() {
    let r = start("era=a,gpus=2,vram=1g");
    let used = || r.simulation.usage().vram_used;
    let create = |size| r.try_create(r.vram[0], size, MEMORY_TYPE_NONE, 0);
    let half = create(512 * MIB).expect("half");
    let rest = r.allocate(r.vram[0], 512 * MIB).expect("the other half");
    assert_eq!(used(), [GIB as u64, 0]);
    assert_eq!(create(4096), Err(OUT_OF_RESOURCES));
    assert_eq!(r.allocate(r.vram[0], 1), Err(OUT_OF_RESOURCES));
    assert!(
        r.try_create(r.vram[1], GIB, MEMORY_TYPE_NONE, 0).is_ok(),
        "every GPU has its own memory"
    );
    assert_eq!(r.pool_free(rest), OK);
    let available = agent_info::<u64>(r.hsa, r.gpus[0], HSA_AMD_AGENT_INFO_MEMORY_AVAIL);
    assert_eq!(available, Ok(512 << 20));
    // An import keeps the memory, and does not claim it again.
    let imported = r.import(r.export(half).expect("a descriptor")).expect("an import");
    assert_eq!(r.release(half), OK);
    assert_eq!(used()[0], 512 << 20);
    assert_eq!(r.release(imported), OK);
    assert_eq!(used()[0], 0);
    assert_eq!(r.simulation.usage().descriptors, 0);
}

#[test]
fn generation_b_keeps_memory_until_address_free() {
    for (generation, kept) in [("era=a", 0), ("era=b", N as u64), ("era=d", 0)] {
        let r = start(generation);
        let (base, handle) = r.mapped(N, &gpu(&r, 0, RW));
        assert_eq!((r.unmap(base, N), r.release(handle)), (OK, OK));
        assert_eq!(r.simulation.usage().vram_used[0], kept, "{generation}");
        assert_eq!(r.free(base, N), OK);
        assert_eq!(r.simulation.usage().vram_used[0], 0, "{generation}");
    }
}

#[test]
fn no_register_reserves_plain_memory() {
    let flags = HSA_AMD_VMEM_ADDRESS_NO_REGISTER.into();
    let r = start("era=b,vmem=off");
    assert_eq!(r.try_reserve(N, 0, 0, 0), Err(INVALID_ARGUMENT), "not supported");
    let base = r.try_reserve(N, 0, 0, flags).expect("NO_REGISTER needs no support");
    write(base, 1);
    assert_eq!(r.free(base, N), OK);
    let r = start("era=b");
    let base = r.try_reserve(N, 0, 64 * MIB, flags).expect("a reservation");
    assert!(base.is_multiple_of(64 * MIB));
    write(base + N - 8, 1);
    let handle = r.create(N);
    assert_eq!(r.map(base, N, handle), OK);
    assert!(!readable(base), "generation B maps the memory without access");
    assert_eq!(r.set(base, N, &cpu(&r, RW)), OK);
    assert_eq!(read(base + N - 8), 0);
}

#[test]
fn cpu_faults_without_large_bar() {
    let r = start("consumer,era=d");
    let (base, _) = r.mapped(N, &[(r.cpus[0], RW), (r.gpus[0], RW)]);
    assert!(!readable(base));
    r.poke(base, 3);
    assert_eq!(r.peek(base), 3, "the GPU reads it");
    let pool = r.allocate(r.vram[0], N).expect("memory");
    assert!(!readable(pool));
    assert_eq!(r.pointer_info(pool).hostBaseAddress, null_mut());
}

#[test]
fn set_access_revokes_unnamed_agents() {
    // ROCm 6.0 revokes the access of unnamed agents. Extensions 1.4 to 1.6 revoke it only if a permission changes; from
    // extension 1.7 on, unnamed agents keep their access.
    let versions = [("none", NONE, NONE), ("4", RW, NONE), ("6", RW, NONE), ("7", RW, RW)];
    for (version, after_grant, after_change) in versions {
        let r = start(&format!("era=a,extension={version}"));
        let (base, _) = r.mapped(N, &gpu(&r, 0, RW));
        // 6.0 returns an error for an agent without access.
        let get = || r.get(base, r.gpus[0]).unwrap_or(NONE);
        assert_eq!(r.set(base, N, &gpu(&r, 1, RW)), OK);
        assert_eq!(get(), after_grant, "extension {version}");
        assert_eq!(r.set(base, N, &[(r.gpus[0], RW), (r.gpus[1], RW)]), OK);
        assert_eq!(r.set(base, N, &gpu(&r, 1, RO)), OK);
        assert_eq!(get(), after_change, "extension {version}");
        assert_eq!(r.simulation.page(0, base).is_some(), after_change == RW);
    }
    let oldest = start("era=a,extension=none");
    let (base, _) = oldest.mapped(N, &[]);
    assert_eq!(oldest.get(base, oldest.gpus[0]), Err(INVALID_ALLOCATION), "6.0 returns an error");
}

#[test]
fn create_requires_multiples_of_the_granule() {
    let r = start("granule=2m");
    let create = |size| r.try_create(r.vram[0], size, MEMORY_TYPE_NONE, 0);
    assert_eq!(create(4096), Err(INVALID_ARGUMENT));
    assert_eq!(create(3 * MIB), Err(INVALID_ARGUMENT));
    assert!(create(2 * MIB).is_ok());
    let info = |attribute| pool_info::<usize>(r.hsa, r.vram[0], attribute);
    assert_eq!(info(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE), Ok(2 * MIB));
}

#[test]
fn dropping_a_simulation_frees_everything() {
    // Freed addresses and closed descriptors must not be reused by threads of other tests.
    succeeds_in_child(dropping_a_simulation_frees_everything_in_child);
}

fn dropping_a_simulation_frees_everything_in_child() {
    let r = start("era=b");
    let (base, handle) = r.mapped(N, &cpu(&r, RW));
    let pool = r.allocate(r.vram[0], N).expect("memory");
    let file = r.export(handle).expect("a descriptor");
    write(base, 1);
    assert_eq!(r.shut_down(), OK);
    assert!(readable(base), "the runtime has leaked the mapping");
    drop(r);
    assert!(!readable(base) && !readable(pool));
    assert_eq!(
        unsafe { libc::lseek(file, 0, libc::SEEK_END) },
        N as i64,
        "the exported descriptor stays open"
    );
}

/// In a child process, calls `prepare` on a simulation of a generation, uses up all file
/// descriptors, and calls the function that `prepare` returned.
fn run_without_descriptors<A: FnOnce(&Rig)>(
    generation: &str,
    prepare: impl FnOnce(&Rig) -> A,
) -> Ended {
    in_child(|| {
        let r = start(&format!("era={generation},gpus=2"));
        let act = prepare(&r);
        let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } >= 0 {}
        act(&r);
    })
}

/// As observed in 6.1.2, 6.4.3 and 7.2.4. Later generations only record the mapping.
#[test]
fn map_needs_a_descriptor() {
    for (generation, expected) in
        [("a", OUT_OF_RESOURCES), ("b", OUT_OF_RESOURCES), ("c", OK), ("d", OK)]
    {
        let ended = run_without_descriptors(generation, |r| {
            let (base, handle) = (r.reserve(N), r.create(N));
            move |r: &Rig| {
                assert_eq!(r.map(base, N, handle), expected);
                // Arguments are checked first.
                assert_eq!(r.map(base + N, N, handle), INVALID_ARGUMENT);
            }
        });
        assert_eq!(ended, Ended::Exit(0), "generation {generation}");
    }
}

/// As in 6.1.2, 6.4.3 and 7.2.4. Generation C already has a descriptor for every handle.
#[test]
fn grant_without_descriptor_aborts() {
    let abort = Ended::Signal(libc::SIGABRT);
    for (generation, expected) in
        [("a", abort), ("b", abort), ("c", Ended::Exit(0)), ("d", Ended::Exit(0))]
    {
        let ended = run_without_descriptors(generation, |r| {
            let (base, _) = r.mapped(N, &[]);
            move |r: &Rig| {
                let status = if generation == "d" { OUT_OF_RESOURCES } else { OK };
                assert_eq!(r.set(base, N, &gpu(r, 0, RW)), status);
            }
        });
        assert_eq!(ended, expected, "generation {generation}");
    }
}

#[test]
fn permission_change_needs_no_descriptor() {
    for generation in ["a", "b", "c", "d"] {
        let ended = run_without_descriptors(generation, |r| {
            let (base, _) = r.mapped(N, &gpu(r, 0, RO));
            move |r: &Rig| {
                assert_eq!(r.set(base, N, &gpu(r, 0, RW)), OK);
                assert_eq!(r.unmap(base, N), OK);
            }
        });
        assert_eq!(ended, Ended::Exit(0), "generation {generation}");
    }
}
