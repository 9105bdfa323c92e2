//! The library identifies AMD's releases, including two in one process.

use crate::amd_runtime::on_each;
use crate::process::{End, descriptors, in_child};
use hsa_rocr::{Emulation, FetchedRelease, Release, folder, test};
use hsa_vmm::runtime::{Implementation, LoadedLibrary, Origin, loaded_libraries};
use hsa_vmm::vmm::{Probing, Quirks, VmmOptions};
use hsa_vmm::{Runtime, Vmm};
use std::path::{Path, PathBuf};

#[test]
fn releases_are_identified() {
    on_each("identity::releases_are_identified", |fixture| {
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let info = runtime.info();
        let expected = match fixture.release() {
            Release::R6_1_2 => "ROCr 1.13 (ROCm 6.1)",
            Release::R6_4_3 => "ROCr 1.15 (ROCm 6.4)",
            _ => "ROCr 1.18 (ROCm 7)",
        };
        assert_eq!(info.implementation.to_string(), expected);
        assert!(matches!(info.implementation, Implementation::Rocr { .. }));
        assert_eq!(info.origin, Some(Origin::Program));
        assert_eq!(Quirks::of_runtime(info), Quirks::of_extension(info.extension));
    });
}

#[test]
fn probes_agree_with_the_versions() {
    on_each("identity::probes_agree_with_the_versions", |fixture| {
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        let before = descriptors();
        for _ in 0..3 {
            let options = VmmOptions::new().with_probing(Probing::Always);
            let vmm = Vmm::open_with(&runtime, options).unwrap();
            let probes = vmm.probes();
            assert_eq!(probes.len(), 7, "{probes:?}");
            for probe in probes {
                assert_eq!(probe.found, probe.expected, "{}", probe.quirk.name);
            }
            assert_eq!(vmm.quirks(), Quirks::of_runtime(runtime.info()));
        }
        assert_eq!(descriptors(), before);
    });
}

/// Loads a runtime's library as another part of the program would, but does not start the runtime.
fn load_without_starting(path: &Path) {
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the file is a fetched release of AMD's runtime.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{}", path.display());
}

fn find_loaded(path: &Path) -> LoadedLibrary {
    let path = path.canonicalize().unwrap();
    let all = loaded_libraries();
    let found = all.iter().find(|library| library.path == path);
    found.unwrap_or_else(|| panic!("{} is not in {all:?}", path.display())).clone()
}

#[test]
fn two_loaded_releases_are_distinguished() {
    let name = "identity::two_loaded_releases_are_distinguished";
    // Both releases run with the C library of the newer release.
    test::run_on(&[Release::R7_2_4], name, &Emulation::with_gpus(1), |fixture| {
        let newer = fixture.runtime();
        let older: PathBuf =
            FetchedRelease::open(&folder().unwrap(), Release::R6_4_3).unwrap().runtime();
        let ends = [(&older, &newer), (&newer, &older)].map(|(first, second)| {
            in_child(|| {
                assert_eq!(loaded_libraries(), []);
                load_without_starting(first);
                // `Runtime::load` gets the library that is already loaded, as HIP would.
                let runtime = Runtime::load().unwrap();
                let info = runtime.info();
                assert_eq!(info.path, Some(first.canonicalize().unwrap()));
                assert_eq!(info.origin, Some(Origin::Loaded));
                load_without_starting(second);
                let (first, second) = (find_loaded(first), find_loaded(second));
                assert_eq!(first.build.as_deref(), Some(info.build.trim_matches('"')));
                assert_eq!(first.extension, Some(info.extension));
                assert_eq!(second.extension, None, "not started");
                let builds = ["1.15.0-local-build-unknown", "1.18.0-local-build-unknown"];
                let mut found = [first.build, second.build].map(Option::unwrap);
                found.sort();
                assert_eq!(found, builds);
                Vmm::open(&runtime).unwrap();
            })
        });
        assert_eq!(ends, [End::Success, End::Success]);
    });
}

#[test]
fn start_error_lists_two_releases() {
    let name = "identity::start_error_lists_two_releases";
    test::run_on(&[Release::R7_2_4], name, &Emulation::with_gpus(1), |fixture| {
        let older = FetchedRelease::open(&folder().unwrap(), Release::R6_4_3).unwrap().runtime();
        let end = in_child(|| {
            load_without_starting(&older);
            crate::amd_runtime::fail_driver_calls("GET_VERSION=ENODEV");
            // SAFETY: the file is a fetched release of AMD's runtime.
            let error = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap_err();
            let text = error.to_string();
            assert!(text.contains("has loaded 2 HSA libraries"), "{text}");
            for path in [&older, &fixture.runtime()] {
                let path = path.canonicalize().unwrap();
                assert!(text.contains(path.to_str().unwrap()), "{text}");
            }
        });
        assert_eq!(end, End::Success);
    });
}
