//! Synchronous copies and fills, and copies of rectangles.

use crate::endpoint::Endpoint;
use crate::errors;
use crate::pointers::{address, not_null};
use crate::process::{Process, process};
use crate::status::{Failure, run};
use crate::types::{hipError_t, memcpy_kind};
use core::ffi::{c_int, c_uchar, c_ushort, c_void};
use hsa_vmm::Access;
use std::sync::Arc;

/// The size of the intermediate buffer of a copy.
const BUFFER_SIZE: usize = 4 << 20;

/// Returns for a kind of copy ([`memcpy_kind`]) whether the destination is device memory, and whether the source is.
/// Returns `None` for `hipMemcpyDefault`.
pub fn direction(kind: c_int) -> Result<Option<(bool, bool)>, Failure> {
    match kind {
        memcpy_kind::HOST_TO_HOST => Ok(Some((false, false))),
        memcpy_kind::HOST_TO_DEVICE => Ok(Some((true, false))),
        memcpy_kind::DEVICE_TO_HOST => Ok(Some((false, true))),
        memcpy_kind::DEVICE_TO_DEVICE | memcpy_kind::DEVICE_TO_DEVICE_NO_CU => {
            Ok(Some((true, true)))
        }
        memcpy_kind::DEFAULT => Ok(None),
        other => {
            let message = format!("`kind` ({other}) is invalid");
            Err(Failure::new(errors::INVALID_MEMCPY_DIRECTION, message))
        }
    }
}

/// A copy whose arguments are valid.
struct PreparedCopy {
    process: Arc<Process>,
    to: Endpoint,
    from: Endpoint,
    /// Whether the end of the ranges is copied first. If the ranges overlap, this order ensures that each byte is read
    /// before it is overwritten, except in rectangles with different pitches.
    backwards: bool,
}

/// Checks the arguments of a copy between two ranges. Returns `None` if the sizes are 0: as in HIP, nothing else is
/// checked then.
fn prepare(
    (destination, destination_size): (*mut c_void, usize),
    (source, source_size): (*const c_void, usize),
    kind: c_int,
) -> Result<Option<PreparedCopy>, Failure> {
    let process = process()?;
    process.devices.require()?;
    if destination_size == 0 {
        return Ok(None);
    }
    not_null("destination", destination)?;
    not_null("source", source)?;
    let direction = direction(kind)?;
    let (to, from) = (address(destination), address(source));
    let to = Endpoint::of(&process, "destination", (to, destination_size), Access::ReadWrite)?;
    let from = Endpoint::of(&process, "source", (from, source_size), Access::Read)?;
    if let Some((to_device, from_device)) = direction {
        to.check_declared("destination", to_device)?;
        from.check_declared("source", from_device)?;
    }
    let (to_address, from_address) =
        (to.comparison_address(destination as usize), from.comparison_address(source as usize));
    let backwards = to_address > from_address && to_address - from_address < source_size;
    Ok(Some(PreparedCopy { process, to, from, backwards }))
}

/// Returns the numbers from 0 to `count - 1` in ascending order, or in descending order if `backwards` is set.
fn indexes(count: usize, backwards: bool) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| if backwards { count - 1 - index } else { index })
}

/// Allocates the intermediate buffer for a copy of `size` bytes.
fn buffer(size: usize) -> Result<Vec<u8>, Failure> {
    let (mut bytes, size) = (Vec::new(), size.min(BUFFER_SIZE));
    bytes.try_reserve_exact(size).map_err(|error| {
        Failure::new(
            errors::OUT_OF_MEMORY,
            format!("cannot allocate a buffer of {size} bytes: {error}"),
        )
    })?;
    bytes.resize(size, 0);
    Ok(bytes)
}

impl PreparedCopy {
    /// Copies `size` bytes between two offsets in the ranges. `bytes` comes from [`buffer`], for this size or more.
    ///
    /// # Safety
    /// If the source is not memory of this library, the program must be able to read it; if the destination is not, the
    /// program must be able to write it.
    unsafe fn run(
        &self,
        (to_offset, from_offset): (usize, usize),
        size: usize,
        bytes: &mut [u8],
    ) -> Result<(), Failure> {
        for index in indexes(size.div_ceil(BUFFER_SIZE), self.backwards) {
            let offset = BUFFER_SIZE * index;
            let chunk = &mut bytes[..BUFFER_SIZE.min(size - offset)];
            // SAFETY: the caller guarantees that the program's own memory is valid.
            unsafe {
                self.from.read(&self.process, from_offset + offset, chunk)?;
                self.to.write(&self.process, to_offset + offset, chunk)?;
            }
        }
        Ok(())
    }
}

