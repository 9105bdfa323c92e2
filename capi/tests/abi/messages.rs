//! Error messages, as a C program reads them.

use crate::program::{Language, Program, expect_success};
use std::collections::BTreeMap;

/// Runs `tests/c/messages.c`. Returns its messages by their labels.
fn messages() -> BTreeMap<String, String> {
    let program = Program::compile("tests/c/messages.c", Language::C99, &[]);
    let output = program.on_simulation("gpus=2").output().unwrap();
    let printed = expect_success(&output, "messages");
    let lines = printed.lines().map(|line| line.split_once(": ").unwrap());
    lines.map(|(label, message)| (label.to_owned(), message.to_owned())).collect()
}

/// Asserts that the messages with these labels contain these texts.
#[track_caller]
fn assert_messages(expected: &[(&str, &str)]) {
    let messages = messages();
    for (label, text) in expected {
        assert!(messages[*label].contains(text), "{label}: {}", messages[*label]);
    }
}

#[test]
fn garbage_ipc_handle_is_reported() {
    assert_messages(&[("garbage", "the 64 bytes are not an IPC handle, or were modified")]);
}

#[test]
fn freed_memory_of_own_ipc_handle_is_reported() {
    assert_messages(&[
        ("own", "the memory belongs to this process; use the address it has here"),
        ("own freed", "the memory belonged to this process and was freed"),
    ]);
}

#[test]
fn use_after_free_is_reported() {
    let freed = "not allocated, or freed already";
    assert_messages(&[
        ("double free", freed),
        ("copy to freed", freed),
        ("copy from freed", freed),
        ("fill freed", freed),
    ]);
    assert_messages(&[
        (
            "unmap hipMalloc",
            "the address is memory of hipMalloc or a similar call, not virtual memory",
        ),
        ("retain hipMalloc", "the address is memory of hipMalloc"),
        ("free mapped", "is virtual memory: unmap it (hipMemUnmap)"),
        ("wrong kind", "`destination` contradicts `kind`: it is device memory: hipError"),
        ("range of freed", "`ptr` is not memory of this library: not allocated, or freed already"),
    ]);
}

#[test]
fn free_names_the_function_for_other_memory() {
    assert_messages(&[
        ("free inside", "`ptr` is inside the allocation at 0x"),
        ("free registered", "memory of hipHostRegister: unregister it (hipHostUnregister)"),
        ("free device pointer", "memory of hipHostRegister: unregister it (hipHostUnregister)"),
        ("free area", "is memory of an area: unmap it (hsavmm_area_munmap)"),
    ]);
}

#[test]
fn freed_reservation_is_reported() {
    let freed = "or the reservation was freed already, or was made before hsavmm_shut_down";
    assert_messages(&[
        ("double address free", freed),
        ("unmap of freed", freed),
        ("address free after shut-down", freed),
    ]);
}

#[test]
fn reserved_address_without_memory_is_reported() {
    let reserved = "is reserved, but not mapped: map memory first (hipMemMap)";
    assert_messages(&[
        ("range of reserved", reserved),
        ("attribute of reserved", reserved),
        ("device pointer of reserved", reserved),
    ]);
}

#[test]
fn import_reports_closed_descriptor() {
    assert_messages(&[
        ("closed descriptor", "file descriptor 777 is not open in this process"),
        ("closed descriptor", "exec closes exported descriptors"),
        ("pipe", "is not memory that this runtime can import"),
    ]);
}

#[test]
fn messages_name_functions_of_c() {
    assert_messages(&[
        ("granule", "(hipMemGetAllocationGranularity)"),
        ("not requested", "(hipMemAllocationProp::requestedHandleType)"),
        ("not reserved", "(hipMemAddressReserve)"),
        ("offset", "(hsavmm_use_page_tables or HSA_VMM_PAGE_TABLES=on)"),
        ("flags", "flags 0x1 must be 0"),
        ("no access", "`destination` cannot be written at 0x"),
        ("no access", "neither a GPU nor the host has read and write access"),
        ("no access", "(hipMemSetAccess, or the grant function of a buffer)"),
        ("zero page", "map it instead (hsavmm_paged_map)"),
        ("capacity", "`capacity` is zero"),
        ("queue is full", "(hsavmm_retire_poll, hsavmm_retire_drain)"),
        ("released", "(hipMemRetainAllocationHandle)"),
        ("export freed", "is not memory that hipMalloc allocated"),
        ("signals", "`signals` has 9 elements"),
        ("many descriptors", "`desc` has 70000 elements"),
        ("no descriptors", ": list of agents is empty"),
        ("no ranges", ": ranges is empty"),
        ("host pointer", "`host_ptr` is not memory"),
    ]);
    for (label, message) in messages() {
        for name in ["::with_", "Vmm::", "PoolMemory", "RetireQueue"] {
            assert!(!message.contains(name), "{label}: {message}");
        }
    }
}
