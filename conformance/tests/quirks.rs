//! Checks that workarounds do not change results on runtimes that do not need the workarounds. Also shows what two
//! quirks of AMD's runtime cause without their workarounds.

use hsa_rocr::{Emulation, Release, test};
use hsa_sim::{Config, Generation};
use hsa_vmm::vmm::{Quirk, Quirks, VmmOptions};
use hsa_vmm::{
    Access, AccessDescriptor, Address, AllocationProperties, Error, Handle, Runtime, Vmm,
};
use hsa_vmm_conformance::{Options, Status, run};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;

const SIGABRT: i32 = 6;

fn all_quirks() -> Quirks {
    let mut all_quirks = Quirks::default();
    Quirks::KNOWN.iter().for_each(|quirk| all_quirks.set(quirk, true));
    all_quirks
}

/// Runs all cases twice: with all workarounds, and with only the workarounds for the runtime's version. Checks that no
/// case fails, and that each case has the same result in the two runs.
fn check_workarounds(runtime: &Runtime, setting: &str) {
    let run = |quirks| {
        let options = Options { count_descriptors: false, quirks, ..Options::default() };
        let report = run(runtime, &options, &mut |_| ());
        report.cases.into_iter().map(|case| (case.name, case.status, case.expected_errors))
    };
    for (with_all, with_known) in run(all_quirks()).zip(run(Quirks::default())) {
        assert_eq!(with_all, with_known, "{setting}");
        assert_ne!(with_all.1, Status::Fail, "{setting}: {}", with_all.0);
    }
}

#[test]
fn cases_pass_with_every_workaround() {
    for generation in Generation::ALL {
        let runtime = Runtime::simulated(Config::mi300x(2).with_generation(generation)).unwrap();
        check_workarounds(&runtime, &format!("generation {generation}"));
    }
}

#[test]
fn cases_pass_with_every_workaround_on_amds_runtime() {
    let name = "cases_pass_with_every_workaround_on_amds_runtime";
    test::run_on_releases(name, &Emulation::with_gpus(2), |setup| {
        // SAFETY: the library is AMD's own runtime.
        let runtime = unsafe { Runtime::load_from(setup.runtime()) }.unwrap();
        check_workarounds(&runtime, setup.release().version());
    });
}

/// Returns the runtime's known quirks, with and without the quirk `name`.
fn with_and_without(runtime: &Runtime, name: &str) -> [Quirks; 2] {
    let with = Quirks::of_runtime(runtime.info());
    let has_name = |quirk: &&Quirk| quirk.name == name;
    let quirk = Quirks::KNOWN.iter().find(has_name).expect("a quirk with this name");
    assert!(with.has(quirk), "{name} is not enabled for this release");
    let mut without = with;
    without.set(quirk, false);
    [with, without]
}

const SIZE: usize = 2 << 20;

/// Opens a `Vmm`, and maps memory at the start of a reservation.
fn open_and_map(runtime: &Runtime, quirks: Quirks) -> (Vmm, Address, Handle) {
    // SAFETY: the tests show the effect of a missing workaround. If the effect is undefined behaviour, only a child
    // process is affected.
    let options = unsafe { VmmOptions::new().with_exact_quirks(quirks) };
    let vmm = Vmm::open_with(runtime, options).unwrap();
    let gpu = runtime.gpus().next().unwrap().id();
    let base = vmm.address_reserve(2 * SIZE, 0, None).unwrap();
    let handle = vmm.create(SIZE, &AllocationProperties::on(gpu)).unwrap();
    vmm.map(base, SIZE, 0, handle).unwrap();
    (vmm, base, handle)
}

fn grant(vmm: &Vmm, base: Address) -> Result<(), Error> {
    let agent = vmm.runtime().gpus().next().unwrap().id();
    vmm.set_access(base, SIZE, &[AccessDescriptor { agent, access: Access::ReadWrite }])
}

/// Returns whether unmapped and released memory is still mapped at its addresses.
fn memory_stays_mapped(runtime: &Runtime, quirks: Quirks) -> bool {
    let (vmm, base, handle) = open_and_map(runtime, quirks);
    grant(&vmm, base).unwrap();
    vmm.unmap(base, SIZE).unwrap();
    vmm.release(handle).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let region = maps.lines().find(|line| {
        let bounds = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        bounds.is_some_and(|(start, end)| address(start) <= base.get() && base.get() < address(end))
    });
    // A line has addresses, permissions, offset, device and inode, and the file name if a file is mapped.
    region.expect("the addresses stay reserved").split_whitespace().nth(5).is_some()
}

#[test]
fn unmapped_memory_stays_mapped_without_workaround() {
    let name = "unmapped_memory_stays_mapped_without_workaround";
    test::run_on(&[Release::R7_2_4], name, &Emulation::with_gpus(2), |setup| {
        // SAFETY: the library is AMD's own runtime.
        let runtime = unsafe { Runtime::load_from(setup.runtime()) }.unwrap();
        let [with, without] = with_and_without(&runtime, "unmap_keeps_memory");
        assert!(
            !memory_stays_mapped(&runtime, with),
            "the workaround is on but the memory stays mapped"
        );
        assert!(
            memory_stays_mapped(&runtime, without),
            "this release does not need the workaround"
        );
    });
}

/// Environment variables of the child processes: the runtime's path, and whether to work around the quirk.
const RUNTIME: &str = "QUIRK_RUNTIME";
const WORKED_AROUND: &str = "QUIRK_WORKED_AROUND";

/// Grants access while no file descriptor is free. With the workaround, the library reports this error. Without the
/// workaround, the runtime aborts the process.
fn grant_without_descriptor(path: &OsStr) {
    // SAFETY: the library is AMD's own runtime.
    let runtime = unsafe { Runtime::load_from(path) }.unwrap();
    let [with, without] = with_and_without(&runtime, "grant_without_descriptor_aborts");
    let quirks = if env::var_os(WORKED_AROUND).is_some() { with } else { without };
    let (vmm, base, _) = open_and_map(&runtime, quirks);
    let limit = Rlimit { current: Some(256), maximum: Some(256) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let result = grant(&vmm, base);
    drop(files);
    let result = result.map_err(hsa_vmm::Error::into_kind);
    assert_eq!(result.err(), Some(hsa_vmm::ErrorKind::OutOfDescriptors));
    grant(&vmm, base).unwrap();
}

#[test]
fn grant_aborts_without_workaround() {
    if let Some(path) = env::var_os(RUNTIME) {
        return grant_without_descriptor(&path);
    }
    let name = "grant_aborts_without_workaround";
    test::run_on_releases(name, &Emulation::with_gpus(2), |setup| {
        let start = || {
            let mut command = setup.restart_command();
            command.args([name, "--exact"]).env(RUNTIME, setup.runtime());
            command
        };
        let with = start().env(WORKED_AROUND, "1").output().unwrap();
        assert!(with.status.success(), "{with:?}");
        let without = start().output().unwrap();
        let text = String::from_utf8_lossy(&without.stderr);
        assert_eq!(without.status.signal(), Some(SIGABRT), "{text}");
    });
}
