//! Calls that are to fail, or to take long, although nothing is wrong with them.

use crate::errno::{Errno, Result};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A plan: `NAME=ERRNO` fails every call of that name and `NAME=5ms` delays it; `NAME#3` is the
/// third such call alone, `NAME#3-5` the third to the fifth.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    faults: Vec<Fault>,
}

#[derive(Debug)]
struct Fault {
    name: String,
    which: RangeInclusive<u64>,
    effect: Effect,
    seen: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Fails(Errno),
    Takes(Duration),
}

impl Faults {
    /// The plan, if each of its fields is one and names a call that `is_call` knows.
    pub(crate) fn parse(
        text: &str,
        is_call: impl Fn(&str) -> bool,
    ) -> std::result::Result<Self, String> {
        let fields = text.split(',').map(str::trim).filter(|field| !field.is_empty());
        let faults = fields
            .map(|field| Fault::parse(field, &is_call))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Self { faults })
    }

    /// What is planned for a call of that name now: it has waited when this returns.
    pub(crate) fn meet(&self, name: &str) -> Result<()> {
        let (time, result) = self.next(name);
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        result
    }

    /// Counts a call: how long it is to take, and what is to come of it.
    fn next(&self, name: &str) -> (Duration, Result<()>) {
        let (mut time, mut result) = (Duration::ZERO, Ok(()));
        for fault in self.faults.iter().filter(|fault| fault.name == name) {
            let count = fault.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if !fault.which.contains(&count) {
                continue;
            }
            match fault.effect {
                Effect::Fails(error) => result = result.and(Err(error)),
                Effect::Takes(more) => time += more,
            }
        }
        (time, result)
    }
}

impl Fault {
    fn parse(field: &str, is_call: impl Fn(&str) -> bool) -> std::result::Result<Self, String> {
        let wrong = |what: &str| format!("{field:?}: {what}");
        let (call, effect) =
            field.split_once('=').ok_or_else(|| wrong("NAME=ERRNO or NAME=TIME is wanted"))?;
        let (name, which) = match call.split_once('#') {
            Some((name, which)) => (
                name,
                range(which).ok_or_else(|| wrong("the calls are counted from 1: #N or #N-M"))?,
            ),
            None => (call, 1..=u64::MAX),
        };
        if !is_call(name) {
            return Err(wrong("no call that is emulated has this name"));
        }
        let effect =
            Errno::named(effect).map(Effect::Fails).or_else(|| time(effect).map(Effect::Takes));
        let effect =
            effect.ok_or_else(|| wrong("neither an error as ENOMEM nor a time as 20us"))?;
        Ok(Self { name: name.to_owned(), which, effect, seen: AtomicU64::new(0) })
    }
}

fn range(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok()?..=last.parse().ok()?;
    (*range.start() > 0 && !range.is_empty()).then_some(range)
}

fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::{EINVAL, EIO, ENOMEM};

    fn parse(text: &str) -> std::result::Result<Faults, String> {
        Faults::parse(text, |name| ["GEM_VA", "FREE"].contains(&name))
    }

    #[test]
    fn the_named_call_fails_and_no_other() {
        let faults = parse("GEM_VA#2=ENOMEM, FREE=EINVAL").unwrap();
        let results = [Ok(()), Err(ENOMEM), Ok(())];
        assert_eq!([(); 3].map(|()| faults.meet("GEM_VA")), results);
        assert_eq!(faults.meet("FREE"), Err(EINVAL));
        assert_eq!(faults.meet("MAP"), Ok(()));
    }

    #[test]
    fn each_field_counts_for_itself() {
        let faults = parse("GEM_VA#1-2=EIO,GEM_VA#2-3=ENOMEM").unwrap();
        let results = [Err(EIO), Err(EIO), Err(ENOMEM), Ok(())];
        assert_eq!([(); 4].map(|()| faults.meet("GEM_VA")), results);
    }

    #[test]
    fn a_call_takes_as_long_as_planned() {
        let faults = parse("FREE#2=20ms,FREE#2-3=5us").unwrap();
        let times = [0, 20_005, 5, 0].map(Duration::from_micros);
        assert_eq!([(); 4].map(|()| faults.next("FREE").0), times);
    }

    #[test]
    fn what_is_no_plan_is_refused_by_name() {
        for field in [
            "GEM_VA#0=EIO",
            "X",
            "X=EIO",
            "FREE=EWHAT",
            "FREE#5-3=EIO",
            "FREE=5",
            "FREE=us",
            "FREE#=EIO",
        ] {
            let error = parse(&format!("GEM_VA=EIO,{field}")).unwrap_err();
            assert!(error.contains(&format!("{field:?}")), "{error}");
        }
    }
}
