//! What errors of pool memory say of themselves, and which of HIP's they are.

use super::*;

#[test]
fn every_error_names_its_operation_and_is_one_of_hips() {
    let (call, size, status) = ("hsa_amd_memory_pool_allocate", 4096, Status::OUT_OF_RESOURCES);
    let agent = AgentId::new(1, 2, crate::agent::AgentKind::Gpu, 0);
    for (operation, name) in [
        (Operation::Allocate, "allocate"),
        (Operation::Allow, "allow"),
        (Operation::Read, "read"),
        (Operation::Write, "write"),
        (Operation::Fill, "fill"),
        (Operation::Copy, "copy"),
        (Operation::Free, "free"),
    ] {
        let refused = |problem| MemoryError::refused(operation, problem);
        let failure =
            |status: Status| MemoryError::failure(operation, Failure { call, status }, size);
        for (error, words, hip) in [
            (refused(Problem::UnknownAgent(agent)), "", 101),
            (refused(Problem::Zero), "the size is zero", 1),
            (
                failure(Status::NOT_SUPPORTED),
                "the runtime has no hsa_amd_memory_pool_allocate",
                801,
            ),
            (
                failure(status),
                "out of memory: hsa_amd_memory_pool_allocate answered \
                 HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008) to 0x1000 bytes",
                2,
            ),
            (failure(Status::ERROR), "hsa_amd_memory_pool_allocate answered HSA_STATUS_ERROR", 999),
            (MemoryError::BeingOpened { operation }, "another process has been opening", 999),
            (MemoryError::Forked { operation }, "this process was forked", 3),
        ] {
            let words = format!("{name}: {words}");
            assert!(error.to_string().starts_with(&words), "{error}, not {words}");
            assert_eq!(error.operation(), operation, "{error}");
            for profile in [HipProfile::Hip6, HipProfile::Hip7] {
                assert_eq!(error.hip(profile).code(), hip, "{error}");
            }
        }
        assert_eq!(refused(Problem::NotWords).problem(), Some(Problem::NotWords));
        assert_eq!(failure(status).problem(), None);
    }
}
