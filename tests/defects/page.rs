//! Generates `docs/defects.md` from the tables of defects and quirks.

use crate::defect::Presence;
use crate::table;
use hsa_vmm::vmm::{Quirk, Quirks};
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/defects.md");

const HEAD: &str = "\
# What AMD's runtime does wrong, and what the library does about it

This page is generated from [`tests/defects/table.rs`](../tests/defects/table.rs) and
[`src/vmm/quirks.rs`](../src/vmm/quirks.rs). A test checks that it is up to date.

## Defects

For each row, a test shows which releases of AMD's own, unmodified runtime have the defect. The releases run over the
emulated kernel driver. If the library can prevent the defect, another test shows that the defect does not occur through
the library. To run all these tests: `cargo test -p hsa-vmm --test defects`. A source such as \"runtime.cpp\" is ROCr's
`core/runtime/runtime.cpp`; `#n` is an issue or pull request of ROCm/rocm-systems.

| what goes wrong | 6.1.2 | 6.4.3 | 7.2.4 | through the library | source |
|---|---|---|---|---|---|
";

const MIDDLE: &str = "
\"Cannot be prevented by the library\": the defect is in AMD's runtime or driver. The library does not cause the defect,
and cannot undo its effect.

## AMD's kernel driver

Five defects of amdgpu affect programs on AMD's runtime. A C program shows each defect, for a report to the driver's
developers. Each program makes few calls, links only libc, and names the kernel function in its first comment. The
emulated driver has one of the first three defects if `HSA_KFD` contains the setting in the table. A test runs the
programs on AMD's runtime over the emulated driver, with and without these settings.

Each program also showed its defect in the virtual machine, on AMD's own amdgpu (Debian's 6.12.117) with ROCr 6.4.3. The
command was `hsa-vmm vm --gpus 1 --rocr 6.4.3 -- ./no_flush`; `early_return` also needs
`--parameter amdgpu.vm_update_mode=0 --parameter hsa_vmm.pte_delay=100`. `hsa-vmm fuzz` and `hsa-vmm stress` found the
last two defects in the virtual machine. `shared_gem_handle` also showed its defect with ROCr 6.1.2 and 7.2.4, and
`foreign_gem_handle` with 7.2.4. With 6.1.2, `foreign_gem_handle` showed only that one process can no longer map
its own memory after the other process has freed the shared memory.

| what goes wrong | program | emulated by | through the library |
|---|---|---|---|
| after an unmap, a GPU can still use the memory: nothing flushes the GPU's TLB | [no_flush.c](kernel/no_flush.c) | `tlb=on` | prevented with `VmmOptions::with_barrier` or `with_page_tables` |
| after a grant, a GPU's access faults: the driver writes the page-table entries later | [early_return.c](kernel/early_return.c) | `pte_delay=100ms` | prevented with `VmmOptions::with_barrier` or `with_page_tables` |
| after a part of a mapping was removed, unmapping the other part leaves its page-table entries: a GPU can use freed memory | [forgotten_entries.c](kernel/forgotten_entries.c) | `split_bug=on` | prevented: the library replaces or removes only whole mappings |
| after imported memory was released, a process can no longer export or map some memory that it allocates later | [shared_gem_handle.c](kernel/shared_gem_handle.c) | nothing | not prevented |
| after two processes have shared memory, one process can read memory that the other has not shared | [foreign_gem_handle.c](kernel/foreign_gem_handle.c) | nothing | not prevented |

## Quirks

Each quirk is a defect that the library works around. The runtime's implementation and version decide which quirks the
library expects; `hsa-vmm info` shows implementation, version and quirks. For AMD's ROCr, the version is that of its AMD
extension: ROCm 6.1 has 1.4, 6.4 has 1.7, 7.2 has 1.15. AMD's second runtime, `libhsa` on rocddi (rocm-systems#12228),
reports 1.33 and has two of these quirks.

The last column says what the library does if the runtime is neither ROCr nor rocddi:

