//! Buffers (`hsavmm_growable_…`, `hsavmm_paged_…`, `hsavmm_pausable_…`, `hsavmm_ring_…`).

use crate::errors;
use crate::objects::{Object, Objects, lock};
use crate::pointers::{not_null, read_each, write_out, write_unless_null};
use crate::process::{Process, process};
use crate::retire::{Conditions, Signal};
use crate::status::{Failure, run};
use crate::types::{hipError_t, hipMemLocation};
use core::ffi::{c_int, c_uint, c_void};
use core::ops::Range;
use hsa_vmm::buffer::{PagedBuffer, PausableBuffer, PauseMode, RingBuffer};
use hsa_vmm::{Access, Address, AgentId, AllocationProperties, Error, GrowableBuffer, Vmm};
use std::sync::{Arc, Mutex};

/// Creates a buffer in a device's memory, and writes its number to `result`.
fn create(
    result: *mut *mut c_void,
    device: c_int,
    build: impl FnOnce(&Vmm, &AllocationProperties) -> Result<Object, Error>,
) -> Result<(), Failure> {
    not_null("buffer", result)?;
    let process = process()?;
    let properties = AllocationProperties::on(process.devices.agent(device)?);
    let object = build(process.vmm()?, &properties)?;
    // SAFETY: the C caller passes null or a writable pointer (lib.rs).
    unsafe { write_out("buffer", result, process.objects.insert(object)) }
}

/// Reads the agents of an array of locations.
///
/// # Safety
/// `locations` is null or points to `count` readable locations.
pub unsafe fn agents(
    process: &Process,
    locations: *const hipMemLocation,
    count: usize,
) -> Result<Vec<AgentId>, Failure> {
    // SAFETY: the caller guarantees `count` locations.
    let locations = unsafe { read_each("locations", locations, count) }?;
    let agent =
        |&location| process.devices.agent_at(&process.runtime, location, errors::INVALID_VALUE);
    locations.iter().map(agent).collect()
}

/// Defines the functions that grant and revoke access, for each type of buffer.
macro_rules! access_functions {
    ($($kind:ident, $borrow:path: $grant:ident $revoke:ident;)+) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $grant(
            buffer: *mut c_void,
            locations: *const hipMemLocation,
            count: usize,
            flags: c_uint,
        ) -> hipError_t {
            run(stringify!($grant), || {
                let process = process()?;
                let buffer = process.objects.$kind(buffer)?;
                // SAFETY: the C caller passes null or `count` readable elements (lib.rs).
                let agents = unsafe { agents(&process, locations, count) }?;
                let invalid = || Failure::invalid_argument("flags", format_args!("({flags}) are invalid"));
                let access = Access::from_bits(flags).ok_or_else(invalid)?;
                Ok($borrow(&buffer).grant(&agents, access)?)
            })
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $revoke(
            buffer: *mut c_void,
            locations: *const hipMemLocation,
            count: usize,
        ) -> hipError_t {
            run(stringify!($revoke), || {
                let process = process()?;
                let buffer = process.objects.$kind(buffer)?;
                // SAFETY: the C caller passes null or `count` readable elements (lib.rs).
                let agents = unsafe { agents(&process, locations, count) }?;
                Ok($borrow(&buffer).revoke(&agents)?)
            })
        }
    )+};
}

access_functions! {
    growable, lock: hsavmm_growable_grant hsavmm_growable_revoke;
    paged, Arc::as_ref: hsavmm_paged_grant hsavmm_paged_revoke;
    pausable, lock: hsavmm_pausable_grant hsavmm_pausable_revoke;
    ring, Arc::as_ref: hsavmm_ring_grant hsavmm_ring_revoke;
}

