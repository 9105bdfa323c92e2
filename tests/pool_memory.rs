//! Pool memory on the simulation: how it is allocated, copied, exported and freed, and what happens if a call fails.

mod machine;
mod process;

use hsa_vmm::error::{Operation, Problem, Rejected};
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::hsa_sys::{
    HSA_STATUS_ERROR, HSA_STATUS_ERROR_INVALID_ALLOCATION, HSA_STATUS_ERROR_INVALID_ARGUMENT,
    HSA_STATUS_ERROR_OUT_OF_RESOURCES,
};
use hsa_vmm::pool::PoolFlags;
use hsa_vmm::simulation::{Config, FaultPlan, Simulation};
use hsa_vmm::{Address, AgentId, ErrorKind, Ipc, PoolMemory, Runtime, Vmm};
use machine::assert_idle;
use process::End;
use std::sync::Arc;

fn start_simulation(faults: FaultPlan) -> (Arc<Simulation>, Runtime) {
    let config = Config::mi300x(2).with_faults(faults);
    let simulation = Arc::new(Simulation::start(config).expect("the configuration is valid"));
    let runtime = Runtime::simulated_by(simulation.clone()).expect("the simulation starts");
    (simulation, runtime)
}

fn gpu(runtime: &Runtime, number: usize) -> AgentId {
    runtime.gpus().nth(number).expect("the GPU exists").id()
}

#[test]
fn drop_frees_pool_memory() {
    let (simulation, runtime) = start_simulation(FaultPlan::default());
    let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 5000).unwrap();
    assert_eq!((memory.size(), memory.allocated_size()), (5000, 8192));
    assert_eq!(simulation.usage().allocations, 1);
    drop(memory);
    assert_idle(&simulation);
    let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 1), 5000).unwrap();
    // An export that was never opened does not keep the memory allocated.
    Ipc::open(&runtime).unwrap().get_mem_handle(memory.address()).unwrap();
    memory.free().unwrap();
    assert_idle(&simulation);
    assert_eq!(simulation.calls("hsa_amd_memory_pool_free"), 2);
}

#[test]
fn memory_has_the_flags_of_its_pool() {
    let (_, runtime) = start_simulation(FaultPlan::default());
    let (coarse, fine) = (PoolFlags::COARSE_GRAINED, PoolFlags::FINE_GRAINED);
    for (agent, expected) in [(gpu(&runtime, 0), coarse), (runtime.host().id(), fine)] {
        let memory = PoolMemory::allocate(&runtime, agent, 1).unwrap();
        assert!(memory.flags().contains(expected), "{agent}");
        let pools = &runtime.agent(agent).unwrap().pools;
        for flags in [coarse, fine] {
            let is_available =
                pools.iter().any(|pool| pool.allocatable && pool.flags.contains(flags));
            let result = PoolMemory::allocate_with(&runtime, agent, 1, flags);
            assert_eq!(result.is_ok(), is_available, "{agent} {flags:?}");
            assert!(result.is_ok_and(|memory| memory.flags().contains(flags)) == is_available);
        }
    }
}

/// The simulation returns success, but no address.
#[test]
fn allocation_without_an_address_is_an_error() {
    let (simulation, runtime) = start_simulation(FaultPlan::default());
    let vmm = Vmm::open(&runtime).unwrap();
    let plan = "hsa_amd_memory_pool_allocate=lost;hsa_amd_vmem_address_reserve_align=lost";
    simulation.set_faults(plan.parse().unwrap());
    let allocated = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).map(drop);
    for (result, operation, call) in [
        (allocated, "allocate pool memory", "hsa_amd_memory_pool_allocate"),
        (
            vmm.address_reserve(2 << 20, 0, None).map(drop),
            "reserve addresses",
            "hsa_amd_vmem_address_reserve_align",
        ),
    ] {
        let error = result.unwrap_err();
        let text = error.to_string();
        let message =
            format!("{call} returned success without a result, which is a defect of the runtime");
        assert!(text.starts_with(&format!("cannot {operation}: {message}")), "{text}");
        assert_eq!(error.hip(HipProfile::Hip7), HipError::OutOfMemory, "{text}");
    }
    assert!(runtime.pool_memory().is_empty() && vmm.snapshot().0.is_empty());
}

