//! Exports of physical memory to other processes, and imports.

use crate::errors;
use crate::pointers::{not_null, try_read, try_read_bytes, write_out};
use crate::process::process;
use crate::status::{Failure, run};
use crate::types::{hipError_t, hipMemFabricHandle_t, hipMemGenericAllocationHandle_t};
use crate::virtual_memory::{handle, to_raw};
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use hsa_vmm::HandleType;
use hsa_vmm::error::Operation;
use hsa_vmm::vmm::FabricHandle;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};

fn handle_type(number: c_uint) -> Result<HandleType, Failure> {
    match number {
        1 => Ok(HandleType::POSIX_FILE_DESCRIPTOR),
        2 => Ok(HandleType::WIN32),
        4 => Ok(HandleType::WIN32_KMT),
        8 => Ok(HandleType::FABRIC),
        other => {
            Err(Failure::invalid_argument("type", format_args!("({other}) is not a handle type")))
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemExportToShareableHandle(
    result: *mut c_void,
    raw: hipMemGenericAllocationHandle_t,
    kind: c_uint,
    flags: c_ulonglong,
) -> hipError_t {
    run("hipMemExportToShareableHandle", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("shareable", result)?;
        let kind = handle_type(kind)?;
        Operation::ExportToShareableHandle.check_flags(flags)?;
        if kind == HandleType::FABRIC {
            let data = vmm.export_to_fabric_handle(handle(raw))?.to_bytes();
            // SAFETY: the C caller passes null or a writable pointer to a `hipMemFabricHandle_t` (lib.rs).
            return unsafe { write_out("shareable", result.cast(), hipMemFabricHandle_t { data }) };
        }
        let descriptor = vmm.export_to_shareable_handle(handle(raw), kind)?;
        // SAFETY: the C caller passes null or a writable pointer to an `int` (lib.rs).
        unsafe { write_out("shareable", result.cast::<c_int>(), descriptor.into_raw_fd()) }
    })
}

/// Returns the file descriptor of `os_handle`, which is the descriptor itself (HIP 7.1 and later) or a pointer to it
/// (earlier releases). Programs pass either form with either profile. The first 65,536 addresses are never mapped
/// (`vm.mmap_min_addr`), so a smaller number is a descriptor. A larger number is a descriptor if it is not the address
/// of readable memory, and the descriptor is open.
fn descriptor_number(os_handle: *mut c_void) -> Result<RawFd, Failure> {
    let invalid = |problem: &str| {
        let problem = format!("({os_handle:p}) {problem}");
        Failure::invalid_argument("os_handle", problem)
    };
    let neither = "is neither a file descriptor nor a pointer to one: the address is not mapped";
    let number = match os_handle as usize {
        number @ ..0x1_0000 => number as RawFd,
        number => match try_read(os_handle.cast())? {
            Some(number) => number,
            None => {
                let number = RawFd::try_from(number).ok().filter(|number| is_open(*number));
                number.ok_or_else(|| invalid(neither))?
            }
        },
    };
    match number {
        0.. => Ok(number),
        _ => Err(invalid("points to a negative number, which is not a file descriptor")),
    }
}

/// Returns whether a file is open under a number.
fn is_open(number: RawFd) -> bool {
    // SAFETY: the call reads the flags of a descriptor, if there is one, and changes nothing.
    (unsafe { libc::fcntl(number, libc::F_GETFD) }) >= 0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemImportFromShareableHandle(
    result: *mut hipMemGenericAllocationHandle_t,
    os_handle: *mut c_void,
    kind: c_uint,
) -> hipError_t {
    run("hipMemImportFromShareableHandle", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("handle", result)?;
        let kind = handle_type(kind)?;
        if kind == HandleType::FABRIC {
            not_null("os_handle", os_handle)?;
            let data = try_read_bytes(os_handle)?.ok_or_else(|| {
                Failure::invalid_argument("os_handle", "does not point to 64 readable bytes")
            })?;
            let imported = vmm.import_from_fabric_handle(&FabricHandle::from_bytes(data))?;
            // SAFETY: the C caller passes null or a writable pointer (lib.rs).
            return unsafe { write_out("handle", result, to_raw(imported)) };
        }
        let number = descriptor_number(os_handle)?;
        // `hsa_vmm` rejects the other types.
        if kind == HandleType::POSIX_FILE_DESCRIPTOR && !is_open(number) {
            let message = format!(
                "`os_handle`: file descriptor {number} is not open in this process. If another program exported it: exec \
                 closes exported descriptors (close-on-exec); send it over a Unix socket, or clear FD_CLOEXEC before exec"
            );
            return Err(Failure::new(errors::INVALID_VALUE, message));
        }
        // SAFETY: the descriptor is open, and the C caller keeps it open during this call. For other types, the library
        // uses only the type.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let imported = vmm.import_from_shareable_handle(descriptor, kind)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("handle", result, to_raw(imported)) }
    })
}
