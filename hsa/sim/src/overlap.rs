//! Detects overlapping calls that a release does not serialise.
//!
//! Before ROCm 10, four functions use the runtime's tables of handles and mappings without its lock
//! (`Runtime::VMemoryExportShareableHandle`, `…ImportShareableHandle`, `…RetainAllocHandle` and
//! `…GetAllocPropertiesFromHandle` in `runtime.cpp`). In AMD's runtime, an overlap with a call that
//! changes these tables is a data race: calls fail, handles are lost, the process crashes. In the
//! simulation, such an overlap aborts the process.

use crate::abi::{Function, STATUS_NAMES};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    None,
    Read,
    Write,
}

impl Access {
    fn conflicts_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Write, Self::Read | Self::Write) | (Self::Read, Self::Write))
    }
}

/// How a function uses the runtime's tables.
#[derive(Clone, Copy, Debug)]
struct Use {
    function: Function,
    takes_lock: bool,
    handles: Access,
    /// The reference counts of the handles.
    references: Access,
    mappings: Access,
}

/// How each function uses the tables, according to the runtime's public source for ROCm 6.0 to 7.2.
const USES: [Use; 9] = {
    use Access::{None, Read, Write};
    use Function::*;
    const fn locked(function: Function, [handles, references, mappings]: [Access; 3]) -> Use {
        Use { function, takes_lock: true, handles, references, mappings }
    }
    const fn unlocked(function: Function, [handles, references, mappings]: [Access; 3]) -> Use {
        Use { function, takes_lock: false, handles, references, mappings }
    }
    [
        locked(hsa_amd_vmem_handle_create, [Write, None, None]),
        locked(hsa_amd_vmem_handle_release, [Write, Write, None]),
        locked(hsa_amd_vmem_map, [Read, None, Write]),
        locked(hsa_amd_vmem_unmap, [Write, Read, Write]),
        locked(hsa_amd_vmem_set_access, [None, None, Read]),
        unlocked(hsa_amd_vmem_export_shareable_handle, [Read, None, None]),
        unlocked(hsa_amd_vmem_import_shareable_handle, [Write, Write, None]),
        unlocked(hsa_amd_vmem_retain_alloc_handle, [None, Write, Read]),
        unlocked(hsa_amd_vmem_get_alloc_properties_from_handle, [Read, None, None]),
    ]
};

impl Use {
    fn races_with(&self, other: &Self) -> bool {
        (!self.takes_lock || !other.takes_lock)
            && (self.handles.conflicts_with(other.handles)
                || self.references.conflicts_with(other.references)
                || self.mappings.conflicts_with(other.mappings))
    }
}

/// The number of running calls of each function in [`USES`], in the same order.
#[derive(Debug, Default)]
pub(crate) struct Calls([AtomicUsize; USES.len()]);

/// A running call. Dropping this value ends the count of the call.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a AtomicUsize);

/// Two functions whose calls overlap and race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Race(Function, Function);

impl Calls {
    /// Counts a call as running until the result is dropped. Fails if the call races with a running
    /// call.
    pub(crate) fn track(&self, function: Function) -> Result<Option<Call<'_>>, Race> {
        let Some(own) = USES.iter().position(|usage| usage.function == function) else {
            return Ok(None);
        };
        // Count first, then compare: of two calls that begin together, at least one sees the other.
        let before = self.0[own].fetch_add(1, SeqCst);
        let call = Call(&self.0[own]);
        for (index, other) in
            USES.iter().enumerate().filter(|(_, usage)| usage.races_with(&USES[own]))
        {
            let running = if index == own { before } else { self.0[index].load(SeqCst) };
            if running > 0 {
                return Err(Race(function, other.function));
            }
        }
        Ok(Some(call))
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Race {
    /// Aborts the process with a message that names both calls.
    pub(crate) fn abort(self) -> ! {
        let [first, second] = [self.0, self.1].map(|function| STATUS_NAMES[function as usize]);
        let message = format!(
            "hsa-sim: {first} overlaps {second}: in this release, at least one of the two takes no lock, \
             so that they race in AMD's runtime; serialise these calls in the whole process, or \
             simulate ROCm 10 (generation d)\n"
        );
        // Not `eprintln!`: a test harness captures its output, which the abort would discard.
        let _ = std::io::stderr().write_all(message.as_bytes());
        std::process::abort()
    }
}

#[cfg(test)]
mod tests {
    use super::{Calls, Function, Race, USES};
    use Function::*;

    fn races(first: Function, second: Function) -> bool {
        let calls = Calls::default();
        let _running = calls.track(first).unwrap();
        match calls.track(second) {
            Ok(_) => false,
            Err(race) => {
                assert_eq!(race, Race(second, first));
                true
            }
        }
    }

    #[test]
    fn unlocked_calls_race_with_table_writers() {
        const CREATE: Function = hsa_amd_vmem_handle_create;
        const RELEASE: Function = hsa_amd_vmem_handle_release;
        const MAP: Function = hsa_amd_vmem_map;
        const UNMAP: Function = hsa_amd_vmem_unmap;
        const EXPORT: Function = hsa_amd_vmem_export_shareable_handle;
        const IMPORT: Function = hsa_amd_vmem_import_shareable_handle;
        const RETAIN: Function = hsa_amd_vmem_retain_alloc_handle;
        const PROPERTIES: Function = hsa_amd_vmem_get_alloc_properties_from_handle;
        let expected: [(Function, &[Function]); 4] = [
            (EXPORT, &[CREATE, RELEASE, UNMAP, IMPORT]),
            (IMPORT, &[CREATE, RELEASE, MAP, UNMAP, EXPORT, IMPORT, RETAIN, PROPERTIES]),
            (RETAIN, &[RELEASE, MAP, UNMAP, IMPORT, RETAIN]),
            (PROPERTIES, &[CREATE, RELEASE, UNMAP, IMPORT]),
        ];
        for (unlocked, racing) in expected {
            for other in USES.map(|usage| usage.function) {
                assert_eq!(
                    races(unlocked, other),
                    racing.contains(&other),
                    "{unlocked:?} {other:?}"
                );
                assert_eq!(
                    races(other, unlocked),
                    races(unlocked, other),
                    "{unlocked:?} {other:?}"
                );
            }
        }
        for first in [CREATE, RELEASE, MAP, UNMAP] {
            for second in [CREATE, RELEASE, MAP, UNMAP] {
                assert!(!races(first, second), "the runtime locks {first:?} and {second:?}");
            }
        }
    }

    #[test]
    fn sequential_calls_do_not_race() {
        let calls = Calls::default();
        for function in [hsa_amd_vmem_import_shareable_handle, hsa_amd_vmem_handle_create, hsa_init]
        {
            drop(calls.track(function).unwrap());
        }
    }
}
