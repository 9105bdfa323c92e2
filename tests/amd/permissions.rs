//! The library enforces GPUs' access in their page tables. When a call returns, its changes have taken effect.

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
struct Setup {
    library: Library,
    raw: RawRuntime,
    base: Address,
}

impl Setup {
    fn new(fixture: &Fixture, mode: &str) -> Self {
        Self::open(fixture, mode, VmmOptions::new().with_page_tables(true))
    }

    fn open(fixture: &Fixture, mode: &str, options: VmmOptions) -> Self {
        set_variable("HSA_KFD", &format!("gpus=2,{mode}"));
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        Self::with_library(Library::open(runtime, options), fixture)
    }

    fn with_library(library: Library, fixture: &Fixture) -> Self {
        let raw = RawRuntime::start(fixture);
        let (base, _) = library.map_new_memory(0, SIZE);
        Self { library, raw, base }
    }

    fn set_access(&self, gpu: usize, access: Access) {
        self.library.grant(self.base, SIZE, self.library.gpu(gpu), access);
    }

    fn read(&self, gpu: usize) -> Result<u64, Fault> {
        self.raw.read_by(self.raw.gpus[gpu], self.base.get())
    }

    fn write(&self, gpu: usize, value: u64) -> Result<(), Fault> {
        self.raw.write_by(self.raw.gpus[gpu], self.base.get(), value)
    }

    /// Unmaps and frees everything. Fails if a page table then has an entry for the mapping.
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

/// Runs `body` in each mode, each time in a process that has no runtime yet.
fn in_each_mode(test: &str, body: impl Fn(&dyn Fn() -> Setup)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        for mode in page_table_modes() {
            let end = in_child(|| body(&|| Setup::new(fixture, mode)));
            assert_eq!(end, End::Success, "{} {mode:?}", fixture.release());
        }
    });
}

/// Runs `body` in each of [`PAGE_TABLE_MODES`], with planned faults of the emulated driver.
fn in_each_mode_with_faults(test: &str, plan: &str, body: impl Fn(&Setup)) {
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        for mode in PAGE_TABLE_MODES {
            let end = in_child(|| {
                fail_driver_calls(plan);
                body(&Setup::new(fixture, mode));
            });
            assert_eq!(end, End::Success, "{} {mode:?}", fixture.release());
        }
    });
}

#[test]
fn permissions_are_enforced() {
    const ALL: [Access; 3] = [Access::None, Access::Read, Access::ReadWrite];
    let name = "permissions::permissions_are_enforced";
    // In the virtual machine, where the driver writes page-table entries late, each of the 36 processes takes half a
    // minute.
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
                    // By default, tests only every fifth combination. These combinations together contain every value
                    // of every variable.
                    if !hsa_rocr::test::is_long() && combination % 5 != 0 {
                        continue;
                    }
                    let body = || {
                        let setup = Setup::new(fixture, mode);
                        // The other GPU keeps its access.
                        setup.set_access(1 - gpu, Access::ReadWrite);
                        setup.write(1 - gpu, 5).unwrap();
                        if let Some(before) = before {
                            setup.set_access(gpu, before);
                            assert_eq!(setup.read(gpu), Ok(5));
                        }
                        setup.set_access(gpu, after);
                        assert_eq!(setup.read(1 - gpu), Ok(5));
                        if writes {
                            let expected =
                                if after == Access::ReadWrite { Ok(()) } else { Err(Fault) };
                            assert_eq!(setup.write(gpu, 6), expected);
                        } else {
                            let expected = if after == Access::None { Err(Fault) } else { Ok(5) };
                            assert_eq!(setup.read(gpu), expected);
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
                let setup = Setup::open(fixture, "", options);
                setup.set_access(0, Access::ReadWrite);
                let permissions = crate::process::page_table::permissions(0, setup.base.get());
                assert_eq!(permissions.as_deref(), Some(expected));
                setup.write(0, 5).unwrap();
                assert_eq!(setup.read(0), Ok(5));
                setup.close();
            });
            assert_eq!(end, End::Success, "{} {no_execute}", fixture.release());
        }
    });
}

