//! A defect, and its check on each release of AMD's runtime.

use crate::process::{End, in_child_with_status};
use hsa_rocr::test::{Fixture, run_on_releases};
use hsa_rocr::{Emulation, Release};

/// Whether a release has the defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The release behaves as documented.
    No,
    /// The release has the defect.
    Yes,
    /// The release crashes with one of these signals.
    Crash(&'static [i32]),
    /// The release has the defect, which damages the process: later behaviour varies, and may be a crash.
    Undefined,
}

/// A defect of AMD's runtime.
#[derive(Clone, Copy, Debug)]
pub struct Defect {
    pub description: &'static str,
    /// Where the defect was found: AMD's source file, an issue or an observation.
    pub source: &'static str,
    /// The behaviour through the library.
    pub library: &'static str,
    /// The behaviour of 6.1.2, 6.4.3 and 7.2.4.
    pub releases: [Presence; 3],
}

/// The status of a child in which the defect occurred.
const DEFECT_SHOWN: i32 = 3;

impl Defect {
    /// Checks the defect on each release. Fails unless the result is the one in the table.
    pub fn check_on_each_release(&self, test: &str, shows_defect: impl Fn(&Fixture) -> bool) {
        run_on_releases(test, &Emulation::with_gpus(2), |fixture| {
            let end = in_child_with_status(|| if shows_defect(fixture) { DEFECT_SHOWN } else { 0 });
            let release = fixture.release();
            let recorded = self.presence_in(release);
            let is_as_recorded = match (recorded, &end) {
                (_, End::Failure(status)) if *status != DEFECT_SHOWN => {
                    panic!("{self:?}: the test itself failed: {end:?}")
                }
                (_, End::TimedOut) => panic!("{self:?}: the test itself did not end"),
                (Presence::No, end) => *end == End::Success,
                (Presence::Yes, end) => *end == End::Failure(DEFECT_SHOWN),
                (Presence::Crash(signals), End::Signal(signal)) => signals.contains(signal),
                (Presence::Crash(_), _) => false,
                (Presence::Undefined, end) => *end != End::Success,
            };
            assert!(
                is_as_recorded,
                "{}, {release} ({}): recorded {recorded:?}, but the child ended with {end:?}",
                self.description, self.source
            );
        });
    }

    fn presence_in(&self, release: Release) -> Presence {
        let [first, second, third] = self.releases;
        match release {
            Release::R6_1_2 => first,
            Release::R6_4_3 => second,
            Release::R7_2_4 => third,
            release => panic!("{}: no behaviour of {release} is recorded", self.description),
        }
    }
}
