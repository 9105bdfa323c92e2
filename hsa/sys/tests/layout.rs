//! Compares the bindings with AMD's own headers, in every version found on this machine.

mod agreement;
mod assertions;
mod compiler;

use agreement::Agreement;
use hsa_sys::tools;
use std::io::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// Names that the first headers with virtual memory lack: the name or its prefix, and the minor version of the first
/// extension that always includes the name.
const ADDED_LATER: &[(&str, u32)] = &[
    ("HSA_STATUS_ERROR_RESOURCE_BUSY", 5),
    ("HSA_AMD_SYSTEM_INFO_EXT_VERSION_", 5),
    ("HSA_AMD_AGENT_INFO_MEMORY_PROPERTIES", 5),
    ("HSA_AMD_MEMORY_PROPERTY_AGENT_IS_APU", 5),
    ("hsa_amd_agent_memory_properties_t", 5),
    ("HSA_AMD_QUEUE_INFO_", 5),
    ("hsa_queue_info_attribute_t", 5),
    ("HSA_AMD_MEMORY_POOL_CONTIGUOUS_FLAG", 6),
    ("hsa_amd_vmem_address_reserve_align", 6),
    ("HSA_DEVICE_TYPE_AIE", 7),
    ("HSA_AMD_AGENT_INFO_SCRATCH_LIMIT_", 7),
    ("HSA_EXTENSION_AMD_PC_SAMPLING", 7),
    ("HSA_AMD_MEMORY_POOL_EXECUTABLE_FLAG", 7),
    ("HSA_AMD_GPU_MEMORY_ERROR_EVENT", 7),
    ("hsa_amd_gpu_memory_error_info_t", 7),
    ("hsa_amd_event_t.memory_error", 7),
    ("HSA_EXT_POINTER_TYPE_RESERVED_ADDR", 7),
    ("hsa_amd_portable_export_dmabuf_v2", 9),
    ("hsa_amd_dma_buf_mapping_type_t", 9),
    ("HSA_AMD_DMABUF_MAPPING_TYPE_", 9),
    ("HSA_AMD_VMEM_ADDRESS_NO_REGISTER", 10),
    ("hsa_amd_vmem_address_reserve_flag_t", 10),
    ("HSA_EXT_POINTER_TYPE_HSA_VMEM", 12),
    // The next four names were added between 1.7 and 1.15.
    ("HSA_AMD_AGENT_INFO_CLOCK_COUNTERS", 15),
    ("hsa_amd_clock_counters_t", 15),
    ("HSA_STATUS_ERROR_NOT_SUPPORTED", 15),
    ("HSA_AMD_MEMORY_POOL_UNCACHED_FLAG", 15),
    ("HSA_AMD_SYSTEM_INFO_FABRIC_HANDLES_SUPPORTED", 25),
    ("hsa_fabric_handle_t", 25),
    ("hsa_amd_vmem_export_fabric_handle", 25),
    ("hsa_amd_vmem_import_fabric_handle", 25),
    // The extension version is unknown.
    ("HSA_AMD_SYSTEM_INFO_HOST_ALLOC_DMA_BUF_SUPPORTED", u32::MAX),
];

/// The minor version of the first extension with virtual memory.
const FIRST_VMEM_EXTENSION: u32 = 4;

#[test]
fn bindings_agree_with_amds_headers() {
    let assertions =
        assertions::read_all(assertions::BINDINGS, |name| format!("__typeof__(&{name})"));
    let mut errors = Vec::new();
    let mut newest = None;
    for folder in folders() {
        let minor = extension_minor(&folder);
        newest = newest.max(Some(minor));
        let agreements = agreement::check(
            &["hsa/hsa.h", "hsa/hsa_ext_amd.h", "hsa/hsa_ext_image.h"],
            &[folder.as_path()],
            &assertions,
        );
        let assertions_with = |agreement| {
            let pairs = assertions.iter().zip(&agreements);
            pairs.filter(move |(_, found)| **found == agreement).map(|(assertion, _)| assertion)
        };
        for assertion in assertions_with(Agreement::Differs) {
            errors.push(format!(
                "{folder:?}: not true: {} {}",
                assertion.subject, assertion.description
            ));
        }
        for assertion in assertions_with(Agreement::Absent)
            .filter(|assertion| minor >= first_extension_with(&assertion.subject))
        {
            errors.push(format!("{folder:?}, extension 1.{minor}: missing: {}", assertion.subject));
        }
        let mut absent: Vec<_> =
            assertions_with(Agreement::Absent).map(|assertion| &*assertion.subject).collect();
        absent.dedup();
        eprintln!("{folder:?} does not have {absent:?}");
        report(&format!(
            "{folder:?}, extension 1.{minor}: compared {} of {} assertions; the headers lack the names of the others",
            agreements.iter().filter(|agreement| **agreement != Agreement::Absent).count(),
            assertions.len(),
        ));
    }
    assert!(errors.is_empty(), "the bindings are not AMD's:\n{}", errors.join("\n"));
    if newest.is_none_or(|minor| minor < FIRST_VMEM_EXTENSION) {
        let found = newest.map_or("none".to_owned(), |minor| format!("extension 1.{minor}"));
        let message = format!(
            "SKIPPED bindings_agree_with_amds_headers: AMD's headers with virtual memory are missing (found: {found})"
        );
        assert!(!headers_are_required(), "{message}");
        report(&message);
    }
}