/// Writes a buffer's address, and the buffer's size or page size. Each of the two pointers may be null.
///
/// # Safety
/// The rules for result pointers in lib.rs apply.
unsafe fn write_range(ptr: *mut *mut c_void, size: *mut usize, range: (Address, usize)) {
    // SAFETY: the caller guarantees valid result pointers.
    unsafe {
        write_unless_null(ptr, range.0.as_ptr());
        write_unless_null(size, range.1);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_growable_reserve(
    buffer: *mut *mut c_void,
    device: c_int,
    maximum: usize,
) -> hipError_t {
    run("hsavmm_growable_reserve", || {
        create(buffer, device, |vmm, properties| {
            let new_buffer = GrowableBuffer::builder(maximum).reserve(vmm, properties)?;
            Ok(Object::Growable(Arc::new(Mutex::new(new_buffer))))
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_growable_resize(buffer: *mut c_void, size: usize) -> hipError_t {
    run("hsavmm_growable_resize", || {
        let buffer = process()?.objects.growable(buffer)?;
        Ok(lock(&buffer).resize(size)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_growable_place(
    buffer: *mut c_void,
    ptr: *mut *mut c_void,
    size: *mut usize,
) -> hipError_t {
    run("hsavmm_growable_place", || {
        let buffer = process()?.objects.growable(buffer)?;
        let buffer = lock(&buffer);
        let range = (buffer.address(), buffer.size());
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_range(ptr, size, range) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_growable_destroy(buffer: *mut c_void) -> hipError_t {
    run("hsavmm_growable_destroy", || process()?.objects.destroy(buffer, Objects::growable))
}

/// `HSAVMM_PAGED_ZERO`.
const ZERO_PAGE: c_uint = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_paged_reserve(
    buffer: *mut *mut c_void,
    device: c_int,
    capacity: usize,
    page_size: usize,
    flags: c_uint,
) -> hipError_t {
    run("hsavmm_paged_reserve", || {
        if flags & !ZERO_PAGE != 0 {
            return Err(Failure::invalid_argument(
                "flags",
                format_args!("({flags:#x}) are invalid"),
            ));
        }
        create(buffer, device, |vmm, properties| {
            let mut options = PagedBuffer::builder(capacity);
            if page_size != 0 {
                options = options.with_page_size(page_size);
            }
            if flags & ZERO_PAGE != 0 {
                options = options.with_zero_page();
            }
            Ok(Object::Paged(Arc::new(options.reserve(vmm, properties)?)))
        })
    })
}

/// Returns the range of `count` pages from `first` on.
fn pages(first: usize, count: usize) -> Result<Range<usize>, Failure> {
    let overflow =
        || Failure::invalid_argument("count", "exceeds the number of pages of the buffer");
    Ok(first..first.checked_add(count).ok_or_else(overflow)?)
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_paged_map(buffer: *mut c_void, first: usize, count: usize) -> hipError_t {
    run("hsavmm_paged_map", || Ok(process()?.objects.paged(buffer)?.map(pages(first, count)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_paged_unmap(buffer: *mut c_void, first: usize, count: usize) -> hipError_t {
    run("hsavmm_paged_unmap", || {
        Ok(process()?.objects.paged(buffer)?.unmap(pages(first, count)?)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_paged_retire(
    buffer: *mut c_void,
    first: usize,
    count: usize,
    queue: *mut c_void,
    signals: *const Signal,
    signal_count: usize,
) -> hipError_t {
    run("hsavmm_paged_retire", || {
        let process = process()?;
        let (buffer, queue) =
            (process.objects.paged(buffer)?, process.objects.retire_queue(queue)?);
        // SAFETY: the header requires `signal_count` signals that exist until the pages are unmapped.
        unsafe {
            let conditions = Conditions::read(signals, signal_count)?;
            Ok(buffer.retire(pages(first, count)?, &queue, conditions.as_slice())?)
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_paged_share_pages(
    buffer: *mut c_void,
    first: usize,
    count: usize,
    destination: *mut c_void,
    destination_first: usize,
) -> hipError_t {
    run("hsavmm_paged_share_pages", || {
        let process = process()?;
        let (source, target) =
            (process.objects.paged(buffer)?, process.objects.paged(destination)?);
        Ok(source.share_pages(pages(first, count)?, &target, destination_first)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_paged_page_users(
    buffer: *mut c_void,
    page: usize,
    users: *mut usize,
) -> hipError_t {
    run("hsavmm_paged_page_users", || {
        not_null("users", users)?;
        let page_users = process()?.objects.paged(buffer)?.page_users(page)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_out("users", users, page_users) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_paged_place(
    buffer: *mut c_void,
    ptr: *mut *mut c_void,
    page_size: *mut usize,
    count: *mut usize,
) -> hipError_t {
    run("hsavmm_paged_place", || {
        let buffer = process()?.objects.paged(buffer)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe {
            write_range(ptr, page_size, (buffer.address(), buffer.page_size()));
            write_unless_null(count, buffer.page_count());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_paged_destroy(buffer: *mut c_void) -> hipError_t {
    run("hsavmm_paged_destroy", || process()?.objects.destroy(buffer, Objects::paged))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_pausable_create(
    buffer: *mut *mut c_void,
    device: c_int,
    size: usize,
) -> hipError_t {
    run("hsavmm_pausable_create", || {
        create(buffer, device, |vmm, properties| {
            let new_buffer = PausableBuffer::create(vmm, size, properties)?;
            Ok(Object::Pausable(Arc::new(Mutex::new(new_buffer))))
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_pausable_pause(buffer: *mut c_void, save: c_int) -> hipError_t {
    run("hsavmm_pausable_pause", || {
        let buffer = process()?.objects.pausable(buffer)?;
        let mode = if save != 0 { PauseMode::Save } else { PauseMode::Discard };
        Ok(lock(&buffer).pause(mode)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_pausable_resume(buffer: *mut c_void) -> hipError_t {
    run("hsavmm_pausable_resume", || {
        let buffer = process()?.objects.pausable(buffer)?;
        Ok(lock(&buffer).resume()?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_pausable_place(
    buffer: *mut c_void,
    ptr: *mut *mut c_void,
    size: *mut usize,
) -> hipError_t {
    run("hsavmm_pausable_place", || {
        let buffer = process()?.objects.pausable(buffer)?;
        let buffer = lock(&buffer);
        let range = (buffer.address(), buffer.size());
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_range(ptr, size, range) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_pausable_destroy(buffer: *mut c_void) -> hipError_t {
    run("hsavmm_pausable_destroy", || process()?.objects.destroy(buffer, Objects::pausable))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_ring_map(
    buffer: *mut *mut c_void,
    device: c_int,
    size: usize,
    times: usize,
) -> hipError_t {
    run("hsavmm_ring_map", || {
        create(buffer, device, |vmm, properties| {
            let new_buffer = RingBuffer::create(vmm, size, times, properties)?;
            Ok(Object::Ring(Arc::new(new_buffer)))
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hsavmm_ring_place(
    buffer: *mut c_void,
    ptr: *mut *mut c_void,
    size: *mut usize,
) -> hipError_t {
    run("hsavmm_ring_place", || {
        let buffer = process()?.objects.ring(buffer)?;
        // SAFETY: the C caller passes null or a writable pointer (lib.rs).
        unsafe { write_range(ptr, size, (buffer.address(), buffer.size())) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hsavmm_ring_destroy(buffer: *mut c_void) -> hipError_t {
    run("hsavmm_ring_destroy", || process()?.objects.destroy(buffer, Objects::ring))
}
