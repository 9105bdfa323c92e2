//! GPUs' access is enforced in their page tables, and each call has taken effect when it returns.

use crate::amd_runtime::raw::{Fault, RW, RawRuntime};
use crate::amd_runtime::{PAGE_TABLE_MODES, fail_driver_calls, page_table_modes, set_variable};
use crate::machine::{Library, access};
use crate::process::{End, in_child, in_child_with_status};
use hsa_rocr::test::{Fixture, run_on_releases, run_on_with_timeout, uses_machine_driver};
use hsa_rocr::{Emulation, Release};
use hsa_vmm::agent::Enforcement;
use hsa_vmm::vmm::VmmOptions;
use hsa_vmm::{Access, Address, Runtime, Vmm};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SIZE: usize = 64 << 10;

/// The library with control of page tables, and one mapping of the first GPU's memory.
struct Machine {
    library: Library,
    raw: RawRuntime,
    base: Address,
}

impl Machine {
    fn new(fixture: &Fixture, mode: &str) -> Self {
        Self::open(fixture, mode, VmmOptions::new().with_page_tables(true))
    }

    fn open(fixture: &Fixture, mode: &str, options: VmmOptions) -> Self {
        set_variable("HSA_KFD", &format!("gpus=2,{mode}"));
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        Self::on(Library::open(runtime, options), fixture)
    }

    fn on(library: Library, fixture: &Fixture) -> Self {
        let raw = RawRuntime::start(fixture);
        let (base, _) = library.map_new_memory(0, SIZE);
        Self { library, raw, base }
    }

    fn set(&self, gpu: usize, access: Access) {
        self.library.grant(self.base, SIZE, self.library.gpu(gpu), access);
    }

    fn read(&self, gpu: usize) -> Result<u64, Fault> {
        self.raw.read_by(self.raw.gpus[gpu], self.base.get())
    }

    fn write(&self, gpu: usize, value: u64) -> Result<(), Fault> {
        self.raw.write_by(self.raw.gpus[gpu], self.base.get(), value)
    }

    /// Fails unless everything can be unmapped and freed, and the page tables are empty afterwards.
    fn close(self) {
        let Self { library: Library { runtime, vmm }, base, .. } = self;
        let handle = vmm.retain_allocation_handle(base).unwrap();
        vmm.unmap(base, SIZE).unwrap();
        for gpu in 0..2 {
            let entries = crate::process::page_table::entries(gpu);
            assert!(entries.iter().all(|entry| !entry.contains(&base.get())), "GPU {gpu}");
        }
        vmm.release(handle).unwrap();
        vmm.release(handle).unwrap();
        vmm.address_free(base, SIZE).unwrap();
        assert!(vmm.quarantined_ranges().is_empty());
        drop((vmm, runtime));
    }
}

/// Runs a body in each mode, in a process that has no runtime yet.
fn in_each_mode(test: &str, body: impl Fn(&dyn Fn() -> Machine)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        for mode in page_table_modes() {
            let end = in_child(|| body(&|| Machine::new(fixture, mode)));
            assert_eq!(end, End::Success, "{} {mode:?}", fixture.release());
        }
    });
}

/// Does the same as [`in_each_mode`], with planned faults of the driver.
fn in_each_mode_with_faults(test: &str, plan: &str, body: impl Fn(&Machine)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        for mode in PAGE_TABLE_MODES {
            let end = in_child(|| {
                fail_driver_calls(plan);
                body(&Machine::new(fixture, mode));
            });
            assert_eq!(end, End::Success, "{} {mode:?}", fixture.release());
        }
    });
}

