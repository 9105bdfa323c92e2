//! A recorded operation.

use serde::{Deserialize, Serialize};

/// The result of a successful operation.
pub const SUCCESS: &str = "SUCCESS";

/// A call and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// [`SUCCESS`], or the name of the error, such as `INVALID_VALUE`.
    pub result: String,
}

/// A call. A device is the index of a GPU. A number without a GPU is an invalid device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Call {
    /// Reserves addresses.
    Reserve {
        /// The slot that receives the reservation.
        r: u32,
        /// The size.
        size: usize,
    },
    /// Creates physical memory.
    Create {
        /// The slot that receives the handle.
        h: u32,
        /// The size.
        size: usize,
        /// The GPU.
        device: i64,
    },
    /// Maps memory.
    Map {
        /// The reservation's slot.
        r: u32,
        /// The offset in the reservation.
        offset: usize,
        /// The size.
        size: usize,
        /// The handle's slot.
        h: u32,
        /// The offset in the handle.
        handle_offset: usize,
    },
    /// Sets the access of devices.
    SetAccess {
        /// The reservation's slot.
        r: u32,
        /// The offset in the reservation.
        offset: usize,
        /// The size.
        size: usize,
        /// Devices and flags: 0 no access, 1 read, 3 read and write.
        descs: Vec<(i64, u32)>,
    },
    /// Queries a device's access.
    GetAccess {
        /// The reservation's slot.
        r: u32,
        /// The offset in the reservation.
        offset: usize,
        /// The device.
        device: i64,
        /// The returned flags.
        flags: u32,
    },
    /// Unmaps memory.
    Unmap {
        /// The reservation's slot.
        r: u32,
        /// The offset in the reservation.
        offset: usize,
        /// The size.
        size: usize,
    },
    /// Drops a reference to a handle.
    Release {
        /// The handle's slot.
        h: u32,
    },
    /// Adds a reference to the handle of a mapping.
    Retain {
        /// The reservation's slot.
        r: u32,
        /// The offset in the reservation.
        offset: usize,
        /// The slot that receives the handle.
        h: u32,
        /// Another slot with the same handle; -1 if there is none.
        same_as: i64,
    },
    /// Frees addresses.
    Free {
        /// The reservation's slot.
        r: u32,
        /// The size argument, which may differ from the size of the reservation.
        size: usize,
    },
}
