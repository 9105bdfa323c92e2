//! Generates and checks the page `docs/calls.md`, which describes HIP's calls. The sources of the page are the
//! library's documentation, the library's table of errors, and the conformance cases.

mod peer;

use hsa_vmm::Runtime;
use hsa_vmm::hip::{HipError, HipProfile};
use hsa_vmm::simulation::{Config, Generation};
use hsa_vmm_conformance::{Options, cases, run};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

const HEAD: &str = "\
# HIP's calls in this library and on HSA, and their errors

This page is generated from the documentation of the library's modules, the library's table of errors
([`src/error/hip.rs`](../src/error/hip.rs)) and a run of the conformance cases. A test checks that it is
up to date. C programs use the names of the first column ([`capi`](../capi/README.md)).

";

const ERRORS: &str = "
## Errors

`Error::hip(profile)` returns the error that HIP's documents define for the library's error in that profile. For
failures for which HIP documents no error, it returns `hipErrorOperatingSystem` or `hipErrorUnknown`. The profile is
`HipProfile::Hip7` unless `VmmOptions::with_profile`, `--profile` or `HSA_VMM_PROFILE` sets another profile. In a row with the same error in both columns, HIP 6 and HIP 7 agree.

| what went wrong | HIP 6 | HIP 7 |
|---|---|---|
";

const REJECTIONS: &str = "
## Tested errors

The table lists the conformance cases in which a call is rejected, with the error that each profile requires. The
library returned these errors in a run on the simulation. A case can also contain calls that succeed, and its expected
behaviour can describe these calls. The error is always that of the rejected call. `hsa-vmm conform --list` names the
source of each case.

| case | expected behaviour | HIP 6 | HIP 7 |
|---|---|---|---|
";

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The modules whose documentation has a table of calls, with their titles.
const MODULES: [(&str, &str); 4] = [
    ("src/vmm/mod.rs", "Virtual memory: `hsa_vmm::vmm`"),
    ("src/memory/mod.rs", "Memory of pools: `hsa_vmm::memory`"),
    ("src/ipc/mod.rs", "Between processes: `hsa_vmm::ipc`"),
    ("src/area/mod.rs", "Areas: `hsa_vmm::area`"),
];

/// Returns the rows of the tables of HIP's calls in a module's documentation, including the heading rows.
fn call_rows(file: &str) -> Vec<String> {
    let text = read(file);
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! | "));
    let mut rows = Vec::new();
    let mut in_table = false;
    for line in lines {
        let names_calls = line.starts_with("HIP |") || line.contains("| HIP |");
        in_table = names_calls || (in_table && !line.starts_with("flags"));
        if names_calls {
            let columns = line.matches('|').count();
            rows.push(format!("| {line}"));
            rows.push(format!("|{}", "---|".repeat(columns)));
        } else if in_table {
            rows.push(without_links(&format!("| {line}")));
        }
    }
    assert!(rows.len() > 2, "{file} has no table of calls");
    rows
}

/// Removes links such as `[`Vmm::map`]` and `[`write`](PoolMemory::write)`, which work only in
/// rustdoc.
fn without_links(row: &str) -> String {
    let mut plain = String::new();
    let mut rest = row;
    while let Some((before, after)) = rest.split_once("[`") {
        let (name, after) = after.split_once("`]").expect("a link ends");
        write!(plain, "{before}`{name}`").expect("writing to a string cannot fail");
        rest = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').expect("a target ends").1,
            None => after,
        };
    }
    plain + rest
}

/// Returns the rows of the table in the documentation of `Error::hip`.
fn error_rows() -> Vec<String> {
    let text = read("src/error/hip.rs");
    let (_, table) =
        text.split_once("HIP 7 |\n    /// |---|---|---|\n").expect("the table of errors");
    let rows = table.lines().map_while(|line| line.trim_start().strip_prefix("/// | "));
    rows.map(|row| format!("| {row}")).collect()
}

