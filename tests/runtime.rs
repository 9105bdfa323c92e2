//! Opening a runtime: the properties that the library reports, and the errors if the runtime cannot be opened.

mod hostile;
mod machine;
mod process;

use hostile::{HostileRuntime, compile_source};
use hsa_vmm::agent::{AgentKind, LinkKind};
use hsa_vmm::error::Feature;
use hsa_vmm::hsa_sys::{
    HSA_STATUS_ERROR, HSA_STATUS_ERROR_NOT_INITIALIZED, HSA_STATUS_ERROR_OUT_OF_RESOURCES,
};
use hsa_vmm::pool::{PoolFlags, Segment};
use hsa_vmm::simulation::{Config, FaultPlan, Simulation};
use hsa_vmm::vmm::Granularity;
use hsa_vmm::{AllocationProperties, Error, ErrorKind, Runtime, Vmm};
use machine::{KIB, MIB, Machine, with_two_cpus};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const GIB: usize = 1 << 30;

fn simulated(config: Config) -> Runtime {
    Runtime::simulated(config).expect("the simulation starts")
}

#[test]
fn agents_describe_an_mi300x() {
    let runtime = simulated(Config::mi300x(8));
    assert_eq!(runtime.agents().len(), 9);
    assert_eq!(runtime.gpus().count(), 8);
    assert_eq!(runtime.host().kind(), AgentKind::Cpu);
    assert_eq!(runtime.host().id().index(), 0);
    let gpu = runtime.gpus().next().unwrap();
    assert_eq!(gpu.kind(), AgentKind::Gpu);
    assert_eq!(gpu.name(), "gfx942");
    assert_eq!(gpu.product, "AMD Instinct MI300X");
    assert_eq!(gpu.isas, ["amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-"]);
    assert_eq!(gpu.uuid, "GPU-4f3a91c85e20b700");
    assert_eq!(gpu.chip, 0x74a1);
    assert_eq!(gpu.compute_units, 304);
    assert_eq!(gpu.pci.unwrap().to_string(), "0000:05:00.0");
    assert_eq!(gpu.nearest_cpu, Some(runtime.host().id()));
    assert_eq!((gpu.node, gpu.numa_node), (1, Some(0)));
    assert!(gpu.large_bar && !gpu.integrated);
    let pool = gpu.vmem_pool().unwrap();
    assert_eq!(pool.size, 192 * GIB);
    assert_eq!((pool.granule, pool.recommended_granule), (4 * KIB, 2 * MIB));
    assert!(pool.allocatable && pool.flags.contains(PoolFlags::COARSE_GRAINED));
    assert_eq!((pool.alignment, pool.largest_allocation), (4 * KIB, 192 * GIB));
    let group = gpu.pools.iter().find(|pool| pool.segment == Segment::Group).unwrap();
    assert_eq!((group.allocatable, group.largest_allocation), (false, 0));
    let foreign = simulated(Config::mi300x(1)).gpus().next().unwrap().id();
    assert_eq!(runtime.available_memory(foreign), None);
    assert_eq!(runtime.compute_properties(foreign), None);
    // Agents need a grant to access memory of a GPU. All agents can access memory of the host.
    assert!(!pool.accessible_by_all);
    let host_pools = &runtime.host().pools;
    assert!(host_pools.iter().any(|pool| pool.accessible_by_all), "{host_pools:?}");
    assert_eq!(runtime.host().vmem_pool().map(|pool| pool.size), None);
    let addresses: Vec<_> = runtime.gpus().map(|gpu| gpu.pci).collect();
    assert!(addresses.is_sorted() && addresses.windows(2).all(|pair| pair[0] != pair[1]));
    let second = runtime.gpus().nth(1).unwrap();
    assert!(gpu.can_access(second.id()) && second.can_access(gpu.id()) && gpu.can_access(gpu.id()));
    let peer = gpu.peers.iter().find(|peer| peer.agent == second.id()).unwrap();
    assert!(peer.links.iter().any(|link| link.kind == LinkKind::Xgmi), "{peer:?}");
}

