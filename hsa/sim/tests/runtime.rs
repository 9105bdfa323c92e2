//! Configuration texts, attributes of agents and pools, counted calls, planned failures, start and
//! stop.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with pointers to locals

mod setup;
use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use hsa_sim::{Config, ConfigError, Error, FaultPlan, Generation, GpuPermissions, Simulation};
use setup::*;

const SIZE: usize = 4 * MIB;

#[test]
fn config_parses_text() {
    let parse = |text: &str| text.parse::<Config>();
    assert_eq!(parse(""), Ok(Config::default()));
    assert_eq!(parse("mi300x"), Ok(Config::mi300x(2)));
    assert_eq!(parse("apu"), Ok(Config::apu()));
    let text = "gpus=3,era=a,granule=2m,extension=11,vram=1g,permissions=enforced,vmem=off,\
                faults=hsa_amd_vmem_map#3=0x1008;hsa_init=OUT_OF_RESOURCES";
    let config = parse(text).expect("a valid configuration");
    assert_eq!(config.gpus.len(), 3);
    assert_eq!((config.generation, config.extension_minor), (Generation::A, 11));
    assert_eq!((config.granule, config.gpus[2].vram), (2 << 20, 1 << 30));
    assert_eq!(config.gpu_permissions, GpuPermissions::Enforced);
    assert!(!config.vmem);
    let plan = FaultPlan::none()
        .fail("hsa_amd_vmem_map", 3, OUT_OF_RESOURCES)
        .always("hsa_init", OUT_OF_RESOURCES);
    assert_eq!(config.faults, plan);
    assert_eq!(plan.to_string(), "hsa_amd_vmem_map#3=0x1008;hsa_init=0x1008");
    assert_eq!(plan.to_string().parse(), Ok(plan));
    let plan = FaultPlan::none().fail_any(3, ERROR).fail_any_from(5, OUT_OF_RESOURCES);
    assert_eq!(plan.to_string(), "*#3=0x1000;*#5-=0x1008");
    assert_eq!(plan.to_string().parse(), Ok(plan));
    // The order of the words does not matter.
    assert_eq!(parse("extension=11,era=a,consumer"), parse("consumer,era=a,extension=11"));
    // The parser rejects an extension version together with a generation that does not have this
    // version.
    for (minor, generation) in [
        ("none", Generation::A),
        ("11", Generation::A),
        ("12", Generation::B),
        ("15", Generation::B),
    ]
    .into_iter()
    .chain([
        ("16", Generation::C),
        ("20", Generation::C),
        ("21", Generation::D),
        ("99", Generation::D),
    ]) {
        let config = parse(&format!("extension={minor}")).expect("a valid configuration");
        assert_eq!(
            (config.generation, config.extension_reported),
            (generation, minor != "none"),
            "{minor}"
        );
        assert_eq!(parse(&format!("era={generation},extension={minor}")), Ok(config));
        for other in Generation::ALL.into_iter().filter(|other| *other != generation) {
            let error =
                parse(&format!("extension={minor},era={other}")).expect_err("contradictory");
            assert!(error.to_string().contains(&format!("use `era={generation}`")), "{error}");
        }
    }
    assert!(parse("nothing,extension=16").is_err() && parse("nothing,extension=4").is_ok());
    let error = |text| parse(text).expect_err("invalid").to_string();
    assert!(matches!(parse("mi250"), Err(ConfigError::Word { word, .. }) if word == "mi250"));
    assert!(error("mi250").contains("mi300x, consumer, apu"));
    assert!(error("color=red").contains("color") && error("color=red").contains("granule"));
    assert!(error("era=x").contains("a, b, c, d or e"));
    assert!(error("gpus=lots").contains("0 to 64"));
    assert!(error("vram=17").contains("pages"));
    assert!(error("faults=hsa_init").contains("CALL=EFFECT"));
    assert!(error("faults=hsa_nix=1").contains("hsa_amd_vmem_map"));
    assert!(error("faults=hsa_init#0=1").contains("counted from 1"));
    let unknown_effect =
        "unknown effect; hsa_init supports an HSA status such as OUT_OF_RESOURCES, a time";
    assert!(error("faults=hsa_init=ENOMEM").contains(unknown_effect));
    assert!(parse("faults=hsa_init=OUT_OF_RESOURCES").is_ok());
    assert!(error("faults=hsa_init=leak").contains("hsa_amd_vmem_unmap"));
}