#[test]
fn failed_free_returns_the_memory() {
    let plan = FaultPlan::default().fail(
        "hsa_amd_memory_pool_free",
        1,
        HSA_STATUS_ERROR_INVALID_ALLOCATION,
    );
    let plan = plan.fail("hsa_amd_memory_pool_free", 3, HSA_STATUS_ERROR_INVALID_ALLOCATION);
    let (simulation, runtime) = start_simulation(plan);
    let ipc = Ipc::open(&runtime).unwrap();
    for exported in [false, true] {
        let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
        memory.write(0, b"kept").unwrap();
        let handle = exported.then(|| ipc.get_mem_handle(memory.address()).unwrap());
        let Rejected { value: memory, error } = memory.free().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Runtime { .. }), "{error}");
        let mut text = [0; 4];
        memory.read(0, &mut text).unwrap();
        assert_eq!(&text, b"kept");
        if let Some(handle) = handle {
            assert_eq!(ipc.get_mem_handle(memory.address()), Ok(handle));
        }
        memory.free().unwrap();
    }
    assert_idle(&simulation);
}

#[test]
fn exhausted_pool_is_out_of_memory() {
    for status in [HSA_STATUS_ERROR_OUT_OF_RESOURCES, HSA_STATUS_ERROR_INVALID_ALLOCATION] {
        let plan = FaultPlan::default().fail("hsa_amd_memory_pool_allocate", 1, status);
        let (simulation, runtime) = start_simulation(plan);
        let error = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { size: 4096, .. }), "{error}");
        assert!(error.to_string().starts_with("cannot allocate pool memory on GPU 0: "), "{error}");
        assert_eq!(error.hip(HipProfile::default()), HipError::OutOfMemory);
        assert_idle(&simulation);
    }
}

#[test]
fn agents_of_another_runtime_are_rejected() {
    let ((_, runtime), (_, other_runtime)) =
        (start_simulation(FaultPlan::default()), start_simulation(FaultPlan::default()));
    let foreign_gpu = gpu(&other_runtime, 0);
    let error = PoolMemory::allocate(&runtime, foreign_gpu, 4096).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::UnknownAgent));
    let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
    let error = memory.allow(&[gpu(&runtime, 1), foreign_gpu]).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::UnknownAgent));
    assert!(!memory.is_accessible_by(gpu(&runtime, 1)), "no agent of a rejected list gets access");
    let foreign_memory = PoolMemory::allocate(&other_runtime, foreign_gpu, 4096).unwrap();
    let error = memory.copy(0, &foreign_memory, 0, 64).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::ForeignMemory));
}

#[test]
fn copies_work_between_gpus_and_host() {
    let (simulation, runtime) = start_simulation(FaultPlan::default());
    let [first, second, host] = [gpu(&runtime, 0), gpu(&runtime, 1), runtime.host().id()];
    for (destination, source) in
        [(first, first), (first, second), (first, host), (host, second), (host, host)]
    {
        let case = format!("to {destination} from {source}");
        let allocate = |agent| {
            let memory = PoolMemory::allocate(&runtime, agent, 256 << 10).expect("memory");
            assert_eq!((memory.agent(), memory.runtime().host().id()), (agent, host));
            memory
        };
        let (target_memory, source_memory) = (allocate(destination), allocate(source));
        source_memory.fill(8, 0x3332_3130, 200_000).unwrap();
        target_memory.fill(0, u32::MAX, 256 << 10).unwrap();
        // The GPU of the destination copies. If the destination is host memory, the agent of the source copies.
        let copier = if destination == host { source } else { destination };
        if destination != source {
            let error = target_memory.copy(4, &source_memory, 8, 150_000).unwrap_err();
            assert_eq!(error.problem(), Some(Problem::NotAllowed(copier)), "{case}");
            let inaccessible = if copier == source { &target_memory } else { &source_memory };
            inaccessible.allow(&[copier]).unwrap();
        }
        target_memory
            .copy(4, &source_memory, 8, 150_000)
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let mut bytes = vec![0; 150_008];
        target_memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes[..4], [0xff; 4], "{case}");
        assert!(bytes[4..150_004].chunks(4).all(|word| word == b"0123"), "{case}");
        assert_eq!(bytes[150_004..], [0xff; 4], "{case}");
    }
    assert_idle(&simulation);
}

