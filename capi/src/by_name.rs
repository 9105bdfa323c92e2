//! Look-up of functions by name.

use crate::pointers::{read_text, write_out, write_unless_null};
use crate::status::{Failure, run};
use crate::types::hipError_t;
use core::ffi::{c_char, c_int, c_ulonglong, c_void};

macro_rules! functions {
    ($($function:ident)+) => {
        mod declared {
            unsafe extern "C" {
                $(pub fn $function();)+
            }
        }

        fn find(name: &str) -> Option<*mut c_void> {
            match name {
                $(stringify!($function) => Some(declared::$function as *mut c_void),)+
                _ => None,
            }
        }
    };
}

functions! {
    hipCtxCreate hipCtxDestroy hipCtxGetCurrent hipCtxGetDevice hipCtxSetCurrent hipCtxSynchronize
    hipDeviceCanAccessPeer hipDeviceDisablePeerAccess hipDeviceEnablePeerAccess hipDeviceGet
    hipDeviceGetAttribute hipDeviceGetDefaultMemPool hipDeviceGetMemPool hipDeviceGetName
    hipDeviceGetPCIBusId hipDeviceGetStreamPriorityRange hipDeviceGetUuid hipDevicePrimaryCtxRelease
    hipDevicePrimaryCtxRetain hipDeviceReset hipDeviceSetMemPool hipDeviceSynchronize
    hipDeviceTotalMem hipDriverGetVersion hipDrvGetErrorName hipDrvGetErrorString hipEventCreate
    hipEventCreateWithFlags hipEventDestroy hipEventElapsedTime hipEventQuery hipEventRecord
    hipEventSynchronize hipExtMallocWithFlags hipFree hipFreeAsync hipFreeHost hipFuncGetAttribute
    hipGetDevice hipGetDeviceCount hipGetDeviceFlags hipGetDevicePropertiesR0600
    hipGetDriverEntryPoint hipGetErrorName hipGetErrorString hipGetLastError hipGetProcAddress
    hipGetSymbolAddress hipGraphDestroy hipGraphExecDestroy hipGraphExecUpdate hipGraphInstantiate
    hipGraphLaunch hipHostAlloc hipHostFree hipHostGetDevicePointer hipHostGetFlags hipHostMalloc
    hipHostRegister hipHostUnregister hipInit hipIpcCloseMemHandle hipIpcGetEventHandle
    hipIpcGetMemHandle hipIpcOpenEventHandle hipIpcOpenMemHandle hipLaunchHostFunc hipLaunchKernel
    hipMalloc hipMallocAsync hipMallocFromPoolAsync hipMallocHost hipMallocManaged hipMallocPitch
    hipMemAddressFree hipMemAddressReserve hipMemAdvise hipMemAllocHost hipMemCreate
    hipMemExportToShareableHandle hipMemGetAccess hipMemGetAddressRange
    hipMemGetAllocationGranularity hipMemGetAllocationPropertiesFromHandle
    hipMemGetHandleForAddressRange hipMemGetInfo hipMemImportFromShareableHandle hipMemMap
    hipMemMapArrayAsync hipMemPoolCreate hipMemPoolDestroy hipMemPoolExportPointer
    hipMemPoolExportToShareableHandle hipMemPoolGetAccess hipMemPoolGetAttribute
    hipMemPoolImportFromShareableHandle hipMemPoolImportPointer hipMemPoolSetAccess
    hipMemPoolSetAttribute hipMemPoolTrimTo hipMemPrefetchAsync hipMemRelease
    hipMemRetainAllocationHandle hipMemSetAccess hipMemUnmap hipMemcpy hipMemcpy2D hipMemcpy2DAsync
    hipMemcpyAsync hipMemcpyDtoD hipMemcpyDtoDAsync hipMemcpyDtoH hipMemcpyDtoHAsync hipMemcpyHtoD
    hipMemcpyHtoDAsync hipMemcpyPeer hipMemcpyPeerAsync hipMemcpyWithStream hipMemset hipMemsetAsync
    hipMemsetD16 hipMemsetD16Async hipMemsetD32 hipMemsetD32Async hipMemsetD8 hipMemsetD8Async
    hipMipmappedArrayCreate hipMipmappedArrayDestroy hipModuleGetFunction hipModuleGetGlobal
    hipModuleLaunchKernel hipModuleLoad hipModuleLoadData hipModuleUnload hipPeekAtLastError
    hipPointerGetAttribute hipPointerGetAttributes hipPointerSetAttribute hipRuntimeGetVersion
    hipSetDevice hipSetDeviceFlags hipStreamBeginCapture hipStreamCreate hipStreamCreateWithFlags
    hipStreamCreateWithPriority hipStreamDestroy hipStreamEndCapture hipStreamGetDevice
    hipStreamGetFlags hipStreamGetPriority hipStreamIsCapturing hipStreamQuery hipStreamSynchronize
    hipStreamWaitEvent hipThreadExchangeStreamCaptureMode
}

/// `HIP_GET_PROC_ADDRESS_SUCCESS`.
const FOUND: c_int = 0;
/// `HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const NOT_FOUND: c_int = 1;

/// Finds a function by its name.
///
/// HIP has some functions twice: for the null stream, and for a stream of each thread. Flag 2 selects the function for
/// a stream of each thread. This library has each function once, because a stream never waits.
///
/// # Safety
/// The rules for pointers in lib.rs apply.
unsafe fn look_up(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    symbol_status: *mut c_int,
) -> Result<(), Failure> {
    // SAFETY: the caller guarantees valid pointers.
    unsafe {
        let name = read_text("symbol", symbol)?;
        if flags > 2 {
            let problem = format!("({flags:#x}) are invalid: valid flags are 0, 1 and 2");
            return Err(Failure::invalid_argument("flags", problem));
        }
        write_out("function", function, core::ptr::null_mut())?;
        let found = match name {
            // HIP's header renames this function to a name with a version, but programs look up the name without the
            // version. Before HIP 6.0, the function had a smaller structure, which this library does not have.
            "hipGetDeviceProperties" if version >= 600 => find("hipGetDevicePropertiesR0600"),
            name => find(name),
        };
        write_unless_null(symbol_status, if found.is_some() { FOUND } else { NOT_FOUND });
        let not_found = || {
            let problem = format!("({name:?}) is not the name of a function of this library");
            Failure::invalid_argument("symbol", problem)
        };
        write_out("function", function, found.ok_or_else(not_found)?)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    symbol_status: *mut c_int,
) -> hipError_t {
    // SAFETY: the C caller passes null or a valid pointer (lib.rs).
    run("hipGetProcAddress", || unsafe { look_up(symbol, function, version, flags, symbol_status) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDriverEntryPoint(
    symbol: *const c_char,
    function: *mut *mut c_void,
    flags: c_ulonglong,
    symbol_status: *mut c_int,
) -> hipError_t {
    // As in HIP, this call, which gets no version, finds the oldest version of a function.
    // SAFETY: the C caller passes null or a valid pointer (lib.rs).
    run("hipGetDriverEntryPoint", || unsafe { look_up(symbol, function, 0, flags, symbol_status) })
}
