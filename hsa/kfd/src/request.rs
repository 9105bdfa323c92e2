//! An `ioctl`: its number, and its argument as a struct of the kernel.

use crate::abi::Pod;
use crate::driver::Driver;
use crate::errno::{EFAULT, Errno, Result};
use crate::log::Log;
use crate::{faults, user};
use libc::{c_int, c_void};
use std::fmt::Arguments;
use std::marker::PhantomData;
use std::time::Instant;

/// One call on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) code: u64,
    pub(crate) argument: *mut c_void,
}

impl Request {
    /// Returns the letter that identifies the device's driver (`_IOC_TYPE`).
    pub(crate) fn family(self) -> u8 {
        (self.code >> 8) as u8
    }

    pub(crate) fn number(self) -> u8 {
        self.code as u8
    }

    /// Returns the size of the caller's struct (`_IOC_SIZE`), which differs for older and newer callers.
    fn size(self) -> usize {
        (self.code >> 16) as usize & 0x3fff
    }

    /// Returns whether the call reads the caller's struct (`_IOC_WRITE`).
    fn reads_argument(self) -> bool {
        self.code >> 30 & 1 != 0
    }

    /// Returns whether the call writes to the caller's struct (`_IOC_READ`).
    fn writes_argument(self) -> bool {
        self.code >> 31 & 1 != 0
    }

    /// Returns whether the call has a struct as its argument.
    pub(crate) fn has_argument(self) -> bool {
        self.size() > 0
    }

    /// Passes the call to the kernel, and logs the call. Preserves `errno`.
    pub(crate) fn observe<T: Pod>(
        self,
        log: &Log,
        device: Arguments<'_>,
        (name, _): (&'static str, PhantomData<T>),
        perform: impl FnOnce() -> c_int,
    ) -> c_int {
        let (began, size) = (Instant::now(), self.size().min(size_of::<T>()));
        let read = || {
            let mut value = T::zero();
            // A struct that cannot be read is logged as zeros. The kernel reports EFAULT.
            let _ = user::read_own(self.argument as u64, &mut value.bytes_mut()[..size]);
            value
        };
        let before = read();
        let returned = perform();
        let errno = Errno::last();
        let result = if returned < 0 { Err(errno) } else { Ok(()) };
        log.call(device, name, &before, &read(), result, began);
        errno.set_errno();
        returned
    }

    /// Passes a call with an unknown argument to the kernel, and logs the call. Preserves `errno`.
    pub(crate) fn observe_unknown(
        self,
        log: &Log,
        device: Arguments<'_>,
        name: &str,
        perform: impl FnOnce() -> c_int,
    ) -> c_int {
        let began = Instant::now();
        let returned = perform();
        let errno = Errno::last();
        let end = if returned < 0 { format!("= {errno}") } else { format!("-> {returned}") };
        let microseconds = began.elapsed().as_nanos() as f64 / 1000.0;
        let code = self.code;
        log.line(format_args!("{device} {name} code={code:#x} {end} ({microseconds:.1} us)"));
        errno.set_errno();
        returned
    }

    /// Executes the call: copies the argument in, calls `run`, and copies the argument out. As in
    /// amdkfd and the DRM core, fields that the caller's struct lacks are zero, and fields beyond
    /// the driver's struct are not changed.
    pub(crate) fn execute<T: Pod, C: Clone + Send + 'static>(
        self,
        driver: &Driver,
        device: Arguments<'_>,
        name: &'static str,
        context: &C,
        run: impl FnOnce(&C, &mut T) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let began = Instant::now();
        let (address, size) = (self.argument as u64, self.size().min(size_of::<T>()));
        let mut value = T::zero();
        let copied = match self.reads_argument() {
            true => user::read(address, &mut value.bytes_mut()[..size]),
            false => Ok(()),
        };
        let before = value;
        let result = copied
            .and_then(|()| {
                let log_unfinished =
                    |reason: &str| driver.log.unfinished_call(device, name, &before, reason);
                driver.config.faults.begin(value.call_name(name), log_unfinished)
            })
            .and_then(|fault| faults::perform(fault, context, &mut value, run));
        driver.log.call(device, name, &before, &value, result, began);
        // A failed call also reports its progress, as in amdkfd.
        if copied.is_ok() && self.writes_argument() {
            user::write(address, &value.bytes()[..size]).map_err(|_| EFAULT)?;
        }
        result
    }
}
