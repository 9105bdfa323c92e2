//! A lock for what one may change at a time, after some thought, while everybody may look.
//!
//! Who has entered is alone in changing it, and shuts those who look out for no longer than the change
//! takes. So it may call the runtime inside, and look-ups do not wait for that.

#[cfg(feature = "interleavings")]
mod interleaved;
#[cfg(not(feature = "interleavings"))]
mod upgradable;

#[cfg(feature = "interleavings")]
pub(crate) use interleaved::{Gate, Inside, Look, Open};
#[cfg(not(feature = "interleavings"))]
pub(crate) use upgradable::{Gate, Inside, Look, Open};
