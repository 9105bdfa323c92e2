//! The part of the HSA ABI that virtual-memory management needs, and nothing that decides.
//!
//! * [`bindings`]: C types and constants, made by bindgen from `include/hsa_abi.h`;
//! * [`table`]: every function once, as a table of function pointers with what is required and
//!   what is optional;
//! * [`library`]: finds and loads `libhsa-runtime64.so.1` and fills the table from it.
//!
//! The same [`Table`] is what the software runtime `hsa-sim` hands out, so that everything above
//! this line is one code for both.

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
