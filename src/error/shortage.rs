//! Messages about calls that ran out of memory or addresses.

use crate::native::Status;

/// The functions that allocate memory of a pool.
pub(super) const ALLOCATING: [&str; 2] =
    ["hsa_amd_memory_pool_allocate", "hsa_amd_vmem_handle_create"];

/// Describes what a call could not provide. The library does not make a call that would reserve more addresses than
/// the address space has.
pub(super) fn describe_shortage(call: &str, status: Status, size: usize) -> String {
    if is_reserve(call) && size > isize::MAX as usize {
        return format!("{size:#x} bytes of addresses exceed the address space");
    }
    let requested = if size == 0 { String::new() } else { format!(" for {size:#x} bytes") };
    format!("{call} returned {status}{requested}")
}

pub(super) fn is_reserve(call: &str) -> bool {
    call.starts_with("hsa_amd_vmem_address_reserve")
}

/// Returns what the caller can do when this call runs out of memory.
pub(super) fn advice(call: &str) -> &'static str {
    match call {
        call if is_reserve(call) => "free addresses, reserve fewer, or choose a smaller alignment",
        call if ALLOCATING.contains(&call) => {
            "release memory, or use another agent's (Runtime::available_memory)"
        }
        _ => "release memory, then try again",
    }
}
