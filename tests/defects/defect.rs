//! A defect, and how it is looked for on each release of AMD's runtime itself.

use crate::process::{End, in_child_with_status};
use hsa_rocr::test::{Ground as Fixture, on_each_release};
use hsa_rocr::{Emulation, Release};

/// What a release was found to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It does as documented.
    No,
    /// It has the defect.
    Yes,
    /// It crashes, by this signal.
    Crash(i32),
}

/// Something that AMD's runtime does wrong.
#[derive(Clone, Copy, Debug)]
pub struct Defect {
    /// What goes wrong.
    pub what: &'static str,
    /// Where that is known from, besides from these tests.
    pub source: &'static str,
    /// What comes of it through the library.
    pub here: &'static str,
    /// What 6.1.2, 6.4.3 and 7.2.4 do.
    pub releases: [Found; 3],
}

/// How a child ends that found the defect.
const SEEN: i32 = 3;

impl Defect {
    /// Looks for the defect on each release; fails unless it is exactly where the table says.
    pub fn is_as_recorded(&self, test: &str, look: impl Fn(&Fixture) -> bool) {
        on_each_release(test, &Emulation::gpus(2), |fixture| {
            let end = in_child_with_status(|| if look(fixture) { SEEN } else { 0 });
            let found = match end {
                End::Well => Found::No,
                End::Badly(SEEN) => Found::Yes,
                End::Signal(signal) => Found::Crash(signal),
                End::Badly(_) | End::Never => panic!("{self:?}: the test itself ended {end:?}"),
            };
            let release = fixture.release();
            assert_eq!(found, self.of(release), "{}, {release} ({})", self.what, self.source);
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