#[test]
fn out_of_bounds_accesses_write_nothing() {
    let (_, runtime) = start_simulation(FaultPlan::default());
    for agent in [gpu(&runtime, 0), runtime.host().id()] {
        let [memory, larger] =
            [8, 16].map(|size| PoolMemory::allocate(&runtime, agent, size).unwrap());
        memory.write(0, b"the same").unwrap();
        let beyond = |size| Problem::OutOfBounds { size, end: 8 };
        for (operation, result, problem) in [
            (Operation::Read, memory.read(4, &mut [0; 5]), beyond(5)),
            (Operation::Read, memory.read(usize::MAX, &mut [0; 2]), beyond(2)),
            (Operation::Write, memory.write(8, b"x"), beyond(1)),
            (Operation::Fill, memory.fill(4, 7, 8), beyond(8)),
            (Operation::Fill, memory.fill(2, 7, 4), Problem::NotMultipleOfFour),
            (Operation::Fill, memory.fill(4, 7, 2), Problem::NotMultipleOfFour),
            (Operation::Copy, memory.copy(4, &larger, 0, 8), beyond(8)),
            (Operation::Copy, larger.copy(0, &memory, 1, 8), beyond(8)),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.operation(), operation, "{error}");
            assert_eq!(error.problem(), Some(problem), "{agent}");
        }
        // An access of zero bytes is in bounds everywhere, even at the end.
        memory.read(8, &mut []).unwrap();
        memory.write(8, &[]).unwrap();
        memory.fill(8, 7, 0).unwrap();
        memory.copy(8, &larger, 16, 0).unwrap();
        let mut bytes = [0; 8];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"the same");
        let error = PoolMemory::allocate(&runtime, agent, 0).unwrap_err();
        assert_eq!(error.problem(), Some(Problem::Zero));
    }
}

/// Without a large BAR, the CPU cannot access a GPU's memory.
#[test]
fn allow_rejects_agents_without_peer_access() {
    let mut config = Config::consumer();
    config.gpus.truncate(1);
    let runtime = Runtime::simulated(config).unwrap();
    let (owner, host) = (gpu(&runtime, 0), runtime.host().id());
    let memory = PoolMemory::allocate(&runtime, owner, 4096).unwrap();
    let error = memory.allow(&[host]).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::NoPeerAccess(owner)));
    assert!(!memory.is_accessible_by(host) && memory.is_accessible_by(owner));
}

/// AMD's driver library revokes access first, and grants access then. If a grant fails, the library restores the old
/// access. If that also fails, the library makes no copy with an agent that may have lost its access.
#[test]
fn failed_allow_restores_the_old_access() {
    let allow = "hsa_amd_agents_allow_access";
    let fail = |plan: FaultPlan, call| plan.fail(allow, call, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    for (plan, restored) in
        [(fail(FaultPlan::default(), 2), true), (fail(fail(FaultPlan::default(), 2), 3), false)]
    {
        let (simulation, runtime) = start_simulation(plan);
        let peer = gpu(&runtime, 1);
        let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
        memory.allow(&[peer]).unwrap();
        let error = memory.allow(&[]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{error}");
        assert_eq!(simulation.calls(allow), 3);
        assert_eq!(memory.is_accessible_by(peer), restored);
        let other = PoolMemory::allocate(&runtime, peer, 4096).unwrap();
        memory.write(0, b"kept").unwrap();
        assert_eq!(other.copy(0, &memory, 0, 4096).is_ok(), restored);
    }
}

#[test]
fn each_ipc_numbers_its_own_devices() {
    let (_, runtime) = start_simulation(FaultPlan::default());
    let second_gpu = gpu(&runtime, 1);
    let memory = PoolMemory::allocate(&runtime, second_gpu, 4096).unwrap();
    let all = Ipc::open(&runtime).unwrap();
    let only_second = Ipc::open(&runtime).unwrap().with_devices(&[second_gpu]);
    for (ipc, device) in [(&all, 1), (&only_second, 0), (&all, 1)] {
        let handle = ipc.get_mem_handle(memory.address()).unwrap();
        assert_eq!((handle.device, handle.is_freed()), (device, false));
    }
}

#[test]
fn export_rejects_addresses_outside_gpu_pool_memory() {
    let (_, runtime) = start_simulation(FaultPlan::default());
    let ipc = Ipc::open(&runtime).unwrap();
    assert_eq!(ipc.runtime().agents().len(), runtime.agents().len());
    let host = PoolMemory::allocate(&runtime, runtime.host().id(), 4096).unwrap();
    let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
    let freed = memory.address();
    memory.free().unwrap();
    let local = 0_u64;
    for (address, problem) in [
        (host.address(), Problem::HostMemory),
        (freed, Problem::NotAllocated),
        (Address::from(&raw const local), Problem::NotAllocated),
        (Address::NULL, Problem::Null),
    ] {
        let error = ipc.get_mem_handle(address).unwrap_err();
        assert_eq!(error.problem(), Some(problem), "{error}");
    }
    let vmm = Vmm::open(&runtime).unwrap();
    let reserved = vmm.address_reserve(4096, 0, None).unwrap();
    let error = ipc.get_mem_handle(reserved).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::VirtualMemory), "{error}");
}