#[test]
fn start_rejects_impossible_configurations() {
    let mut config = Config::default();
    config.cpus.clear();
    let error = Simulation::start(config).expect_err("no CPU").to_string();
    assert!(error.contains("no CPU"), "{error}");
    let mut config = Config::default();
    config.cpus[0].memory = u64::MAX;
    let error = Simulation::start(config).expect_err("too much").to_string();
    assert!(error.contains("64 TiB"), "{error}");
    let config = Config::default().with_granule(5000);
    assert!(matches!(Simulation::start(config), Err(Error::Config(_))));
    let config = Config::default().with_faults(FaultPlan::none().always("hsa_nix", 1));
    let error = Simulation::start(config).expect_err("no such function").to_string();
    assert!(error.contains("hsa_nix"), "{error}");
}

#[test]
fn agent_info_describes_mi300x() {
    let setup = start("gpus=2,era=b");
    let gpu = setup.gpus[1];
    let agents = agents(setup.hsa);
    assert_eq!(agents, [setup.cpus[0], setup.gpus[0], setup.gpus[1]], "CPUs come first");
    let text = |attribute| agent_text(setup.hsa, gpu, attribute);
    assert_eq!(text(HSA_AGENT_INFO_NAME), "gfx942");
    assert_eq!(text(HSA_AMD_AGENT_INFO_PRODUCT_NAME), "AMD Instinct MI300X");
    assert_eq!(text(HSA_AGENT_INFO_VENDOR_NAME), "AMD");
    let uuid = text(HSA_AMD_AGENT_INFO_UUID);
    assert!(uuid.starts_with("GPU-") && uuid.len() == 20, "{uuid}");
    assert_ne!(uuid, agent_text(setup.hsa, setup.gpus[0], HSA_AMD_AGENT_INFO_UUID));
    let word =
        |agent, attribute| agent_info::<u32>(setup.hsa, agent, attribute).expect("an attribute");
    assert_eq!(word(gpu, HSA_AGENT_INFO_NODE), 2);
    assert_eq!(word(gpu, HSA_AMD_AGENT_INFO_DRIVER_NODE_ID), 2);
    assert_eq!(word(gpu, HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT), 304);
    let bdf = |agent| word(agent, HSA_AMD_AGENT_INFO_BDFID);
    assert_ne!(bdf(gpu), bdf(setup.gpus[0]));
    let long = |agent, attribute| agent_info::<u64>(setup.hsa, agent, attribute);
    assert_eq!(long(gpu, HSA_AMD_AGENT_INFO_NEAREST_CPU), Ok(setup.cpus[0].handle));
    assert_eq!(long(gpu, HSA_AMD_AGENT_INFO_MEMORY_AVAIL), Ok(192 << 30));
    assert_eq!(long(gpu, HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES), Ok(0));
    assert_eq!(long(gpu, 0xB000), Err(INVALID_ARGUMENT));
    assert_eq!(long(hsa_agent_t { handle: 8 }, HSA_AGENT_INFO_NODE), Err(INVALID_AGENT));
    assert_eq!(unsafe { (setup.hsa.hsa_agent_get_info)(gpu, 0, null_mut()) }, INVALID_ARGUMENT);
    let apu = start("apu");
    let properties =
        agent_info::<[u8; 8]>(apu.hsa, apu.gpus[0], HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES)
            .expect("an attribute");
    // AMD's header tests bit 1 of the array, not bit 0.
    assert_ne!(properties[0] & 1 << HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU, 0);
}