* \"probe\": when a `Vmm` opens, a probe looks for the quirk by harmless calls, also on known runtimes. The probe's
  result overrides the version. The exception is `cpu_unmap_leaves_hole`: if the version has this quirk, the probe cannot
  exclude it. All probes together make at most 20 calls, once for each runtime. Probes use only memory that they
  allocate, and copy nothing. The library logs each result that differs from what the version suggests;
  `hsa-vmm info` and the reports of `hsa-vmm conform` show these results. `VmmOptions::with_probing` can switch the
  probes off.

  If no probe decides, for example because a call failed or the probes are off, the library uses the workaround. An
  unneeded workaround can leak descriptors or quarantine addresses (`Quirks`).

  The probe for `peer_after_owner_fails` can find the defect, but cannot exclude it: a grant that succeeds may still
  corrupt the mapping. If the probe finds nothing, the version decides, and an unknown runtime counts as free of it. No
  probe checks whether exported descriptors are close-on-exec, because the library always makes them close-on-exec.
* \"on\": the library always uses the workaround. A probe could crash the process, and the workaround is harmless on a
  correct runtime.

A vendor's build may lack a fix. A program can switch on more workarounds by `VmmOptions::with_quirks` with
`Vmm::open_with`, and by `Ipc::with_quirks`.

| quirk | ROCr | rocddi | defect and workaround | public report | if unknown |
|---|---|---|---|---|---|
";

fn presence_text(presence: Presence) -> String {
    match presence {
        Presence::No => String::new(),
        Presence::Yes => "yes".to_owned(),
        Presence::Crash(signals) => {
            let names: Vec<_> = signals.iter().copied().map(signal_name).collect();
            names.join(" or ")
        }
        Presence::Undefined => "yes, may crash".to_owned(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGABRT => "SIGABRT",
        _ => panic!("no name for signal {signal}"),
    }
}

/// Returns text for a cell of a table, without links to other items' documentation.
fn without_links(text: &str) -> String {
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some((before, rest)) = words.split_once("](crate::") {
        let (_, after) = rest.split_once(')').expect("a link ends");
        let open = before.rfind('[').expect("a link begins");
        words = format!("{}{}{after}", &before[..open], &before[open + 1..]);
    }
    words
}

fn versions(quirk: &Quirk) -> String {
    match (*quirk.rocr.start(), *quirk.rocr.end()) {
        (first, u16::MAX) => format!("from 1.{first}"),
        (0, last) => format!("to 1.{last}"),
        (first, last) => format!("1.{first} to 1.{last}"),
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut line = |text: String| writeln!(page, "{text}").expect("writing to a string succeeds");
    for defect in table::ALL {
        let [first, second, third] = defect.releases.map(presence_text);
        let (description, library, source) = (defect.description, defect.library, defect.source);
        line(format!("| {description} | {first} | {second} | {third} | {library} | {source} |"));
    }
    line(MIDDLE.trim_end().to_owned());
    for quirk in Quirks::KNOWN {
        let (name, description, versions) =
            (quirk.name, without_links(quirk.description), versions(quirk));
        let rocddi = if quirk.rocddi { "yes" } else { "" };
        let if_unknown = match (quirk.probed, quirk.if_unknown) {
            (true, _) => "probe",
            (false, true) => "on",
            (false, false) => {
                panic!("{name}: docs/defects.md does not say what is done on an unknown runtime")
            }
        };
        let issue = quirk.issue;
        line(format!(
            "| `{name}` | {versions} | {rocddi} | {description} | {issue} | {if_unknown} |"
        ));
    }
    page
}

#[test]
fn page_is_up_to_date() {
    let page = page();
    if std::env::var_os("HSA_VMM_WRITE_PAGES").is_some() {
        std::fs::write(PAGE, &page).expect("a page");
    }
    let current = std::fs::read_to_string(PAGE).expect("docs/defects.md");
    assert!(current == page, "docs/defects.md is outdated; HSA_VMM_WRITE_PAGES=1 regenerates it");
}

#[test]
fn rows_name_existing_quirks() {
    for defect in table::ALL {
        let after_quirk = defect.library.split_once("quirk").map_or("", |(_, after)| after);
        for name in after_quirk.split('`').skip(1).step_by(2) {
            assert!(Quirks::KNOWN.iter().any(|quirk| quirk.name == name), "{name}");
        }
        assert!(
            !defect.library.is_empty() && !defect.library.contains('|'),
            "{}",
            defect.description
        );
    }
}
