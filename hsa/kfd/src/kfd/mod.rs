//! `/dev/kfd`: amdkfd.

pub(crate) mod abi;
mod dmabuf;
mod events;
mod memory;
mod mmap;
mod process;
mod queues;
mod setup;

pub(crate) use events::Events;
pub(crate) use mmap::map;
pub(crate) use process::Process;
pub(crate) use setup::gpu_clock;

use crate::driver::Driver;
use crate::errno::{EBADF, ENOTTY, Result};
use crate::request::Request;

/// Answers an `ioctl` on `/dev/kfd` that was opened by `opener`.
pub(crate) fn answer(driver: &Driver, opener: libc::pid_t, request: Request) -> Result<()> {
    // SAFETY: asks for a number and touches no memory.
    if opener != unsafe { libc::getpid() } {
        driver.log.line(format_args!("kfd call {:#x} = EBADF: another process's", request.code));
        return Err(EBADF);
    }
    if request.family() != b'K' {
        return missing(driver, request);
    }
    /// `call!("NAME", function)`: the struct is the one the function takes.
    macro_rules! call {
        ($name:literal, $function:path) => {
            request.answer(driver, "kfd", $name, |value| $function(driver, value))
        };
    }
    match request.number() {
        0x01 => call!("GET_VERSION", setup::version),
        0x02 => call!("CREATE_QUEUE", queues::create),
        0x03 => call!("DESTROY_QUEUE", queues::destroy),
        0x04 => call!("SET_MEMORY_POLICY", setup::memory_policy),
        0x05 => call!("GET_CLOCK_COUNTERS", setup::clock_counters),
        0x07 => call!("UPDATE_QUEUE", queues::update),
        0x08 => call!("CREATE_EVENT", events::create),
        0x09 => call!("DESTROY_EVENT", events::destroy),
        0x0a => call!("SET_EVENT", events::set),
        0x0b => call!("RESET_EVENT", events::reset),
        0x0c => call!("WAIT_EVENTS", events::wait),
        0x11 => call!("SET_SCRATCH_BACKING_VA", setup::scratch_backing),
        0x13 => call!("SET_TRAP_HANDLER", setup::trap_handler),
        0x14 => call!("GET_PROCESS_APERTURES_NEW", setup::apertures),
        0x15 => call!("ACQUIRE_VM", setup::acquire_vm),
        0x16 => call!("ALLOC_MEMORY_OF_GPU", memory::alloc),
        0x17 => call!("FREE_MEMORY_OF_GPU", memory::free),
        0x18 => call!("MAP_MEMORY_TO_GPU", memory::map),
        0x19 => call!("UNMAP_MEMORY_FROM_GPU", memory::unmap),
        0x1c => call!("GET_DMABUF_INFO", dmabuf::info),
        0x1d => call!("IMPORT_DMABUF", dmabuf::import),
        0x21 => call!("SET_XNACK_MODE", setup::xnack),
        0x23 => call!("AVAILABLE_MEMORY", setup::available_memory),
        0x24 => call!("EXPORT_DMABUF", dmabuf::export),
        0x25 => call!("RUNTIME_ENABLE", setup::runtime_enable),
        _ => missing(driver, request),
    }
}

fn missing(driver: &Driver, request: Request) -> Result<()> {
    driver.log.missing(format_args!("kfd call {:#x}", request.code));
    Err(ENOTTY)
}
