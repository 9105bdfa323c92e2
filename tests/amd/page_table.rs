//! The entries of GPUs' page tables in the emulated kernel driver, when the library does not control the page tables.

use crate::amd_runtime::on_each;
use crate::machine::{Library, access, at};
use crate::process::page_table::entries;
use hsa_vmm::{Access, Address, AgentId};
use std::ops::Range;

const SIZE: usize = 64 << 10;

/// How much of a range is in a GPU's page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coverage {
    Full,
    Partial,
    None,
}

#[track_caller]
fn coverage(gpu: usize, address: Address, size: usize) -> Coverage {
    let range = address.get()..address.get() + size;
    let common_bytes = |entry: Range<usize>| {
        let (start, end) = (entry.start.max(range.start), entry.end.min(range.end));
        end.saturating_sub(start)
    };
    match entries(gpu).into_iter().map(common_bytes).sum() {
        0 => Coverage::None,
        covered if covered == size => Coverage::Full,
        _ => Coverage::Partial,
    }
}

#[track_caller]
fn assert_coverage(address: Address, size: usize, expected: [Coverage; 2], context: &str) {
    assert_eq!([0, 1].map(|gpu| coverage(gpu, address, size)), expected, "{context}");
}

/// Maps memory of each GPU at adjacent addresses. Both GPUs and the CPU can access both mappings.
fn make_two_mappings(library: &Library) -> (Address, [AgentId; 3]) {
    let agents = [library.cpu(0), library.gpu(0), library.gpu(1)];
    let base = library.reserve(2 * SIZE);
    for gpu in 0..2 {
        library.map(at(base, gpu * SIZE), SIZE, library.create(gpu, SIZE));
    }
    assert_coverage(base, 2 * SIZE, [Coverage::None; 2], "mapped");
    let grants = agents.map(|agent| access(agent, Access::ReadWrite));
    library.vmm.set_access(base, 2 * SIZE, &grants).expect("peers");
    assert_coverage(base, 2 * SIZE, [Coverage::Full; 2], "granted");
    for index in 0..2 {
        library.vmm.write(at(base, index * SIZE), &[index as u8 + 1; 64]).expect("granted");
    }
    (base, agents)
}

#[test]
fn only_revoke_clears_page_tables() {
    on_each("page_table::only_revoke_clears_page_tables", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let (base, [cpu, gpu, peer]) = make_two_mappings(&library);
        let size = 2 * SIZE;
        library.grant(base, size, peer, Access::None);
        assert_coverage(base, size, [Coverage::Full; 2], "set to none: only recorded");
        assert_eq!(vmm.get_access(peer, base), Ok(Access::None));
        vmm.revoke(base, size, &[peer]).expect("mapped");
        assert_coverage(base, size, [Coverage::Full, Coverage::None], "revoked from one");
        // Revoking one mapping does not affect the other.
        library.grant(base, size, peer, Access::Read);
        assert_coverage(base, size, [Coverage::Full; 2], "granted again");
        vmm.revoke(at(base, SIZE), SIZE, &[gpu]).expect("mapped");
        assert_coverage(base, SIZE, [Coverage::Full; 2], "before the revoked range");
        assert_coverage(
            at(base, SIZE),
            SIZE,
            [Coverage::None, Coverage::Full],
            "revoked from the first GPU",
        );
        assert_eq!(
            vmm.get_access(peer, at(base, SIZE)),
            Ok(Access::Read),
            "the peer keeps its access"
        );
        vmm.revoke(base, size, &[gpu, peer]).expect("mapped");
        assert_coverage(base, size, [Coverage::None; 2], "revoked from both");
        // The CPU keeps its access, and the contents are intact.
        for index in 0..2 {
            let mut bytes = [0; 64];
            vmm.read(at(base, index * SIZE), &mut bytes).expect("the CPU still has access");
            assert_eq!(bytes, [index as u8 + 1; 64], "{index}");
        }
        vmm.revoke(base, size, &[cpu]).expect("mapped");
        vmm.unmap(base, size).expect("mapped");
    });
}

/// In ROCm 6.1, the runtime's `set_access` revokes the access of agents that the call does not name.
#[test]
fn set_access_keeps_unnamed_agents_in_page_tables() {
    on_each("page_table::set_access_keeps_unnamed_agents_in_page_tables", |fixture| {
        let library = Library::load(fixture.runtime());
        let vmm = &library.vmm;
        let (base, agents) = make_two_mappings(&library);
        for agent in agents {
            for requested in [Access::Read, Access::ReadWrite, Access::None, Access::ReadWrite] {
                library.grant(base, 2 * SIZE, agent, requested);
                assert_coverage(base, 2 * SIZE, [Coverage::Full; 2], "one agent was named");
                for other in agents {
                    let expected = if other == agent { requested } else { Access::ReadWrite };
                    for address in [base, at(base, SIZE)] {
                        assert_eq!(vmm.get_access(other, address), Ok(expected));
                    }
                }
            }
        }
        for (index, gpu) in agents[1..].iter().enumerate() {
            let source = at(base, index * SIZE);
            vmm.copy(*gpu, at(source, 128), source, 64).expect("both GPUs still have access");
        }
    });
}