#[test]
fn isa_info_returns_the_full_name() {
    let setup = start("gpus=1");
    unsafe extern "C" fn store(isa: hsa_isa_t, data: *mut c_void) -> hsa_status_t {
        unsafe { data.cast::<hsa_isa_t>().write(isa) };
        HSA_STATUS_INFO_BREAK
    }
    let mut isa = hsa_isa_t { handle: 0 };
    let iterate = setup.hsa.hsa_agent_iterate_isas.expect("in the table");
    let status = unsafe { iterate(setup.gpus[0], Some(store), (&raw mut isa).cast()) };
    assert_eq!(status, HSA_STATUS_INFO_BREAK, "the status that stops the iteration is returned");
    let query = setup.hsa.hsa_isa_get_info_alt.expect("in the table");
    let mut length = 0u32;
    let out = (&raw mut length).cast();
    assert_eq!(unsafe { query(isa, HSA_ISA_INFO_NAME_LENGTH, out) }, OK);
    let mut name = vec![1u8; length as usize];
    assert_eq!(unsafe { query(isa, HSA_ISA_INFO_NAME, name.as_mut_ptr().cast()) }, OK);
    assert_eq!(name, b"amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-\0");
    let unknown = hsa_isa_t { handle: 5 };
    assert_eq!(unsafe { query(unknown, HSA_ISA_INFO_NAME, out) }, HSA_STATUS_ERROR_INVALID_ISA);
}

#[test]
fn pools_are_in_amds_order() {
    // Segment (0: global, 3: LDS), and flags (1: kernel arguments, 2: fine-grained, 4: coarse-grained, 8: extended
    // scope).
    let flags = |setup: &Setup, agent| -> Vec<(u32, u32)> {
        let description = |pool: &hsa_amd_memory_pool_t| {
            let query =
                |attribute| pool_info::<u32>(setup.hsa, *pool, attribute).expect("an attribute");
            (query(HSA_AMD_MEMORY_POOL_INFO_SEGMENT), query(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS))
        };
        pools(setup.hsa, agent).iter().map(description).collect()
    };
    let setup = start("gpus=1,era=b");
    assert_eq!(flags(&setup, setup.cpus[0]), [(0, 2), (0, 8), (0, 3), (0, 4)]);
    assert_eq!(flags(&setup, setup.gpus[0]), [(0, 4), (0, 8), (0, 2), (3, 0)]);
    let consumer = start("consumer");
    assert_eq!(flags(&consumer, consumer.gpus[0]), [(0, 4), (0, 8), (3, 0)], "no hive");
    let info =
        |pool, attribute| pool_info::<usize>(setup.hsa, pool, attribute).expect("an attribute");
    let vram = setup.vram[0];
    assert_eq!(info(vram, HSA_AMD_MEMORY_POOL_INFO_SIZE), 192 * GIB);
    assert_eq!(info(vram, HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE), 192 * GIB);
    assert_eq!(info(vram, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE), 4096);
    let recommended = HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_REC_GRANULE;
    let lds = pools(setup.hsa, setup.gpus[0])[3];
    let granules = [vram, setup.system, lds].map(|pool| info(pool, recommended));
    assert_eq!(granules, [2 * MIB, 4096, 0]);
    let location = |pool| pool_info::<u32>(setup.hsa, pool, HSA_AMD_MEMORY_POOL_INFO_LOCATION);
    assert_eq!(location(vram), Ok(HSA_AMD_MEMORY_POOL_LOCATION_GPU));
    assert_eq!(location(setup.system), Ok(HSA_AMD_MEMORY_POOL_LOCATION_CPU));
    let allowed = HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED;
    let allowed = |pool| pool_info::<bool>(setup.hsa, pool, allowed);
    assert_eq!((allowed(vram), allowed(lds)), (Ok(true), Ok(false)));
    assert_eq!(pool_info::<u32>(setup.hsa, vram, 99), Err(INVALID_ARGUMENT));
    let unknown = hsa_amd_memory_pool_t { handle: 3 };
    assert_eq!(pool_info::<u32>(setup.hsa, unknown, 0), Err(HSA_STATUS_ERROR_INVALID_MEMORY_POOL));
}

