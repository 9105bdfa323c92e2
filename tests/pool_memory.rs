//! Pool memory on the simulation: what is given back and when, failures, threads, forks.

mod machine;
mod process;

use hsa_vmm::Kept;
use hsa_vmm::memory::{Grain, Problem};
use hsa_vmm::simulation::{Config, FaultPlan, Simulation};
use hsa_vmm::{AgentId, HipError, HipProfile, Ipc, MemoryError, PoolFlags, PoolMemory, Runtime};
use machine::assert_idle;
use process::End;
use std::sync::Arc;

/// `HSA_STATUS_ERROR_OUT_OF_RESOURCES` and `HSA_STATUS_ERROR_INVALID_ALLOCATION`.
const OUT_OF_RESOURCES: u32 = 0x1008;
const INVALID_ALLOCATION: u32 = 0x1003;

fn machine(faults: FaultPlan) -> (Arc<Simulation>, Runtime) {
    let config = Config::mi300x(2).with_faults(faults);
    let simulation = Arc::new(Simulation::start(config).expect("a configuration that works"));
    let runtime = Runtime::simulated_by(simulation.clone()).expect("the simulation starts");
    (simulation, runtime)
}

fn gpu(runtime: &Runtime, number: usize) -> AgentId {
    runtime.gpus().nth(number).expect("there is such a GPU").id()
}

#[test]
fn everything_is_given_back() {
    let (simulation, runtime) = machine(FaultPlan::default());
    let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 5000).unwrap();
    assert_eq!((memory.size(), memory.allocated_size()), (5000, 8192));
    assert_eq!(simulation.usage().allocations, 1);
    drop(memory);
    assert_idle(&simulation);
    let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 1), 5000).unwrap();
    // An export that nobody opened does not keep it.
    Ipc::open(&runtime).unwrap().get_mem_handle(memory.address()).unwrap();
    memory.free().unwrap();
    assert_idle(&simulation);
    assert_eq!(simulation.calls("hsa_amd_memory_pool_free"), 2);
}

#[test]
fn the_grain_is_that_of_the_pool() {
    let (_, runtime) = machine(FaultPlan::default());
    for (agent, expected) in [(gpu(&runtime, 0), Grain::Coarse), (runtime.host().id(), Grain::Fine)]
    {
        assert_eq!(PoolMemory::allocate(&runtime, agent, 1).unwrap().grain(), expected);
        let pools = runtime.agent(agent).unwrap().pools();
        for (grain, flag) in
            [(Grain::Coarse, PoolFlags::COARSE_GRAINED), (Grain::Fine, PoolFlags::FINE_GRAINED)]
        {
            let there = pools.iter().any(|pool| pool.allocatable() && pool.flags().contains(flag));
            let answer = PoolMemory::allocate_with(&runtime, agent, 1, grain);
            assert_eq!(answer.is_ok(), there, "{agent} {grain:?}");
        }
    }
}

#[test]
fn a_free_that_fails_gives_the_memory_back() {
    let plan = FaultPlan::default().fail("hsa_amd_memory_pool_free", 1, INVALID_ALLOCATION);
    let plan = plan.fail("hsa_amd_memory_pool_free", 3, INVALID_ALLOCATION);
    let (simulation, runtime) = machine(plan);
    let ipc = Ipc::open(&runtime).unwrap();
    for exported in [false, true] {
        let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
        memory.write(0, b"kept").unwrap();
        let handle = exported.then(|| ipc.get_mem_handle(memory.address()).unwrap());
        let Kept { value: memory, error } = memory.free().unwrap_err();
        assert!(matches!(error, MemoryError::Runtime { .. }), "{error}");
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
fn running_out_is_an_error_of_its_own() {
    for status in [OUT_OF_RESOURCES, INVALID_ALLOCATION] {
        let plan = FaultPlan::default().fail("hsa_amd_memory_pool_allocate", 1, status);
        let (simulation, runtime) = machine(plan);
        let error = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap_err();
        assert!(matches!(error, MemoryError::OutOfMemory { size: 4096, .. }), "{error}");
        assert_eq!(error.hip(HipProfile::default()), HipError::OutOfMemory);
        assert_idle(&simulation);
    }
}

#[test]
fn agents_of_another_runtime_are_refused() {
    let ((_, runtime), (_, other)) = (machine(FaultPlan::default()), machine(FaultPlan::default()));
    let foreign = gpu(&other, 0);
    let error = PoolMemory::allocate(&runtime, foreign, 4096).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::UnknownAgent(foreign)));
    let memory = PoolMemory::allocate(&runtime, gpu(&runtime, 0), 4096).unwrap();
    let error = memory.allow(&[gpu(&runtime, 1), foreign]).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::UnknownAgent(foreign)));
    assert!(!memory.is_open_to(gpu(&runtime, 1)), "nothing of the list was done");
    let theirs = PoolMemory::allocate(&other, foreign, 4096).unwrap();
    let error = memory.copy(0, &theirs, 0, 64).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::ForeignMemory));
}

/// As `NoGpuTst_hipIpc…` of hip-tests.
#[test]
fn a_machine_without_gpus_shares_nothing() {
    let mut config = Config::mi300x(1);
    config.gpus.clear();
    let runtime = Runtime::simulated(config).unwrap();
    let error = Ipc::open(&runtime).unwrap_err();
    assert_eq!(error.hip(HipProfile::default()), HipError::NoDevice, "{error}");
    let memory = PoolMemory::allocate(&runtime, runtime.host().id(), 10).unwrap();
    memory.write(0, b"host only!").unwrap();
    let mut text = [0; 10];
    memory.read(0, &mut text).unwrap();
    assert_eq!(&text, b"host only!");
}

#[test]
fn threads_do_not_get_in_each_others_way() {
    let (simulation, runtime) = machine(FaultPlan::default());
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
fn every_call_of_a_child_is_refused() {
    let _alone = process::alone();
    let (_, runtime) = machine(FaultPlan::default());
    let owner = gpu(&runtime, 0);
    let memory = PoolMemory::allocate(&runtime, owner, 4096).unwrap();
    let host = PoolMemory::allocate(&runtime, runtime.host().id(), 4096).unwrap();
    memory.write(0, b"kept").unwrap();
    let end = process::in_child(|| {
        let answers = [
            PoolMemory::allocate(&runtime, owner, 4096).map(drop),
            PoolMemory::allocate(&runtime, owner, 0).map(drop),
            memory.allow(&[owner]),
            memory.read(0, &mut [0; 4]),
            host.read(0, &mut [0; 4]),
            host.write(0, b"lost"),
            memory.fill(0, 1, 4),
            memory.copy(0, &host, 0, 4),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(MemoryError::Forked { .. })), "{answer:?}");
        }
        let Kept { error, .. } = memory.free().unwrap_err();
        assert!(matches!(error, MemoryError::Forked { .. }), "{error}");
        drop(host);
    });
    assert_eq!(end, End::Well);
}
