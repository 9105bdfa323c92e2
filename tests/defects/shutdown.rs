//! `hsa_shut_down` crashes while a GPU has access to a mapping.

use crate::amd_runtime::on_each;
use crate::amd_runtime::raw::{RW, RawRuntime, SIZE};
use crate::machine::Library;
use crate::table::SHUTDOWN_CRASHES;
use hsa_vmm::{Access, Runtime};

#[test]
fn stop_crashes_with_access_on_the_runtime() {
    SHUTDOWN_CRASHES.check_on_each_release(
        "shutdown::stop_crashes_with_access_on_the_runtime",
        |fixture| {
            let raw = RawRuntime::start(fixture);
            raw.map_new_memory(SIZE, &[(raw.gpus[0], RW), (raw.cpu, RW)]);
            raw.shut_down().unwrap();
            false
        },
    );
}

#[test]
fn stop_succeeds_with_access_through_the_library() {
    on_each("shutdown::stop_succeeds_with_access_through_the_library", |fixture| {
        // Repeats the test, because state that a stop leaves behind would make the next start fail.
        for _ in 0..3 {
            let library = Library::load(fixture.runtime());
            for gpu in 0..2 {
                let (base, memory) = library.map_new_memory(gpu, SIZE);
                for agent in [library.gpu(0), library.gpu(1), library.cpu(0)] {
                    library.grant(base, SIZE, agent, Access::ReadWrite);
                }
                if gpu == 1 {
                    library.vmm.release(memory).unwrap();
                }
            }
            assert_eq!(library.vmm.usage().mappings, 2);
            drop(library);
        }
        // The runtime has stopped, and can start again.
        // SAFETY: the file is a fetched release of AMD's runtime.
        let runtime = unsafe { Runtime::load_from(fixture.runtime()) }.unwrap();
        assert_eq!(runtime.gpus().count(), 2);
    });
}