#[test]
fn debug_shows_the_name_and_the_number_of_agents() {
    let text = format!("{:?}", simulated(Config::mi300x(2)));
    assert_eq!(text, r#"Runtime { name: "simulation", path: None, agents: 3, .. }"#);
}

#[test]
fn available_memory_excludes_used_memory() {
    let machine = Machine::new(Config::mi300x(2));
    let available_memory =
        || machine.gpus().into_iter().map(|gpu| machine.runtime.available_memory(gpu));
    let total = Some(192 * GIB);
    assert!(available_memory().eq([total, total]));
    let handle = machine.create(1, 2 * MIB);
    assert!(available_memory().eq([total, total.map(|total| total - 2 * MIB)]));
    machine.vmm.release(handle).unwrap();
    assert!(available_memory().eq([total, total]));
}

/// The expected values are from MI300X's specifications.
#[test]
fn compute_properties_describe_the_hardware() {
    let runtime = simulated(Config::mi300x(1));
    let gpu = runtime.gpus().next().unwrap();
    let properties = runtime.compute_properties(gpu.id()).unwrap();
    assert_eq!((properties.wavefront_size, properties.max_waves_per_unit), (64, 32));
    assert_eq!(properties.max_workgroup_size, 1024);
    assert_eq!(properties.max_workgroup_dimensions, [1024; 3]);
    assert_eq!(properties.group_memory, 64 << 10);
    assert_eq!((properties.clock, properties.memory_clock), (2100, 1300));
    assert_eq!(properties.memory_width, 8192);
    assert_eq!(properties.cache_sizes, [32 << 10, 4 << 20, 256 << 20, 0]);
    // A CPU has no wavefronts, but a clock.
    let cpu = runtime.compute_properties(runtime.host().id()).unwrap();
    assert_eq!((cpu.wavefront_size, cpu.max_workgroup_size, cpu.group_memory), (0, 0, 0));
    assert!(cpu.clock > 0);
}

#[test]
fn agents_describe_a_radeon() {
    let runtime = simulated(Config::consumer());
    let gpu = runtime.gpus().next().unwrap();
    assert_eq!((gpu.name(), gpu.product.as_str()), ("gfx1101", "AMD Radeon RX 7800 XT"));
    assert_eq!(gpu.vmem_pool().unwrap().size, 16 * GIB);
    assert!(!gpu.large_bar && !gpu.integrated);
    assert!(!runtime.host().can_access(gpu.id()));
}

#[test]
fn agents_describe_an_mi300a() {
    for (release, config) in machine::releases() {
        let minor = config.extension_minor;
        let runtime = simulated(Config::apu().with_extension(minor));
        let gpu = runtime.gpus().next().unwrap();
        assert_eq!(gpu.product, "AMD Instinct MI300A");
        // Only 6.0 does not report this attribute. `Config::apu` reports the extension, so no entry of the list behaves
        // like 6.0 here.
        assert!(gpu.integrated, "{release}");
        assert!(gpu.large_bar, "{release}");
    }
}

#[test]
fn agents_have_numa_nodes() {
    let mut config = with_two_cpus(Config::mi300x(2));
    config.gpus[1].nearest_cpu = 1;
    let runtime = simulated(config);
    let kinds: Vec<_> = runtime.agents().iter().map(|agent| agent.kind()).collect();
    use AgentKind::{Cpu, Gpu};
    assert_eq!(kinds, [Cpu, Cpu, Gpu, Gpu]);
    let nodes: Vec<_> = runtime.agents().iter().map(|agent| agent.numa_node).collect();
    assert_eq!(nodes, [Some(0), Some(1), Some(0), Some(1)]);
}

#[test]
fn runtimes_report_their_version_and_functions() {
    for (release, config) in machine::releases() {
        let (minor, reported) = (config.extension_minor as u16, config.extension_reported);
        let runtime = simulated(config);
        let info = runtime.info();
        assert_eq!(info.extension, (1, minor), "{release}");
        assert!(reported || minor == 4);
        assert_eq!((info.name.as_str(), info.path.as_ref()), ("simulation", None));
        assert!(info.build.starts_with("hsa-sim "), "{release}: {}", info.build);
        assert!(info.virtual_memory_failure.is_none(), "{release}");
        let has = |name: &str| {
            let found = info.optional_functions.iter().find(|(function, _)| *function == name);
            found.unwrap_or_else(|| panic!("{name} is not listed")).1
        };
        assert_eq!(has("hsa_amd_vmem_address_reserve_align"), minor >= 6, "{release}");
        assert_eq!(has("hsa_amd_vmem_export_fabric_handle"), minor >= 16, "{release}");
        assert_eq!(has("hsa_amd_portable_export_dmabuf_v2"), minor >= 9, "{release}");
    }
}

#[test]
fn granularities_match_the_pool() {
    for granule in [4 * KIB, 2 * MIB] {
        let machine = Machine::new(Config::mi300x(1).with_granule(granule as u64));
        let properties = AllocationProperties::on(machine.gpu(0));
        let granularity = |kind| machine.vmm.allocation_granularity(&properties, kind);
        assert_eq!(granularity(Granularity::Minimum), Ok(granule));
        assert_eq!(granularity(Granularity::Recommended), Ok(2 * MIB));
    }
}

#[test]
fn open_reports_why_virtual_memory_is_missing() {
    let mut config = Config::mi300x(1);
    config.vmem = false;
    let runtime = simulated(config);
    let reason = runtime.info().virtual_memory_failure.clone().unwrap();
    assert!(reason.contains("kernel") && reason.contains("libdrm_amdgpu"), "{reason}");
    let error = Vmm::open(&runtime).unwrap_err();
    assert!(*error.kind() == ErrorKind::NotSupported(Feature::VirtualMemory));

    // Before ROCm 6.0, the runtime lacks the functions of virtual memory.
    let runtime = simulated(Config::mi300x(1).with_extension(3));
    let reason = runtime.info().virtual_memory_failure.clone().unwrap();
    assert!(
        reason.contains("hsa_amd_vmem_address_reserve") && reason.contains("ROCm 6.0"),
        "{reason}"
    );
    assert!(matches!(
        Vmm::open(&runtime).as_ref().map_err(Error::kind),
        Err(ErrorKind::NotSupported(_))
    ));
}

#[test]
fn open_without_a_gpu_is_not_supported() {
    let runtime = simulated("gpus=0".parse().unwrap());
    assert_eq!(runtime.agents().len(), 1);
    assert!(matches!(
        Vmm::open(&runtime).as_ref().map_err(Error::kind),
        Err(ErrorKind::NotSupported(_))
    ));
}

#[test]
fn vmm_supports_128_agents() {
    let machine = Machine::new("gpus=64,cpus=64".parse().unwrap());
    assert_eq!(machine.runtime.agents().len(), 128);
    let base = machine.reserve(4 * KIB);
    let handle = machine.create(63, 4 * KIB);
    machine.map(base, 4 * KIB, handle);
    for agent in machine.runtime.agents() {
        machine.grant(base, 4 * KIB, agent.id(), hsa_vmm::Access::ReadWrite);
    }
    let agents = machine.vmm.mappings()[0].access.len();
    assert_eq!(agents, 128);
    let all: Vec<_> = machine.runtime.agents().iter().map(|agent| agent.id()).collect();
    machine.vmm.revoke(base, 4 * KIB, &all).unwrap();
    assert!(machine.vmm.mappings()[0].access.is_empty());
}

/// Loads a library that a test has built, or a file that cannot be loaded.
fn load_from(path: impl AsRef<Path>) -> Result<Runtime, Error> {
    // SAFETY: the libraries have no constructors, and their functions have the types of HSA.
    unsafe { Runtime::load_from(path) }
}

#[test]
fn load_error_names_a_missing_library() {
    let path = "/nowhere/libhsa-runtime64.so.1";
    let error = load_from(path).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Load(_)), "{error:?}");
    let text = error.to_string();
    for word in [path, "No such file", "install ROCm", "HSA_VMM_RUNTIME", "sim"] {
        assert!(text.contains(word), "`{word}` is missing in:\n{text}");
    }
}

