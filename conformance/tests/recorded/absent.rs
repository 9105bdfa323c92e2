//! Recorded calls that this library's interface cannot express.

const RETURNED: &str = "the result is returned, not written through a pointer";
const REFERENCE: &str = "the argument is a reference or a slice, which cannot be null";
const ENUMERATED: &str = "the argument is an enumeration, which has no other values";

/// The name of each call, and the reason why the library cannot make it.
pub const ABSENT: &[(&str, &str)] = &[
    ("granularity_null_out", RETURNED),
    ("granularity_null_prop", REFERENCE),
    ("granularity_bad_option", ENUMERATED),
    ("granularity_type_invalid", ENUMERATED),
    ("reserve_null_out", RETURNED),
    ("create_null_out", RETURNED),
    ("create_null_prop", REFERENCE),
    ("create_type_invalid", ENUMERATED),
    ("props_null_out", RETURNED),
    ("setaccess_null_desc", REFERENCE),
    ("setaccess_bad_flags", ENUMERATED),
    ("getaccess_null_out", RETURNED),
    ("getaccess_null_loc", REFERENCE),
    ("retain_null_out", RETURNED),
    ("export_null_out", RETURNED),
    ("export_type_none", ENUMERATED),
    ("import_null_out", RETURNED),
    ("import_bad_fd", "the argument is `AsFd`: the descriptor is open as long as it is borrowed"),
];