/// Compares the indexes of functions in the tables for tools. AMD's header needs a C++ compiler.
#[test]
fn tool_tables_agree_with_amds_headers() {
    let folders: Vec<_> = folders()
        .into_iter()
        .filter(|folder| folder.join("hsa/hsa_api_trace.h").is_file())
        .collect();
    if folders.is_empty() {
        assert!(!headers_are_required(), "hsa_api_trace.h is missing");
        report("SKIPPED tool_tables_agree_with_amds_headers: hsa_api_trace.h is missing");
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    for folder in folders {
        let header = std::fs::read_to_string(folder.join("hsa/hsa_api_trace.h")).unwrap();
        let mut source = "#include <cstddef>\n#include <hsa/hsa_api_trace.h>\n".to_owned();
        let mut compared = 0;
        for (table, functions) in [("CoreApiTable", tools::CORE), ("AmdExtTable", tools::AMD_EXT)] {
            for (name, index) in functions {
                if !header.contains(&format!(" {name}_fn;")) {
                    // Functions with an index above 66 are newer than the first headers with
                    // virtual memory.
                    assert!(*index > 66, "{folder:?}: {name} is missing");
                    continue;
                }
                let offset = tools::FunctionTable::offset(*index);
                source +=
                    &format!("static_assert(offsetof({table}, {name}_fn) == {offset}, \"\");\n");
                compared += 1;
            }
        }
        for (offset, member) in [
            (offset_of!(tools::ApiTable, core), "core_"),
            (offset_of!(tools::ApiTable, amd_ext), "amd_ext_"),
        ] {
            source +=
                &format!("static_assert(offsetof(HsaApiTable, {member}) == {offset}, \"\");\n");
        }
        let file = tempfile::Builder::new().suffix(".cpp").tempfile().unwrap();
        std::fs::write(file.path(), source).unwrap();
        let output = std::process::Command::new(&compiler)
            // Without the definition, the header includes files of AMD's build tree.
            .args(["-std=c++17", "-fsyntax-only", "-DAMD_INTERNAL_BUILD", "-I"])
            .args([&folder, file.path()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{folder:?}: {}", String::from_utf8_lossy(&output.stderr));
        report(&format!(
            "{folder:?}: {compared} indexes of functions in tables for tools compared"
        ));
    }
}

/// Prints a message even if the test passes: the harness captures `eprintln!`, but not direct writes.
fn report(message: &str) {
    writeln!(std::io::stderr(), "{message}").expect("standard error is open");
}

#[test]
fn names_added_later_are_in_the_bindings() {
    let assertions = assertions::read_all(assertions::BINDINGS, str::to_owned);
    for (name, _) in ADDED_LATER {
        assert!(assertions.iter().any(|assertion| assertion.subject.starts_with(name)), "{name}");
    }
}

/// Returns the folders with AMD's headers, each once. Panics if a folder in `HSA_VMM_AMD_INCLUDE` has
/// no headers.
fn folders() -> Vec<PathBuf> {
    let named = std::env::var_os("HSA_VMM_AMD_INCLUDE").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|folder| !folder.as_os_str().is_empty());
    let mut found: Vec<PathBuf> = named
        .inspect(|folder| {
            assert!(
                has_headers(folder),
                "HSA_VMM_AMD_INCLUDE: no HSA headers of AMD in {folder:?}"
            );
        })
        .collect();
    let rocm = std::env::var_os("ROCM_PATH").filter(|path| !path.is_empty());
    let usual = rocm.iter().map(|path| Path::new(path).join("include"));
    let usual = usual.chain(["/opt/rocm/include".into(), "/usr/include".into()]);
    found.extend(usual.filter(|folder| has_headers(folder)));
    // The paths must be absolute, because the compiler runs in another directory. /opt/rocm is a link to a folder that
    // may be in the list, too.
    let mut folders = Vec::new();
    for folder in found {
        let folder = folder.canonicalize().expect("the folder exists");
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

fn has_headers(folder: &Path) -> bool {
    folder.join("hsa/hsa.h").is_file() && folder.join("hsa/hsa_ext_amd.h").is_file()
}

/// Returns the minor version of AMD's extension in a header.
fn extension_minor(folder: &Path) -> u32 {
    let header = folder.join("hsa/hsa_ext_amd.h");
    let text = std::fs::read_to_string(&header).expect("the header is text");
    text.lines()
        .find_map(|line| line.strip_prefix("#define HSA_AMD_INTERFACE_VERSION_MINOR "))
        // Headers before ROCm 5.0 have no version.
        .map_or(0, |minor| minor.trim().parse().expect("a version is a number"))
}

/// Returns the minor version of the first extension that always includes a name.
fn first_extension_with(subject: &str) -> u32 {
    let entry = ADDED_LATER.iter().find(|(name, _)| subject.starts_with(name));
    entry.map_or(FIRST_VMEM_EXTENSION, |(_, minor)| *minor)
}

/// Returns whether `HSA_VMM_REQUIRE` contains `headers`.
fn headers_are_required() -> bool {
    let words = std::env::var("HSA_VMM_REQUIRE").unwrap_or_default();
    words.split_whitespace().any(|word| word == "headers")
}
