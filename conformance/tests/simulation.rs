//! All cases on the simulation: in every release of AMD's runtime, and on other machines.

mod peer;

use hsa_sim::{Config, Generation};
use hsa_vmm::Runtime;
use hsa_vmm::hip::HipProfile;
use hsa_vmm_conformance::{Options, Report, Status, run};

fn conform(config: Config, profile: HipProfile) -> Report {
    let runtime = Runtime::simulated(config).unwrap();
    // Other tests of this process open and close descriptors at the same time.
    let peer = peer::words(peer::On::Simulation);
    let options = Options { count_descriptors: false, profile, peer, ..Options::default() };
    run(&runtime, &options, &mut |_| ())
}

fn named(report: &Report, status: Status) -> Vec<&str> {
    let cases = report.cases.iter().filter(|case| case.status == status);
    cases.map(|case| case.name.as_str()).collect()
}

/// Checks that nothing fails and almost nothing is skipped.
fn passes(config: Config, profile: HipProfile) {
    let what = format!("generation {}, granule {}, {profile}", config.generation, config.granule);
    let report = conform(config, profile);
    let failed: Vec<_> = report.cases.iter().filter(|case| case.status == Status::Fail).collect();
    assert!(failed.is_empty(), "{what}: {failed:#?}");
    assert_eq!(
        named(&report, Status::Skip),
        [
            "runtime.virtual_memory.refused_if_absent",
            "create.handles.more_than_descriptors",
            "access.set.agent_out_of_reach",
            "access.set.cpu_without_large_bar",
            "share.export.no_descriptor_left",
        ],
        "{what}"
    );
}

fn generation(generation: Generation) {
    for granule in [4 << 10, 2 << 20] {
        passes(
            Config::mi300x(2).with_generation(generation).with_granule(granule),
            HipProfile::Hip7,
        );
    }
    passes(Config::mi300x(4).with_generation(generation), HipProfile::Hip6);
}

#[test]
fn generation_a() {
    generation(Generation::A);
}

#[test]
fn generation_b() {
    generation(Generation::B);
}

#[test]
fn generation_c() {
    generation(Generation::C);
}

#[test]
fn generation_d() {
    generation(Generation::D);
}

#[test]
fn known_failures_apply_only_where_listed() {
    for (generation, known) in [
        (Generation::A, &[][..]),
        (Generation::B, &[]),
        (Generation::C, &["share.import.not_memory"]),
        (Generation::D, &["share.import.not_memory"]),
    ] {
        let report = conform(Config::mi300x(2).with_generation(generation), HipProfile::Hip7);
        assert_eq!(named(&report, Status::Known), known, "{generation:?}");
    }
}

#[test]
fn other_machines() {
    let mut apart = Config::mi300x(2);
    apart.peer_access = false;
    for (config, skipped) in [
        (Config::mi300x(1), "hip.use.copy_between_gpus"),
        (Config::consumer(), "access.cpu.read_and_write"),
        (Config::apu(), "access.set.cpu_without_large_bar"),
        (apart, "access.gpus.both_see_the_same"),
    ] {
        let report = conform(config, HipProfile::Hip7);
        assert_eq!(named(&report, Status::Fail), [""; 0], "{:?}", report.agents);
        let case = report.cases.iter().find(|case| case.name == skipped).unwrap();
        assert_eq!(case.status, Status::Skip, "{case:?}");
        assert!(!case.detail.is_empty(), "{case:?}");
    }
}

#[test]
fn without_virtual_memory() {
    let mut config = Config::mi300x(1);
    config.vmem = false;
    let report = conform(config, HipProfile::Hip7);
    assert_eq!(named(&report, Status::Fail), ["runtime.virtual_memory.available"]);
    assert!(
        named(&report, Status::Pass).contains(&"runtime.virtual_memory.refused_if_absent"),
        "{report:?}"
    );
    assert!(report.summary.skipped > 150, "{}", report.summary);
}