#[test]
fn permissions_are_enforced() {
    const ALL: [Access; 3] = [Access::None, Access::Read, Access::ReadWrite];
    let name = "permissions::permissions_are_enforced";
    // In the virtual machine with late page-table writes, each of the test's 36 processes takes half a minute.
    let time_limit = Duration::from_secs(60 * 60);
    run_on_with_timeout(&Release::ALL, name, &Emulation::with_gpus(2), time_limit, |fixture| {
        let mut combination = 0;
        for (mode, gpu) in page_table_modes().iter().flat_map(|mode| [(mode, 0), (mode, 1)]) {
            // An access before the change fills the TLB.
            let before = [None, Some(Access::Read), Some(Access::ReadWrite)];
            for (before, after) in
                before.iter().flat_map(|before| ALL.map(|after| (*before, after)))
            {
                for writes in [false, true] {
                    combination += 1;
                    // By default, tests only every fifth combination. Together, these contain every value of every
                    // variable.
                    if !hsa_rocr::test::is_long() && combination % 5 != 0 {
                        continue;
                    }
                    let body = || {
                        let machine = Machine::new(fixture, mode);
                        // The other GPU keeps its access.
                        machine.set(1 - gpu, Access::ReadWrite);
                        machine.write(1 - gpu, 5).unwrap();
                        if let Some(before) = before {
                            machine.set(gpu, before);
                            assert_eq!(machine.read(gpu), Ok(5));
                        }
                        machine.set(gpu, after);
                        assert_eq!(machine.read(1 - gpu), Ok(5));
                        if writes {
                            let expected =
                                if after == Access::ReadWrite { Ok(()) } else { Err(Fault) };
                            assert_eq!(machine.write(gpu, 6), expected);
                        } else {
                            let expected = if after == Access::None { Err(Fault) } else { Ok(5) };
                            assert_eq!(machine.read(gpu), expected);
                        }
                    };
                    let description = format!(
                        "{} {mode:?} GPU {gpu}, {before:?} to {after:?}, writes: {writes}",
                        fixture.release()
                    );
                    assert_eq!(in_child(body), End::Success, "{description}");
                }
            }
        }
    });
}

#[test]
fn no_execute_removes_execute_access() {
    let name = "permissions::no_execute_removes_execute_access";
    run_on_releases(name, &Emulation::with_gpus(2), |fixture| {
        for (no_execute, expected) in [(false, "rwx"), (true, "rw-")] {
            let end = in_child(|| {
                let options = VmmOptions::new().with_page_tables(true).with_no_execute(no_execute);
                let machine = Machine::open(fixture, "", options);
                machine.set(0, Access::ReadWrite);
                let permissions = crate::process::page_table::permissions(0, machine.base.get());
                assert_eq!(permissions.as_deref(), Some(expected));
                machine.write(0, 5).unwrap();
                assert_eq!(machine.read(0), Ok(5));
                machine.close();
            });
            assert_eq!(end, End::Success, "{} {no_execute}", fixture.release());
        }
    });
}

#[test]
fn access_changes_keep_contents_and_other_gpus() {
    in_each_mode("permissions::access_changes_keep_contents_and_other_gpus", |new_machine| {
        let machine = new_machine();
        let gpus = [0, 1].map(|gpu| machine.library.gpu(gpu));
        for gpu in gpus {
            assert_eq!(machine.library.vmm.enforcement(gpu), Some(Enforcement::Enforced));
        }
        machine.set(0, Access::ReadWrite);
        machine.write(0, 1).unwrap();
        machine.set(1, Access::Read);
        assert_eq!([machine.read(0), machine.read(1)], [Ok(1); 2]);
        machine.set(1, Access::ReadWrite);
        machine.write(1, 2).unwrap();
        machine.set(0, Access::Read);
        assert_eq!([machine.read(0), machine.read(1)], [Ok(2); 2]);
        machine.write(1, 3).unwrap();
        machine.library.vmm.revoke(machine.base, SIZE, &[gpus[0]]).unwrap();
        assert_eq!(machine.read(1), Ok(3));
        machine.write(1, 4).unwrap();
        machine.set(0, Access::ReadWrite);
        assert_eq!(machine.read(0), Ok(4));
        machine.write(0, 5).unwrap();
        assert_eq!(machine.read(1), Ok(5));
        machine.library.vmm.revoke(machine.base, SIZE, &gpus).unwrap();
        machine.set(1, Access::Read);
        assert_eq!(machine.read(1), Ok(5));
        machine.close();
    });
}