/// With `HSA_ENABLE_IPC_MODE_LEGACY=1`, AMD's runtime can export memory only if the kernel driver is from AMD's own
/// package. Otherwise, the runtime returns `HSA_STATUS_ERROR` or `HSA_STATUS_ERROR_INVALID_ARGUMENT`.
#[test]
fn unsupported_export_differs_from_runtime_failure() {
    for (status, is_runtime_failure) in [
        (HSA_STATUS_ERROR, false),
        (HSA_STATUS_ERROR_INVALID_ARGUMENT, false),
        (HSA_STATUS_ERROR_OUT_OF_RESOURCES, true),
    ] {
        let plan = FaultPlan::default().fail("hsa_amd_ipc_memory_create", 1, status);
        let (simulation, runtime) = start_simulation(plan);
        let ipc = Ipc::open(&runtime).unwrap();
        let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
        let error = ipc.get_mem_handle(memory.address()).unwrap_err();
        assert_eq!(
            matches!(error.kind(), ErrorKind::Runtime { .. }),
            is_runtime_failure,
            "{error}"
        );
        let names_setting = error.to_string().contains("HSA_ENABLE_IPC_MODE_LEGACY=0");
        assert_eq!(names_setting, !is_runtime_failure, "{error}");
        ipc.get_mem_handle(memory.address()).expect("the next call succeeds");
        drop(memory);
        assert_idle(&simulation);
    }
}

/// AMD's runtime reads `HSA_ENABLE_IPC_MODE_LEGACY` only when it starts.
#[test]
fn ipc_mode_is_fixed_at_start() {
    if process::rerun_in_own_process() {
        return;
    }
    // AMD's runtime pads the abstract name of its socket with zeros to the greatest size of such names. If a socket has
    // bound the name but does not listen, the library takes it for the socket of another process.
    let mut name = [0; 107];
    let text = format!("hsa{}", std::process::id());
    name[..text.len()].copy_from_slice(text.as_bytes());
    let address = rustix::net::SocketAddrUnix::new_abstract_name(&name).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
    let socket = rustix::net::socket(family, kind, None).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    for (at_start, later) in [("1", "0"), ("0", "1")] {
        // SAFETY: no other thread of this process uses the environment.
        let set = |value| unsafe { std::env::set_var("HSA_ENABLE_IPC_MODE_LEGACY", value) };
        set(at_start);
        let (_simulation, runtime) = start_simulation(FaultPlan::default());
        let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
        set(later);
        let result = Ipc::open(&runtime).unwrap().get_mem_handle(memory.address());
        let is_taken = result.is_err_and(|error| matches!(error.kind(), ErrorKind::SocketTaken(_)));
        assert_eq!(is_taken, at_start == "0");
    }
}

/// Without a free descriptor, the library does not call the runtime, because AMD's runtime 7.2 would end the process.
#[test]
fn export_reports_missing_descriptors() {
    let end = process::in_child(|| {
        let (simulation, runtime) = start_simulation(FaultPlan::default());
        let ipc = Ipc::open(&runtime).unwrap();
        let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
        let export = || ipc.get_mem_handle(memory.address());
        let error = process::with_free_descriptors(0, export).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfDescriptors), "{error}");
        assert_eq!(simulation.calls("hsa_amd_ipc_memory_create"), 0);
        export().unwrap();
    });
    assert_eq!(end, End::Success);
}

/// Tests the behaviour that hip-tests covers in the cases `NoGpuTst_hipIpc…`.
#[test]
fn ipc_needs_a_gpu() {
    let mut config = Config::mi300x(1);
    config.gpus.clear();
    let runtime = Runtime::simulated(config).unwrap();
    let errors = [Ipc::open(&runtime).unwrap_err(), Vmm::open(&runtime).unwrap_err()];
    for error in errors {
        assert_eq!(error.hip(HipProfile::default()), HipError::NoDevice, "{error}");
    }
    let memory = PoolMemory::allocate(&runtime, runtime.host().id(), 10).unwrap();
    memory.write(0, b"host only!").unwrap();
    let mut text = [0; 10];
    memory.read(0, &mut text).unwrap();
    assert_eq!(&text, b"host only!");
}

