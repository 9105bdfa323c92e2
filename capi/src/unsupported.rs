//! Unsupported functions of HIP: streams, events, kernels.
//!
//! They exist so that programs link, and return `hipErrorNotSupported`, never success.

use crate::answer::{Refusal, answer};
use crate::types::{hipError_t, hipStream_t};

fn refuse(function: &str, what: &str) -> hipError_t {
    answer(function, || Err(Refusal::not_supported(what)))
}

macro_rules! unsupported {
    ($what:literal: $($function:ident)+) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $function() -> hipError_t {
            // The arguments are ignored, which C's calling convention permits.
            refuse(stringify!($function), $what)
        })+
    };
}

unsupported!("streams beyond the null stream": hipStreamCreate hipStreamCreateWithFlags hipStreamDestroy);
unsupported!("events": hipEventCreate hipEventRecord hipEventSynchronize hipEventDestroy);
unsupported!("kernels": hipModuleLoad hipModuleUnload hipModuleGetFunction hipModuleLaunchKernel
    hipLaunchKernel);

/// Checks that a stream is the null stream, whose calls are synchronous.
pub fn null_stream(stream: hipStream_t) -> Result<(), Refusal> {
    // HIP's values of the null stream: null, hipStreamLegacy, hipStreamPerThread.
    if (stream as usize) <= 2 {
        Ok(())
    } else {
        Err(Refusal::not_supported("streams beyond the null stream"))
    }
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t {
    answer("hipStreamSynchronize", || {
        null_stream(stream)?;
        crate::process::process()?.devices.any()
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamQuery(stream: hipStream_t) -> hipError_t {
    answer("hipStreamQuery", || {
        null_stream(stream)?;
        crate::process::process()?.devices.any()
    })
}
