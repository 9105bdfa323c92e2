//! The software HSA runtime, for machines without a GPU and for tests.
//!
//! Re-exports [`hsa-sim`](hsa_sim): what can be configured, and what can be watched from
//! outside while the library uses it. The simulation is never chosen silently: only
//! [`Runtime::simulated`](crate::Runtime::simulated) and `HSA_VMM_RUNTIME=sim` ask for it.

pub use hsa_sim::*;