#[test]
fn revoked_gpu_faults() {
    in_each_mode("permissions::revoked_gpu_faults", |new_machine| {
        let machine = new_machine();
        for gpu in [0, 1] {
            machine.set(gpu, Access::ReadWrite);
            machine.write(gpu, 1).unwrap();
        }
        machine.library.vmm.revoke(machine.base, SIZE, &[machine.library.gpu(1)]).unwrap();
        machine.write(0, 2).unwrap();
        assert_eq!(machine.read(1), Err(Fault));
    });
}

#[test]
fn unmapped_memory_faults() {
    in_each_mode("permissions::unmapped_memory_faults", |new_machine| {
        let machine = new_machine();
        machine.set(0, Access::ReadWrite);
        machine.write(0, 1).unwrap();
        machine.library.vmm.unmap(machine.base, SIZE).unwrap();
        assert_eq!(machine.write(0, 2), Err(Fault));
    });
}

/// A relocated mapping keeps its enforced access.
#[test]
fn moved_mappings_keep_enforced_access() {
    in_each_mode("permissions::moved_mappings_keep_enforced_access", |new_machine| {
        let mut machine = new_machine();
        let vmm = &machine.library.vmm;
        machine.set(0, Access::ReadWrite);
        machine.write(0, 7).unwrap();
        machine.set(0, Access::Read);
        machine.set(1, Access::Read);
        let target = machine.library.reserve(SIZE);
        vmm.relocate(target, machine.base, SIZE).unwrap();
        vmm.address_free(machine.base, SIZE).unwrap();
        machine.base = target;
        assert_eq!([machine.read(0), machine.read(1)], [Ok(7); 2]);
        assert_eq!(machine.write(1, 8), Err(Fault));
    });
}

/// If the library cannot control page tables, it reports the reason, and everything else works.
#[test]
fn refused_control_is_reported() {
    let test = "permissions::refused_control_is_reported";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let plans = [
            ("GEM_VA.REPLACE=EINVAL", "amdgpu_bo_va_op_raw"),
            ("GEM_VA.REPLACE=lost", "a changed entry has no effect"),
        ];
        for (plan, expected_reason) in plans {
            let end = in_child(|| {
                fail_driver_calls(plan);
                let machine = Machine::new(fixture, "");
                for gpu in [0, 1] {
                    let enforcement = machine.library.vmm.enforcement(machine.library.gpu(gpu));
                    assert_eq!(enforcement, Some(Enforcement::Recorded));
                    let agent = machine.library.gpu(gpu);
                    let reason = machine.library.vmm.page_table_failure(agent).unwrap();
                    assert!(reason.contains(expected_reason), "{reason}");
                    machine.set(gpu, Access::Read);
                    machine.write(gpu, 1).unwrap();
                }
                machine.close();
            });
            assert_eq!(end, End::Success, "{} {plan}", fixture.release());
        }
    });
}

/// A failed change of an entry is rolled back: every GPU has the access that it had before.
#[test]
fn failed_changes_are_rolled_back() {
    let test = "permissions::failed_changes_are_rolled_back";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        // Opening a `Vmm` replaces entries twice for each GPU.
        for failing_call in [5, 6] {
            let end = in_child(|| {
                fail_driver_calls(&format!("GEM_VA.REPLACE#{failing_call}=ENOMEM"));
                let machine = Machine::new(fixture, PAGE_TABLE_MODES[1]);
                let gpus = [0, 1].map(|gpu| machine.library.gpu(gpu));
                let set = |requested: Access| {
                    let list = gpus.map(|gpu| access(gpu, requested));
                    machine.library.vmm.set_access(machine.base, SIZE, &list)
                };
                set(Access::ReadWrite).unwrap();
                machine.write(0, 1).unwrap();
                set(Access::Read).unwrap_err();
                for gpu in [0, 1] {
                    let recorded = machine.library.vmm.get_access(gpus[gpu], machine.base);
                    assert_eq!(recorded, Ok(Access::ReadWrite));
                    machine.write(gpu, 2).unwrap();
                }
                set(Access::Read).unwrap();
                assert_eq!([machine.read(0), machine.read(1)], [Ok(2); 2]);
                machine.close();
            });
            assert_eq!(end, End::Success, "{} {failing_call}", fixture.release());
        }
    });
}

