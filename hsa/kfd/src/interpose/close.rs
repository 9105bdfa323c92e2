//! `close`.

use super::guarded;
use crate::errno::EBADF;
use crate::real::next;
use crate::{descriptors, own};
use libc::c_int;

#[unsafe(no_mangle)]
extern "C" fn close(descriptor: c_int) -> c_int {
    if own::is(descriptor) {
        return EBADF.leave();
    }
    // Before the number can name something else.
    guarded(|| drop(descriptors::remove(descriptor)), ());
    next!("close", fn(c_int) -> c_int, descriptor).unwrap_or(-1)
}
