//! A defect, and its check on each release of AMD's runtime.

use crate::process::{End, in_child_with_status};
use hsa_rocr::test::{Fixture, on_each_release};
use hsa_rocr::{Emulation, Release};

/// The behaviour of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// As documented.
    No,
    /// It has the defect.
    Yes,
    /// It crashes with this signal.
    Crash(i32),
    /// It has the defect, and damages the process: what happens next varies, a crash included.
    Undefined,
}

/// A defect of AMD's runtime.
#[derive(Clone, Copy, Debug)]
pub struct Defect {
    /// What goes wrong.
    pub what: &'static str,
    /// The source, besides these tests.
    pub source: &'static str,
    /// The behaviour through the library.
    pub here: &'static str,
    /// The behaviour of 6.1.2, 6.4.3 and 7.2.4.
    pub releases: [Found; 3],
}

/// The status of a child that found the defect.
const SEEN: i32 = 3;

impl Defect {
    /// Checks the defect on each release. Fails unless the result is the one in the table.
    pub fn is_as_recorded(&self, test: &str, look: impl Fn(&Fixture) -> bool) {
        on_each_release(test, &Emulation::gpus(2), |fixture| {
            let end = in_child_with_status(|| if look(fixture) { SEEN } else { 0 });
            let found = match end {
                End::Success => Found::No,
                End::Failure(SEEN) => Found::Yes,
                End::Signal(signal) => Found::Crash(signal),
                End::Failure(_) | End::TimedOut => {
                    panic!("{self:?}: the test itself ended {end:?}")
                }
            };
            let release = fixture.release();
            let recorded = match (self.of(release), found) {
                (Found::Undefined, Found::Yes | Found::Crash(_)) => found,
                (recorded, _) => recorded,
            };
            assert_eq!(found, recorded, "{}, {release} ({})", self.what, self.source);
        });
    }

    fn of(&self, release: Release) -> Found {
        let [first, second, third] = self.releases;
        match release {
            Release::R6_1_2 => first,
            Release::R6_4_3 => second,
            Release::R7_2_4 => third,
            other => panic!("{}: what {other} does is not written down", self.what),
        }
    }
}