#[test]
fn load_error_names_an_invalid_library() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let text = load_from(path).unwrap_err().to_string();
    assert!(text.contains(path) && text.contains("ELF"), "{text}");
    let folder = env!("CARGO_MANIFEST_DIR");
    assert!(load_from(folder).unwrap_err().to_string().contains(folder));
    assert!(load_from("").is_err());
}

#[test]
fn load_error_names_a_missing_function() {
    let path = compile_source("incomplete", "int hsa_init(void) { return 0; }\n");
    let text = load_from(&path).unwrap_err().to_string();
    let named = text.contains("`hsa_status_string`") || text.contains("`hsa_shut_down`");
    assert!(named && text.contains(path.to_str().unwrap()), "{text}");
    std::fs::remove_file(path).unwrap();
    // A library without any function of HSA.
    let path = compile_source("unrelated", "int unrelated(void) { return 42; }\n");
    let text = load_from(&path).unwrap_err().to_string();
    assert!(text.contains("does not export `hsa_"), "{text}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn start_error_names_the_driver() {
    let hostile = HostileRuntime::new();
    hostile.set(c"hostile_init", HSA_STATUS_ERROR_OUT_OF_RESOURCES as i32);
    let error = load_from(&hostile.path).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::Start { .. }), "{error:?}");
    // If `main` returns an error, Rust prints the error in `Debug` format. This format must therefore be the message.
    assert_eq!(format!("{error:?}"), text);
    for word in ["hsa_init", "HSA_STATUS_ERROR_OUT_OF_RESOURCES", "/dev/kfd"] {
        assert!(text.contains(word), "`{word}` is missing in:\n{text}");
    }
    assert_eq!(hostile.get(c"hostile_started"), 0);
    // A later start succeeds.
    hostile.set(c"hostile_init", 0);
    let (runtime, vmm, _) = hostile.open();
    assert_eq!(hostile.get(c"hostile_started"), 1);
    let info = runtime.info();
    assert_eq!(info.extension, (1, 7));
    assert_eq!(info.path.as_deref(), Some(hostile.path.canonicalize().unwrap().as_path()));
    drop(runtime);
    assert_eq!(hostile.get(c"hostile_started"), 1, "the Vmm keeps the runtime started");
    drop(vmm);
    assert_eq!(hostile.get(c"hostile_started"), 0);
}

