//! The two ways to wait until changes of page tables have taken effect.

use crate::native::{Barrier, Failure, Native, NativeAgent, Unavailable};
use crate::sync::{Mutex, lock};

/// Waits until all earlier changes of GPUs' page tables have taken effect.
#[derive(Debug)]
pub(super) enum GpuBarrier {
    /// One system call on `/dev/kfd`.
    Driver(Barrier),
    /// If `/dev/kfd` cannot be used: the runtime locks and unlocks a page of this process.
    Runtime(LockedPage),
}

/// Why waiting failed.
pub(super) enum NotWaited {
    Driver(Unavailable),
    Runtime(Failure),
}

impl GpuBarrier {
    pub fn wait(&self, native: &Native) -> Result<(), NotWaited> {
        match self {
            Self::Driver(barrier) => barrier.wait().map_err(NotWaited::Driver),
            Self::Runtime(page) => page.wait(native).map_err(NotWaited::Runtime),
        }
    }
}

/// A page of system memory that each wait locks and unlocks. Nothing else uses it.
#[derive(Debug)]
pub(super) struct LockedPage {
    page: Mutex<Box<Page>>,
    gpus: Vec<NativeAgent>,
}

#[derive(Debug)]
#[repr(align(4096))]
struct Page([u8; 4096]);

impl LockedPage {
    /// Creates the page, and waits once. Fails if the runtime cannot lock memory.
    pub fn new(native: &Native, gpus: Vec<NativeAgent>) -> Result<Self, Failure> {
        let page = Self { page: Mutex::new(Box::new(Page([0; 4096]))), gpus };
        page.wait(native)?;
        Ok(page)
    }

    /// Waits by locking the page. A page that cannot be unlocked is leaked: locking it again would only count
    /// another lock, and not wait.
    fn wait(&self, native: &Native) -> Result<(), Failure> {
        let mut page = lock(&self.page);
        let start = page.0.as_ptr().expose_provenance();
        // SAFETY: the page stays allocated until it is unlocked, and nothing else locks it.
        unsafe { native.lock(start, page.0.len(), &self.gpus) }?;
        // SAFETY: it was just locked, and no GPU has been given its address.
        if let Err(Failure { call, status }) = unsafe { native.unlock(start) } {
            crate::log::event!(WARN, call, %status, "a page of this process stays locked");
            std::mem::forget(std::mem::replace(&mut *page, Box::new(Page([0; 4096]))));
        }
        Ok(())
    }
}
