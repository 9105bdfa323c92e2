//! The workaround of each quirk avoids a failure on a release that has the quirk, and does no harm on other releases.
//! Other files test three of the quirks; `every_quirk_has_a_failure` names the files.

mod hostile;
mod machine;
mod process;

use hostile::HostileRuntime;
use hsa_vmm::runtime::RuntimeInfo;
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm::vmm::{Quirk, Quirks, VmmOptions};
use hsa_vmm::{Access, Address, AllocationProperties, Error, HandleType, Runtime, Vmm};
use machine::{Machine, without_cpu_mapping};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

const DESCRIPTOR: HandleType = HandleType::POSIX_FILE_DESCRIPTOR;

/// A failure that occurs on a release if the library does not work around a quirk.
struct Failure {
    quirk: &'static str,
    /// A release that has the quirk.
    release: fn() -> Config,
    /// A description of the failure.
    symptom: &'static str,
    /// Performs the operations that fail, and returns whether the failure occurs.
    occurs: fn(&Machine) -> bool,
}

fn config_of(generation: Generation) -> Config {
    Config::mi300x(2).with_generation(generation)
}

const FAILURES: &[Failure] = &[
    Failure {
        quirk: "set_access_drops_unnamed_agents",
        release: || config_of(Generation::A).with_extension(4),
        symptom: "a GPU loses access when another GPU's access changes",
        occurs: gpu_loses_access,
    },
    Failure {
        quirk: "set_access_of_several_fails",
        release: || {
            let mut rocm_6_0 = config_of(Generation::A).with_extension(4);
            rocm_6_0.extension_reported = false;
            rocm_6_0
        },
        symptom: "a grant of two mappings fails",
        occurs: |machine| {
            let granule = machine.granule();
            let (base, handle) = (machine.reserve(2 * granule), machine.create(0, granule));
            for address in [base, machine::at(base, granule)] {
                machine.map(address, granule, handle);
            }
            let gpu = machine::access(machine.gpu(0), Access::ReadWrite);
            machine.vmm.set_access(base, 2 * granule, &[gpu]).is_err()
        },
    },
    Failure {
        quirk: "unmap_of_several_fails",
        release: || config_of(Generation::A),
        symptom: "an unmap of two mappings fails",
        occurs: |machine| {
            let granule = machine.granule();
            let (base, handle) = (machine.reserve(2 * granule), machine.create(0, granule));
            for address in [base, machine::at(base, granule)] {
                machine.map(address, granule, handle);
            }
            machine.vmm.unmap_many(&[(base, 2 * granule)]).is_err()
        },
    },
    Failure {
        quirk: "cpu_unmap_leaves_hole",
        release: || without_cpu_mapping(config_of(Generation::A)),
        symptom: "a reservation has unmapped addresses",
        occurs: |machine| {
            let (base, granule) = (machine.reserve(machine.granule()), machine.granule());
            machine.map(base, granule, machine.create(0, granule));
            machine.grant(base, granule, machine.cpu(0), Access::ReadWrite);
            machine.vmm.unmap(base, granule).unwrap();
            process::permissions(base.get(), granule).is_err()
        },
    },
    Failure {
        quirk: "peer_after_owner_fails",
        release: || config_of(Generation::C),
        symptom: "a grant to a peer fails after a grant to the owner",
        occurs: |machine| {
            let (base, granule) = (machine.reserve(machine.granule()), machine.granule());
            machine.map(base, granule, machine.create(0, granule));
            machine.grant(base, granule, machine.gpu(0), Access::ReadWrite);
            let peer = machine::access(machine.gpu(1), Access::ReadWrite);
            machine.vmm.set_access(base, granule, &[peer]).is_err()
        },
    },
    Failure {
        quirk: "export_keeps_descriptor",
        release: || config_of(Generation::C),
        symptom: "two exports return the same descriptor, which the runtime owns",
        occurs: |machine| {
            let handle = machine.create(0, machine.granule());
            let export = || machine.vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap();
            let (first, second) = (export(), export());
            let are_equal = first.as_raw_fd() == second.as_raw_fd();
            if are_equal {
                // Dropping the two values would close the runtime's descriptor.
                std::mem::forget((first, second));
            }
            are_equal
        },
    },
    Failure {
        quirk: "import_is_lazy",
        release: || Config::mi300x(1).with_generation(Generation::C),
        symptom: "the runtime is asked who can access the pool of a file that is not GPU memory",
        occurs: |machine| {
            let questions = || machine.simulation.calls("hsa_amd_agent_memory_pool_get_info");
            let (file, before) = (machine::file_without_memory(machine.granule()), questions());
            machine.vmm.import_from_shareable_handle(&file, DESCRIPTOR).is_ok()
                && questions() > before
        },
    },
    Failure {
        quirk: "import_needs_descriptor",
        release: || config_of(Generation::D),
        symptom: "an import cannot be exported",
        occurs: |machine| {
            let handle = machine.create(0, machine.granule());
            let descriptor = machine.vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap();
            let imported =
                machine.vmm.import_from_shareable_handle(descriptor, DESCRIPTOR).unwrap();
            machine.vmm.export_to_shareable_handle(imported, DESCRIPTOR).is_err()
        },
    },
];

