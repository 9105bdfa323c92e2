//! `opendir`, `readdir` and `closedir`. They read driver folders from the tree (the folder that `sysfs` writes), and
//! omit the emulation's descriptors from lists of descriptors.

use super::{catch_panic, descriptor_streams, tree_path};
use crate::own_descriptors;
use crate::real::next;
use libc::{DIR, c_char, c_int, dirent};
use std::ffi::CStr;

#[unsafe(no_mangle)]
extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let redirected = tree_path(path);
    let path = redirected.as_ref().map_or(path, |redirected| redirected.as_ptr());
    let stream =
        next!("opendir", fn(*const c_char) -> *mut DIR, path).unwrap_or(std::ptr::null_mut());
    if !stream.is_null() && descriptor_streams::is_descriptor_list(path) {
        catch_panic(|| descriptor_streams::insert(stream), ());
    }
    stream
}

#[unsafe(no_mangle)]
extern "C" fn closedir(stream: *mut DIR) -> c_int {
    catch_panic(|| descriptor_streams::remove(stream), ());
    next!("closedir", fn(*mut DIR) -> c_int, stream).unwrap_or(-1)
}

/// Returns whether an entry names a descriptor of the emulation.
fn is_own(entry: *mut dirent) -> bool {
    // SAFETY: libc returned the entry, whose name ends with a zero.
    let name = unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) };
    name.to_str().ok().and_then(|name| name.parse().ok()).is_some_and(own_descriptors::contains)
}

/// Defines `readdir` variants, which are equal on 64-bit machines.
macro_rules! define_readdir {
    ($($name:ident $text:literal),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(stream: *mut DIR) -> *mut dirent {
            let filtered = catch_panic(|| descriptor_streams::contains(stream), false);
            loop {
                let entry = next!($text, fn(*mut DIR) -> *mut dirent, stream)
                    .unwrap_or(std::ptr::null_mut());
                if entry.is_null() || !filtered || !is_own(entry) {
                    return entry;
                }
            }
        }
    )*};
}

define_readdir!(readdir "readdir", readdir64 "readdir64");
