//! Starts of the runtime: starts that fail, repeated starts, and starts by several `Vmm`s.

use crate::amd_runtime::{fail_driver_calls, on_each};
use crate::machine::Library;
use crate::process::limit::{limit_free_descriptors, raise_limit};
use crate::process::{End, descriptors, in_child};
use hsa_vmm::runtime::DriverState;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, ErrorKind, Runtime, Vmm};

/// Driver calls that the runtime makes when it starts. Each call fails in a process of its own.
const FIRST_CALLS: [&str; 3] = ["GET_VERSION", "ACQUIRE_VM", "GET_PROCESS_APERTURES_NEW"];

#[test]
fn start_error_describes_the_driver() {
    on_each("start::start_error_describes_the_driver", |fixture| {
        for call in FIRST_CALLS {
            let end = in_child(|| {
                fail_driver_calls(&format!("{call}=ENODEV"));
                // SAFETY: the file is a fetched release of AMD's runtime.
                let error = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap_err();
                match error.kind() {
                    ErrorKind::Start { path, driver, .. } => {
                        assert_eq!(*path, fixture.runtime().canonicalize().unwrap());
                        assert_eq!(*driver, DriverState::Emulated);
                    }
                    kind => panic!("{kind:?}"),
                }
            });
            assert_eq!(end, End::Success, "{call}");
        }
    });
}

#[test]
fn load_without_descriptors_says_so() {
    on_each("start::load_without_descriptors_says_so", |fixture| {
        limit_free_descriptors(0);
        // SAFETY: the file is a fetched release of AMD's runtime.
        let result = unsafe { Runtime::load_from(fixture.runtime()) };
        raise_limit();
        assert_eq!(*result.unwrap_err().kind(), ErrorKind::OutOfDescriptors);
    });
}

#[test]
fn runtime_starts_and_stops_repeatedly() {
    on_each("start::runtime_starts_and_stops_repeatedly", |fixture| {
        let mut first_count = None;
        for round in 0..10 {
            let library = Library::load(fixture.runtime());
            let (base, _) = library.map_new_memory(round % 2, 64 << 10);
            for agent in [library.cpu(0), library.gpu(0), library.gpu(1)] {
                library.grant(base, 64 << 10, agent, Access::ReadWrite);
            }
            library.vmm.fill(base, 7, 64 << 10).unwrap();
            drop(library);
            let now = descriptors();
            assert_eq!(*first_count.get_or_insert(now), now, "descriptors after round {round}");
        }
    });
}

#[test]
fn vmms_on_one_runtime_are_independent() {
    on_each("start::vmms_on_one_runtime_are_independent", |fixture| {
        let [first, second] = [(); 2].map(|()| Library::load(fixture.runtime()));
        let ((first_base, memory), (second_base, _)) =
            (first.map_new_memory(0, 64 << 10), second.map_new_memory(0, 64 << 10));
        second.vmm.unmap(first_base, 64 << 10).unwrap_err();
        second.vmm.release(memory).unwrap_err();
        second.grant(second_base, 64 << 10, second.cpu(0), Access::ReadWrite);
        drop(first);
        second.vmm.write(second_base, b"kept").unwrap();
        second.vmm.fill(second_base, 7, 4).unwrap_err();
        second.grant(second_base, 64 << 10, second.gpu(0), Access::ReadWrite);
        second.vmm.fill(second_base, 7, 4).unwrap();
    });
}

/// The probes of a `Vmm` map memory. If one of their driver calls fails, memory may stay mapped. AMD's runtime 6.4.3
/// would crash if the library stopped the runtime in this state.
#[test]
fn stop_after_failed_probe_calls_does_not_crash() {
    on_each("start::stop_after_failed_probe_calls_does_not_crash", |fixture| {
        for call in 1..=24 {
            let end = in_child(|| {
                fail_driver_calls(&format!("GEM_VA#{call}=ENOMEM"));
                // SAFETY: the file is a fetched release of AMD's runtime.
                let Ok(runtime) = (unsafe { Runtime::load_from(fixture.runtime()) }) else {
                    return;
                };
                let options = VmmOptions::new().with_page_tables(true);
                drop(Vmm::open_with(&runtime, options));
            });
            assert_eq!(end, End::Success, "GEM_VA#{call} on {}", fixture.release());
        }
    });
}