/// Returns whether a GPU loses access when another GPU's access changes.
fn gpu_loses_access(machine: &Machine) -> bool {
    let (base, granule) = (machine.reserve(machine.granule()), machine.granule());
    machine.map(base, granule, machine.create(0, granule));
    for gpu in machine.gpus() {
        machine.grant(base, granule, gpu, Access::ReadWrite);
    }
    // In ROCm 6.0, the loop's last grant has revoked the first GPU's access. In 6.1 and 6.2, the grant below revokes
    // this access.
    machine.grant(base, granule, machine.gpu(1), Access::Read);
    (0..machine.gpus().len()).any(|gpu| machine.simulation.page(gpu, base.get()).is_none())
}

/// Returns whether a failure occurs on a simulation with exactly these quirks.
fn occurs(failure: &Failure, config: Config, quirks: Quirks) -> bool {
    // SAFETY: on the simulation, a disabled workaround causes errors and wrong values, but no undefined behaviour. No
    // test closes descriptors of the runtime.
    let options = unsafe { VmmOptions::new().with_exact_quirks(quirks) };
    let machine = Machine::with_options(config, options);
    let occurs = (failure.occurs)(&machine);
    if !occurs {
        assert_eq!(machine.vmm.quarantined_ranges(), [], "{}", failure.quirk);
    }
    occurs
}

fn quirk_named(name: &str) -> &'static Quirk {
    Quirks::KNOWN.iter().find(|quirk| quirk.name == name).expect("a quirk has this name")
}

#[test]
fn every_quirk_has_a_failure() {
    let names: BTreeSet<_> = Quirks::KNOWN.iter().map(|quirk| quirk.name).collect();
    let mut tested: BTreeSet<_> = FAILURES.iter().map(|failure| failure.quirk).collect();
    // `unlocked_calls_race_without_the_workaround` tests this quirk, with a runtime that counts concurrent calls.
    assert!(tested.insert("some_calls_take_no_lock"));
    // `conformance/tests/quirks.rs` tests these two quirks on AMD's own runtime.
    assert!(tested.insert("unmap_keeps_memory"));
    assert!(tested.insert("grant_without_descriptor_aborts"));
    // `tests/defects/ipc_server.rs` tests this quirk.
    assert!(tested.insert("ipc_server_outlives_stop"));
    assert_eq!(names, tested);
}

#[test]
fn releases_fail_only_without_workarounds() {
    if process::rerun_in_own_process() {
        return;
    }
    for failure in FAILURES {
        let config = (failure.release)();
        let quirk = quirk_named(failure.quirk);
        let needed = machine::quirks_of(&config);
        assert!(needed.has(quirk), "{} is not enabled for the release", failure.quirk);
        assert!(!occurs(failure, config.clone(), needed), "{}: {}", failure.quirk, failure.symptom);
        let mut without = needed;
        without.set(quirk, false);
        assert!(
            occurs(failure, config, without),
            "{} is disabled, but the failure does not occur",
            failure.quirk
        );
    }
}

#[test]
fn unneeded_workarounds_do_no_harm() {
    if process::rerun_in_own_process() {
        return;
    }
    for (release, config) in machine::releases() {
        let needed = machine::quirks_of(&config);
        let mut all = needed;
        for quirk in Quirks::KNOWN {
            let mut with_quirk = needed;
            with_quirk.set(quirk, true);
            all.set(quirk, true);
            for failure in FAILURES {
                let message = format!("{release} with {}: {}", quirk.name, failure.symptom);
                assert!(!occurs(failure, config.clone(), with_quirk), "{message}");
            }
        }
        for failure in FAILURES {
            let message = format!("{release} with all quirks: {}", failure.symptom);
            assert!(!occurs(failure, config.clone(), all), "{message}");
        }
    }
}

