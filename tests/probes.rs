//! When a `Vmm` opens, its probes find the quirks of the runtime, whatever version the runtime reports.

mod hostile;
mod log;
mod machine;
mod process;

use hostile::fake_runtime;
use hsa_vmm::hsa_sys::HSA_STATUS_ERROR_OUT_OF_RESOURCES;
use hsa_vmm::runtime::Implementation;
use hsa_vmm::simulation::{Config, FaultPlan, Generation};
use hsa_vmm::vmm::{Probing, Quirk, Quirks, VmmOptions};
use hsa_vmm::{Access, Runtime, Vmm};
use machine::Machine;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// The quirks for which a `Vmm` reports a probe, on a machine with two GPUs whose memory the CPU can access. The `Vmm`
/// also reports [`PEER_AFTER_OWNER`] if the probe finds this quirk.
const PROBED: [&str; 7] = [
    "set_access_drops_unnamed_agents",
    "unmap_of_several_fails",
    "cpu_unmap_leaves_hole",
    "unmap_keeps_memory",
    "export_keeps_descriptor",
    "import_is_lazy",
    "import_needs_descriptor",
];

/// A quirk whose probe can only find that the quirk is present, not that the quirk is absent.
const PEER_AFTER_OWNER: &str = "peer_after_owner_fails";

/// A quirk that the probe cannot exclude if the version is known to have the quirk.
const HOLE: &str = "cpu_unmap_leaves_hole";

/// Returns the quirks for which a `Vmm` reports a probe if the runtime has the quirks `present_quirks`.
fn reported_by(runtime: &Runtime, present_quirks: Quirks) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::from(PROBED);
    names.extend(present_quirks.peer_after_owner_fails.then_some(PEER_AFTER_OWNER));
    let expected = Quirks::of_runtime(runtime.info());
    if expected.cpu_unmap_leaves_hole && !present_quirks.cpu_unmap_leaves_hole {
        names.remove(HOLE);
    }
    names
}

fn always_probing() -> VmmOptions {
    VmmOptions::new().with_probing(Probing::Always)
}

fn names<'a>(quirks: impl IntoIterator<Item = &'a Quirk>) -> BTreeSet<&'static str> {
    quirks.into_iter().map(|quirk| quirk.name).collect()
}

/// Checks that the probes find exactly the quirks that are present.
fn check_probes(release: &str, machine: &Machine, present_quirks: Quirks) {
    let probes = machine.vmm.probes();
    let probed = names(probes.iter().map(|probe| probe.quirk));
    assert_eq!(probed, reported_by(&machine.runtime, present_quirks), "{release}");
    assert!(probed.contains(HOLE) || machine.vmm.quirks().cpu_unmap_leaves_hole, "{release}");
    for probe in probes {
        assert_eq!(probe.found, present_quirks.has(probe.quirk), "{release}: {}", probe.quirk.name);
        assert_eq!(machine.vmm.quirks().has(probe.quirk), probe.found, "{release}");
    }
}

#[test]
fn probes_agree_with_known_quirks() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let present_quirks = machine::quirks_of(&config);
        let machine = Machine::with_options(config, always_probing());
        check_probes(release, &machine, present_quirks);
        assert!(
            machine.vmm.probes().iter().all(|probe| probe.found == probe.expected),
            "{release}"
        );
        assert_eq!(machine.vmm.quirks(), present_quirks, "{release}");
        machine.assert_empty();
    }
}

#[test]
fn probes_find_quirks_behind_a_false_version() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let present_quirks = machine::quirks_of(&config);
        for reported in [4, 7, 15, 20, 22] {
            if !config.extension_reported {
                continue;
            }
            let machine = Machine::with_options(
                config.clone().with_false_extension(reported),
                always_probing(),
            );
            assert_eq!(machine.runtime.info().extension, (1, reported));
            check_probes(release, &machine, present_quirks);
            let differences =
                machine.vmm.probes().iter().filter(|probe| probe.found != probe.expected);
            let expected = Quirks::of_runtime(machine.runtime.info());
            let reported = reported_by(&machine.runtime, present_quirks);
            let differing = reported.into_iter().filter(|name| {
                let quirk = Quirks::KNOWN.iter().find(|quirk| quirk.name == *name).unwrap();
                expected.has(quirk) != present_quirks.has(quirk)
            });
            assert!(
                names(differences.map(|probe| probe.quirk))
                    .into_iter()
                    .eq(BTreeSet::from_iter(differing))
            );
        }
    }
}

