//! One recorded operation.

use serde::{Deserialize, Serialize};

/// The verdict of an operation that was done.
pub const SUCCESS: &str = "SUCCESS";

/// A call and the verdict it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// What was called.
    #[serde(flatten)]
    pub call: Call,
    /// [`SUCCESS`], or the error's name: `INVALID_VALUE`, `OUT_OF_MEMORY`, …
    pub result: String,
}

/// What was called. Devices are GPUs counted from 0; other numbers name none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Call {
    /// Addresses are reserved.
    Reserve {
        /// The slot that receives the reservation.
        r: u32,
        /// Its size.
        size: usize,
    },
    /// Physical memory is made.
    Create {
        /// The slot that receives the handle.
        h: u32,
        /// Its size.
        size: usize,
        /// The GPU.
        device: i64,
    },
    /// Memory is mapped.
    Map {
        /// The reservation's slot.
        r: u32,
        /// Where in it.
        offset: usize,
        /// How much.
        size: usize,
        /// The handle's slot.
        h: u32,
        /// From where in the handle.
        handle_offset: usize,
    },
    /// Devices are granted something.
    SetAccess {
        /// The reservation's slot.
        r: u32,
        /// Where in it.
        offset: usize,
        /// How much.
        size: usize,
        /// Device and flags: 0 nothing, 1 read, 3 read and write.
        descs: Vec<(i64, u32)>,
    },
    /// It is asked what a device may do.
    GetAccess {
        /// The reservation's slot.
        r: u32,
        /// Where in it.
        offset: usize,
        /// The device.
        device: i64,
        /// What was answered.
        flags: u32,
    },
    /// Memory is unmapped.
    Unmap {
        /// The reservation's slot.
        r: u32,
        /// Where in it.
        offset: usize,
        /// How much.
        size: usize,
    },
    /// A reference is dropped.
    Release {
        /// The handle's slot.
        h: u32,
    },
    /// A reference is taken to what is mapped somewhere.
    Retain {
        /// The reservation's slot.
        r: u32,
        /// Where in it.
        offset: usize,
        /// The slot that receives the handle.
        h: u32,
        /// A slot that holds the same handle, -1 if none does.
        same_as: i64,
    },
    /// Addresses are freed.
    Free {
        /// The reservation's slot.
        r: u32,
        /// The size that is passed.
        size: usize,
    },
}
