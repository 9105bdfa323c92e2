//! The runtime crashes on invalid access descriptors, or accepts them.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE, WO};
use crate::machine::{Library, access};
use crate::table::{INVENTED_AGENT_CRASHES, INVENTED_PERMISSION_ACCEPTED, WRITE_ONLY_ACCEPTED};
use hsa_sys::hsa_agent_t;
use hsa_vmm::error::Problem;
use hsa_vmm::{Access, AgentId};

/// A permission that the runtime does not define.
const INVENTED_PERMISSION: u32 = 9;

#[test]
fn invented_agent_crashes_on_the_runtime() {
    let test = "descriptors::invented_agent_crashes_on_the_runtime";
    INVENTED_AGENT_CRASHES.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[]);
        raw.set_access(base, SIZE, &[(hsa_agent_t { handle: 0xabcd0 }, RW)]).is_ok()
    });
}

#[test]
fn write_only_allows_reads_on_the_runtime() {
    WRITE_ONLY_ACCEPTED.check_on_each_release(
        "descriptors::write_only_allows_reads_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            let (base, _) = raw.map_new_memory(SIZE, &[(raw.gpus[0], WO)]);
            assert_eq!(raw.get_access(base, raw.gpus[0]), Ok(WO), "the recorded permission");
            raw.read_by(raw.gpus[0], base).is_ok()
        },
    );
}

#[test]
fn invented_permission_is_set_on_the_runtime() {
    let test = "descriptors::invented_permission_is_set_on_the_runtime";
    INVENTED_PERMISSION_ACCEPTED.check_on_each_release(test, |fixture| {
        let raw = RawRuntime::start(fixture);
        let (base, _) = raw.map_new_memory(SIZE, &[]);
        raw.set_access(base, SIZE, &[(raw.gpus[0], INVENTED_PERMISSION)]).is_ok()
            && raw.get_access(base, raw.gpus[0]) == Ok(INVENTED_PERMISSION)
    });
}

#[test]
fn invalid_agents_are_rejected_through_the_library() {
    on_each("descriptors::invalid_agents_are_rejected_through_the_library", |fixture| {
        let library = Library::load(fixture.runtime());
        let (base, _) = library.map_new_memory(0, SIZE);
        let gpu = library.gpu(0);
        let second_library = Library::load(fixture.runtime());
        let invalid_agents = [
            (AgentId::from_bits(0xabcd0), Problem::UnknownAgent),
            (AgentId::from_bits(u64::MAX), Problem::UnknownAgent),
            (AgentId::from_bits(gpu.to_bits() + 77), Problem::UnknownAgent),
            (second_library.gpu(0), Problem::UnknownAgent),
        ];
        for (agent, problem) in invalid_agents {
            // The valid descriptor before the invalid descriptor has no effect either.
            let list = [access(gpu, Access::ReadWrite), access(agent, Access::ReadWrite)];
            let error = library.vmm.set_access(base, SIZE, &list).unwrap_err();
            assert_eq!(error.problem(), Some(problem), "{agent:?}");
            assert_eq!(library.vmm.get_access(gpu, base).unwrap(), Access::None);
            library.vmm.get_access(agent, base).unwrap_err();
            library.vmm.revoke(base, SIZE, &[agent]).unwrap_err();
        }
        // `Access` has no value for these permissions.
        assert_eq!([WO, INVENTED_PERMISSION].map(Access::from_bits), [None; 2]);
        library.vmm.check().unwrap();
    });
}
