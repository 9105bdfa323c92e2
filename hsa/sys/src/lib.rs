//! The part of the HSA ABI that virtual memory management needs, without policy.
//!
//! * [`bindings`]: C types and constants, made by bindgen from `include/hsa_abi.h`;
//! * [`table`]: a table of function pointers, required and optional ones;
//! * [`library`]: finds and loads `libhsa-runtime64.so.1` and fills the table from it.
//!
//! The software runtime `hsa-sim` returns the same [`Table`], so that callers use one code path for
//! both.

// Names and shapes are C's.
#[allow(
    non_camel_case_types,
    non_snake_case,
    missing_debug_implementations,
    missing_docs,
    clippy::all
)]
pub mod bindings {
    //! C types and constants (generated; see `include/hsa_abi.h` for the documentation).
    #[cfg(not(feature = "bindgen"))]
    include!("bindings.rs");
    #[cfg(feature = "bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
pub mod library;
mod printable;
pub mod table;

pub use bindings::*;
pub use library::{Attempt, Library, LoadError, Search};
pub use printable::printable;
pub use table::{Core, MissingSymbol, Symbol, Table, Vmem};