#[test]
fn optional_functions_may_be_missing() {
    let hostile = HostileRuntime::new();
    let (runtime, vmm, gpu) = hostile.open();
    let absent = ["hsa_amd_memory_fill", "hsa_amd_memory_async_copy", "hsa_agent_iterate_isas"];
    for name in absent {
        let functions = &runtime.info().optional_functions;
        let (_, available) = functions.iter().find(|(function, _)| *function == name).unwrap();
        assert!(!available, "{name}");
    }
    assert_eq!(runtime.gpus().next().unwrap().isas, [""; 0]);
    let base = vmm.address_reserve(8192, 0, None).unwrap();
    let handle = vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
    vmm.map(base, 4096, 0, handle).unwrap();
    let grant = [machine::access(gpu, hsa_vmm::Access::ReadWrite)];
    vmm.set_access(base, 4096, &grant).unwrap();
    for result in [vmm.fill(base, 0, 4), vmm.copy(gpu, machine::at(base, 64), base, 4)] {
        let is_not_supported = matches!(
            result.as_ref().map_err(Error::kind),
            Err(ErrorKind::NotSupported(Feature::Function(_)))
        );
        assert!(is_not_supported, "{result:?}");
    }
    vmm.unmap(base, 4096).unwrap();
    vmm.release(handle).unwrap();
    vmm.address_free(base, 8192).unwrap();
}

#[test]
fn failed_open_stops_the_runtime() {
    let calls_of_open = {
        let simulation = Arc::new(Simulation::start(Config::mi300x(2)).unwrap());
        drop(Runtime::simulated_by(simulation.clone()).unwrap());
        simulation.all_calls()
    };
    let mut errors = 0;
    for (function, calls) in calls_of_open {
        if function == "hsa_shut_down" {
            continue;
        }
        for number in 1..=calls {
            for status in [
                HSA_STATUS_ERROR,
                HSA_STATUS_ERROR_OUT_OF_RESOURCES,
                HSA_STATUS_ERROR_NOT_INITIALIZED,
            ] {
                let faults = FaultPlan::none().fail(function, number, status);
                let config = Config::mi300x(2).with_faults(faults);
                let simulation = Arc::new(Simulation::start(config).unwrap());
                let opened = Runtime::simulated_by(simulation.clone());
                let started = simulation.calls("hsa_init") - u64::from(function == "hsa_init");
                // The library ignores only the status for unknown attributes. The list above does not contain this
                // status.
                let text = opened.unwrap_err().to_string();
                assert!(text.contains(function), "{function} #{number}: {text}");
                errors += 1;
                let stopped = simulation.calls("hsa_shut_down");
                assert_eq!(stopped, started, "{function} #{number} returned {status:#x}");
            }
        }
    }
    assert!(errors > 10, "{errors}");
}

