//! Replaces the names of Rust functions in messages of `hsa_vmm` by C's names.

/// Parts of messages, each with the text that replaces the part. If one part contains another, the longer part comes
/// first.
const NAMES: [(&str, &str); 36] = [
    ("Vmm::address_reserve", "hipMemAddressReserve"),
    ("Vmm::allocation_granularity", "hipMemGetAllocationGranularity"),
    ("Vmm::copy", "hipMemcpy"),
    ("Vmm::export_to_shareable_handle", "hipMemExportToShareableHandle"),
    ("Vmm::quarantined_ranges", "hsavmm_quarantine"),
    (" (Vmm::mapped_range_at)", ""),
    (
        " of this Vmm, or the reservation was freed already",
        ", or the reservation was freed already, or was made before hsavmm_shut_down",
    ),
    (" of this Vmm", ""),
    ("; for reservations, Vmm::reservation_granule", ""),
    (", or `grant` of the mapping or buffer", ""),
    ("Runtime::available_memory", "hipMemGetInfo"),
    ("Vmm::retain_allocation_handle", "hipMemRetainAllocationHandle"),
    ("Vmm::set_access", "hipMemSetAccess"),
    ("VmmOptions::with_page_tables", "hsavmm_use_page_tables or HSA_VMM_PAGE_TABLES=on"),
    (
        "belongs to another Vmm; export it there and import it here",
        "belongs to another runtime, or was created before hsavmm_shut_down",
    ),
    ("AllocationProperties::on", "hipMemAllocationProp::location"),
    ("AllocationProperties::shareable_as", "hipMemAllocationProp::requestedHandleType"),
    ("AllocationProperties", "hipMemAllocationProp"),
    (" (Agent::numa_node)", ""),
    (" (Agent::pools)", ""),
    ("Agent::can_access", "hipDeviceCanAccessPeer"),
    ("PoolMemory::allow", "hipDeviceEnablePeerAccess"),
    (
        "is not memory that PoolMemory allocated",
        "is not memory that hipMalloc allocated, or was freed already",
    ),
    ("; add it (FabricHandle::with_size)", ""),
    (
        "is owned by an OpenedMemory; close or drop that value",
        "is being closed: a copy in another thread still uses it",
    ),
    ("get_mem_handle", "hipIpcGetMemHandle"),
    ("transport::Channel", "hipMemExportToShareableHandle"),
    ("RetireQueue::builder", "hsavmm_retire_create"),
    ("RetireQueue::drain", "hsavmm_retire_drain"),
    ("RetireQueue::poll", "hsavmm_retire_poll"),
    ("PagedBuilder::with_page_size", "hsavmm_paged_reserve"),
    ("PagedBuffer::grant", "hsavmm_paged_grant"),
    ("PagedBuffer::map", "hsavmm_paged_map"),
    ("PagedBuffer::retire", "hsavmm_paged_retire"),
    (", or at another address (PausableBuffer::resume_anywhere)", ""),
    (" (in Rust, target hsa_vmm::native of `tracing`)", ""),
];

/// Returns the message of a Rust error with the names that C programs know.
pub fn with_c_names(error: &impl ToString) -> String {
    NAMES.iter().fold(error.to_string(), |text, (rust, c)| text.replace(rust, c))
}

#[cfg(test)]
mod tests {
    use super::{NAMES, with_c_names};
    use std::path::Path;

    fn hsa_vmm_source(file: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
        std::fs::read_to_string(folder.join(file)).unwrap()
    }

    /// Returns the messages of the `#[error]` attributes in the sources of `hsa_vmm`.
    fn messages() -> Vec<String> {
        let mut messages = Vec::new();
        for file in ["error/argument.rs", "error/feature.rs", "error/kind.rs"] {
            let source = hsa_vmm_source(file);
            for attribute in source.split("#[error(").skip(1) {
                let attribute = attribute.split_once(")]\n").unwrap().0;
                let (start, end) = (attribute.find('"'), attribute.rfind('"'));
                let Some((start, end)) = start.zip(end) else { continue };
                // A backslash at the end of a line continues the text after the next line's spaces.
                let mut parts = attribute[start + 1..end].split("\\\n");
                let first = parts.next().unwrap().to_owned();
                messages.push(parts.fold(first, |text, part| text + part.trim_start()));
            }
        }
        // Advice that an error contains.
        let source = hsa_vmm_source("vmm/retire/mod.rs");
        let (_, rest) = source.split_once("let advice = \"").unwrap();
        messages.push(rest.split_once('"').unwrap().0.to_owned());
        messages
    }

    #[test]
    fn no_message_names_rust_items() {
        let messages = messages();
        assert!(messages.len() > 100, "{messages:#?}");
        for message in messages.iter().map(with_c_names) {
            let is_name_character =
                |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
            for word in message.split(|letter| !is_name_character(letter)) {
                let is_path = word.contains("::") && !word.starts_with("hipMemAllocationProp::");
                let rust_types = ["Vmm", "PoolMemory", "OpenedMemory", "AllocationProperties"];
                assert!(!is_path && !rust_types.contains(&word), "{word}: {message}");
            }
        }
    }

    #[test]
    fn every_name_occurs_in_a_message() {
        let mut messages = messages();
        // One message is not in an attribute: a function of message.rs writes the advice about memory.
        messages.push(hsa_vmm_source("error/message.rs"));
        for (rust, _) in NAMES {
            assert!(messages.iter().any(|message| message.contains(rust)), "{rust}");
        }
    }
}
