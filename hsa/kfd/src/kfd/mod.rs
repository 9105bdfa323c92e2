//! `/dev/kfd`: amdkfd.

pub(crate) mod abi;
mod dmabuf;
mod events;
mod ipc;
mod memory;
mod mmap;
mod process;
mod queues;
mod setup;
mod windows;

pub(crate) use events::Events;
pub(crate) use mmap::map;
pub(crate) use process::Process;
pub(crate) use setup::gpu_clock;
pub(crate) use windows::DeviceFile;

use crate::descriptors;
use crate::driver::Driver;
use crate::errno::{EBADF, ENOTTY, Result};
use crate::observe::Observer;
use crate::request::Request;
use libc::c_int;
use std::marker::PhantomData;

/// Defines the table of calls and their functions.
macro_rules! calls {
    ($($number:literal $name:literal $function:path,)*) => {
        /// The emulated calls.
        pub(crate) const NAMES: &[&str] = &[$($name),*];

        fn run(driver: &'static Driver, request: Request) -> Result<()> {
            match request.number() {
                $($number => request.execute(driver, format_args!("kfd"), $name, &driver, |driver, value| {
                    $function(driver, value)
                }),)*
                number => reject(driver, request, number),
            }
        }

        /// Passes a call to the machine's own driver, and logs the call.
        pub(crate) fn observe(observer: &Observer, request: Request, perform: impl FnOnce() -> c_int) -> c_int {
            /// Returns the type of a function's argument.
            fn argument<T>(_: fn(&'static Driver, &mut T) -> Result<()>) -> PhantomData<T> {
                PhantomData
            }
            match request.number() {
                $($number => request.observe(&observer.log, format_args!("kfd"), ($name, argument($function)), perform),)*
                number => request.observe_unknown(&observer.log, format_args!("kfd"), unemulated_name(number), perform),
            }
        }
    };
}

calls! {
    0x01 "GET_VERSION" setup::version,
    0x02 "CREATE_QUEUE" queues::create,
    0x03 "DESTROY_QUEUE" queues::destroy,
    0x04 "SET_MEMORY_POLICY" setup::memory_policy,
    0x05 "GET_CLOCK_COUNTERS" setup::clock_counters,
    0x07 "UPDATE_QUEUE" queues::update,
    0x08 "CREATE_EVENT" events::create,
    0x09 "DESTROY_EVENT" events::destroy,
    0x0a "SET_EVENT" events::set,
    0x0b "RESET_EVENT" events::reset,
    0x0c "WAIT_EVENTS" events::wait,
    0x11 "SET_SCRATCH_BACKING_VA" setup::scratch_backing,
    0x12 "GET_TILE_CONFIG" setup::tile_config,
    0x13 "SET_TRAP_HANDLER" setup::trap_handler,
    0x14 "GET_PROCESS_APERTURES_NEW" setup::apertures,
    0x15 "ACQUIRE_VM" setup::acquire_vm,
    0x16 "ALLOC_MEMORY_OF_GPU" memory::alloc,
    0x17 "FREE_MEMORY_OF_GPU" memory::free,
    0x18 "MAP_MEMORY_TO_GPU" memory::map,
    0x19 "UNMAP_MEMORY_FROM_GPU" memory::unmap,
    0x1c "GET_DMABUF_INFO" dmabuf::info,
    0x1d "IMPORT_DMABUF" dmabuf::import,
    0x21 "SET_XNACK_MODE" setup::xnack,
    0x23 "AVAILABLE_MEMORY" setup::available_memory,
    0x24 "EXPORT_DMABUF" dmabuf::export,
    0x25 "RUNTIME_ENABLE" setup::runtime_enable,
    0x80 "IPC_IMPORT_HANDLE" ipc::import,
    0x81 "IPC_EXPORT_HANDLE" ipc::export,
}

/// The calls of amdkfd that are not emulated, for the log.
const NOT_EMULATED: [(u8, &str); 13] = [
    (0x06, "GET_PROCESS_APERTURES"),
    (0x0d, "DBG_REGISTER"),
    (0x0e, "DBG_UNREGISTER"),
    (0x0f, "DBG_ADDRESS_WATCH"),
    (0x10, "DBG_WAVE_CONTROL"),
    (0x1a, "SET_CU_MASK"),
    (0x1b, "GET_QUEUE_WAVE_STATE"),
    (0x1e, "ALLOC_QUEUE_GWS"),
    (0x1f, "SMI_EVENTS"),
    (0x20, "SVM"),
    (0x22, "CRIU_OP"),
    (0x26, "DBG_TRAP"),
    (0x27, "CREATE_PROCESS"),
];

/// Executes an `ioctl` on a `/dev/kfd` that `opener` has opened.
pub(crate) fn ioctl(driver: &'static Driver, opener: libc::pid_t, request: Request) -> Result<()> {
    if opener != descriptors::owner() {
        driver.log.line(format_args!(
            "kfd call {:#x} = EBADF: another process opened this /dev/kfd",
            request.code
        ));
        return Err(EBADF);
    }
    if request.family() != b'K' {
        return reject(driver, request, request.number());
    }
    run(driver, request)
}

/// Returns the name of a call that is not emulated; empty if the number is unknown.
fn unemulated_name(number: u8) -> &'static str {
    NOT_EMULATED.iter().find(|call| call.0 == number).map_or("", |call| call.1)
}

/// Rejects a call that is not emulated: amdkfd returns `ENOTTY` for unknown calls.
fn reject(driver: &Driver, request: Request, number: u8) -> Result<()> {
    let name = if request.family() == b'K' { unemulated_name(number) } else { "" };
    driver.log.unsupported(format_args!("kfd call {:#x} {name} = ENOTTY", request.code));
    Err(ENOTTY)
}
