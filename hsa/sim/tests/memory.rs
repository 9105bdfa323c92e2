//! The memory is real: mappings alias, the kernel enforces protection, contents stay, descriptors
//! work in other processes, and video memory is finite.
#![allow(clippy::undocumented_unsafe_blocks)] // system calls on locals and on mapped memory

mod setup;
use core::ptr::null_mut;
use setup::*;

const SIZE: usize = 4 * MIB;

fn cpu(setup: &Setup, permission: u32) -> [(hsa_agent_t, u32); 1] {
    [(setup.cpus[0], permission)]
}

fn gpu(setup: &Setup, number: usize, permission: u32) -> [(hsa_agent_t, u32); 1] {
    [(setup.gpus[number], permission)]
}

/// Checks that an access kills the process with SIGSEGV, or with SIGBUS on some kernels.
#[track_caller]
fn assert_faults(access: impl FnOnce()) {
    match in_child(access) {
        Ended::Signal(libc::SIGSEGV | libc::SIGBUS) => {}
        other => panic!("the access did not fault: {other:?}"),
    }
}

#[test]
fn mappings_of_one_handle_alias() {
    let setup = start("era=b");
    let (base, handle) = (setup.reserve(2 * SIZE), setup.create(SIZE));
    for half in [base, base + SIZE] {
        assert_eq!(setup.map(half, SIZE, handle), OK);
        assert_eq!(setup.set(half, SIZE, &cpu(&setup, RW)), OK);
    }
    write(base + 4096, 7);
    assert_eq!(read(base + SIZE + 4096), 7);
    assert_eq!(setup.unmap(base, 2 * SIZE), OK);
    assert_faults(|| write(base, 1));
    assert_eq!(setup.map(base + SIZE, SIZE, handle), OK);
    assert_eq!(setup.set(base + SIZE, SIZE, &cpu(&setup, RO)), OK);
    assert_eq!(read(base + SIZE + 4096), 7);
}

#[test]
fn cpu_access_is_enforced() {
    let setup = start("era=d");
    let (base, _) = setup.mapped(SIZE, &[]);
    assert_faults(|| drop(core::hint::black_box(vec![read(base)])));
    assert_eq!(setup.set(base, SIZE, &cpu(&setup, RO)), OK);
    assert_eq!(read(base), 0);
    assert_faults(|| write(base, 1));
    assert_eq!(setup.set(base, SIZE, &cpu(&setup, RW)), OK);
    write(base, 1);
    assert_eq!(setup.set(base, SIZE, &cpu(&setup, NONE)), OK);
    assert!(!readable(base));
    assert_eq!(setup.get(base, setup.cpus[0]), Ok(NONE), "generation D returns the access of CPUs");
}

#[test]
fn descriptor_works_in_another_process() {
    let setup = start("era=b,gpus=2");
    let handle = setup.try_create(setup.vram[1], SIZE, MEMORY_TYPE_PINNED, 0).expect("memory");
    let (base, descriptor) = (setup.reserve(SIZE), setup.export(handle).expect("a descriptor"));
    assert_eq!(setup.map(base, SIZE, handle), OK);
    assert_eq!(setup.set(base, SIZE, &[(setup.cpus[0], RW), (setup.gpus[1], RW)]), OK);
    write(base, 1234);
    let child = || {
        // A separate runtime, in which the parent's handles are invalid.
        let other = start("era=b,gpus=2");
        assert_ne!(other.gpus[1], setup.gpus[1]);
        let imported = other.import(descriptor).expect("an import");
        let (pool, _) = other.properties(imported).expect("properties");
        assert!(
            pools(other.hsa, other.gpus[1]).iter().any(|p| p.handle == pool),
            "the owner is the same"
        );
        let address = other.reserve(SIZE);
        assert_eq!(other.map(address, SIZE, imported), OK);
        assert_eq!(other.set(address, SIZE, &[(other.cpus[0], RW), (other.gpus[1], RW)]), OK);
        assert_eq!((read(address), other.peek(address)), (1234, 1234));
        write(address, 4321);
        let one_gpu = start("era=b,gpus=1");
        assert_eq!(one_gpu.import(descriptor), Err(INVALID_ALLOCATION), "no such GPU");
    };
    assert_eq!(in_child(child), Ended::Exit(0));
    assert_eq!(setup.peek(base), 4321, "the GPU reads it, too");
}

