//! Runtimes whose name and version are unknown or wrong: the probes find the quirks, and the cases pass.

use hsa_sim::{Config, Generation};
use hsa_vmm::runtime::Implementation;
use hsa_vmm::vmm::{Quirks, VmmOptions};
use hsa_vmm::{Runtime, Vmm};
use hsa_vmm_conformance::{CaseReport, Options, Report, Status, run};

/// Returns the known quirks of the runtime that a generation simulates.
fn quirks_of(generation: Generation) -> Quirks {
    if generation != Generation::E {
        return Quirks::of_extension((1, generation.extension() as u16));
    }
    let mut quirks = Quirks::default();
    Quirks::KNOWN.iter().for_each(|quirk| quirks.set(quirk, quirk.rocddi));
    quirks
}

/// Starts a runtime, checks that its implementation is unknown, and runs all cases.
fn conform(config: Config) -> (Runtime, Report) {
    let runtime = Runtime::simulated(config).unwrap();
    let implementation = &runtime.info().implementation;
    assert!(matches!(implementation, Implementation::Unknown { .. }), "{implementation}");
    let options = Options { count_descriptors: false, ..Options::default() };
    let report = run(&runtime, &options, &mut |_| ());
    (runtime, report)
}

/// Fails if a case failed, or passed although it is known to fail.
fn assert_all_pass(report: &Report, runtime: &str) {
    let is_wrong = |case: &&CaseReport| case.status == Status::Fail || case.known_passed;
    let wrong = report.cases.iter().filter(is_wrong).map(|case| &case.name).collect::<Vec<_>>();
    assert!(wrong.is_empty(), "{runtime}: {wrong:?}");
}

/// Checks that the probes of an unknown runtime find exactly the expected quirks, and that the report contains the
/// probes.
fn check_probes(runtime: &Runtime, report: &Report, expected_quirks: Quirks) {
    let vmm = Vmm::open(runtime).unwrap();
    // The list of probes contains the probe for `peer_after_owner_fails` only if the probe has found this quirk. A
    // runtime can have this quirk even if the probe does not find the quirk.
    let probed = Quirks::KNOWN.iter().filter(|quirk| quirk.probed);
    let expected =
        probed.filter(|it| it.name != "peer_after_owner_fails" || expected_quirks.has(it));
    let names = vmm.probes().iter().map(|probe| probe.quirk.name);
    assert!(names.eq(expected.map(|quirk| quirk.name)), "{:?}", vmm.probes());
    for probe in vmm.probes() {
        let name = probe.quirk.name;
        assert_eq!(probe.found, expected_quirks.has(probe.quirk), "{name}");
        assert_eq!(vmm.quirks().has(probe.quirk), probe.found, "{name}");
        let reported = report.runtime.probes.iter().flatten().find(|it| it.name == name).unwrap();
        assert_eq!((reported.expected, reported.found), (probe.expected, probe.found), "{name}");
        let is_listed = report.runtime.quirks.iter().flatten().any(|quirk| quirk.name == name);
        assert_eq!(is_listed, probe.found, "{name}");
    }
    // On an unknown runtime, `if_unknown` decides about a quirk that no probe could exclude.
    let is_probed = |name: &str| vmm.probes().iter().any(|probe| probe.quirk.name == name);
    for quirk in Quirks::KNOWN.iter().filter(|quirk| !is_probed(quirk.name)) {
        assert_eq!(vmm.quirks().has(quirk), quirk.if_unknown, "{}", quirk.name);
    }
}

#[test]
fn cases_pass_with_hidden_version() {
    for generation in Generation::ALL {
        let config = Config::mi300x(2).with_generation(generation).with_false_build("");
        let (runtime, report) = conform(config);
        check_probes(&runtime, &report, quirks_of(generation));
        assert_all_pass(&report, &generation.to_string());
    }
}

#[test]
fn cases_pass_with_false_version() {
    // The extension of ROCm 6.4 with the build of ROCm 10, and the reverse.
    for (extension, build) in [(7, "1.21.0-0-a1b2c3"), (22, "1.15.0-local-build-unknown")] {
        for generation in Generation::ALL {
            let config = Config::mi300x(2).with_generation(generation);
            let config = config.with_false_extension(extension).with_false_build(build);
            let (runtime, report) = conform(config);
            check_probes(&runtime, &report, quirks_of(generation));
            assert_all_pass(&report, &format!("{generation} as 1.{extension}"));
        }
    }
}

#[test]
fn cases_pass_on_renamed_old_release() {
    // ROCm 6.1, and ROCm 6.0, which reports no extension.
    for text in ["era=a,extension=4", "extension=none"] {
        let config: Config = text.parse().unwrap();
        let (runtime, report) = conform(config.with_false_build("another runtime"));
        check_probes(&runtime, &report, Quirks::of_extension((1, 4)));
        assert_all_pass(&report, text);
    }
}

#[test]
fn probing_can_be_switched_off() {
    use hsa_vmm::vmm::Probing;
    let config = Config::mi300x(2).with_false_build("another runtime");
    let runtime = Runtime::simulated(config).unwrap();
    let options = VmmOptions::new().with_probing(Probing::Never);
    let vmm = Vmm::open_with(&runtime, options).unwrap();
    assert!(vmm.probes().is_empty());
    for quirk in Quirks::KNOWN {
        // The quirks that a probe could exclude count as present.
        let is_excludable = quirk.probed && quirk.name != "peer_after_owner_fails";
        let expected = quirk.if_unknown || is_excludable;
        assert_eq!(vmm.quirks().has(quirk), expected, "{}", quirk.name);
    }
}