#[test]
fn several_runtimes_coexist() {
    let machines: Vec<Machine> =
        machine::releases().into_iter().map(|(_, config)| Machine::new(config)).collect();
    let hostile = HostileRuntime::new();
    let (_runtime, vmm, gpu) = hostile.open();
    vmm.create(4096, &AllocationProperties::on(gpu)).unwrap();
    for machine in &machines {
        let base = machine.reserve(4 * KIB);
        let handle = machine.create(0, 4 * KIB);
        machine.map(base, 4 * KIB, handle);
        assert!(vmm.release(handle).is_err() && vmm.unmap(base, 4 * KIB).is_err());
    }
    for (number, machine) in machines.iter().enumerate() {
        assert_eq!(machine.simulation.usage().mappings, 1, "{number}");
    }
    for machine in machines {
        machine.close();
    }
}

#[test]
fn invalid_simulation_is_rejected() {
    let mut config = Config::mi300x(1);
    config.cpus.clear();
    let error = Runtime::simulated(config).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Simulation(_)), "{error:?}");
    assert!(error.to_string().contains("no CPU"), "{error}");
}

/// Runs an ignored test of this file in a process of its own, with environment variables.
fn run_with_variables(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env_remove("HSA_VMM_RUNTIME")
        .env_remove("HSA_SIM")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
}

#[test]
fn variable_selects_the_simulation() {
    let variables = [("HSA_VMM_RUNTIME", "sim"), ("HSA_SIM", "consumer,era=d")];
    run_with_variables("child_loads_the_simulation", &variables);
}

#[test]
#[ignore = "run by another test, with variables"]
fn child_loads_the_simulation() {
    let runtime = Runtime::load().unwrap();
    assert_eq!(runtime.info().extension, (1, 22));
    assert_eq!(runtime.gpus().next().unwrap().name(), "gfx1101");
}

#[test]
fn variable_selects_a_library() {
    let hostile = HostileRuntime::new();
    let variables = [("HSA_VMM_RUNTIME", hostile.path.to_str().unwrap())];
    run_with_variables("child_loads_a_library", &variables);
}

#[test]
#[ignore = "run by another test, with variables"]
fn child_loads_a_library() {
    assert_eq!(Runtime::load().unwrap().gpus().next().unwrap().name(), "gfx000");
}

#[test]
fn simulation_never_replaces_a_missing_library() {
    let variables = [("HSA_VMM_RUNTIME", "/nowhere/lib.so"), ("HSA_SIM", "mi300x")];
    run_with_variables("child_finds_no_library", &variables);
}

#[test]
#[ignore = "run by another test, with variables"]
fn child_finds_no_library() {
    let text = Runtime::load().unwrap_err().to_string();
    assert!(text.contains("/nowhere/lib.so"), "{text}");
}

#[test]
fn unparsable_simulation_is_rejected() {
    let variables = [("HSA_VMM_RUNTIME", "sim"), ("HSA_SIM", "era=z")];
    run_with_variables("child_rejects_the_simulation", &variables);
}

#[test]
#[ignore = "run by another test, with variables"]
fn child_rejects_the_simulation() {
    let text = Runtime::load().unwrap_err().to_string();
    assert!(text.contains("HSA_SIM") && text.contains("era"), "{text}");
}

#[test]
fn runtime_lives_until_its_last_clone() {
    let simulation = Arc::new(Simulation::start(Config::mi300x(1)).unwrap());
    let runtime = Runtime::simulated_by(simulation.clone()).unwrap();
    let second = Runtime::simulated_by(simulation.clone()).unwrap();
    assert_ne!(runtime.host().id(), second.host().id(), "each open returns another runtime");
    let clone = runtime.clone();
    drop(runtime);
    assert_eq!(simulation.calls("hsa_shut_down"), 0);
    drop(clone);
    assert_eq!(simulation.calls("hsa_shut_down"), 1);
    drop(second);
    assert_eq!(simulation.calls("hsa_shut_down"), 2);
}
