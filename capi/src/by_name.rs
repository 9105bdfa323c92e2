//! Look-up of functions by name.

use crate::answer::{Refusal, answer};
use crate::errors;
use crate::pointers::{text, write_out};
use crate::types::hipError_t;
use core::ffi::{c_char, c_int, c_void};

macro_rules! functions {
    ($($function:ident)+) => {
        mod declared {
            unsafe extern "C" {
                $(pub fn $function();)+
            }
        }

        fn named(name: &str) -> Option<*mut c_void> {
            match name {
                $(stringify!($function) => Some(declared::$function as *mut c_void),)+
                _ => None,
            }
        }
    };
}

functions! {
    hipDeviceCanAccessPeer hipDeviceDisablePeerAccess hipDeviceEnablePeerAccess hipDeviceGet
    hipDeviceGetAttribute hipDeviceGetName hipDeviceGetPCIBusId hipDeviceGetUuid
    hipDeviceSynchronize hipDeviceTotalMem hipDriverGetVersion hipDrvGetErrorName
    hipDrvGetErrorString hipEventCreate hipEventDestroy hipEventRecord hipEventSynchronize hipFree
    hipGetDevice hipGetDeviceCount hipGetErrorName hipGetErrorString hipGetLastError
    hipGetProcAddress hipHostFree hipHostMalloc hipInit hipIpcCloseMemHandle hipIpcGetMemHandle
    hipIpcOpenMemHandle hipLaunchKernel hipMalloc hipMallocManaged hipMemAddressFree
    hipMemAddressReserve hipMemCreate hipMemExportToShareableHandle hipMemGetAccess
    hipMemGetAddressRange hipMemGetAllocationGranularity hipMemGetAllocationPropertiesFromHandle
    hipMemGetInfo hipMemImportFromShareableHandle hipMemMap hipMemMapArrayAsync hipMemRelease
    hipMemRetainAllocationHandle hipMemSetAccess hipMemUnmap hipMemcpy hipMemcpyAsync hipMemcpyDtoD
    hipMemcpyDtoH hipMemcpyHtoD hipMemcpyPeer hipMemset hipMemsetAsync hipMemsetD16 hipMemsetD32
    hipMemsetD8 hipModuleGetFunction hipModuleLaunchKernel hipModuleLoad hipModuleUnload
    hipPeekAtLastError hipPointerGetAttributes hipRuntimeGetVersion hipSetDevice hipStreamCreate
    hipStreamCreateWithFlags hipStreamDestroy hipStreamQuery hipStreamSynchronize
}

const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    result: *mut c_int,
) -> hipError_t {
    answer("hipGetProcAddress", || {
        // SAFETY: as lib.rs says of pointers.
        unsafe {
            let name = text("symbol", symbol)?;
            write_out("function", function, core::ptr::null_mut())?;
            let found = named(name);
            if !result.is_null() {
                write_out("result", result, if found.is_some() { FOUND } else { NOT_FOUND })?;
            }
            match found {
                Some(address) => write_out("function", function, address),
                None => {
                    let words = format!("function `{name}` not found");
                    Err(Refusal::new(errors::NOT_FOUND, words))
                }
            }
        }
    })
}
