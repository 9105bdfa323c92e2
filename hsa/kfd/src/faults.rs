//! Calls that are to fail although nothing is wrong with them.

use crate::errno::{Errno, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// A plan: `NAME=ERRNO` fails every call of that name, `NAME#N=ERRNO` the Nth, counted from 1.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    faults: Vec<Fault>,
}

#[derive(Debug)]
struct Fault {
    name: String,
    which: Option<u64>,
    error: Errno,
    seen: AtomicU64,
}

impl Faults {
    /// The plan, and the fields that are none.
    pub(crate) fn parse(text: &str) -> (Self, Vec<String>) {
        let (mut faults, mut wrong) = (Vec::new(), Vec::new());
        for field in text.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            match Fault::parse(field) {
                Some(fault) => faults.push(fault),
                None => wrong.push(field.to_owned()),
            }
        }
        (Self { faults }, wrong)
    }

    /// The error a call of that name is to fail with now.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        for fault in self.faults.iter().filter(|fault| fault.name == name) {
            let count = fault.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if fault.which.is_none_or(|which| which == count) {
                return Err(fault.error);
            }
        }
        Ok(())
    }
}

impl Fault {
    fn parse(field: &str) -> Option<Self> {
        let (call, error) = field.split_once('=')?;
        let error = Errno::named(error)?;
        let (name, which) = match call.split_once('#') {
            Some((name, which)) => (name, Some(which.parse().ok().filter(|which| *which > 0)?)),
            None => (call, None),
        };
        Some(Self { name: name.to_owned(), which, error, seen: AtomicU64::new(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::{EINVAL, ENOMEM};

    #[test]
    fn the_named_call_fails_and_no_other() {
        let (faults, wrong) = Faults::parse("GEM_VA#2=ENOMEM, FREE=EINVAL,GEM_VA#0=EIO,X");
        assert_eq!(wrong, ["GEM_VA#0=EIO", "X"]);
        let results = [Ok(()), Err(ENOMEM), Ok(())];
        assert_eq!([(); 3].map(|()| faults.check("GEM_VA")), results);
        assert_eq!(faults.check("FREE"), Err(EINVAL));
        assert_eq!(faults.check("MAP"), Ok(()));
    }
}
