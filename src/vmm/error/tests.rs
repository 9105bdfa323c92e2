//! What errors say of themselves.

use super::*;

#[test]
fn a_refusal_names_the_operation_the_argument_and_what_is_wrong() {
    for (argument, problem, words) in [
        (Argument::Size, Problem::Zero, "map: size is zero"),
        (Argument::Address, Problem::Null, "map: address is null"),
        (Argument::HandleType, Problem::NoFlags(3), "map: handle type is 0x3; no flags are"),
        (Argument::Descriptor, Problem::NotImportable, "map: file descriptor is not memory that"),
    ] {
        let error = Refusal::new(argument, problem).during(Operation::Map);
        assert!(error.to_string().starts_with(words), "{error}");
        assert_eq!(error.operation(), Operation::Map);
        assert_eq!(error.argument(), Some(argument));
        assert_eq!(error.problem(), Some(problem));
    }
}

#[test]
fn what_is_no_refusal_names_no_argument() {
    let (operation, call, status) = (Operation::SetAccess, "call", Status::new(0x1000));
    let (feature, address, errno) =
        (Feature::Function, Address::new(1), crate::Errno::of(rustix::io::Errno::NOMEM));
    for error in [
        VmmError::Forked { operation },
        VmmError::NotSupported { operation, feature },
        VmmError::OutOfMemory { operation, call, status, size: 1 },
        VmmError::OutOfDescriptors { operation },
        VmmError::Runtime { operation, call, status },
        VmmError::System { operation, call, errno },
        VmmError::Quarantined { operation, address, now: false },
    ] {
        assert!(error.to_string().starts_with("set_access: "), "{error}");
        assert_eq!(error.operation(), operation);
        assert_eq!((error.argument(), error.problem()), (None, None), "{error}");
    }
}