/// A first grant may grant less than full access. Until such a call returns, the named GPU has full access to the
/// start of the memory. No other GPU gains an entry. If the GPU already has an entry, its access during the call is
/// the access before or after the call.
#[test]
fn full_access_is_limited_to_first_grants() {
    let test = "permissions::full_access_is_limited_to_first_grants";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let end = in_child(|| {
            fail_driver_calls("GEM_VA.REPLACE=200ms");
            let machine = Machine::new(fixture, "");
            let base = machine.base.get();
            // Sets the first GPU's access. Returns the different entries that each GPU's page table had during the
            // change.
            let pages_during = |access: Access| {
                let mut seen = [Vec::new(), Vec::new()];
                std::thread::scope(|scope| {
                    let change = scope.spawn(|| machine.set(0, access));
                    while !change.is_finished() {
                        for (gpu, seen) in seen.iter_mut().enumerate() {
                            let page = crate::process::page_table::page(gpu, base);
                            let page = page.map(|page| (page.permissions, page.offset));
                            if seen.last() != Some(&page) {
                                seen.push(page);
                            }
                        }
                    }
                    change.join().unwrap();
                });
                seen
            };
            let page = |permissions: &str| Some((permissions.to_owned(), 0));
            let [first, other] = pages_during(Access::Read);
            assert!(first.contains(&page("rwx")), "full access during the first grant: {first:?}");
            assert_eq!(other, [None], "the other GPU gains no entry");
            let [second, other] = pages_during(Access::None);
            let has_only = |seen: &[Option<(String, usize)>], allowed: &[&str]| {
                let is_allowed = |page: &Option<(String, usize)>| {
                    page.as_ref()
                        .is_none_or(|(permissions, _)| allowed.contains(&permissions.as_str()))
                };
                seen.iter().all(is_allowed)
            };
            assert!(has_only(&second, &["r--", "---"]), "{second:?}");
            assert_eq!(other, [None]);
            let [third, _] = pages_during(Access::Read);
            assert!(has_only(&third, &["---", "r--"]), "{third:?}");
            machine.close();
        });
        assert_eq!(end, End::Success, "{}", fixture.release());
    });
}

/// If the entry of a first grant cannot be replaced, the grant is rolled back: no GPU keeps the full access.
#[test]
fn refused_first_grant_leaves_no_access() {
    let test = "permissions::refused_first_grant_leaves_no_access";
    in_each_mode_with_faults(test, "GEM_VA.REPLACE#5=ENOMEM", |machine| {
        let library = &machine.library;
        let list = [access(library.gpu(0), Access::Read)];
        library.vmm.set_access(machine.base, SIZE, &list).unwrap_err();
        for gpu in [0, 1] {
            assert_eq!(
                crate::process::page_table::page(gpu, machine.base.get()),
                None,
                "GPU {gpu}"
            );
        }
        assert_eq!(machine.read(0), Err(Fault));
    });
}

/// The runtime alone grants full access although only read access is requested.
#[test]
fn raw_runtime_grants_full_access() {
    in_each_mode("permissions::raw_runtime_grants_full_access", |new_machine| {
        let machine = new_machine();
        let (raw, gpu) = (&machine.raw, machine.raw.gpus[0]);
        let (base, _) =
            raw.map_new_memory(SIZE, &[(gpu, hsa_vmm::hsa_sys::HSA_ACCESS_PERMISSION_RO)]);
        // Also waits until the entries of the runtime's call have taken effect.
        machine.set(0, Access::Read);
        raw.write_by(gpu, base, 1).unwrap();
        raw.set_access(base, SIZE, &[(gpu, RW)]).unwrap();
    });
}

/// The result of [`first_late_call`], as the exit status of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LateCall {
    Grant = 3,
    Unmap = 4,
}

