//! Calls that take a handle reject invalid handles.

use crate::setup::{DESCRIPTOR, Setup, last_page, state};
use hsa_vmm::error::{Argument, Problem};
use hsa_vmm::{Error, Handle};

fn handle_with_low_bits_set(s: &Setup) -> Handle {
    Handle::from_bits(s.handle.to_bits() | 0xff_ffff)
}

/// Returns a handle with its highest bit changed: a number far above those in use.
fn handle_with_changed_high_bit(s: &Setup) -> Handle {
    Handle::from_bits(s.handle.to_bits() ^ 1 << 63)
}

/// Returns a handle whose value is a small odd number. No valid handle has such a value.
fn small_handle(s: &Setup) -> Handle {
    Handle::from_bits(s.handle.to_bits() & 0xff_ffff | 1)
}

/// A call with a handle.
type HandleCall = fn(&Setup, Handle) -> Result<(), Error>;

#[test]
fn calls_reject_invalid_handles() {
    let calls: &[(&str, HandleCall)] = &[
        ("release", |s, handle| s.machine.vmm.release(handle)),
        ("map", |s, handle| s.machine.vmm.map(s.empty, s.granule, 0, handle)),
        // `map` checks the handle before the range.
        ("map at an invalid range", |s, handle| s.machine.vmm.map(last_page(), 7, 0, handle)),
        ("properties", |s, handle| s.machine.vmm.allocation_properties(handle).map(drop)),
        ("size", |s, handle| s.machine.vmm.allocation_size(handle).map(drop)),
        ("export", |s, handle| {
            s.machine.vmm.export_to_shareable_handle(handle, DESCRIPTOR).map(drop)
        }),
    ];
    let setup = Setup::new();
    let invalid_handles = [
        ("zero", Handle::from_bits(0), Problem::Null),
        ("released", setup.released_handle, Problem::Released),
        ("released and still mapped", setup.released_mapped_handle, Problem::Released),
        ("of another `Vmm`", setup.foreign_handle, Problem::ForeignHandle),
        ("all ones", Handle::from_bits(u64::MAX), Problem::UnknownHandle),
        ("one", Handle::from_bits(1), Problem::UnknownHandle),
        ("low bits set", handle_with_low_bits_set(&setup), Problem::UnknownHandle),
        ("highest bit changed", handle_with_changed_high_bit(&setup), Problem::UnknownHandle),
        ("small number", small_handle(&setup), Problem::UnknownHandle),
    ];
    for (call, function) in calls {
        for (name, handle, problem) in invalid_handles {
            let before = (state(&setup.machine), state(&setup.foreign_machine));
            let error = function(&setup, handle).expect_err(name);
            assert_eq!(error.argument(), Some(Argument::Handle), "{call}, {name}: {error}");
            assert_eq!(error.problem(), Some(problem), "{call}, {name}");
            assert_eq!(
                before,
                (state(&setup.machine), state(&setup.foreign_machine)),
                "{call}, {name}"
            );
        }
    }
}