#[test]
fn probes_make_at_most_20_calls() {
    for (release, config) in machine::releases() {
        let simulation =
            std::sync::Arc::new(hsa_vmm::simulation::Simulation::start(config).unwrap());
        let runtime = Runtime::simulated_by(simulation.clone()).unwrap();
        let count = || simulation.all_calls().iter().map(|(_, calls)| calls).sum::<u64>();
        let before = count();
        let vmm = Vmm::open(&runtime).unwrap();
        assert_eq!(count(), before, "{release}: a simulation is not probed");
        assert!(vmm.probes().is_empty());
        let probed = Vmm::open_with(&runtime, always_probing()).unwrap();
        let calls = count() - before;
        assert!((10..=20).contains(&calls), "{release}: {calls} calls");
        let copies = ["hsa_memory_copy", "hsa_amd_memory_async_copy", "hsa_amd_memory_fill"];
        assert!(copies.iter().all(|copy| simulation.calls(copy) == 0), "{release}");
        // A later `Vmm` on the same runtime uses the results of the first probing.
        let before = count();
        let reopened = Vmm::open_with(&runtime, always_probing()).unwrap();
        assert_eq!(count(), before, "{release}: a runtime is probed once");
        assert_eq!(reopened.probes().len(), probed.probes().len());
        assert_eq!(reopened.quirks(), probed.quirks());
        let never = VmmOptions::new().with_probing(Probing::Never);
        let before = count();
        assert!(Vmm::open_with(&runtime, never).unwrap().probes().is_empty());
        assert_eq!(count(), before);
    }
}

#[test]
fn probes_without_requirements_are_skipped() {
    if process::rerun_in_own_process() {
        return;
    }
    // One GPU, whose memory the CPU cannot access.
    let machine = Machine::with_options(Config::consumer(), always_probing());
    let probed = names(machine.vmm.probes().iter().map(|probe| probe.quirk));
    for absent in ["set_access_drops_unnamed_agents", "cpu_unmap_leaves_hole"] {
        assert!(!probed.contains(absent), "{probed:?}");
    }
    assert!(probed.contains("unmap_of_several_fails"), "{probed:?}");
    machine.assert_empty();
}

#[test]
fn vmm_opens_and_leaks_nothing_if_probes_fail() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        for function in [
            "hsa_amd_vmem_address_reserve",
            "hsa_amd_vmem_address_reserve_align",
            "hsa_amd_vmem_handle_create",
            "hsa_amd_vmem_map",
            "hsa_amd_vmem_set_access",
            "hsa_amd_vmem_export_shareable_handle",
            "hsa_amd_vmem_import_shareable_handle",
        ] {
            for call in 1..=5 {
                if (function, call) == ("hsa_amd_vmem_export_shareable_handle", 2) {
                    // If the second export fails, the first descriptor stays open, because the runtime may still use
                    // it.
                    continue;
                }
                let faults =
                    FaultPlan::none().fail(function, call, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
                let machine =
                    Machine::with_options(config.clone().with_faults(faults), always_probing());
                let usage = machine.vmm.usage();
                assert_eq!(usage, hsa_vmm::vmm::Usage::default(), "{release} {function} #{call}");
                machine.assert_empty();
            }
        }
    }
}

/// The probe of `unmap_keeps_memory` reads the list of mappings, which contains the paths of mapped files.
#[test]
fn path_that_is_not_utf8_hides_no_quirk() {
    if process::rerun_in_own_process() {
        return;
    }
    let name = OsStr::from_bytes(b"hsa-vmm \xff");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, "text").unwrap();
    let file = File::open(&path).unwrap();
    // SAFETY: the kernel chooses the addresses.
    unsafe { mmap(null_mut(), 4, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }.unwrap();
    let config = Config::mi300x(2).with_generation(Generation::B);
    let present_quirks = machine::quirks_of(&config);
    assert!(present_quirks.unmap_keeps_memory);
    check_probes("7.2", &Machine::with_options(config, always_probing()), present_quirks);
}

