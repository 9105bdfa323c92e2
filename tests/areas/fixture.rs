//! The runtimes that the tests run on, and the memory that their GPUs can access.

use crate::process::page_table::entries;
use crate::process::{End, in_child};
use hsa_rocr::Emulation;
use hsa_rocr::test::run_on_releases;
use hsa_sys::{hsa_agent_t, hsa_amd_event_t, hsa_signal_t, hsa_status_t};
use hsa_vmm::agent::AgentKind;
use hsa_vmm::area::{AreaFlags, Device};
use hsa_vmm::simulation::{Config, Simulation};
use hsa_vmm::{Address, Area, Error, Runtime, Vmm};
use std::ffi::c_void;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::Arc;

/// A runtime, and its simulation if the runtime is simulated.
pub struct Fixture {
    pub runtime: Runtime,
    pub simulation: Option<Arc<Simulation>>,
}

impl Fixture {
    #[track_caller]
    pub fn simulated(config: Config) -> Self {
        let simulation = Arc::new(Simulation::start(config).expect("a valid configuration"));
        let runtime = Runtime::simulated_by(simulation.clone()).expect("the simulation starts");
        let register = simulation.table().core.hsa_amd_register_system_event_handler;
        // SAFETY: the handler has the required type, and ignores its arguments.
        let status = unsafe { register.expect("the function exists")(Some(ignore), null_mut()) };
        assert_eq!(status, 0, "without a handler a fault of a GPU ends the process");
        Self { runtime, simulation: Some(simulation) }
    }

    /// Creates an area with a `Vmm` of its own, if the runtime has virtual memory.
    pub fn area(&self, device: impl Into<Device>, flags: AreaFlags) -> Result<Area, Error> {
        match Vmm::open(&self.runtime) {
            Ok(vmm) => Area::new(&vmm, device, flags),
            Err(_) => Area::without_vmm(&self.runtime, device, flags),
        }
    }

    /// Returns whether a GPU can access a byte.
    #[track_caller]
    pub fn can_access(&self, gpu: usize, address: Address) -> bool {
        match &self.simulation {
            Some(simulation) => {
                can_copy_from(simulation, agent_index_of_gpu(&self.runtime, gpu), address)
            }
            None => is_in_page_table(gpu, address),
        }
    }

    /// Fails if dropped areas have left resources in a simulated runtime.
    #[track_caller]
    pub fn assert_idle(&self) {
        let Some(simulation) = &self.simulation else { return };
        let usage = simulation.usage();
        let resources = usage.reservations + usage.handles + usage.mappings + usage.allocations;
        assert_eq!((resources, usage.descriptors), (0, 0), "the runtime still holds {usage:?}");
        assert!(usage.vram_used.iter().all(|&used| used == 0), "{usage:?}");
    }
}

/// Calls `function` on one release of AMD's runtime, or on each release with `HSA_VMM_LONG=1`, in a process that has no
/// runtime yet.
pub fn on_amd(test: &str, function: impl Fn(&Fixture)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let end = in_child(|| {
            // SAFETY: the file is a fetched release of AMD's runtime.
            let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.expect("a runtime");
            function(&Fixture { runtime, simulation: None });
        });
        assert_eq!(end, End::Success, "{}", fixture.release());
    });
}

/// Returns the index of a GPU in the runtime's list of agents.
fn agent_index_of_gpu(runtime: &Runtime, gpu: usize) -> usize {
    let mut gpus = runtime.agents().iter().enumerate();
    let agent = gpus.by_ref().filter(|(_, agent)| agent.kind() == AgentKind::Gpu).nth(gpu);
    agent.expect("the GPU exists").0
}

unsafe extern "C" fn ignore(_: *const hsa_amd_event_t, _: *mut c_void) -> hsa_status_t {
    0
}

unsafe extern "C" fn collect(agent: hsa_agent_t, list: *mut c_void) -> hsa_status_t {
    // SAFETY: `list` points to the vector that the caller passed to the iteration.
    unsafe { (*list.cast::<Vec<hsa_agent_t>>()).push(agent) };
    0
}

/// Makes an agent of a simulation copy a byte from an address. Returns whether the copy succeeded.
fn can_copy_from(simulation: &Simulation, agent_index: usize, address: Address) -> bool {
    let core = &simulation.table().core;
    let mut agents: Vec<hsa_agent_t> = Vec::new();
    let mut completion = hsa_signal_t { handle: 0 };
    let mut byte = 0u8;
    let destination: *mut c_void = (&raw mut byte).cast();
    let source = without_provenance_mut::<c_void>(address.get());
    let (iterate, create) =
        (core.hsa_iterate_agents, core.hsa_signal_create.expect("the function exists"));
    let copy = core.hsa_amd_memory_async_copy.expect("the function exists");
    let wait = core.hsa_signal_wait_scacquire.expect("the function exists");
    let destroy = core.hsa_signal_destroy.expect("the function exists");
    let lock = core.hsa_amd_memory_lock.expect("the function exists");
    let unlock = core.hsa_amd_memory_unlock.expect("the function exists");
    // SAFETY: `agents` has the type that `collect` expects, and the byte stays until the copy has ended. At unmapped
    // addresses, the simulated GPU faults, not this process.
    unsafe {
        assert_eq!(iterate(Some(collect), (&raw mut agents).cast()), 0);
        assert_eq!(create(1, 0, null(), &mut completion), 0);
        let agent = agents[agent_index];
        let mut locked = null_mut();
        assert_eq!(lock(destination, 1, null_mut(), 0, &mut locked), 0);
        assert_eq!(copy(locked, agent, source, agent, 1, 0, null_mut(), completion), 0);
        // A wait may return before the condition holds.
        let value = loop {
            let value = wait(completion, hsa_sys::HSA_SIGNAL_CONDITION_LT, 1, u64::MAX, 0);
            if value < 1 {
                break value;
            }
        };
        assert_eq!(unlock(destination), 0);
        assert_eq!(destroy(completion), 0);
        value == 0
    }
}

/// Returns whether an address is in the page table of a GPU of the emulated driver.
#[track_caller]
fn is_in_page_table(gpu: usize, address: Address) -> bool {
    entries(gpu).iter().any(|entry| entry.contains(&address.get()))
}
