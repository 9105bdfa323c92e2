//! The cases, one file for each subject.
//!
//! The source of a case consists of one or more of these forms, separated by semicolons:
//!
//! * `HIP: FUNCTION` is HIP's documentation of a function.
//! * `hip-tests: TEST` is a test of hip-tests.
//! * `recorded: cuda_h200_edges NAME` is a line of `data/cuda_h200_edges.tsv`.
//! * `reference 6.2 #19` is row 19 of the table of edge cases in `tests/edges`.
//! * `invariant 5` is a row of the table in `src/vmm/ledger/check.rs`.
//! * `documentation: ITEM` is the documentation of an item of the library.
//! * `decision: RULE` is a decision of this project.
//! * Any other source names a document, program or issue: `HSA: hsa_amd_memory_fill`, `rocm-systems#9908`.

mod access;
mod access_pairs;
mod access_rejected;
mod access_use;
mod area;
mod area_rejected;
mod buffer_growable;
mod buffer_paged;
mod buffer_pausable;
mod buffer_ring;
mod create;
mod enforced;
mod export;
mod granularity;
mod hip;
mod hip_codes;
mod host;
mod import;
mod ipc;
mod ipc_two;
mod kernel_state;
mod map;
mod map_rejected;
mod pool;
mod pool_memory;
mod properties;
mod range;
mod release;
mod reserve;
mod retain;
mod retire;
mod revoke;
mod runtime;
mod sharing;
mod unmap;

use crate::Case;
use std::sync::LazyLock;

/// Returns all cases, grouped by area.
#[must_use]
pub fn cases() -> Vec<&'static Case> {
    static CASES: LazyLock<Vec<&'static Case>> = LazyLock::new(sorted_cases);
    CASES.clone()
}

fn sorted_cases() -> Vec<&'static Case> {
    let mut cases: Vec<&Case> = [
        runtime::CASES,
        pool::CASES,
        pool_memory::CASES,
        granularity::CASES,
        reserve::CASES,
        create::CASES,
        map::CASES,
        map_rejected::CASES,
        access::CASES,
        access_use::CASES,
        access_rejected::CASES,
        revoke::CASES,
        access_pairs::CASES,
        enforced::CASES,
        unmap::CASES,
        release::CASES,
        retain::CASES,
        properties::CASES,
        export::CASES,
        import::CASES,
        range::CASES,
        host::CASES,
        access_pairs::EXPORT_CASES,
        ipc::CASES,
        ipc_two::CASES,
        area::CASES,
        area_rejected::CASES,
        kernel_state::CASES,
        buffer_growable::CASES,
        buffer_ring::CASES,
        buffer_paged::CASES,
        buffer_pausable::CASES,
        retire::CASES,
        hip::CASES,
        hip_codes::CASES,
    ]
    .into_iter()
    .flatten()
    .collect();
    // Some files contain cases of several areas; an area is the first word of a name.
    let mut areas: Vec<&str> = Vec::new();
    for case in &cases {
        if !areas.contains(&case.area()) {
            areas.push(case.area());
        }
    }
    cases.sort_by_key(|case| areas.iter().position(|area| *area == case.area()));
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn cases_are_grouped_by_area() {
        let cases = super::cases();
        let groups: Vec<_> = cases.chunk_by(|case, next| case.area() == next.area()).collect();
        let areas: BTreeSet<_> = groups.iter().map(|group| group[0].area()).collect();
        assert_eq!(areas.len(), groups.len());
    }
}