/// By default, a `Vmm` probes a runtime that it cannot identify, whatever version the runtime reports.
#[test]
fn unidentified_simulation_is_probed_by_default() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let present_quirks = machine::quirks_of(&config);
        for build in ["", "another runtime"] {
            let machine = Machine::new(config.clone().with_false_build(build));
            let implementation = &machine.runtime.info().implementation;
            assert!(matches!(implementation, Implementation::Unknown { .. }), "{implementation}");
            check_probes(release, &machine, present_quirks);
            let found = reported_by(&machine.runtime, present_quirks);
            for quirk in Quirks::KNOWN.iter().filter(|quirk| !found.contains(quirk.name)) {
                assert_eq!(machine.vmm.quirks().has(quirk), quirk.if_unknown, "{}", quirk.name);
            }
            machine.assert_empty();
        }
    }
}

/// Returns the undecided quirks that are missing in an unknown runtime's `Vmm`. A probe cannot exclude
/// [`PEER_AFTER_OWNER`].
fn missing_undecided(vmm: &Vmm) -> Vec<&'static str> {
    let decided = names(vmm.probes().iter().map(|probe| probe.quirk));
    let undecided = PROBED.into_iter().filter(|name| !decided.contains(name));
    let is_missing = |name: &&str| {
        let quirk = Quirks::KNOWN.iter().find(|quirk| quirk.name == *name).unwrap();
        !vmm.quirks().has(quirk)
    };
    undecided.filter(is_missing).collect()
}

/// On an unknown runtime, the library works around each quirk that no probe could decide: without probes, after a failed
/// call, without a free descriptor, and without a requirement of a probe.
#[test]
fn undecided_quirks_count_as_present_if_unknown() {
    if process::rerun_in_own_process() {
        return;
    }
    let unknown = |config: Config| config.with_false_build("another runtime");
    for (release, config) in machine::releases() {
        let never = VmmOptions::new().with_probing(Probing::Never);
        let machine = Machine::with_options(unknown(config.clone()), never);
        assert_eq!(missing_undecided(&machine.vmm), [""; 0], "{release} without probes");
        for function in ["hsa_amd_vmem_handle_create", "hsa_amd_vmem_export_shareable_handle"] {
            let status = HSA_STATUS_ERROR_OUT_OF_RESOURCES;
            let faults = FaultPlan::none().fail(function, 1, status);
            let machine = Machine::new(unknown(config.clone().with_faults(faults)));
            let probed = names(machine.vmm.probes().iter().map(|probe| probe.quirk));
            assert!(!probed.contains("export_keeps_descriptor"), "{release} {function}");
            assert_eq!(missing_undecided(&machine.vmm), [""; 0], "{release} {function}");
            // The failed probes were not kept.
            let next = Vmm::open(&machine.runtime).unwrap();
            assert_eq!(missing_undecided(&next), [""; 0], "{release} {function}");
            assert!(next.probes().iter().any(|it| it.quirk.name == "export_keeps_descriptor"));
        }
    }
    let machine = Machine::new(unknown(Config::consumer()));
    assert!(machine.vmm.quirks().cpu_unmap_leaves_hole);
    assert_eq!(missing_undecided(&machine.vmm), [""; 0]);
    let runtime = Runtime::simulated(unknown(Config::mi300x(2))).unwrap();
    let vmm = process::with_free_descriptors(0, || Vmm::open(&runtime)).unwrap();
    assert!(vmm.probes().is_empty());
    assert_eq!(missing_undecided(&vmm), [""; 0]);
}