#[test]
fn links_report_access_and_type() {
    let setup = start("gpus=2");
    let query = |setup: &Setup, agent, pool, attribute, value: *mut c_void| unsafe {
        (setup.hsa.hsa_amd_agent_memory_pool_get_info.expect("in the table"))(
            agent, pool, attribute, value,
        )
    };
    let word = |setup: &Setup, agent, pool, attribute| {
        let mut value = UNWRITTEN;
        assert_eq!(query(setup, agent, pool, attribute, (&raw mut value).cast()), OK);
        value
    };
    let access = |setup: &Setup, agent, pool| {
        word(setup, agent, pool, HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS)
    };
    let hops = HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS;
    let link_type = |agent, pool| {
        assert_eq!(word(&setup, agent, pool, hops), 1);
        let mut info: hsa_amd_memory_pool_link_info_t = unsafe { core::mem::zeroed() };
        let attribute = HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO;
        assert_eq!(query(&setup, agent, pool, attribute, (&raw mut info).cast()), OK);
        info.link_type
    };
    assert_eq!(
        access(&setup, setup.gpus[0], setup.vram[0]),
        HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT
    );
    let disallowed = HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT;
    assert_eq!(access(&setup, setup.gpus[0], setup.vram[1]), disallowed);
    assert_eq!(access(&setup, setup.cpus[0], setup.vram[1]), disallowed);
    assert_eq!(word(&setup, setup.gpus[0], setup.vram[0], hops), 0);
    assert_eq!(link_type(setup.gpus[0], setup.vram[1]), HSA_AMD_LINK_INFO_TYPE_XGMI);
    assert_eq!(link_type(setup.gpus[0], setup.system), HSA_AMD_LINK_INFO_TYPE_PCIE);
    let never = HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED;
    let isolated = start("gpus=2,peer-access=off");
    assert_eq!(access(&isolated, isolated.gpus[0], isolated.vram[1]), never);
    let (base, _) = isolated.mapped(SIZE, &[]);
    assert_eq!(isolated.set(base, SIZE, &[(isolated.gpus[1], RW)]), ERROR);
    let consumer = start("consumer");
    assert_eq!(access(&consumer, consumer.cpus[0], consumer.vram[0]), never);
}

#[test]
fn system_info_reports_capabilities() {
    let setup = start("era=b,extension=14");
    let minor = HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR;
    assert_eq!(system_info::<u16>(setup.hsa, HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR), Ok(1));
    assert_eq!(system_info::<u16>(setup.hsa, minor), Ok(14));
    let vmem = HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED;
    assert_eq!(system_info::<bool>(setup.hsa, vmem), Ok(true));
    assert_eq!(system_info::<bool>(setup.hsa, HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED), Ok(true));
    let fabric = HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED;
    assert_eq!(system_info::<bool>(setup.hsa, fabric), Err(INVALID_ARGUMENT));
    assert_eq!(system_info::<u64>(setup.hsa, 0x999), Err(INVALID_ARGUMENT));
    let timestamp = || system_info::<u64>(setup.hsa, HSA_SYSTEM_INFO_TIMESTAMP);
    let (earlier, later) = (timestamp(), timestamp());
    assert!(earlier < later, "time passes");
    let oldest = start("era=a,extension=none");
    assert_eq!(system_info::<u16>(oldest.hsa, minor), Err(INVALID_ARGUMENT));
    let newest = start("era=d");
    assert_eq!(system_info::<bool>(newest.hsa, fabric), Ok(true));
    assert_eq!(system_info::<bool>(start("era=c").hsa, fabric), Ok(false));
    let export = newest.vmem.hsa_amd_vmem_export_fabric_handle.expect("in the table");
    let handle = hsa_amd_vmem_alloc_handle_t { handle: 1 };
    assert_eq!(unsafe { export(null_mut(), handle, 0) }, INVALID_ARGUMENT);
    let mut text: *const c_char = null_mut();
    assert_eq!(unsafe { (setup.hsa.hsa_status_string)(OUT_OF_RESOURCES, &mut text) }, OK);
    let text = unsafe { CStr::from_ptr(text) }.to_str().expect("ASCII");
    assert!(text.contains("HSA_STATUS_ERROR_OUT_OF_RESOURCES"));
    let mut text: *const c_char = null_mut();
    assert_eq!(unsafe { (setup.hsa.hsa_status_string)(0x7777, &mut text) }, INVALID_ARGUMENT);
}