#[test]
fn access_changes_keep_contents_and_other_gpus() {
    in_each_mode("permissions::access_changes_keep_contents_and_other_gpus", |new_setup| {
        let setup = new_setup();
        let gpus = [0, 1].map(|gpu| setup.library.gpu(gpu));
        for gpu in gpus {
            assert_eq!(setup.library.vmm.enforcement(gpu), Some(Enforcement::Enforced));
        }
        setup.set_access(0, Access::ReadWrite);
        setup.write(0, 1).unwrap();
        setup.set_access(1, Access::Read);
        assert_eq!([setup.read(0), setup.read(1)], [Ok(1); 2]);
        setup.set_access(1, Access::ReadWrite);
        setup.write(1, 2).unwrap();
        setup.set_access(0, Access::Read);
        assert_eq!([setup.read(0), setup.read(1)], [Ok(2); 2]);
        setup.write(1, 3).unwrap();
        setup.library.vmm.revoke(setup.base, SIZE, &[gpus[0]]).unwrap();
        assert_eq!(setup.read(1), Ok(3));
        setup.write(1, 4).unwrap();
        setup.set_access(0, Access::ReadWrite);
        assert_eq!(setup.read(0), Ok(4));
        setup.write(0, 5).unwrap();
        assert_eq!(setup.read(1), Ok(5));
        setup.library.vmm.revoke(setup.base, SIZE, &gpus).unwrap();
        setup.set_access(1, Access::Read);
        assert_eq!(setup.read(1), Ok(5));
        setup.close();
    });
}

#[test]
fn revoked_gpu_faults() {
    in_each_mode("permissions::revoked_gpu_faults", |new_setup| {
        let setup = new_setup();
        for gpu in [0, 1] {
            setup.set_access(gpu, Access::ReadWrite);
            setup.write(gpu, 1).unwrap();
        }
        setup.library.vmm.revoke(setup.base, SIZE, &[setup.library.gpu(1)]).unwrap();
        setup.write(0, 2).unwrap();
        assert_eq!(setup.read(1), Err(Fault));
    });
}

#[test]
fn unmapped_memory_faults() {
    in_each_mode("permissions::unmapped_memory_faults", |new_setup| {
        let setup = new_setup();
        setup.set_access(0, Access::ReadWrite);
        setup.write(0, 1).unwrap();
        setup.library.vmm.unmap(setup.base, SIZE).unwrap();
        assert_eq!(setup.write(0, 2), Err(Fault));
    });
}

/// A relocated mapping keeps its enforced access.
#[test]
fn moved_mappings_keep_enforced_access() {
    in_each_mode("permissions::moved_mappings_keep_enforced_access", |new_setup| {
        let mut setup = new_setup();
        let vmm = &setup.library.vmm;
        setup.set_access(0, Access::ReadWrite);
        setup.write(0, 7).unwrap();
        setup.set_access(0, Access::Read);
        setup.set_access(1, Access::Read);
        let target = setup.library.reserve(SIZE);
        vmm.relocate(target, setup.base, SIZE).unwrap();
        vmm.address_free(setup.base, SIZE).unwrap();
        setup.base = target;
        assert_eq!([setup.read(0), setup.read(1)], [Ok(7); 2]);
        assert_eq!(setup.write(1, 8), Err(Fault));
    });
}

/// If the library cannot control page tables, it reports the reason. Calls work, but access is only recorded.
#[test]
fn missing_control_is_reported() {
    let test = "permissions::missing_control_is_reported";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let plans = [
            ("GEM_VA.REPLACE=EINVAL", "amdgpu_bo_va_op_raw"),
            ("GEM_VA.REPLACE=lost", "a changed entry has no effect"),
        ];
        for (plan, expected_reason) in plans {
            let end = in_child(|| {
                fail_driver_calls(plan);
                let setup = Setup::new(fixture, "");
                for gpu in [0, 1] {
                    let enforcement = setup.library.vmm.enforcement(setup.library.gpu(gpu));
                    assert_eq!(enforcement, Some(Enforcement::Recorded));
                    let agent = setup.library.gpu(gpu);
                    let reason = setup.library.vmm.page_table_failure(agent).unwrap();
                    assert!(reason.contains(expected_reason), "{reason}");
                    setup.set_access(gpu, Access::Read);
                    setup.write(gpu, 1).unwrap();
                }
                setup.close();
            });
            assert_eq!(end, End::Success, "{} {plan}", fixture.release());
        }
    });
}

/// If the library cannot replace an entry, it rolls back the call: every GPU has the access that it had before.
#[test]
fn failed_changes_are_rolled_back() {
    let test = "permissions::failed_changes_are_rolled_back";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        // Opening a `Vmm` replaces entries four times, twice for each GPU.
        for failing_call in [5, 6] {
            let end = in_child(|| {
                fail_driver_calls(&format!("GEM_VA.REPLACE#{failing_call}=ENOMEM"));
                let setup = Setup::new(fixture, PAGE_TABLE_MODES[1]);
                let gpus = [0, 1].map(|gpu| setup.library.gpu(gpu));
                let set = |requested: Access| {
                    let list = gpus.map(|gpu| access(gpu, requested));
                    setup.library.vmm.set_access(setup.base, SIZE, &list)
                };
                set(Access::ReadWrite).unwrap();
                setup.write(0, 1).unwrap();
                set(Access::Read).unwrap_err();
                for gpu in [0, 1] {
                    let recorded = setup.library.vmm.get_access(gpus[gpu], setup.base);
                    assert_eq!(recorded, Ok(Access::ReadWrite));
                    setup.write(gpu, 2).unwrap();
                }
                set(Access::Read).unwrap();
                assert_eq!([setup.read(0), setup.read(1)], [Ok(2); 2]);
                setup.close();
            });
            assert_eq!(end, End::Success, "{} {failing_call}", fixture.release());
        }
    });
}