/// One thread exports memory, while another creates and releases memory. The runtime takes no lock in an export.
/// Returns how many calls overlapped an export.
fn count_races(quirks: impl Fn(&RuntimeInfo) -> Quirks) -> i32 {
    let hostile = HostileRuntime::new();
    // SAFETY: this test compiled the runtime, which implements HSA's functions.
    let runtime = unsafe { Runtime::load_from(&hostile.path) }.unwrap();
    // SAFETY: if calls overlap, the hostile runtime only counts them.
    let options = unsafe { VmmOptions::new().with_exact_quirks(quirks(runtime.info())) };
    let vmm = Vmm::open_with(&runtime, options).unwrap();
    let properties = AllocationProperties::on(runtime.gpus().next().unwrap().id());
    let shared = vmm.create(4096, &properties.shareable_as(DESCRIPTOR)).unwrap();
    let exports_ended = AtomicBool::new(false);
    // Makes exports take longer.
    hostile.set(c"hostile_delay_us", 2000);
    std::thread::scope(|scope| {
        let exports = scope.spawn(|| {
            let export = |_| vmm.export_to_shareable_handle(shared, DESCRIPTOR).map(|_| ());
            let exported = (0..50).try_for_each(export);
            exports_ended.store(true, Ordering::Relaxed);
            exported
        });
        while !exports_ended.load(Ordering::Relaxed) {
            let result: Result<(), Error> =
                vmm.create(4096, &properties).and_then(|handle| vmm.release(handle));
            result.unwrap();
        }
        exports.join().unwrap().unwrap();
    });
    hostile.get(c"hostile_races")
}

#[test]
fn unlocked_calls_race_without_the_workaround() {
    process::within(std::time::Duration::from_secs(60), || {
        assert_eq!(count_races(Quirks::of_runtime), 0);
        let without = |info: &RuntimeInfo| {
            let mut quirks = Quirks::of_runtime(info);
            quirks.set(quirk_named("some_calls_take_no_lock"), false);
            quirks
        };
        assert!(count_races(without) > 0, "no calls overlapped in the runtime");
    });
}

#[test]
fn with_quirks_keeps_needed_quirks() {
    if process::rerun_in_own_process() {
        return;
    }
    let config = config_of(Generation::C);
    let needed = machine::quirks_of(&config);
    // `with_quirks` cannot remove quirks. Only the unsafe `with_exact_quirks` can.
    let machine = Machine::with_options(config, VmmOptions::new().with_quirks(Quirks::default()));
    assert_eq!(machine.vmm.quirks(), needed);
    let handle = machine.create(0, machine.granule());
    let export = || machine.vmm.export_to_shareable_handle(handle, DESCRIPTOR).unwrap();
    drop(export());
    let programs_file = File::open("/dev/null").unwrap();
    drop(export());
    let is_open = rustix::io::fcntl_getfd(&programs_file);
    assert!(is_open.is_ok(), "the program's descriptor was closed");
}

#[test]
fn with_quirks_adds_quirks() {
    let mut additional = Quirks::default();
    additional.peer_after_owner_fails = true;
    let config = config_of(Generation::A);
    let mut expected = machine::quirks_of(&config);
    assert!(!expected.peer_after_owner_fails);
    expected.peer_after_owner_fails = true;
    let machine = Machine::with_options(config, VmmOptions::new().with_quirks(additional));
    assert_eq!(machine.vmm.quirks(), expected);
}

/// One runtime call can grant two agents access to two adjacent mappings, even if one agent can already access the
/// first mapping, and the other agent the second. The library must record for each mapping that both agents have
/// access.
#[test]
fn grants_of_adjacent_mappings_are_recorded_for_each() {
    let mut additional = Quirks::default();
    additional.set_access_drops_unnamed_agents = true;
    let config = config_of(Generation::B);
    let machine = Machine::with_options(config, VmmOptions::new().with_quirks(additional));
    let (vmm, granule) = (&machine.vmm, machine.granule());
    let base = machine.reserve(2 * granule);
    let second = machine::at(base, granule);
    for (address, gpu) in [(base, 0), (second, 1)] {
        vmm.map(address, granule, 0, machine.create(0, granule)).unwrap();
        vmm.set_access(address, granule, &[machine::access(machine.gpu(gpu), Access::ReadWrite)])
            .unwrap();
    }
    let both = [0, 1].map(|gpu| machine.gpu(gpu));
    let descriptors = |access| both.map(|agent| machine::access(agent, access));
    vmm.set_access(base, 2 * granule, &descriptors(Access::ReadWrite)).unwrap();
    vmm.set_access(base, 2 * granule, &descriptors(Access::None)).unwrap();
    let (reservations, _) = vmm.snapshot();
    for mapping in &reservations[0].mappings {
        let kept: Vec<_> = mapping.access.iter().map(|it| (it.agent, it.can_do_more)).collect();
        assert_eq!(kept, both.map(|agent| (agent, true)), "{}", mapping.address);
    }
}

#[test]
fn addresses_are_aligned_if_the_runtime_does_not() {
    if process::rerun_in_own_process() {
        return;
    }
    let hostile = HostileRuntime::new();
    // The hostile runtime ignores the alignment.
    let (_runtime, vmm, _) = hostile.open();
    for alignment in [1 << 30, 1 << 32] {
        for hint in [None, Some(Address::new(0x7000_0000_1000))] {
            let base = vmm.address_reserve(4096, alignment, hint).unwrap();
            assert_eq!(base.get() % alignment, 0, "{base} with hint {hint:?}");
            vmm.address_free(base, 4096).unwrap();
        }
    }
}
