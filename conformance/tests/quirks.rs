//! All cases with every quirk worked around, needed or not: that must change no answer. And the
//! quirk that only AMD's own runtime can show.

use hsa_rocr::{Emulation, Release, test};
use hsa_sim::{Config, Era};
use hsa_vmm::vmm::{Quirk, Quirks, VmmOptions};
use hsa_vmm::{Access, AccessDescriptor, AllocationProperties, Runtime, Vmm};
use hsa_vmm_conformance::{Options, Status, run};

fn all() -> Quirks {
    let mut all = Quirks::default();
    Quirks::KNOWN.iter().for_each(|quirk| all.switch(quirk, true));
    all
}

/// Fails unless every case ends with all quirks as it does with those known of the runtime.
fn compare(runtime: &Runtime, what: &str) {
    let run = |quirks| {
        let options = Options { count_descriptors: false, quirks, ..Options::default() };
        let report = run(runtime, &options, &mut |_| ());
        report.cases.into_iter().map(|case| (case.name, case.status, case.refused))
    };
    for (with_all, known) in run(Some(all())).zip(run(None)) {
        assert_eq!(with_all, known, "{what}");
        assert_ne!(with_all.1, Status::Fail, "{what}: {}", with_all.0);
    }
}

#[test]
fn every_case_passes_with_every_quirk() {
    for era in [Era::A, Era::B, Era::C, Era::D] {
        let runtime = Runtime::simulated(Config::mi300x(2).with_era(era)).unwrap();
        compare(&runtime, &format!("era {era}"));
    }
}

#[test]
fn every_case_passes_with_every_quirk_on_amds_runtime() {
    let name = "every_case_passes_with_every_quirk_on_amds_runtime";
    test::on_each_release(name, &Emulation::gpus(2), |ground| {
        let runtime = Runtime::load_from(ground.runtime()).unwrap();
        compare(&runtime, ground.release().version());
    });
}

/// Whether the addresses of what was unmapped and released still lead to it.
fn stays_behind(runtime: &Runtime, quirks: Quirks) -> bool {
    let options = VmmOptions { quirks: Some(quirks), ..VmmOptions::default() };
    let vmm = Vmm::open_with(runtime, options).unwrap();
    let gpu = runtime.gpus().next().unwrap().id();
    let size = 2 << 20;
    let base = vmm.address_reserve(2 * size, 0, None, 0).unwrap();
    let handle = vmm.create(size, &AllocationProperties::on(gpu), 0).unwrap();
    vmm.map(base, size, 0, handle, 0).unwrap();
    let access = Access::ReadWrite;
    vmm.set_access(base, size, &[AccessDescriptor { agent: gpu, access }]).unwrap();
    vmm.unmap(base, size).unwrap();
    vmm.release(handle).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let region = maps.lines().find(|line| {
        let bounds = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        bounds.is_some_and(|(start, end)| address(start) <= base.get() && base.get() < address(end))
    });
    // Addresses, permissions, offset, device, inode, and the name of what is behind them.
    region.expect("the addresses stay reserved").split_whitespace().nth(5).is_some()
}

#[test]
fn what_was_unmapped_stays_behind_its_addresses_without_the_quirk() {
    let name = "what_was_unmapped_stays_behind_its_addresses_without_the_quirk";
    test::on(&[Release::R7_2_4], name, &Emulation::gpus(2), |ground| {
        let runtime = Runtime::load_from(ground.runtime()).unwrap();
        let mut quirks = Quirks::of_extension(runtime.info().extension);
        let keeps = |quirk: &&Quirk| quirk.name == "unmap_keeps_memory";
        let quirk = Quirks::KNOWN.iter().find(keeps).expect("a quirk of that name");
        assert!(quirks.has(quirk), "it is not chosen for this release");
        assert!(!stays_behind(&runtime, quirks), "it is worked around and stays all the same");
        quirks.switch(quirk, false);
        assert!(stays_behind(&runtime, quirks), "this release does not need it");
    });
}
