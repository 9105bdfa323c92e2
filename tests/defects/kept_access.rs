//! Access to pool memory that the runtime does not revoke, because several allocations share a block.

use crate::amd_runtime::raw::{PAGE, RawRuntime};
use crate::table::SMALL_MEMORY_KEEPS_ACCESS;

/// The size of the runtime's blocks.
const BLOCK: usize = 2 << 20;

#[test]
fn small_memory_keeps_access_on_the_runtime() {
    let test = "kept_access::small_memory_keeps_access_on_the_runtime";
    SMALL_MEMORY_KEEPS_ACCESS.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (owner, other) = (raw.gpus[0], raw.gpus[1]);
        let memory = raw.allocate(PAGE).unwrap();
        let neighbour = raw.allocate(PAGE).unwrap();
        raw.allow(memory, &[owner, other]).unwrap();
        raw.allow(memory, &[owner]).unwrap();
        // The runtime reports only one fault in a process, so the second read must not follow a fault.
        raw.read_by(other, memory).is_ok() && raw.read_by(other, neighbour).is_ok()
    });
}

#[test]
fn whole_block_loses_access_on_the_runtime() {
    crate::amd_runtime::on_each(
        "kept_access::whole_block_loses_access_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (owner, other) = (raw.gpus[0], raw.gpus[1]);
            let memory = raw.allocate(BLOCK).unwrap();
            raw.allow(memory, &[owner, other]).unwrap();
            raw.read_by(other, memory).unwrap();
            raw.allow(memory, &[owner]).unwrap();
            raw.read_by(other, memory).unwrap_err();
        },
    );
}
