//! HIP's functions for features that this library does not support, such as kernels and graphs.
//!
//! The functions exist so that programs link. They return `hipErrorNotSupported`, never success.

use crate::status::{Failure, run};
use crate::types::hipError_t;

fn not_supported(function: &str, feature: &str) -> hipError_t {
    run(function, || Err(Failure::not_supported(feature)))
}

macro_rules! unsupported {
    ($($feature:literal: $($function:ident)+;)+) => {
        $($(#[unsafe(no_mangle)]
        extern "C" fn $function() -> hipError_t {
            // The arguments are ignored, which C's calling convention permits.
            not_supported(stringify!($function), $feature)
        })+)+
    };
}

unsupported! {
    "kernels": hipModuleLoad hipModuleLoadData hipModuleUnload hipModuleGetFunction hipModuleGetGlobal
        hipGetSymbolAddress hipFuncGetAttribute hipModuleLaunchKernel hipLaunchKernel;
    "host functions in a stream": hipLaunchHostFunc;
    "contexts other than a device's primary context": hipCtxCreate hipCtxDestroy;
    "graphs": hipStreamBeginCapture hipStreamEndCapture hipGraphInstantiate hipGraphLaunch
        hipGraphExecUpdate hipGraphExecDestroy hipGraphDestroy;
    "advice and prefetching for managed memory, which never migrates": hipMemAdvise hipMemPrefetchAsync;
    "memory pools": hipDeviceGetDefaultMemPool hipDeviceGetMemPool hipDeviceSetMemPool
        hipMallocFromPoolAsync hipMemPoolCreate hipMemPoolDestroy hipMemPoolTrimTo
        hipMemPoolSetAttribute hipMemPoolGetAttribute hipMemPoolSetAccess hipMemPoolGetAccess
        hipMemPoolExportToShareableHandle hipMemPoolImportFromShareableHandle
        hipMemPoolExportPointer hipMemPoolImportPointer;
    "sharing events with other processes": hipIpcGetEventHandle hipIpcOpenEventHandle;
    "arrays": hipMipmappedArrayCreate hipMipmappedArrayDestroy;
}
