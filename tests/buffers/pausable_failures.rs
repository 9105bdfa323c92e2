//! The runtime calls of operations on pausable buffers fail. If only one call fails, the buffers do not change. If one
//! call and all later calls fail, no contents are lost, but addresses can be quarantined.

use crate::fault_injection::{
    ERROR, OUT_OF_RESOURCES, Operation, RuntimeState, Setup, configurations, fail_all_calls_from,
    fail_one_call,
};
use crate::machine::Machine;
use crate::pausable::{contents, filled_buffer, pattern, run_in_child};
use hsa_vmm::Error;
use hsa_vmm::buffer::{PausableBuffer, PauseMode};
use hsa_vmm::error::ErrorKind;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::{Access, Address};

const SIZE: usize = 5000;

/// Two buffers, one resident and one paused.
struct Buffers {
    resident: PausableBuffer,
    paused: PausableBuffer,
    machine: Machine,
}

impl Setup for Buffers {
    /// For each buffer: whether it is paused, whether it holds its addresses, the size of its saved contents, and its
    /// address.
    type State = ([(bool, bool, usize, Address); 2], RuntimeState);

    fn new(config: &Config) -> Self {
        let machine = Machine::new(config.clone());
        let (resident, mut paused) = (filled_buffer(&machine, SIZE), filled_buffer(&machine, SIZE));
        paused.pause(PauseMode::Save).unwrap();
        Self { resident, paused, machine }
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn state(&self) -> Self::State {
        let buffers = [&self.resident, &self.paused].map(|buffer| {
            (buffer.is_paused(), buffer.holds_addresses(), buffer.saved_size(), buffer.address())
        });
        (buffers, RuntimeState::of(&self.machine))
    }
}

impl Buffers {
    /// Resumes both buffers, and checks the contents unless they were discarded.
    fn assert_contents(&mut self, discarded: bool, context: &str) {
        for (buffer, kept) in [(&mut self.resident, !discarded), (&mut self.paused, true)] {
            if buffer.is_paused() {
                buffer.resume().unwrap_or_else(|error| panic!("{context}, and then: {error}"));
            }
            assert!(!kept || contents(buffer) == pattern(SIZE, 1), "{context}: the contents");
            for agent in [self.machine.cpu(0), self.machine.gpu(0)] {
                let access = self.machine.vmm.get_access(agent, buffer.address());
                assert_eq!(access, Ok(buffer.access(agent).unwrap()), "{context}");
            }
        }
    }

    /// Resumes paused buffers, whose addresses may be quarantined. Checks the contents unless they were discarded.
    /// Returns the number of buffers whose address has changed.
    fn resume_anywhere(&mut self, discarded: bool, context: &str) -> usize {
        let (agents, vmm) = ([self.machine.cpu(0), self.machine.gpu(0)], &self.machine.vmm);
        let mut moved = 0;
        for (buffer, kept) in [(&mut self.resident, !discarded), (&mut self.paused, true)] {
            if !buffer.is_paused() {
                continue;
            }
            let before = buffer.address();
            let after = buffer.resume_anywhere();
            let after = after.unwrap_or_else(|error| panic!("{context}, and then: {error}"));
            moved += usize::from(after != before);
            assert_eq!(after, buffer.address(), "{context}");
            assert!(!kept || contents(buffer) == pattern(SIZE, 1), "{context}: the contents");
            for agent in agents {
                assert_eq!(vmm.get_access(agent, after), buffer.access(agent), "{context}");
            }
            buffer.pause(PauseMode::Save).unwrap();
            buffer.resume().unwrap();
            assert!(!kept || contents(buffer) == pattern(SIZE, 1), "{context}: again");
        }
        moved
    }