/// Copies memory of any kind. If an argument is invalid, copies nothing.
///
/// # Safety
/// If the source is not memory of this library, the program must be able to read `size` bytes of it; if the destination
/// is not, the program must be able to write `size` bytes of it.
pub unsafe fn copy(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
    kind: c_int,
) -> Result<(), Failure> {
    match prepare((destination, size), (source, size), kind)? {
        // SAFETY: the caller guarantees that the program's own memory is valid.
        Some(copy) => unsafe { copy.run((0, 0), size, &mut buffer(size)?) },
        None => Ok(()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpy(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
    kind: c_int,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpy", || unsafe { copy(destination, source, size, kind) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyHtoD(
    destination: *mut c_void,
    source: *const c_void,
    size: usize,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpyHtoD", || unsafe { copy(destination, source, size, memcpy_kind::HOST_TO_DEVICE) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyDtoH(
    destination: *mut c_void,
    source: *mut c_void,
    size: usize,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpyDtoH", || unsafe { copy(destination, source, size, memcpy_kind::DEVICE_TO_HOST) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyDtoD(
    destination: *mut c_void,
    source: *mut c_void,
    size: usize,
) -> hipError_t {
    // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
    run("hipMemcpyDtoD", || unsafe {
        copy(destination, source, size, memcpy_kind::DEVICE_TO_DEVICE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpyPeer(
    destination: *mut c_void,
    destination_device: c_int,
    source: *const c_void,
    source_device: c_int,
    size: usize,
) -> hipError_t {
    run("hipMemcpyPeer", || {
        let process = process()?;
        process.devices.agent(destination_device)?;
        process.devices.agent(source_device)?;
        // SAFETY: the C caller passes pointers that are valid for `size` bytes (lib.rs).
        unsafe { copy(destination, source, size, memcpy_kind::DEVICE_TO_DEVICE) }
    })
}

/// Rows of bytes: the address of the first row, and the distance from each row's start to the next (pitch).
type Rows<P> = (P, usize);

/// Copies `height` rows of `width` bytes. If an argument is invalid, copies nothing.
///
/// # Safety
/// Rows in the program's own memory must be readable at the source, and writable at the destination.
pub unsafe fn copy_rows(
    (destination, destination_pitch): Rows<*mut c_void>,
    (source, source_pitch): Rows<*const c_void>,
    (width, height): (usize, usize),
    kind: c_int,
) -> Result<(), Failure> {
    process()?.devices.require()?;
    // As in HIP, an invalid kind is an error even if there are no bytes to copy.
    direction(kind)?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    // The size of the range from the start of the first row to the end of the last row.
    let size_of = |argument: &str, pitch: usize| {
        if pitch < width {
            let problem = format!("({pitch}) is less than the width ({width})");
            let failure = Failure::invalid_argument(argument, problem);
            return Err(Failure { code: errors::INVALID_PITCH_VALUE, ..failure });
        }
        let size = pitch.checked_mul(height - 1).and_then(|size| size.checked_add(width));
        size.filter(|size| *size <= isize::MAX as usize).ok_or_else(|| {
            Failure::invalid_argument(argument, "times the height exceeds the address space")
        })
    };
    let destination_size = size_of("destination_pitch", destination_pitch)?;
    let source_size = size_of("source_pitch", source_pitch)?;
    let prepared = prepare((destination, destination_size), (source, source_size), kind)?;
    let Some(copy) = prepared else { return Ok(()) };
    if width == destination_pitch && width == source_pitch {
        // SAFETY: the rows are contiguous, and the caller guarantees that all of them are valid.
        return unsafe { copy.run((0, 0), destination_size, &mut buffer(destination_size)?) };
    }
    let mut bytes = buffer(width)?;
    for row in indexes(height, copy.backwards) {
        let offsets = (row * destination_pitch, row * source_pitch);
        // SAFETY: the caller guarantees that each row is valid.
        unsafe { copy.run(offsets, width, &mut bytes) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemcpy2D(
    destination: *mut c_void,
    destination_pitch: usize,
    source: *const c_void,
    source_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> hipError_t {
    run("hipMemcpy2D", || {
        let (destination, source) = ((destination, destination_pitch), (source, source_pitch));
        // SAFETY: the C caller passes pointers that are valid for all rows (lib.rs).
        unsafe { copy_rows(destination, source, (width, height), kind) }
    })
}

/// Fills memory with `count` copies of a pattern.
///
/// # Safety
/// If the destination is the program's own memory, it must be writable for `count * pattern.len()` bytes.
pub unsafe fn fill(destination: *mut c_void, pattern: &[u8], count: usize) -> Result<(), Failure> {
    let process = process()?;
    process.devices.require()?;
    if count == 0 {
        return Ok(());
    }
    not_null("destination", destination)?;
    let overflow = || Failure::invalid_argument("count", "exceeds the address space");
    let size = count.checked_mul(pattern.len()).ok_or_else(overflow)?;
    let range = (address(destination), size);
    let target = Endpoint::of(&process, "destination", range, Access::ReadWrite)?;
    // The program's own memory cannot be filled.
    if !target.may_be_declared(true) {
        return Err(process.unknown_memory("destination", address(destination)));
    }
    // The buffer's size is a multiple of every pattern's size.
    let mut bytes = buffer(size)?;
    bytes.chunks_exact_mut(pattern.len()).for_each(|value| value.copy_from_slice(pattern));
    for offset in (0..size).step_by(bytes.len()) {
        let part = bytes.len().min(size - offset);
        // SAFETY: the caller guarantees that the program's own memory is writable.
        unsafe { target.write(&process, offset, &bytes[..part]) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemset(destination: *mut c_void, value: c_int, size: usize) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `size` bytes (lib.rs).
    run("hipMemset", || unsafe { fill(destination, &[value as u8], size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemsetD8(
    destination: *mut c_void,
    value: c_uchar,
    count: usize,
) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `count` values (lib.rs).
    run("hipMemsetD8", || unsafe { fill(destination, &[value], count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemsetD16(
    destination: *mut c_void,
    value: c_ushort,
    count: usize,
) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `count` values (lib.rs).
    run("hipMemsetD16", || unsafe { fill(destination, &value.to_ne_bytes(), count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipMemsetD32(
    destination: *mut c_void,
    value: c_int,
    count: usize,
) -> hipError_t {
    // SAFETY: the C caller passes a pointer that is valid for `count` values (lib.rs).
    run("hipMemsetD32", || unsafe { fill(destination, &value.to_ne_bytes(), count) })
}
