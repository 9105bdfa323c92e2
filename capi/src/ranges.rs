//! Exports of address ranges as dma-bufs.

use crate::pointers::{address, not_null, read, write_out};
use crate::process::process;
use crate::status::{Failure, run};
use crate::types::hipError_t;
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use hsa_vmm::error::Operation;
use std::os::fd::{AsRawFd, IntoRawFd};

/// `hipMemRangeHandleTypeDmaBufFd`.
const DMA_BUF: c_uint = 1;

/// `hsavmm_segment`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    descriptor: c_int,
    offset: usize,
    length: usize,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemGetHandleForAddressRange(
    result: *mut c_void,
    ptr: *mut c_void,
    size: usize,
    kind: c_uint,
    flags: c_ulonglong,
) -> hipError_t {
    run("hipMemGetHandleForAddressRange", || {
        let process = process()?;
        let vmm = process.vmm()?;
        not_null("handle", result)?;
        if kind != DMA_BUF {
            return Err(Failure::invalid_argument(
                "type",
                format_args!("({kind}) is not a handle type"),
            ));
        }
        Operation::ExportAddressRange.check_flags(flags)?;
        let mut segments = vmm.export_address_range(address(ptr), size)?;
        let rejection = |problem: &dyn core::fmt::Display| {
            let problem = format!("{problem}; use hsavmm_export_address_range()");
            Failure::invalid_argument("ptr", problem)
        };
        let count = segments.len();
        match segments.pop() {
            Some(segment) if count == 1 && segment.offset == 0 => {
                let number = segment.descriptor.into_raw_fd();
                // SAFETY: the C caller passes null or a writable pointer to an `int` (lib.rs).
                unsafe { write_out("handle", result.cast::<c_int>(), number) }
            }
            Some(segment) if count == 1 => Err(rejection(&format_args!(
                "is at offset {:#x} of its dma-buf, and this call returns no offset",
                segment.offset
            ))),
            _ => Err(rejection(&format_args!(
                "begins a range of {count} segments, and this call exports only one"
            ))),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_export_address_range(
    ptr: *mut c_void,
    size: usize,
    segments: *mut Segment,
    count: *mut usize,
) -> hipError_t {
    run("hsavmm_export_address_range", || {
        let process = process()?;
        // SAFETY: the C caller passes null or a valid pointer (lib.rs).
        let capacity = unsafe { read("count", count) }?;
        let exported = process.vmm()?.export_address_range(address(ptr), size)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("count", count, exported.len()) }?;
        if exported.len() > capacity {
            let problem = format!("is {capacity}, and the range has {} segments", exported.len());
            return Err(Failure::invalid_argument("count", problem));
        }
        not_null("segments", segments)?;
        for (index, segment) in exported.iter().enumerate() {
            let descriptor = segment.descriptor.as_raw_fd();
            let element = Segment { descriptor, offset: segment.offset, length: segment.length };
            // SAFETY: the C caller passes null or room for `count` elements (lib.rs).
            unsafe { write_out("segments", segments.wrapping_add(index), element) }?;
        }
        // The caller owns the descriptors from now on.
        for segment in exported {
            let _ = segment.descriptor.into_raw_fd();
        }
        Ok(())
    })
}
