//! Runs all cases on the simulation: in every ROCm generation, and on different machines.

mod peer;

use hsa_rocr::test::is_long;
use hsa_sim::{Config, Generation};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipProfile;
use hsa_vmm_conformance::{Options, Report, Status, run};

fn conform(config: Config, profile: HipProfile) -> Report {
    let runtime = Runtime::simulated(config).unwrap();
    let peer = peer::peer_command(peer::PeerRuntime::Simulation);
    // Other tests of this process open and close descriptors at the same time.
    let options = Options { count_descriptors: false, profile, peer, ..Options::default() };
    run(&runtime, &options, &mut |_| ())
}

#[test]
fn enforcement_cases_pass_in_all_update_modes() {
    for updates in ["immediate", "not-flushed", "late"] {
        let config = format!("mi300x,gpus=2,page-tables={updates}");
        let runtime = Runtime::simulated(config.parse().unwrap()).unwrap();
        let variable = format!("{}={config}", peer::CONFIG);
        let test_binary = std::env::current_exe().unwrap();
        let mut peer = vec!["env".into(), variable.into(), test_binary.into_os_string()];
        // The peer command starts with /proc/self/exe. Because `env` starts the command, this path would name the
        // program `env`. Replace it by the path of the test binary.
        peer.extend(peer::peer_command(peer::PeerRuntime::Simulation).into_iter().skip(1));
        let filters = vec!["access.enforced.*".to_owned()];
        let options = Options {
            count_descriptors: false,
            page_tables: true,
            peer,
            filters,
            ..Options::default()
        };
        let report = run(&runtime, &options, &mut |_| ());
        assert_eq!(report.summary.passed, 11, "{updates}: {report:#?}");
    }
}

fn case_names(report: &Report, status: Status) -> Vec<&str> {
    let cases = report.cases.iter().filter(|case| case.status == status);
    cases.map(|case| case.name.as_str()).collect()
}

/// Checks that no case fails, and that only the expected cases are skipped.
fn check_all_pass(config: Config, profile: HipProfile) {
    let setting =
        format!("generation {}, granule {}, {profile}", config.generation, config.granule);
    let report = conform(config, profile);
    let failed: Vec<_> = report.cases.iter().filter(|case| case.status == Status::Fail).collect();
    assert!(failed.is_empty(), "{setting}: {failed:#?}");
    assert_eq!(
        case_names(&report, Status::Skip),
        [
            "runtime.virtual_memory.refused_if_absent",
            "create.handles.more_than_descriptors",
            "access.set.agent_out_of_reach",
            "access.set.cpu_without_large_bar",
            "access.enforced.owner_by_dma",
            "access.enforced.owner_by_kernels",
            "access.enforced.peer_by_dma",
            "access.enforced.peer_by_kernels",
            "access.enforced.importer_by_dma",
            "access.enforced.importer_by_kernels",
            "access.enforced.after_revoke",
            "access.enforced.after_unmap",
            "access.enforced.after_free",
            "access.enforced.under_load",
            "access.enforced.every_offset",
            "access.gpus.memory_stays_in_vram",
            "share.export.no_descriptor_left",
        ],
        "{setting}"
    );
}

fn check_generation(generation: Generation) {
    let granules: &[_] = if is_long() { &[4 << 10, 2 << 20] } else { &[4 << 10] };
    for &granule in granules {
        check_all_pass(
            Config::mi300x(2).with_generation(generation).with_granule(granule),
            HipProfile::Hip7,
        );
    }
    if is_long() || [Generation::A, Generation::D].contains(&generation) {
        check_all_pass(Config::mi300x(4).with_generation(generation), HipProfile::Hip6);
    }
}

#[test]
fn all_cases_pass_in_generation_a() {
    check_generation(Generation::A);
}

#[test]
fn all_cases_pass_in_generation_b() {
    check_generation(Generation::B);
}

#[test]
fn all_cases_pass_in_generation_c() {
    check_generation(Generation::C);
}

#[test]
fn all_cases_pass_in_generation_d() {
    check_generation(Generation::D);
}

#[test]
fn all_cases_pass_in_generation_e() {
    check_generation(Generation::E);
}

#[test]
fn known_failures_apply_only_where_listed() {
    for (generation, known) in [
        (Generation::A, &[][..]),
        (Generation::B, &[]),
        (Generation::C, &["share.import.not_memory"]),
        (Generation::D, &["share.import.not_memory"]),
        (Generation::E, &["share.import.not_memory"]),
    ] {
        let report = conform(Config::mi300x(2).with_generation(generation), HipProfile::Hip7);
        assert_eq!(case_names(&report, Status::Known), known, "{generation:?}");
    }
}

#[test]
fn missing_features_skip_cases() {
    let mut without_peer_access = Config::mi300x(2);
    without_peer_access.peer_access = false;
    for (config, skipped) in [
        (Config::mi300x(1), "hip.use.copy_between_gpus"),
        (Config::consumer(), "access.cpu.read_and_write"),
        (Config::apu(), "access.set.cpu_without_large_bar"),
        (without_peer_access, "access.gpus.both_see_the_same"),
    ] {
        let report = conform(config, HipProfile::Hip7);
        assert_eq!(case_names(&report, Status::Fail), [""; 0], "{:?}", report.agents);
        let case = report.cases.iter().find(|case| case.name == skipped).unwrap();
        assert_eq!(case.status, Status::Skip, "{case:?}");
        assert!(!case.detail.is_empty(), "{case:?}");
    }
}

#[test]
fn missing_virtual_memory_fails_one_case() {
    let mut config = Config::mi300x(1);
    config.vmem = false;
    let report = conform(config, HipProfile::Hip7);
    assert_eq!(case_names(&report, Status::Fail), ["runtime.virtual_memory.available"]);
    assert!(
        case_names(&report, Status::Pass).contains(&"runtime.virtual_memory.refused_if_absent"),
        "{report:?}"
    );
    assert!(report.summary.skipped > 150, "{}", report.summary);
}
