//! What errors of IPC say of themselves, and which of HIP's they are.

use super::*;

const CALL: &str = "hsa_amd_ipc_memory_create";
const ERROR: Status = Status::ERROR;

/// Every kind of error, what it says first, and HIP's number.
fn table(operation: Operation) -> Vec<(IpcError, String, i32)> {
    let (process, call, status) = (7, CALL, ERROR);
    let refused = |problem| IpcError::refused(operation, problem);
    let opening = operation == Operation::OpenMemHandle;
    let stranger = UntrustedUser { user: Some(5), trusted: 6 };
    [
        (refused(Problem::NoGpu), "this runtime has no GPU", 100),
        (refused(Problem::NotAGpu), "the agent is no GPU", 101),
        (refused(Problem::Null), "the address is null", 1),
        (refused(Problem::UnknownFlags(2)), "the flags are 0x2; pass 0 or", 1),
        (IpcError::SameProcess { operation }, "the memory is this process's own", 201),
        (
            IpcError::Stale { operation, process, stale: Stale::NoAnswer },
            "the memory of process 7 is not to be had: that process does not answer",
            17,
        ),
        (IpcError::Stranger { operation, process, stranger }, "process 7 is of user 5; only", 17),
        (IpcError::OtherNamespace { operation, process }, "process 7 is a number of another", 17),
        (IpcError::Forbidden { operation, process }, "process 7 may not be looked at", 17),
        (
            IpcError::NotShared { operation, call, status },
            "hsa_amd_ipc_memory_create answered HSA_STATUS_ERROR (0x1000); with a kernel",
            if opening { 17 } else { 1 },
        ),
        (
            IpcError::NameTaken { operation, process: 9 },
            "another process has the abstract socket hsa9: one of the same number",
            304,
        ),
        (IpcError::NotSupported { operation, call }, "the runtime has no hsa_amd_ipc", 801),
        (IpcError::TooMany { operation }, "65536 allocations are exported already", 2),
        (IpcError::OutOfDescriptors { operation }, "out of file descriptors", 304),
        (
            IpcError::Runtime { operation, call, status },
            "hsa_amd_ipc_memory_create answered HSA_STATUS_ERROR (0x1000); HSA_VMM_LOG",
            if opening { 17 } else { 1 },
        ),
        (
            IpcError::System { operation, errno: Errno::of(Number::NOMEM) },
            "the operating system refused: Cannot allocate memory",
            304,
        ),
        (IpcError::Forked { operation }, "this process was forked", 3),
    ]
    .map(|(error, words, hip)| (error, format!("{operation}: {words}"), hip))
    .into()
}

#[test]
fn every_error_names_its_operation_and_is_one_of_hips() {
    for (operation, name) in [
        (Operation::Open, "open"),
        (Operation::GetMemHandle, "get_mem_handle"),
        (Operation::OpenMemHandle, "open_mem_handle"),
        (Operation::CloseMemHandle, "close_mem_handle"),
    ] {
        for (error, words, hip) in table(operation) {
            assert!(words.starts_with(name), "{words}");
            assert!(error.to_string().starts_with(&words), "{error}, not {words}");
            assert_eq!(error.operation(), operation, "{error}");
            for profile in [HipProfile::Hip6, HipProfile::Hip7] {
                assert_eq!(error.hip(profile).code(), hip, "{error}");
            }
        }
    }
}

#[test]
fn only_a_wrong_argument_has_a_problem() {
    let operation = Operation::CloseMemHandle;
    let problem = Problem::NotOpened;
    assert_eq!(IpcError::refused(operation, problem).problem(), Some(problem));
    assert_eq!(IpcError::SameProcess { operation }.problem(), None);
}

#[test]
fn what_the_runtime_and_the_system_answer_is_told_apart() {
    let operation = Operation::GetMemHandle;
    let failure = |status| IpcError::failure(operation, Failure { call: CALL, status });
    let not_there = IpcError::NotSupported { operation, call: CALL };
    assert_eq!(failure(Status::NOT_SUPPORTED), not_there);
    assert_eq!(failure(ERROR), IpcError::Runtime { operation, call: CALL, status: ERROR });
    let system = |errno| IpcError::system(operation, errno);
    assert_eq!(system(Number::MFILE), IpcError::OutOfDescriptors { operation });
    assert_eq!(system(Number::NFILE), IpcError::OutOfDescriptors { operation });
    assert_eq!(system(Number::NOSPC), IpcError::TooMany { operation });
    assert_eq!(
        system(Number::ACCESS),
        IpcError::System { operation, errno: Errno::of(Number::ACCESS) }
    );
}