    fn close(self, context: &str) {
        let Self { resident, paused, machine } = self;
        drop((resident, paused));
        assert_eq!(machine.vmm.quarantined_ranges(), [], "{context}");
        machine.close();
    }
}

const PAUSE_AND_DISCARD: &str = "pause and discard";
const RESUME_ANYWHERE: &str = "resume anywhere";

const OPERATIONS: &[(&str, Operation<Buffers>)] = &[
    ("pause and save", |s| s.resident.pause(PauseMode::Save)),
    (PAUSE_AND_DISCARD, |s| s.resident.pause(PauseMode::Discard)),
    ("resume", |s| s.paused.resume()),
    (RESUME_ANYWHERE, |s| s.paused.resume_anywhere().map(drop)),
    ("grant a peer", |s| s.resident.grant(&[s.machine.gpu(1)], Access::Read)),
    ("set the owner's access to none", |s| s.resident.grant(&[s.machine.gpu(0)], Access::None)),
    ("revoke", |s| s.resident.revoke(&[s.machine.gpu(0)])),
    ("make a buffer", |s| {
        PausableBuffer::create(&s.machine.vmm, SIZE, &s.machine.shareable_on(1)).map(drop)
    }),
];

/// Returns whether an operation succeeds although this function fails.
fn tolerates_failure(name: &str, function: &str) -> bool {
    match function {
        // The failure leaks a signal, or leaves memory of this process locked.
        "hsa_signal_destroy" | "hsa_amd_memory_unlock" => true,
        // The "make" operation calls this function only to drop a value, which returns no error.
        "hsa_amd_vmem_handle_release" => name.starts_with("make"),
        // The library tries twice to remove the second mapping of the memory.
        "hsa_amd_vmem_unmap" | "hsa_amd_vmem_address_free" => {
            ["make", "pause and save", "resume"].iter().any(|it| name.starts_with(it))
        }
        _ => false,
    }
}

#[test]
fn one_failure_changes_nothing() {
    run_in_child(|| {
        let statuses = |_: &str| &[ERROR, OUT_OF_RESOURCES][..];
        let failures = fail_one_call(configurations(), OPERATIONS, statuses, |mut failed| {
            let (name, function, context) = (failed.name, failed.function, failed.context.clone());
            match &failed.result {
                Ok(()) => {
                    assert!(
                        tolerates_failure(name, function),
                        "{context}: the operation succeeded"
                    );
                    failed.setup.assert_contents(name == PAUSE_AND_DISCARD, &context);
                }
                Err(_) => {
                    failed.assert_unchanged();
                    failed.repeat();
                    failed.setup.assert_contents(name == PAUSE_AND_DISCARD, &context);
                }
            }
            failed.setup.close(&context);
        });
        println!("{failures} failures");
        assert!(failures > 400, "{failures} failures");
    });
}

#[test]
fn repeated_failures_lose_no_contents() {
    run_in_child(|| {
        let (mut kept_paused, mut moved) = (0, 0);
        let runs = fail_all_calls_from(configurations(), OPERATIONS, |mut failed| {
            let (name, context, result) = (failed.name, &failed.context, &failed.result);
            let quarantined = |result: &Result<(), Error>| matches!(result, Err(error) if matches!(error.kind(), ErrorKind::Quarantined { .. }));
            let quarantine = failed.setup.machine.vmm.quarantined_ranges();
            let addresses = [failed.setup.resident.address(), failed.setup.paused.address()];
            if quarantine.iter().all(|entry| !addresses.contains(&entry.address)) {
                // A buffer that stays paused after a failed rollback still has its memory and contents.
                let fails = result.is_err();
                kept_paused += usize::from(fails && failed.setup.resident.is_paused());
                failed.setup.assert_contents(name == PAUSE_AND_DISCARD && !fails, context);
                // The second mapping of the memory, from which the buffer saves the contents, may be quarantined.
                if quarantine.is_empty() {
                    failed.setup.close(context);
                }
            } else {
                // The addresses are unusable, but no call blocks, and no contents are lost.
                let repeated = (failed.operation)(&mut failed.setup);
                let is_reported = quarantined(result) || quarantined(&repeated);
                let resumed = name == RESUME_ANYWHERE && repeated.is_ok();
                assert!(
                    is_reported || resumed || name.starts_with("make"),
                    "{context}: {result:?}, then {repeated:?}"
                );
                let is_kept = || contents(&failed.setup.paused) == pattern(SIZE, 1);
                assert!(!resumed || is_kept(), "{context}: the contents");
                moved += failed.setup.resume_anywhere(name == PAUSE_AND_DISCARD, context);
            }
        });
        println!(
            "{runs} runs with a runtime that kept failing, {kept_paused} buffers that kept their memory"
        );
        println!("{moved} buffers that resumed at another address");
        assert!(runs > 200 && kept_paused > 0, "{runs}, {kept_paused}");
        assert!(moved > 0, "{moved}");
    });
}

/// While the contents are saved or restored, the memory has a second mapping. If the runtime fails to unmap this mapping
/// or to free its addresses, the next call removes it.
#[test]
fn next_call_removes_second_mapping() {
    run_in_child(|| {
        let mut quarantined = Vec::new();
        for function in ["hsa_amd_vmem_unmap", "hsa_amd_vmem_address_free"] {
            for (configuration, config) in configurations() {
                let context = format!("{configuration}, {function}");
                // The GPU has no room for a second buffer, so the old memory must be released first.
                let machine = Machine::new(config.with_vram(12 << 10));
                let fail = || {
                    let plan = FaultPlan::none().always(function, OUT_OF_RESOURCES);
                    machine.simulation.set_faults(plan);
                };
                let mut buffer = filled_buffer(&machine, SIZE);
                fail();
                let error = buffer.pause(PauseMode::Save).expect_err(&context);
                if matches!(error.kind(), ErrorKind::Quarantined { .. }) {
                    // The rollback failed too, because it calls the same function.
                    quarantined.push(configuration);
                    continue;
                }
                assert_eq!(error.call().map(|call| call.0), Some(function), "{context}: {error}");
                machine.simulation.set_faults(FaultPlan::none());
                assert!(!buffer.is_paused(), "{context}");
                // A pause that discards the contents needs no second mapping, but must remove the old one.
                buffer.pause(PauseMode::Discard).unwrap();
                assert_eq!(machine.used_by(0), 0, "{context}");
                assert_eq!(machine.vmm.reservations().len(), 1, "{context}");
                buffer.resume().unwrap();
                buffer.write(0, &pattern(SIZE, 1)).unwrap();
                buffer.pause(PauseMode::Save).unwrap();

                fail();
                buffer.resume().unwrap_err();
                machine.simulation.set_faults(FaultPlan::none());
                buffer.resume().unwrap();
                assert_eq!(machine.vmm.mappings().len(), 1, "{context}");
                assert_eq!(machine.vmm.reservations().len(), 1, "{context}");
                assert!(contents(&buffer) == pattern(SIZE, 1), "{context}: the contents");

                fail();
                buffer.pause(PauseMode::Save).unwrap_err();
                machine.simulation.set_faults(FaultPlan::none());
                drop(buffer);
                machine.assert_empty();
            }
        }
        assert_eq!(quarantined, ["generation C"]);
    });
}

/// A resume that fails twice can leave a mapping in the buffer. After the program has unmapped it and freed the
/// addresses, the next resume reserves the addresses and maps the memory again.
#[test]
fn resume_maps_again_after_a_failure_and_a_free() {
    run_in_child(|| {
        let machine = Machine::new(Config::mi300x(1));
        let mut buffer = filled_buffer(&machine, SIZE);
        buffer.pause(PauseMode::Discard).unwrap();
        let faults = FaultPlan::none().always("hsa_amd_vmem_set_access", ERROR).fail(
            "hsa_amd_vmem_unmap",
            2,
            ERROR,
        );
        machine.simulation.set_faults(faults);
        buffer.resume().unwrap_err();
        machine.simulation.set_faults(FaultPlan::none());
        machine.vmm.unmap(buffer.address(), buffer.extent()).unwrap();
        machine.vmm.address_free(buffer.address(), buffer.extent()).unwrap();
        buffer.resume().unwrap();
        buffer.write(0, &pattern(SIZE, 2)).unwrap();
        assert!(contents(&buffer) == pattern(SIZE, 2));
        drop(buffer);
        machine.assert_empty();
    });
}

/// A buffer without granted access, whose first grant and its rollback failed, can move to other addresses.
#[test]
fn quarantined_buffer_without_access_can_move() {
    run_in_child(|| {
        let machine = Machine::new(Config::mi300x(1));
        let properties = machine.shareable_on(0);
        let mut buffer = PausableBuffer::create(&machine.vmm, SIZE, &properties).unwrap();
        let faults = FaultPlan::none()
            .fail("hsa_amd_vmem_set_access", 1, ERROR)
            .always("hsa_amd_vmem_unmap", ERROR);
        machine.simulation.set_faults(faults);
        buffer.grant(&[machine.gpu(0)], Access::ReadWrite).unwrap_err();
        machine.simulation.set_faults(FaultPlan::none());
        assert_eq!(machine.vmm.quarantined_ranges().len(), 1);
        let address = buffer.address();
        buffer.pause(PauseMode::Discard).unwrap_err();
        assert_ne!(buffer.resume_anywhere().unwrap(), address);
        buffer.grant(&[machine.cpu(0), machine.gpu(0)], Access::ReadWrite).unwrap();
        buffer.write(0, &pattern(SIZE, 2)).unwrap();
        assert!(contents(&buffer) == pattern(SIZE, 2));
    });
}