#[test]
fn table_matches_the_extension_version() {
    let has = |config: &str| {
        let simulation = Simulation::start(config.parse().expect("valid")).expect("a slot");
        let table = simulation.table();
        let vmem = table.vmem.as_ref();
        (
            vmem.is_ok(),
            vmem.is_ok_and(|vmem| vmem.hsa_amd_vmem_address_reserve_align.is_some()),
            table.core.hsa_amd_portable_export_dmabuf_v2.is_some(),
            vmem.is_ok_and(|vmem| vmem.hsa_amd_vmem_export_fabric_handle.is_some()),
        )
    };
    assert_eq!(has("era=a,extension=3"), (false, false, false, false));
    assert_eq!(has("era=a,extension=4"), (true, false, false, false));
    assert_eq!(has("era=a,extension=6"), (true, true, false, false));
    assert_eq!(has("era=b"), (true, true, true, false));
    assert_eq!(has("era=d"), (true, true, true, true));
}

#[test]
fn init_and_shut_down_are_counted() {
    let simulation = Simulation::start(Config::default()).expect("a slot");
    let core = &simulation.table().core;
    let reserve =
        simulation.table().vmem.as_ref().expect("in the table").hsa_amd_vmem_address_reserve;
    let mut address = null_mut();
    let mut reserve = || unsafe { reserve(&mut address, 4096, 0, 0) };
    assert_eq!(reserve(), NOT_INITIALIZED);
    assert_eq!(unsafe { (core.hsa_shut_down)() }, NOT_INITIALIZED);
    assert_eq!(unsafe { ((core.hsa_init)(), (core.hsa_init)()) }, (OK, OK));
    assert_eq!(unsafe { (core.hsa_shut_down)() }, OK);
    assert_eq!(reserve(), OK);
    assert_eq!(unsafe { (core.hsa_shut_down)() }, OK);
    assert_eq!(reserve(), NOT_INITIALIZED);
    assert_eq!(simulation.calls("hsa_amd_vmem_address_reserve"), 3);
    assert_eq!(simulation.calls("hsa_shut_down"), 3);
    assert_eq!(simulation.calls("no such function"), 0);
    let total: u64 = simulation.all_calls().iter().map(|(_, calls)| calls).sum();
    assert_eq!(total, 8);
}

#[test]
fn call_with_planned_failure_changes_nothing() {
    let setup = Setup::new(Config::default().with_faults(FaultPlan::none().fail(
        "hsa_amd_vmem_map",
        2,
        OUT_OF_RESOURCES,
    )));
    let (base, handle) = (setup.reserve(4 * SIZE), setup.create(SIZE));
    assert_eq!(setup.map(base, SIZE, handle), OK);
    assert_eq!(setup.map(base + SIZE, SIZE, handle), OUT_OF_RESOURCES);
    assert_eq!(setup.simulation.usage().mappings, 1, "the failed call has no effect");
    assert_eq!(setup.map(base + SIZE, SIZE, handle), OK);
    setup
        .simulation
        .set_faults("hsa_amd_vmem_map#1=0x1000;hsa_amd_vmem_unmap=46".parse().expect("valid"));
    assert_eq!(setup.map(base + 2 * SIZE, SIZE, handle), ERROR, "a new plan restarts the count");
    assert_eq!(setup.map(base + 2 * SIZE, SIZE, handle), OK);
    assert_eq!((setup.unmap(base, SIZE), setup.unmap(base, SIZE)), (46, 46));
    setup.simulation.set_faults(FaultPlan::none());
    assert_eq!(setup.unmap(base, 3 * SIZE), OK);
    assert_eq!(setup.simulation.calls("hsa_amd_vmem_map"), 5, "failed calls are counted");
}

