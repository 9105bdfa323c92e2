//! State that layers above keep with a runtime.

use super::Runtime;
use crate::native::Native;
use crate::sync::{Mutex, lock};
use core::any::{Any, TypeId};
use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// State that a layer above keeps once for each runtime, such as its list of pool memory.
pub(crate) trait Attachment: Any + Send + Sync {
    /// Cleans up before the runtime stops. Not called in a child of a fork.
    fn close(&self, _native: &Native) {}
}

/// The state of all layers above, by its type.
#[derive(Default)]
pub(super) struct Attachments(Mutex<BTreeMap<TypeId, Arc<dyn Attachment>>>);

impl Attachments {
    pub fn close(&self, native: &Native) {
        let all: Vec<_> = lock(&self.0).values().cloned().collect();
        all.iter().for_each(|state| state.close(native));
    }
}

impl fmt::Debug for Attachments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attachments")
    }
}

impl Runtime {
    /// Returns this runtime's state of a type, which is created by the first call.
    pub(crate) fn attachment<T: Attachment + Default>(&self) -> Arc<T> {
        let mut all = lock(&self.inner.attachments.0);
        let state = all.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        let state: Arc<dyn Any + Send + Sync> = state.clone();
        // The key is the type, so that the cast cannot fail.
        state.downcast().unwrap_or_default()
    }
}
