//! An `ioctl`: its number, and its argument as a struct of the kernel's.

use crate::driver::Driver;
use crate::errno::{EFAULT, Result};
use libc::c_void;
use std::fmt::Debug;

/// A struct of the kernel's interface.
///
/// # Safety
///
/// Every bit pattern is a value, and there is no padding: plain integers only.
pub(crate) unsafe trait Plain: Copy + Debug {}

/// One call on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) code: u64,
    pub(crate) argument: *mut c_void,
}

impl Request {
    /// The type, the letter of the device's family.
    pub(crate) fn family(self) -> u8 {
        (self.code >> 8) as u8
    }

    pub(crate) fn number(self) -> u8 {
        self.code as u8
    }

    /// How many bytes the caller's struct has, which an older or newer caller sets otherwise.
    fn size(self) -> usize {
        (self.code >> 16) as usize & 0x3fff
    }

    /// Answers: copies the argument in, runs, copies it out. What the caller's struct lacks is
    /// zero, what it has beyond is left alone, as amdkfd and the DRM core do.
    pub(crate) fn answer<T: Plain>(
        self,
        driver: &Driver,
        device: &str,
        name: &str,
        run: impl FnOnce(&mut T) -> Result<()>,
    ) -> Result<()> {
        if self.argument.is_null() {
            return Err(EFAULT);
        }
        let size = self.size().min(size_of::<T>());
        // SAFETY: `Plain`: all zeros is a value.
        let mut value: T = unsafe { std::mem::zeroed() };
        // SAFETY: the code of the call says how many bytes the caller's struct has, and `value`
        // has at least `size` of them, whatever they are (`Plain`).
        unsafe {
            let to = (&raw mut value).cast::<u8>();
            std::ptr::copy_nonoverlapping(self.argument.cast::<u8>(), to, size);
        }
        let before = value;
        let result = driver.config.faults.check(name).and_then(|()| run(&mut value));
        if driver.log.wanted() {
            driver.log.call(device, name, &before, &value, result);
        }
        // SAFETY: as above, in the other direction.
        unsafe {
            let from = (&raw const value).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, self.argument.cast::<u8>(), size);
        }
        result
    }
}

/// Writes a struct or a part of it where a caller asked for it.
///
/// # Safety
///
/// `address` is null or has room for `room` bytes.
pub(crate) unsafe fn give<T: Plain>(address: u64, room: usize, value: &T) -> Result<()> {
    if address == 0 {
        return Err(EFAULT);
    }
    let size = room.min(size_of::<T>());
    // SAFETY: the caller answers for the room, and the value has at least `size` bytes.
    unsafe {
        let from = (&raw const *value).cast::<u8>();
        std::ptr::copy_nonoverlapping(from, address as *mut u8, size);
    }
    Ok(())
}

// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
