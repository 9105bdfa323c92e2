//! `close` and its variants.

use super::catch_panic;
use crate::errno::{EBADF, Errno};
use crate::real::next;
use crate::{descriptors, driver, own_descriptors};
use libc::{c_int, c_uint};

#[unsafe(no_mangle)]
extern "C" fn close(descriptor: c_int) -> c_int {
    if own_descriptors::contains(descriptor) {
        return EBADF.set_errno();
    }
    // Remove the descriptor from the table before its number can be reused.
    catch_panic(
        || {
            if let Some(device) = descriptors::remove(descriptor) {
                let log = &driver::get().log;
                log.line(format_args!("{device} CLOSE descriptor={descriptor}"));
            }
        },
        (),
    );
    next!("close", fn(c_int) -> c_int, descriptor).unwrap_or(-1)
}

/// Closes the range, except for the emulation's own descriptors.
#[unsafe(no_mangle)]
extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let libc_close_range = |first, last| {
        next!("close_range", fn(c_uint, c_uint, c_int) -> c_int, first, last, flags)
            .unwrap_or_else(|| Errno(libc::ENOSYS).set_errno())
    };
    if first > last {
        return libc_close_range(first, last);
    }
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        catch_panic(|| descriptors::remove_within(first, last), ());
    }
    let mut start = first;
    for descriptor in own_descriptors::within(first as usize, last as usize) {
        let descriptor = descriptor as c_uint;
        if descriptor > start {
            let result = libc_close_range(start, descriptor - 1);
            if result < 0 {
                return result;
            }
        }
        start = descriptor + 1;
    }
    if start <= last { libc_close_range(start, last) } else { 0 }
}

#[unsafe(no_mangle)]
extern "C" fn closefrom(first: c_int) {
    close_range(first.max(0) as c_uint, c_uint::MAX, 0);
}
