//! What could not be cleaned up, and is therefore never used again.

use crate::error::Quarantined;
use crate::sync::{Mutex, lock};

#[derive(Debug, Default)]
pub(super) struct Quarantine(Mutex<Vec<Quarantined>>);

impl Quarantine {
    pub fn add(&self, entry: Quarantined) {
        lock(&self.0).push(entry);
    }

    pub fn list(&self) -> Vec<Quarantined> {
        lock(&self.0).clone()
    }
}
