//! The owner of imported memory: the library names it if it is visible.

use crate::amd_runtime::set_variable;
use crate::machine::Library;
use crate::process::{Child, End};
use hsa_rocr::Emulation;
use hsa_rocr::test::{Fixture, run_on_releases};
use hsa_vmm::transport::Channel;
use hsa_vmm::vmm::Location;
use hsa_vmm::{Allocation, Runtime};

/// Sends memory of the first GPU to a process that sees the GPUs in `visible`. Checks that the importer names the owner
/// as its GPU number `owner`, or as unknown.
fn check_owner(fixture: &Fixture, visible: Option<&str>, owner: Option<usize>) {
    let (sending, receiving) = Channel::pair().unwrap();
    let mut sending = Some(sending);
    let importer = Child::start(|| {
        drop(sending.take());
        if let Some(visible) = visible {
            set_variable("ROCR_VISIBLE_DEVICES", visible);
        }
        let library = Library::load(fixture.runtime());
        let (memory, _) = receiving.receive(&library.vmm).unwrap();
        let gpu = |runtime: &Runtime, number| runtime.gpus().nth(number).unwrap().id();
        let expected =
            owner.map_or(Location::Unknown, |it| Location::Agent(gpu(&library.runtime, it)));
        assert_eq!(memory.properties().location, expected);
        0
    });
    let exporter = Child::start(|| {
        let library = Library::load(fixture.runtime());
        let memory = Allocation::create(&library.vmm, 2 << 20, &library.shareable_on(0)).unwrap();
        sending.take().unwrap().send(&memory, "page").unwrap();
        0
    });
    let context = format!("{}, visible {visible:?}", fixture.release());
    assert_eq!(exporter.wait(), End::Success, "{context}: exporter");
    drop(sending);
    assert_eq!(importer.wait(), End::Success, "{context}: importer");
}

#[test]
fn hidden_owner_is_unknown() {
    let name = "import_owner::hidden_owner_is_unknown";
    run_on_releases(name, &Emulation::with_gpus(3), |fixture| {
        for (visible, owner) in [
            (None, Some(0)),
            (Some("0"), Some(0)),
            (Some("1,0"), Some(1)),
            (Some("1"), None),
            (Some("2,1"), None),
        ] {
            check_owner(fixture, visible, owner);
        }
    });
}

/// For these GPUs, AMD's runtime reports a pool that it does not list.
#[test]
fn owner_without_a_listed_pool_is_known() {
    let name = "import_owner::owner_without_a_listed_pool_is_known";
    for (gpus, profile) in [(1, "rdna3"), (2, "rdna3"), (2, "apu")] {
        let emulation = Emulation::with_gpus(gpus).with_profile(profile);
        run_on_releases(name, &emulation, |fixture| check_owner(fixture, None, Some(0)));
    }
}