/// The probes use memory that the CPU can access, if a GPU has such memory.
#[test]
fn probes_choose_gpu_with_large_bar() {
    if process::rerun_in_own_process() {
        return;
    }
    let mut config = Config::mi300x(2);
    config.gpus[0].large_bar = false;
    let machine = Machine::with_options(config, always_probing());
    let probed = names(machine.vmm.probes().iter().map(|probe| probe.quirk));
    assert!(probed.contains("cpu_unmap_leaves_hole"), "{probed:?}");
    machine.assert_empty();
}

/// `VmmOptions::with_probing` decides which runtimes a `Vmm` probes.
#[test]
fn probing_follows_the_option() {
    if process::rerun_in_own_process() {
        return;
    }
    let known = Config::mi300x(2);
    let unknown = known.clone().with_false_build("another runtime");
    for (probing, of_known, of_unknown) in [
        (Probing::Never, false, false),
        (Probing::IfNotSimulated, false, true),
        (Probing::Always, true, true),
    ] {
        let is_probed = |config: &Config| {
            let options = VmmOptions::new().with_probing(probing);
            !Machine::with_options(config.clone(), options).vmm.probes().is_empty()
        };
        assert_eq!((is_probed(&known), is_probed(&unknown)), (of_known, of_unknown), "{probing:?}");
    }
    assert_eq!(Probing::default(), Probing::IfNotSimulated);
    let listed = names(Quirks::KNOWN.iter().filter(|quirk| quirk.probed));
    assert_eq!(listed, PROBED.into_iter().chain([PEER_AFTER_OWNER]).collect());
}

#[test]
fn unknown_runtime_is_probed() {
    if process::rerun_in_own_process() {
        return;
    }
    // This runtime behaves like ROCm 6.4, but reports no build.
    let path = fake_runtime("probed", &["-DBUILD=\"\""]);
    // SAFETY: this test compiled the runtime, which implements HSA's functions.
    let runtime = unsafe { Runtime::load_from(&path) }.unwrap();
    std::fs::remove_file(&path).unwrap();
    let vmm = Vmm::open(&runtime).unwrap();
    let found = names(vmm.probes().iter().filter(|probe| probe.found).map(|probe| probe.quirk));
    assert!(found.contains("unmap_of_several_fails"), "{found:?}");
    assert!(vmm.quirks().unmap_of_several_fails);
    let (gpu, size) = (runtime.gpus().next().unwrap().id(), 4096);
    let base = vmm.address_reserve(2 * size, 0, None).unwrap();
    let handle = vmm.create(size, &hsa_vmm::AllocationProperties::on(gpu)).unwrap();
    vmm.map(base, size, 0, handle).unwrap();
    vmm.map(machine::at(base, size), size, 0, handle).unwrap();
    vmm.set_access(base, 2 * size, &[machine::access(gpu, Access::ReadWrite)]).unwrap();
    vmm.unmap_many(&[(base, 2 * size)]).unwrap();
    vmm.release(handle).unwrap();
    vmm.address_free(base, 2 * size).unwrap();
}

/// A sandbox forbids writing to files. The kernel would end the process when the probe enlarges its file.
#[test]
fn probe_enlarges_no_file_beyond_the_limit() {
    static EXPORTS: AtomicU32 = AtomicU32::new(0);
    if process::rerun_in_own_process() {
        return;
    }
    // The simulation enlarges files, too, but not after the probe has exported its memory twice.
    log::subscribe(
        |metadata| metadata.target().starts_with("hsa_vmm::native"),
        |fields| {
            let call = "hsa_amd_vmem_export_shareable_handle".to_owned();
            if fields.contains(&("call", call)) && EXPORTS.fetch_add(1, Ordering::SeqCst) == 1 {
                process::limit::forbid_writing();
            }
        },
    );
    let runtime = Runtime::simulated(Config::mi300x(2)).unwrap();
    let vmm = Vmm::open_with(&runtime, always_probing()).unwrap();
    let probed = names(vmm.probes().iter().map(|probe| probe.quirk));
    assert!(probed.contains("export_keeps_descriptor"), "{probed:?}");
    assert!(!probed.contains("import_is_lazy"), "the probe has no file: {probed:?}");
}