#[test]
fn threads_allocate_and_copy_independently() {
    let (simulation, runtime) = start_simulation(FaultPlan::default());
    let ipc = Ipc::open(&runtime).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let (runtime, ipc) = (&runtime, &ipc);
            scope.spawn(move || {
                for round in 0..50 {
                    let owner = gpu(runtime, usize::from(thread) % 2);
                    let memory = PoolMemory::allocate(runtime, owner, 4096).unwrap();
                    memory.write(0, &[thread; 4096]).unwrap();
                    if round % 2 == 0 {
                        ipc.get_mem_handle(memory.address()).unwrap();
                    }
                    let mut bytes = [0; 4096];
                    memory.read(0, &mut bytes).unwrap();
                    assert_eq!(bytes, [thread; 4096]);
                    memory.free().unwrap();
                }
            });
        }
    });
    assert_idle(&simulation);
}

#[test]
fn forked_child_gets_errors() {
    if process::rerun_in_own_process() {
        return;
    }
    let (_, runtime) = start_simulation(FaultPlan::default());
    let owner = gpu(&runtime, 0);
    let memory = PoolMemory::allocate(&runtime, owner, 4096).unwrap();
    let host = PoolMemory::allocate(&runtime, runtime.host().id(), 4096).unwrap();
    memory.write(0, b"kept").unwrap();
    let end = process::in_child(|| {
        let results = [
            PoolMemory::allocate(&runtime, owner, 4096).map(drop),
            PoolMemory::allocate(&runtime, owner, 0).map(drop),
            memory.allow(&[owner]),
            memory.read(0, &mut [0; 4]),
            host.read(0, &mut [0; 4]),
            host.write(0, b"lost"),
            memory.fill(0, 1, 4),
            memory.copy(0, &host, 0, 4),
        ];
        for result in results {
            let kind = result.map_err(hsa_vmm::Error::into_kind);
            assert_eq!(kind, Err(ErrorKind::Forked));
        }
        let Rejected { error, .. } = memory.free().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Forked, "{error}");
        drop(host);
    });
    assert_eq!(end, End::Success);
}

#[test]
fn ipc_lists_a_gpu_and_its_peers_once() {
    for peer_access in [true, false] {
        let mut config = Config::mi300x(3);
        config.peer_access = peer_access;
        let runtime = Runtime::simulated(config).unwrap();
        let [first, own, last] = [0, 1, 2].map(|number| gpu(&runtime, number));
        let ipc = Ipc::on(&runtime, own).unwrap();
        let all = [own, first, last];
        assert_eq!(ipc.agents(), if peer_access { &all[..] } else { &all[..1] });
    }
}

/// All exports of a process are entries of one file, so the exports need only one descriptor.
#[test]
fn exports_share_one_descriptor() {
    let (_, runtime) = start_simulation(FaultPlan::default());
    let ipc = Ipc::open(&runtime).unwrap();
    let memory = [(); 2].map(|()| PoolMemory::allocate(&runtime, ipc.agents()[0], 5000).unwrap());
    let [first, second] =
        memory.each_ref().map(|memory| ipc.get_mem_handle(memory.address()).unwrap().to_bytes());
    // The bytes that contain the descriptor of the file, and those that contain the entry's slot.
    let (descriptor, slot) = (52..55, 55..57);
    assert_eq!(first[descriptor.clone()], second[descriptor]);
    assert_ne!(first[slot.clone()], second[slot]);
}

/// A sandbox forbids writing to files. The kernel would end the process when the library writes its list of exports.
#[test]
fn exported_memory_is_freed_without_file_writes() {
    if process::rerun_in_own_process() {
        return;
    }
    let (simulation, runtime) = start_simulation(FaultPlan::default());
    let new = || PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
    let (first, second, third) = (new(), new(), new());
    let ipc = Ipc::open(&runtime).unwrap();
    let handles = [&first, &second].map(|it| ipc.get_mem_handle(it.address()).unwrap());
    process::limit::forbid_writing();
    let errors = || ipc.get_mem_handle(third.address()).unwrap_err().to_string();
    assert!(errors().contains("pwrite failed: File too large"), "{}", errors());
    first.free().unwrap();
    assert_eq!(handles.map(|handle| handle.is_freed()), [true, false]);
    drop(second);
    assert!(handles[1].is_freed());
    assert!(errors().contains("ftruncate failed: File too large"), "{}", errors());
    third.free().unwrap();
    assert_idle(&simulation);
}