/// During a GPU's first grant, the GPU has full access to the start of the memory, even if the caller grants only read
/// access. No other GPU gains an entry. During later grants, the GPU has the access from before or from after the call.
#[test]
fn full_access_is_limited_to_first_grants() {
    let test = "permissions::full_access_is_limited_to_first_grants";
    run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
        let end = in_child(|| {
            fail_driver_calls("GEM_VA.REPLACE=200ms");
            let setup = Setup::new(fixture, "");
            let base = setup.base.get();
            // Sets the first GPU's access. Returns the different entries that each GPU's page table had during the
            // change.
            let pages_during = |access: Access| {
                let mut seen = [Vec::new(), Vec::new()];
                std::thread::scope(|scope| {
                    let change = scope.spawn(|| setup.set_access(0, access));
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
            setup.close();
        });
        assert_eq!(end, End::Success, "{}", fixture.release());
    });
}

/// If the library cannot replace the entry of a GPU's first grant, it rolls back the grant. The GPU does not keep full
/// access.
#[test]
fn failed_first_grant_leaves_no_access() {
    let test = "permissions::failed_first_grant_leaves_no_access";
    in_each_mode_with_faults(test, "GEM_VA.REPLACE#5=ENOMEM", |setup| {
        let library = &setup.library;
        let list = [access(library.gpu(0), Access::Read)];
        library.vmm.set_access(setup.base, SIZE, &list).unwrap_err();
        for gpu in [0, 1] {
            assert_eq!(crate::process::page_table::page(gpu, setup.base.get()), None, "GPU {gpu}");
        }
        assert_eq!(setup.read(0), Err(Fault));
    });
}

/// Without the library, the runtime grants full access although only read access is requested.
#[test]
fn raw_runtime_grants_full_access() {
    in_each_mode("permissions::raw_runtime_grants_full_access", |new_setup| {
        let setup = new_setup();
        let (raw, gpu) = (&setup.raw, setup.raw.gpus[0]);
        let (base, _) =
            raw.map_new_memory(SIZE, &[(gpu, hsa_vmm::hsa_sys::HSA_ACCESS_PERMISSION_RO)]);
        // This call of the library also waits until the entries from the runtime's call have taken effect.
        setup.set_access(0, Access::Read);
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

/// Grants access, and then unmaps memory. After each call, checks by a GPU's write whether the call has taken effect.
/// Returns the first call that has not taken effect.
fn first_late_call(setup: &Setup) -> Option<LateCall> {
    let Setup { library, raw, base } = setup;
    let (second, _) = library.map_new_memory(0, SIZE);
    // A GPU's first copy creates the GPU's queue. The creation also waits for page tables.
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
    // The last grant may have moved the memory and flushed the first GPU's TLB. A write fills the TLB again.
    raw.write_by(raw.gpus[0], second.get(), 2).unwrap();
    library.vmm.unmap(second, SIZE).unwrap();
    raw.write_by(raw.gpus[0], second.get(), 3).is_ok().then_some(LateCall::Unmap)
}

/// Calls [`first_late_call`] in a child. Returns `Success` if all calls have taken effect, and otherwise `Failure` with
/// the number of the [`LateCall`].
fn end_of_calls(fixture: &Fixture, mode: &str, options: VmmOptions) -> End {
    in_child_with_status(|| {
        first_late_call(&Setup::open(fixture, mode, options)).map_or(0, |late| late as i32)
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

/// If the library cannot allocate a page of its own through `/dev/kfd`, the library waits by calls of the runtime.
#[test]
fn calls_take_effect_without_a_driver_page() {
    static WAITS_BY_RUNTIME: AtomicBool = AtomicBool::new(false);
    /// The exit status of a child in which the library's own allocation failed, and all calls took effect.
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
            let late = first_late_call(&Setup::with_library(Library { runtime, vmm }, fixture));
            if late.is_none() { CHECKED } else { 0 }
        };
        // Looks for the library's own allocation. The runtime makes earlier allocations, and aborts if some of them
        // fail.
        let checked = (1..100).any(|failing_allocation| {
            in_child_with_status(|| check(failing_allocation)) == End::Failure(CHECKED)
        });
        assert!(checked, "{}: no failed allocation was the library's", fixture.release());
    });
}
