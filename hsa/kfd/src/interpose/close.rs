//! `close`.

use super::guarded;
use crate::descriptors;
use crate::real::next;
use libc::c_int;

#[unsafe(no_mangle)]
extern "C" fn close(descriptor: c_int) -> c_int {
    // Before the number can name something else.
    guarded(|| drop(descriptors::remove(descriptor)), ());
    next!("close", fn(c_int) -> c_int, descriptor).unwrap_or(-1)
}