/// Returns the name of each case, and the different errors that the case's calls returned.
fn rejections(profile: HipProfile) -> Vec<(String, Vec<HipError>)> {
    let runtime = Runtime::simulated(Config::mi300x(2).with_generation(Generation::B))
        .expect("the simulation starts");
    let peer = peer::peer_command(peer::PeerRuntime::Simulation);
    let options = Options { profile, count_descriptors: false, peer, ..Options::default() };
    let report = run(&runtime, &options, &mut |_| ());
    let unique = |errors: Vec<HipError>| {
        let mut returned = BTreeSet::new();
        errors.into_iter().filter(|error| returned.insert(error.code())).collect()
    };
    report.cases.into_iter().map(|case| (case.name, unique(case.expected_errors))).collect()
}

fn names(errors: &[HipError]) -> String {
    errors.iter().map(|error| format!("`{}`", error.name())).collect::<Vec<_>>().join(", ")
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut line = |text: &str| writeln!(page, "{text}").expect("writing to a string cannot fail");
    for (index, (file, title)) in MODULES.into_iter().enumerate() {
        line(&format!("{}## {title}\n", if index > 0 { "\n" } else { "" }));
        for row in call_rows(file) {
            line(&row);
        }
    }
    line(ERRORS.trim_end());
    for row in error_rows() {
        line(&row);
    }
    line(REJECTIONS.trim_end());
    let all_cases = cases();
    let [hip6, hip7] = [HipProfile::Hip6, HipProfile::Hip7].map(rejections);
    for ((name, hip6), (other_name, hip7)) in hip6.into_iter().zip(hip7) {
        assert_eq!(name, other_name);
        if hip6.is_empty() && hip7.is_empty() {
            continue;
        }
        let case = all_cases.iter().find(|case| case.name == name).expect("the case's description");
        let what = case.about.replace('|', "\\|");
        line(&format!("| `{name}` | {what} | {} | {} |", names(&hip6), names(&hip7)));
    }
    page
}

#[test]
fn page_matches_the_code() {
    let (page, file) = (page(), root().join("docs/calls.md"));
    if std::env::var_os("HSA_VMM_WRITE_PAGES").is_some() {
        std::fs::write(&file, &page).expect("docs/calls.md can be written");
    }
    let written = std::fs::read_to_string(&file).expect("docs/calls.md");
    assert!(written == page, "docs/calls.md is outdated; HSA_VMM_WRITE_PAGES=1 regenerates it");
}

/// Returns the words in backticks in the tables of a text.
fn backticked(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns the text of the headers that declare HIP's functions.
fn hip_headers() -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/include/hip/hsavmm");
    let parts = std::fs::read_dir(folder).unwrap();
    let parts = parts.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    read("capi/include/hip/hip_runtime_api.h") + &parts.collect::<String>()
}

#[test]
fn page_names_existing_items() {
    let page = page();
    let hip = hip_headers();
    let hsa = read("hsa/sys/include/hsa_abi.h");
    let mut count = 0;
    for name in backticked(&page) {
        // `hsa_amd_vmem_unmap` is a name of HSA, and `hipMemUnmap` is a name of HIP.
        let header = match name {
            _ if name.starts_with("hsa_amd") => &hsa,
            _ if name.starts_with("hipMem") || name.starts_with("hipIpc") => &hip,
            _ => continue,
        };
        assert!(header.contains(name), "{name} is in no header");
        count += 1;
    }
    assert!(count > 50, "{count} names");
}

#[test]
fn page_contains_all_calls() {
    let page: String = MODULES.iter().flat_map(|(file, _)| call_rows(file)).collect();
    let header = hip_headers();
    // A name before a parenthesis is a function.
    let functions = header
        .split('(')
        .filter_map(|before| before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next());
    let starts = [
        "hipMemAddress",
        "hipMemCreate",
        "hipMemMap",
        "hipIpcGetMem",
        "hipIpcOpenMem",
        "hipIpcCloseMem",
        "hipMemRe",
        "hipMemUnmap",
    ];
    let calls: BTreeSet<_> =
        functions.filter(|name| starts.iter().any(|start| name.starts_with(start))).collect();
    assert!(calls.len() > 8, "{calls:?}");
    for call in calls {
        assert!(page.contains(call), "{call} is not on the page");
    }
}