#[test]
fn plan_counts_calls_of_all_functions() {
    let setup = Setup::new(Config::default());
    let (base, handle) = (setup.reserve(4 * SIZE), setup.create(SIZE));
    let plan = FaultPlan::none().fail_any(2, ERROR).fail_any_from(4, OUT_OF_RESOURCES);
    setup.simulation.set_faults(plan);
    assert_eq!(setup.map(base, SIZE, handle), OK);
    assert_eq!(setup.unmap(base, SIZE), ERROR, "the second call of all");
    assert_eq!(setup.unmap(base, SIZE), OK);
    assert_eq!(setup.map(base, SIZE, handle), OUT_OF_RESOURCES);
    assert_eq!(setup.map(base, SIZE, handle), OUT_OF_RESOURCES);
    let (map, unmap) = ("hsa_amd_vmem_map", "hsa_amd_vmem_unmap");
    assert_eq!(setup.simulation.failed_calls(), [(unmap, 1), (map, 2), (map, 3)]);
    setup.simulation.set_faults(FaultPlan::none());
    assert_eq!(setup.simulation.failed_calls(), []);
}

#[test]
fn handles_of_another_runtime_are_rejected() {
    let (first, second) = (start("gpus=1"), start("gpus=1"));
    let create = second.try_create(first.vram[0], SIZE, MEMORY_TYPE_PINNED, 0);
    assert_eq!(create, Err(INVALID_ARGUMENT));
    assert_eq!(
        agent_info::<u32>(second.hsa, first.gpus[0], HSA_AGENT_INFO_NODE),
        Err(INVALID_AGENT)
    );
    let (base, _) = second.mapped(SIZE, &[]);
    assert_eq!(second.set(base, SIZE, &[(first.gpus[0], RW)]), INVALID_AGENT);
    assert_eq!(
        first.set(base, SIZE, &[(first.gpus[0], RW)]),
        INVALID_ARGUMENT,
        "addresses are rejected, too"
    );
}

#[test]
fn forked_child_starts_its_own_simulation() {
    let parent = start("gpus=1");
    let (base, _) = parent.mapped(SIZE, &[(parent.cpus[0], RW)]);
    succeeds_in_child(|| {
        assert_eq!(parent.init(), OUT_OF_RESOURCES);
        assert_eq!(parent.unmap(base, SIZE), OUT_OF_RESOURCES);
        let own = start("gpus=1");
        let (address, _) = own.mapped(SIZE, &[(own.cpus[0], RW)]);
        write(address, 1);
        drop(own);
        drop(parent);
        write(base, 2); // the parent's mapping still exists
    });
}

#[test]
fn descriptor_exhaustion_is_an_error() {
    succeeds_in_child(|| {
        let limit = libc::rlimit { rlim_cur: 40, rlim_max: 40 };
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let setup = start("era=b");
        let (base, handle) = setup.mapped(SIZE, &[]);
        let repeated = |handle| std::iter::from_fn(move || Some(handle));
        let count = repeated(handle).take_while(|handle| setup.export(*handle).is_ok()).count();
        assert!(count > 5);
        assert_eq!(setup.export(handle), Err(OUT_OF_RESOURCES));
        assert_eq!(
            setup.set(base, SIZE, &[(setup.cpus[0], RW)]),
            OK,
            "the file of the memory is already open"
        );
        let (other, memory) = (setup.reserve(SIZE), setup.create(SIZE));
        assert_eq!(setup.map(other, SIZE, memory), OUT_OF_RESOURCES, "mapping exports the memory");
        // Generation C keeps a descriptor for each live handle.
        let c = start("era=c");
        let create = c.try_create(c.vram[0], SIZE, MEMORY_TYPE_PINNED, 0);
        assert_eq!(create, Err(OUT_OF_RESOURCES));
    });
}
