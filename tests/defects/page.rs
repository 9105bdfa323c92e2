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

Each row has a test that shows on each release of AMD's own, unmodified runtime, over the emulated kernel
driver, whether the defect is present. Another test shows that the defect does not occur through the
library, where the library can prevent it. To run them all: `cargo test -p hsa-vmm --test defects`. A source such as \"runtime.cpp\" is
ROCr's `core/runtime/runtime.cpp`; `#n` is an issue or pull request of ROCm/rocm-systems.

| what goes wrong | 6.1.2 | 6.4.3 | 7.2.4 | through the library | source |
|---|---|---|---|---|---|
";

const MIDDLE: &str = "
\"Cannot be prevented by the library\": the defect is in AMD's runtime or driver, and the library neither
causes it nor can undo it.

## AMD's kernel driver

Five defects of amdgpu affect programs on AMD's runtime. For each, there is a C program for a report to the driver's
developers. It makes few calls and links only libc; its first comment names the kernel function. The emulated driver
models the first three defects with the setting of `HSA_KFD` in the table. A test runs their programs with and without
the setting on AMD's runtime. Each program also showed its defect on AMD's own amdgpu (Debian's 6.12.117) in the virtual
machine, with ROCr 6.4.3. The command was `hsa-vmm vm --gpus 1 --rocr 6.4.3 -- ./no_flush`; `early_return` also needs
`--parameter amdgpu.vm_update_mode=0 --parameter hsa_vmm.pte_delay=100`. `hsa-vmm fuzz` and `stress` found the last two
defects there. `shared_gem_handle` showed its defect also with 6.1.2 and 7.2.4, `foreign_gem_handle` also with 7.2.4.
With 6.1.2, `foreign_gem_handle` showed only that memory of another process can no longer be mapped.

| what goes wrong | program | emulated by | through the library |
|---|---|---|---|
| after an unmap, a GPU can still use the memory: nothing flushes its TLB | [no_flush.c](kernel/no_flush.c) | `tlb=on` | prevented with `VmmOptions::with_barrier` or `with_page_tables` |
| after a grant, a GPU's access faults: the entries are written later | [early_return.c](kernel/early_return.c) | `pte_delay=100ms` | as above |
| after a part of a mapping was removed, unmapping the rest leaves its entries: a GPU can use freed memory | [forgotten_entries.c](kernel/forgotten_entries.c) | `split_bug=on` | prevented: after each call of the library, mappings are replaced or removed as a whole |
| after imported memory was released, memory that is allocated later cannot be exported or mapped, in any process | [shared_gem_handle.c](kernel/shared_gem_handle.c) | nothing | not prevented |
| after two processes have shared memory, one can read memory of the other that was not shared | [foreign_gem_handle.c](kernel/foreign_gem_handle.c) | nothing | not prevented |

## Quirks

Each quirk is a defect that the library works around. The implementation of the runtime and its version
decide which quirks to expect; `hsa-vmm info` shows implementation, version and quirks. For AMD's ROCr, the version
of its AMD extension counts: ROCm 6.1 has 1.4, 6.4 has 1.7, 7.2 has 1.15. AMD's second runtime, `libhsa` on rocddi
(rocm-systems#12228), reports 1.33 and has two of these quirks.

The last column says what is done if the runtime is neither ROCr nor rocddi:

* \"probe\": opening a `Vmm` looks for the quirk, also on known runtimes, and the result decides. The
  probes make at most 20 calls, once for each runtime, on memory that they allocate, and copy nothing. Results that differ from what the version
  suggests are logged, and shown by `hsa-vmm info` and in the reports of `hsa-vmm conform`. `VmmOptions::with_probing`
  can switch probing off.
  The probe for `peer_after_owner_fails` can find the defect, but cannot exclude it: a grant that succeeds may still
  corrupt the mapping. If the probe finds nothing, the version decides. Whether exported descriptors are close-on-exec is
  not probed, because the library always makes them so.
* \"on\": the library always uses the workaround, because a probe could crash the process, and the workaround is
  harmless on a correct runtime.
* \"with `unmap_keeps_memory`\": worked around if the probe finds that quirk, which a correct runtime does not have. ROCm
  10 has that quirk, but does not need the workaround of `memory_returns_with_addresses`. An unknown runtime of this kind
  gets the workaround, at a cost: `PausableBuffer::pause` can lose its addresses to another thread, and reports the loss;
  `PagedBuffer` keeps the memory of unmapped pages until the buffer is dropped.

A program can switch on more workarounds, for a vendor's build that lacks a fix: `VmmOptions::with_quirks` with
`Vmm::open_with`, and `Ipc::with_quirks`.

| quirk | ROCr | rocddi | what goes wrong, and what is done | public as | if unknown |
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
            _ if name == "memory_returns_with_addresses" => "with `unmap_keeps_memory`",
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
