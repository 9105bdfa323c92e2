//! The cases, a file an area.

mod access;
mod access_refused;
mod create;
mod granularity;
mod hip;
mod map;
mod map_refused;
mod pool;
mod properties;
mod release;
mod reserve;
mod retain;
mod revoke;
mod runtime;
mod share;
mod unmap;

use crate::Case;

/// All cases, in the order of the areas.
#[must_use]
pub fn cases() -> Vec<&'static Case> {
    [
        runtime::CASES,
        pool::CASES,
        granularity::CASES,
        reserve::CASES,
        create::CASES,
        map::CASES,
        map_refused::CASES,
        access::CASES,
        access_refused::CASES,
        revoke::CASES,
        unmap::CASES,
        release::CASES,
        retain::CASES,
        properties::CASES,
        share::CASES,
        hip::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}