#[test]
fn descriptor_outlives_its_handle() {
    let setup = start("era=b,dmabuf-cpu-mapping=off");
    let (base, handle) = setup.mapped(SIZE, &gpu(&setup, 0, RW));
    setup.poke(base, 5);
    let descriptor = setup.export(handle).expect("a descriptor");
    let mmap = |protection| unsafe {
        libc::mmap(null_mut(), SIZE, protection, libc::MAP_SHARED, descriptor, 0)
    };
    assert_eq!(mmap(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
    assert_eq!(read(mmap(libc::PROT_READ).addr()), 5);
    assert_eq!(unsafe { libc::lseek(descriptor, 0, libc::SEEK_END) }, SIZE as i64, "its size");
    assert_eq!(unsafe { libc::ftruncate(descriptor, 0) }, -1, "sealed");
    assert_eq!((setup.unmap(base, SIZE), setup.release(handle)), (OK, OK));
    let imported = setup.import(descriptor).expect("an import");
    assert_eq!(setup.map(base, SIZE, imported), OK);
    assert_eq!(setup.set(base, SIZE, &[(setup.gpus[0], RW), (setup.cpus[0], RW)]), OK);
    assert_eq!(read(base), 5);
    write(base, 6);
}

#[test]
fn generations_c_and_d_import_lazily() {
    for (generation, survives_close) in [("era=c", false), ("era=d", true)] {
        let setup = start(generation);
        let (base, handle) = (setup.reserve(2 * SIZE), setup.create(SIZE));
        let plain = unsafe { libc::memfd_create(c"plain".as_ptr(), 0) };
        let invalid = setup.import(plain).expect("import does not check");
        assert_eq!(setup.map(base, SIZE, invalid), OK);
        assert_eq!(setup.set(base, SIZE, &gpu(&setup, 0, RW)), ERROR, "{generation}");
        let own = setup.export(handle).expect("a descriptor");
        let descriptor = unsafe { libc::fcntl(own, libc::F_DUPFD_CLOEXEC, 900) };
        let imported = setup.import(descriptor).expect("an import");
        assert_eq!(setup.properties(imported), Ok((0, MEMORY_TYPE_NONE)));
        unsafe { libc::close(descriptor) };
        assert_eq!(setup.map(base + SIZE, SIZE, imported), OK);
        let set = setup.set(base + SIZE, SIZE, &gpu(&setup, 0, RW));
        assert_eq!(set, if survives_close { OK } else { ERROR }, "{generation}");
        // A size larger than the handle's is an error too.
        assert_eq!(setup.unmap(base, SIZE), OK);
        assert_eq!(setup.unmap(base + SIZE, SIZE), OK);
        assert_eq!(setup.map(base, 2 * SIZE, handle), OK);
        assert_eq!(setup.set(base, 2 * SIZE, &gpu(&setup, 0, RW)), ERROR, "{generation}");
    }
}

#[test]
fn generation_c_requires_access_of_the_owner_last() {
    let setup = start("era=c");
    let (base, handle) = setup.mapped(SIZE, &[]);
    assert_eq!(setup.export(handle), setup.export(handle));
    assert_eq!(setup.simulation.usage().descriptors, 2);
    assert_eq!(setup.set(base, SIZE, &gpu(&setup, 0, RW)), OK);
    assert_eq!(setup.set(base, SIZE, &gpu(&setup, 1, RW)), ERROR);
    assert_eq!((setup.unmap(base, SIZE), setup.map(base, SIZE, handle)), (OK, OK));
    assert_eq!(setup.set(base, SIZE, &[(setup.gpus[1], RW), (setup.gpus[0], RW)]), OK);
    let d = start("era=d");
    let (base, handle) = d.mapped(SIZE, &gpu(&d, 0, RW));
    assert_eq!(d.set(base, SIZE, &gpu(&d, 1, RW)), OK);
    assert_ne!(d.export(handle), d.export(handle));
    let imported = d.import(d.export(handle).expect("a descriptor")).expect("an import");
    assert_eq!(d.export(imported), Err(INCOMPATIBLE));
}

#[test]
fn generation_d_supports_cpu_memory() {
    let setup = start("era=d");
    let handle = setup.try_create(setup.system, SIZE, MEMORY_TYPE_PINNED, 0).expect("memory");
    let base = setup.reserve(SIZE);
    assert_eq!(setup.map(base, SIZE, handle), OK);
    assert_eq!(setup.set(base, SIZE, &[(setup.gpus[0], RW), (setup.cpus[0], RW)]), OK);
    write(base, 11);
    assert!(setup.simulation.page(0, base).is_some());
    assert_eq!(setup.simulation.usage().vram_used, [0, 0]);
    let no_gpus = start("era=d,gpus=0");
    let create = no_gpus.try_create(no_gpus.system, SIZE, MEMORY_TYPE_PINNED, 0);
    assert_eq!(create, Err(OUT_OF_RESOURCES), "CPU memory needs a GPU");
    assert_eq!(
        no_gpus.try_reserve(SIZE, 0, 0, 0),
        Err(OUT_OF_RESOURCES),
        "reservations need a GPU"
    );
}

#[test]
fn video_memory_is_limited() {
    let setup = start("era=a,gpus=2,vram=1g");
    let used = || setup.simulation.usage().vram_used;
    let create = |size| setup.try_create(setup.vram[0], size, MEMORY_TYPE_NONE, 0);
    let half = create(512 * MIB).expect("half");
    let rest = setup.allocate(setup.vram[0], 512 * MIB).expect("the other half");
    assert_eq!(used(), [GIB as u64, 0]);
    assert_eq!(create(4096), Err(OUT_OF_RESOURCES));
    assert_eq!(setup.allocate(setup.vram[0], 1), Err(OUT_OF_RESOURCES));
    assert!(
        setup.try_create(setup.vram[1], GIB, MEMORY_TYPE_NONE, 0).is_ok(),
        "every GPU has its own memory"
    );
    assert_eq!(setup.pool_free(rest), OK);
    let available = agent_info::<u64>(setup.hsa, setup.gpus[0], HSA_AMD_AGENT_INFO_MEMORY_AVAIL);
    assert_eq!(available, Ok(512 << 20));
    // An import keeps the memory in use, and does not count it a second time.
    let imported = setup.import(setup.export(half).expect("a descriptor")).expect("an import");
    assert_eq!(setup.release(half), OK);
    assert_eq!(used()[0], 512 << 20);
    assert_eq!(setup.release(imported), OK);
    assert_eq!(used()[0], 0);
    assert_eq!(setup.simulation.usage().descriptors, 0);
}

/// AMD's runtime leaves its mapping in place. Linux frees the memory when other memory is mapped there.
#[test]
fn generation_b_frees_memory_that_is_mapped_over() {
    let setup = start("gpus=1,era=b,vram=4m");
    let (base, handle) = (setup.reserve(SIZE), setup.create(SIZE));
    assert_eq!(setup.map(base, SIZE, handle), OK);
    assert_eq!(setup.set(base, SIZE, &cpu(&setup, RW)), OK);
    assert_eq!(setup.unmap(base, SIZE), OK);
    assert_eq!(setup.release(handle), OK);
    assert!(setup.try_create(setup.vram[0], SIZE, MEMORY_TYPE_PINNED, 0).is_err());
    assert_eq!(setup.simulation.usage().vram_lingering, [SIZE as u64]);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let over = unsafe { libc::mmap(base as *mut _, SIZE, libc::PROT_NONE, flags, -1, 0) };
    assert_eq!(over as usize, base);
    let second = setup.try_create(setup.vram[0], SIZE, MEMORY_TYPE_PINNED, 0).unwrap();
    assert_eq!(setup.release(second), OK);
    assert_eq!(setup.simulation.usage().vram_used, [0]);
    assert_eq!(setup.free(base, SIZE), OK);
}

#[test]
fn generation_b_keeps_memory_until_address_free() {
    for (generation, kept) in [("era=a", 0), ("era=b", SIZE as u64), ("era=d", 0)] {
        let setup = start(generation);
        let (base, handle) = setup.mapped(SIZE, &gpu(&setup, 0, RW));
        assert_eq!((setup.unmap(base, SIZE), setup.release(handle)), (OK, OK));
        assert_eq!(setup.simulation.usage().vram_used[0], kept, "{generation}");
        assert_eq!(setup.free(base, SIZE), OK);
        assert_eq!(setup.simulation.usage().vram_used[0], 0, "{generation}");
    }
}

#[test]
fn no_register_reserves_plain_memory() {
    let flags = HSA_AMD_VMEM_ADDRESS_NO_REGISTER.into();
    let setup = start("era=b,vmem=off");
    assert_eq!(setup.try_reserve(SIZE, 0, 0, 0), Err(INVALID_ARGUMENT), "not supported");
    let base = setup.try_reserve(SIZE, 0, 0, flags).expect("NO_REGISTER needs no support");
    write(base, 1);
    assert_eq!(setup.free(base, SIZE), OK);
    let setup = start("era=b");
    let base = setup.try_reserve(SIZE, 0, 64 * MIB, flags).expect("a reservation");
    assert!(base.is_multiple_of(64 * MIB));
    write(base + SIZE - 8, 1);
    let handle = setup.create(SIZE);
    assert_eq!(setup.map(base, SIZE, handle), OK);
    assert!(!readable(base), "generation B maps the memory without access");
    assert_eq!(setup.set(base, SIZE, &cpu(&setup, RW)), OK);
    assert_eq!(read(base + SIZE - 8), 0);
}

#[test]
fn cpu_faults_without_large_bar() {
    let setup = start("consumer,era=d");
    let (base, _) = setup.mapped(SIZE, &[(setup.cpus[0], RW), (setup.gpus[0], RW)]);
    assert!(!readable(base));
    setup.poke(base, 3);
    assert_eq!(setup.peek(base), 3, "the GPU reads it");
    let pool = setup.allocate(setup.vram[0], SIZE).expect("memory");
    assert!(!readable(pool));
    assert_eq!(setup.pointer_info(pool).hostBaseAddress, null_mut());
}

#[test]
fn unnamed_agents_lose_access_before_extension_7() {
    // An unnamed agent is an agent that is not in the list of the call. ROCm 6.0 revokes the access
    // of unnamed agents. Extensions 1.4 to 1.6 revoke that access only if a permission changes.
    // From extension 1.7 on, unnamed agents keep their access.
    let versions = [("none", NONE, NONE), ("4", RW, NONE), ("6", RW, NONE), ("7", RW, RW)];
    for (version, after_grant, after_change) in versions {
        let setup = start(&format!("era=a,extension={version}"));
        let (base, _) = setup.mapped(SIZE, &gpu(&setup, 0, RW));
        // 6.0 returns an error for an agent without access.
        let get = || setup.get(base, setup.gpus[0]).unwrap_or(NONE);
        assert_eq!(setup.set(base, SIZE, &gpu(&setup, 1, RW)), OK);
        assert_eq!(get(), after_grant, "extension {version}");
        assert_eq!(setup.set(base, SIZE, &[(setup.gpus[0], RW), (setup.gpus[1], RW)]), OK);
        assert_eq!(setup.set(base, SIZE, &gpu(&setup, 1, RO)), OK);
        assert_eq!(get(), after_change, "extension {version}");
        assert_eq!(setup.simulation.page(0, base).is_some(), after_change == RW);
    }
    let oldest = start("era=a,extension=none");
    let (base, _) = oldest.mapped(SIZE, &[]);
    assert_eq!(oldest.get(base, oldest.gpus[0]), Err(INVALID_ALLOCATION), "6.0 returns an error");
}

#[test]
fn create_requires_multiples_of_the_granule() {
    let setup = start("granule=2m");
    let create = |size| setup.try_create(setup.vram[0], size, MEMORY_TYPE_NONE, 0);
    assert_eq!(create(4096), Err(INVALID_ARGUMENT));
    assert_eq!(create(3 * MIB), Err(INVALID_ARGUMENT));
    assert!(create(2 * MIB).is_ok());
    let info = |attribute| pool_info::<usize>(setup.hsa, setup.vram[0], attribute);
    assert_eq!(info(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE), Ok(2 * MIB));
}

#[test]
fn dropping_a_simulation_frees_everything() {
    // In the parent process, threads of other tests could reuse the freed addresses and closed
    // descriptors.
    succeeds_in_child(dropping_a_simulation_frees_everything_in_child);
}

fn dropping_a_simulation_frees_everything_in_child() {
    let setup = start("era=b");
    let (base, handle) = setup.mapped(SIZE, &cpu(&setup, RW));
    let pool = setup.allocate(setup.vram[0], SIZE).expect("memory");
    let file = setup.export(handle).expect("a descriptor");
    write(base, 1);
    assert_eq!(setup.shut_down(), OK);
    assert!(readable(base), "the runtime has leaked the mapping");
    drop(setup);
    assert!(!readable(base) && !readable(pool));
    assert_eq!(
        unsafe { libc::lseek(file, 0, libc::SEEK_END) },
        SIZE as i64,
        "the exported descriptor stays open"
    );
}

/// In a child process, calls `prepare` on a simulation of a generation, uses up all file
/// descriptors, and calls the function that `prepare` returned.
fn run_without_descriptors<A: FnOnce(&Setup)>(
    generation: &str,
    prepare: impl FnOnce(&Setup) -> A,
) -> Ended {
    in_child(|| {
        let setup = start(&format!("era={generation},gpus=2"));
        let act = prepare(&setup);
        let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } >= 0 {}
        act(&setup);
    })
}

/// 6.1.2, 6.4.3 and 7.2.4 return these statuses. Generations C and D only record the mapping, and
/// need no descriptor for that.
#[test]
fn map_needs_a_descriptor_before_generation_c() {
    for (generation, expected) in
        [("a", OUT_OF_RESOURCES), ("b", OUT_OF_RESOURCES), ("c", OK), ("d", OK)]
    {
        let ended = run_without_descriptors(generation, |setup| {
            let (base, handle) = (setup.reserve(SIZE), setup.create(SIZE));
            move |setup: &Setup| {
                assert_eq!(setup.map(base, SIZE, handle), expected);
                // The runtime checks the arguments before it needs a descriptor.
                assert_eq!(setup.map(base + SIZE, SIZE, handle), INVALID_ARGUMENT);
            }
        });
        assert_eq!(ended, Ended::Exit(0), "generation {generation}");
    }
}

/// 6.1.2, 6.4.3 and 7.2.4 abort. Generation C already has a descriptor for every handle. Generation
/// D returns an error.
#[test]
fn grant_without_descriptor_aborts_in_a_and_b() {
    let abort = Ended::Signal(libc::SIGABRT);
    for (generation, expected) in
        [("a", abort), ("b", abort), ("c", Ended::Exit(0)), ("d", Ended::Exit(0))]
    {
        let ended = run_without_descriptors(generation, |setup| {
            let (base, _) = setup.mapped(SIZE, &[]);
            move |setup: &Setup| {
                let status = if generation == "d" { OUT_OF_RESOURCES } else { OK };
                assert_eq!(setup.set(base, SIZE, &gpu(setup, 0, RW)), status);
            }
        });
        assert_eq!(ended, expected, "generation {generation}");
    }
}

#[test]
fn permission_change_needs_no_descriptor() {
    for generation in ["a", "b", "c", "d"] {
        let ended = run_without_descriptors(generation, |setup| {
            let (base, _) = setup.mapped(SIZE, &gpu(setup, 0, RO));
            move |setup: &Setup| {
                assert_eq!(setup.set(base, SIZE, &gpu(setup, 0, RW)), OK);
                assert_eq!(setup.unmap(base, SIZE), OK);
            }
        });
        assert_eq!(ended, Ended::Exit(0), "generation {generation}");
    }
}
