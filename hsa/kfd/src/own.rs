//! Which descriptors are the emulation's own. A driver's memory takes none of a process, so
//! these are kept out of its sight: they are not listed, and it cannot close them.

use libc::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Descriptors from here up are not told from the program's.
const MOST: usize = 1 << 16;

static OWN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

fn flag(descriptor: c_int) -> Option<&'static AtomicBool> {
    OWN.get(usize::try_from(descriptor).ok()?)
}

pub(crate) fn set(descriptor: c_int, own: bool) {
    if let Some(flag) = flag(descriptor) {
        flag.store(own, Ordering::Release);
    }
}

pub(crate) fn is(descriptor: c_int) -> bool {
    flag(descriptor).is_some_and(|flag| flag.load(Ordering::Acquire))
}
