//! `dup` and its variants, and `fcntl`, which can also duplicate descriptors.

use super::catch_panic;
use crate::errno::EBADF;
use crate::real::next;
use crate::{descriptors, own_descriptors};
use libc::{c_int, c_long};

/// Registers a new duplicate of a descriptor, if the descriptor is a device's. Returns the duplicate.
fn register(original: c_int, duplicate: c_int) -> c_int {
    catch_panic(|| descriptors::register_duplicate(original, duplicate), ());
    duplicate
}

#[unsafe(no_mangle)]
extern "C" fn dup(original: c_int) -> c_int {
    register(original, next!("dup", fn(c_int) -> c_int, original).unwrap_or(-1))
}

#[unsafe(no_mangle)]
extern "C" fn dup2(original: c_int, duplicate: c_int) -> c_int {
    if own_descriptors::contains(duplicate) {
        return EBADF.set_errno();
    }
    register(original, next!("dup2", fn(c_int, c_int) -> c_int, original, duplicate).unwrap_or(-1))
}

#[unsafe(no_mangle)]
extern "C" fn dup3(original: c_int, duplicate: c_int, flags: c_int) -> c_int {
    if own_descriptors::contains(duplicate) {
        return EBADF.set_errno();
    }
    let result =
        next!("dup3", fn(c_int, c_int, c_int) -> c_int, original, duplicate, flags).unwrap_or(-1);
    register(original, result)
}

/// Defines `fcntl` variants.
macro_rules! define_fcntl {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(descriptor: c_int, command: c_int, argument: c_long) -> c_int {
            let result = next!(
                $text, fn(c_int, c_int, c_long) -> c_int, descriptor, command, argument
            )
            .unwrap_or(-1);
            match command {
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => register(descriptor, result),
                _ => result,
            }
        }
    )*};
}

define_fcntl!(fcntl "fcntl", fcntl64 "fcntl64");
