//! The exported C functions of the shared object. They use the simulation of slot 0, which the environment
//! configures.
//!
//! This file exports the functions of the table that [`Simulation::table`](crate::Simulation::table) returns. The
//! submodules export the rest of the interface of AMD's runtime, so that any HSA program can load the library. The
//! functions of the submodules support no planned faults and are not counted.

mod memory;
mod not_simulated;
mod queues;
mod regions;
mod signals;
mod topology;

use crate::abi::{AgentCallback, Allocate, IsaCallback, PoolCallback};
use crate::instance::Instance;
use crate::status::HsaResult;
use crate::{Config, abi, slots};
use core::ffi::{c_char, c_int, c_void};
use hsa_sys::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The environment variable with the configuration, as text.
pub const VARIABLE: &str = "HSA_SIM";

/// Exports functions that return a status, each with a closure that implements the function.
macro_rules! exports {
    ($(
        $name:ident($($argument:ident: $type:ty),* $(,)?) => $body:expr;
    )*) => { $(
        /// # Safety
        /// As documented by HSA.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)] // HSA defines the signature
        pub unsafe extern "C" fn $name($($argument: $type),*) -> hsa_status_t {
            call($body)
        }
    )* };
}
use exports;

/// Runs a function that only the shared object exports.
fn call(body: impl FnOnce(&Arc<Instance>) -> HsaResult) -> hsa_status_t {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let instance = slots::instance(0)?;
        if !instance.is_initialised() {
            return Err(HSA_STATUS_ERROR_NOT_INITIALIZED);
        }
        body(&instance)
    }));
    abi::status_of(result)
}

macro_rules! table_exports {
    (
        status {
            $string:ident($($sargument:ident: $stype:ty),*) => $sbody:path;
            $init:ident() => $ibody:path;
            $($name:ident($($argument:ident: $type:ty),*) => $body:path;)*
        }
        value { $($vname:ident($($vargument:ident: $vtype:ty),*) -> $result:ty => $vbody:path;)* }
    ) => {
        /// # Safety
        /// As documented by HSA.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $string($($sargument: $stype),*) -> hsa_status_t {
            // SAFETY: both functions have the same contract.
            unsafe { abi::$string::<0>($($sargument),*) }
        }

        /// # Safety
        /// As documented by HSA.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $init() -> hsa_status_t {
            if !ensure_instance() {
                return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
            }
            // SAFETY: both functions have the same contract.
            unsafe { abi::$init::<0>() }
        }

        $(
            /// # Safety
            /// As documented by HSA.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> hsa_status_t {
                // SAFETY: both functions have the same contract.
                unsafe { abi::$name::<0>($($argument),*) }
            }
        )*
        $(
            /// # Safety
            /// As documented by HSA.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $vname($($vargument: $vtype),*) -> $result {
                // SAFETY: both functions have the same contract.
                unsafe { abi::$vname::<0>($($vargument),*) }
            }
        )*
    };
}
abi::every_function!(table_exports);

/// Creates the instance of slot 0 if it does not exist. Returns `false` on failure. Prints the
/// error of an invalid configuration to standard error, because a status cannot describe it.
fn ensure_instance() -> bool {
    if !slots::try_acquire(0) && !slots::try_acquire_inherited(0) {
        // The slot is in use. If another thread is creating the instance, wait. In a forked child,
        // `hsa_init` fails later.
        while slots::is_owned(0) && slots::instance(0).is_err() {
            std::thread::yield_now();
        }
        return true;
    }
    let text = hsa_sys::library::variable(VARIABLE).unwrap_or_default();
    let text = text.to_string_lossy();
    let config = text.parse::<Config>().map_err(|error| error.to_string());
    match config.and_then(|config| Instance::new(config, 0).map_err(|error| error.to_string())) {
        Ok(instance) => {
            slots::fill(0, instance);
            true
        }
        Err(error) => {
            eprintln!("hsa-sim: {VARIABLE}={text}: {error}");
            slots::release(0);
            false
        }
    }
}