/// Grants access and unmaps memory. Returns the first of these calls that had not taken effect when it returned. The
/// last step is a GPU's write to the unmapped memory.
fn first_late_call(machine: &Machine) -> Option<LateCall> {
    let Machine { library, raw, base } = machine;
    let (second, _) = library.map_new_memory(0, SIZE);
    // A GPU's first copy creates its queue, which also waits for page tables.
    for address in [*base, second] {
        for gpu in [0, 1] {
            let agent = library.gpu(gpu);
            assert_eq!(library.vmm.enforcement(agent), Some(Enforcement::Recorded));
            library.grant(address, SIZE, agent, Access::ReadWrite);
            if raw.write_by(raw.gpus[gpu], address.get(), 1).is_err() {
                return Some(LateCall::Grant);
            }
        }
    }
    // The last grant may have moved the memory and flushed the first GPU's TLB.
    raw.write_by(raw.gpus[0], second.get(), 2).unwrap();
    library.vmm.unmap(second, SIZE).unwrap();
    raw.write_by(raw.gpus[0], second.get(), 3).is_ok().then_some(LateCall::Unmap)
}

/// Calls [`first_late_call`] in a child. Returns `Success` if all calls have taken effect.
fn end_of_calls(fixture: &Fixture, mode: &str, options: VmmOptions) -> End {
    in_child_with_status(|| {
        first_late_call(&Machine::open(fixture, mode, options)).map_or(0, |late| late as i32)
    })
}

#[test]
fn calls_take_effect_without_control() {
    let test = "permissions::calls_take_effect_without_control";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let options = VmmOptions::new().with_barrier(true);
        for mode in page_table_modes() {
            let end = end_of_calls(fixture, mode, options);
            assert_eq!(end, End::Success, "{} {mode:?}", fixture.release());
        }
    });
}

/// Without the barrier, a GPU still uses unmapped memory, or faults because its entry is not written yet.
#[test]
fn calls_take_effect_late_without_barrier() {
    let test = "permissions::calls_take_effect_late_without_barrier";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let modes: &[(&str, &[LateCall])] = if uses_machine_driver() {
            &[("", &[LateCall::Grant, LateCall::Unmap])]
        } else {
            &[(PAGE_TABLE_MODES[1], &[LateCall::Unmap]), (PAGE_TABLE_MODES[2], &[LateCall::Grant])]
        };
        for (mode, expected) in modes {
            let end = end_of_calls(fixture, mode, VmmOptions::new());
            let is_expected = expected.iter().any(|late| end == End::Failure(*late as i32));
            assert!(is_expected, "{} {mode:?}: {end:?}", fixture.release());
        }
    });
}

/// If the library cannot allocate a page of its own through `/dev/kfd`, it waits with calls of the runtime.
#[test]
fn calls_take_effect_without_a_driver_page() {
    static WAITS_BY_RUNTIME: AtomicBool = AtomicBool::new(false);
    const CHECKED: i32 = 9;
    let test = "permissions::calls_take_effect_without_a_driver_page";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let check = |failing_allocation: u32| {
            fail_driver_calls(&format!("ALLOC_MEMORY_OF_GPU#{failing_allocation}=ENOMEM"));
            crate::log::subscribe(
                |metadata| metadata.target().starts_with("hsa_vmm"),
                |fields| {
                    if fields.iter().any(|(_, value)| value.contains("hsa_amd_memory_lock")) {
                        WAITS_BY_RUNTIME.store(true, Ordering::Relaxed);
                    }
                },
            );
            set_variable("HSA_KFD", &format!("gpus=2,{}", PAGE_TABLE_MODES[2]));
            // SAFETY: the file is a fetched release of AMD's runtime.
            let Ok(runtime) = (unsafe { Runtime::load_from(fixture.runtime()) }) else { return 0 };
            let options = VmmOptions::new().with_barrier(true);
            let Ok(vmm) = Vmm::open_with(&runtime, options) else { return 0 };
            if !WAITS_BY_RUNTIME.load(Ordering::Relaxed) {
                return 0;
            }
            let late = first_late_call(&Machine::on(Library { runtime, vmm }, fixture));
            if late.is_none() { CHECKED } else { 0 }
        };
        // The runtime makes the first allocations. If certain ones fail, the runtime aborts.
        let checked = (1..100).any(|failing_allocation| {
            in_child_with_status(|| check(failing_allocation)) == End::Failure(CHECKED)
        });
        assert!(checked, "{}: no failed allocation was the library's", fixture.release());
    });
}
