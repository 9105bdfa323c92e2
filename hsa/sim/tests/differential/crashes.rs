//! Calls that crash AMD's runtime, with the affected releases. Sequences exclude these calls. The
//! test makes each call in a separate process, which must crash on the listed releases and on no others.
// The unsafe blocks call functions of AMD's runtime, as an incorrect program could, and functions of the C library.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::calls::{AccessRequest, Agent, Call, Handle, Hint, Location, Pool};
use crate::setup::{Ended, INCOMPATIBLE, NONE, OK, RO, RW, in_child};
use crate::tested_runtime::TestedRuntime;
use core::ptr::{null_mut, without_provenance_mut};
use hsa_rocr::Release;
use hsa_rocr::test::Fixture;
use hsa_sys::*;

const R6_1_2: Release = Release::R6_1_2;
const R6_4_3: Release = Release::R6_4_3;
const R7_2_4: Release = Release::R7_2_4;

const PAGE: u64 = 4096;
const AREA_START: u64 = 0x0800_0000_0000;
/// An invalid handle: an address at which no memory is mapped.
const GARBAGE: u64 = 0xdead_beef_0000;
const CPU: Agent = Agent::Number(0);
const GPU: Agent = Agent::Number(1);
const PEER: Agent = Agent::Number(2);
const ALL: &[Release] = &Release::ALL;

struct Crash {
    call: &'static str,
    /// The cause, with its source if known.
    cause: &'static str,
    releases: &'static [Release],
    signal: i32,
    act: fn(Table),
}

const TABLE: &[Crash] = &[
    Crash {
        call: "vmem_address_reserve with a null pointer for the address",
        cause: "the pointer is not checked (hsa_ext_amd.cpp)",
        releases: ALL,
        signal: libc::SIGSEGV,
        act: |table| {
            let runtime = TestedRuntime::start(&table, AREA_START);
            unsafe { (runtime.vmem.hsa_amd_vmem_address_reserve)(null_mut(), 4096, 0, 0) };
        },
    },
    Crash {
        call: "vmem_handle_create with a null pointer for the handle",
        cause: "the pointer is not checked (hsa_ext_amd.cpp)",
        releases: ALL,
        signal: libc::SIGSEGV,
        act: |table| {
            let runtime = TestedRuntime::start(&table, AREA_START);
            let pool = runtime.pool(Pool::Gpu(0));
            let create = runtime.vmem.hsa_amd_vmem_handle_create;
            unsafe { create(pool, 4096, MEMORY_TYPE_PINNED, 0, null_mut()) };
        },
    },
    Crash {
        call: "vmem_handle_create with an invalid pool handle",
        cause: "MemoryRegion::IsValid reads through the handle",
        releases: ALL,
        signal: libc::SIGSEGV,
        act: |table| {
            let runtime = TestedRuntime::start(&table, AREA_START);
            let pool = hsa_amd_memory_pool_t { handle: GARBAGE };
            let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
            let create = runtime.vmem.hsa_amd_vmem_handle_create;
            unsafe { create(pool, 4096, MEMORY_TYPE_PINNED, 0, &mut handle) };
        },
    },
    Crash {
        call: "vmem_set_access for an invalid agent handle",
        cause: "Agent::IsValid reads through the handle",
        releases: ALL,
        signal: libc::SIGSEGV,
        act: |table| {
            let runtime = start_with_mapping(&table, &[]);
            let garbage = hsa_agent_t { handle: GARBAGE };
            let request = hsa_amd_memory_access_desc_t { permissions: RW, agent_handle: garbage };
            let at = without_provenance_mut(runtime.address(Location::In(0, 0)) as usize);
            unsafe { (runtime.vmem.hsa_amd_vmem_set_access)(at, 4096, &request, 1) };
        },
    },
    Crash {
        call: "vmem_get_access of an invalid agent handle",
        cause: "Agent::IsValid reads through the handle",
        releases: ALL,
        signal: libc::SIGSEGV,
        act: |table| {
            let runtime = start_with_mapping(&table, &[]);
            runtime
                .get_access(runtime.address(Location::In(0, 0)), hsa_agent_t { handle: GARBAGE });
        },
    },
    Crash {
        call: "vmem_retain_alloc_handle with a null pointer for the handle",
        cause: "the pointer is not checked (hsa_ext_amd.cpp)",
        releases: ALL,
        signal: libc::SIGSEGV,
        act: |table| {
            let runtime = start_with_mapping(&table, &[]);
            let at = without_provenance_mut(runtime.address(Location::In(0, 0)) as usize);
            unsafe { (runtime.vmem.hsa_amd_vmem_retain_alloc_handle)(null_mut(), at) };
        },
    },
    Crash {
        call: "vmem_import_shareable_handle before hsa_init",
        cause: "the call does not check whether the runtime is initialised; 6.x fails earlier, without a driver",
        releases: &[R7_2_4],
        signal: libc::SIGSEGV,
        act: |table| {
            let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
            let import = table.vmem.expect("virtual memory").hsa_amd_vmem_import_shareable_handle;
            let status = unsafe { import(0, &mut handle) };
            assert_eq!(status, INCOMPATIBLE);
        },
    },
    Crash {
        call: "vmem_import_shareable_handle after the last hsa_shut_down",
        cause: "the call does not check whether the runtime is initialised",
        releases: &[R7_2_4],
        signal: libc::SIGSEGV,
        act: |table| {
            let mut runtime = TestedRuntime::start(&table, AREA_START);
            assert_eq!(runtime.shut_down(), OK);
            let mut handle = hsa_amd_vmem_alloc_handle_t { handle: 0 };
            let import = runtime.vmem.hsa_amd_vmem_import_shareable_handle;
            assert_eq!(unsafe { import(0, &mut handle) }, INCOMPATIBLE);
        },
    },
    Crash {
        call: "hsa_shut_down while a GPU has access to a mapping",
        cause: "agents are deleted before the mapping that uses them (runtime.cpp, Unload)",
        releases: &[R6_4_3],
        signal: libc::SIGSEGV,
        act: |table| {
            start_with_mapping(&table, &[(GPU, RW)]).shut_down();
        },
    },
    Crash {
        call: "vmem_set_access for a GPU without a free file descriptor",
        cause: "assertion that the export succeeds (runtime.cpp, MappedHandleAllowedAgent)",
        releases: ALL,
        signal: libc::SIGABRT,
        act: |table| {
            let mut runtime = start_with_mapping(&table, &[]);
            let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
            while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } >= 0 {}
            set_access(&mut runtime, 0, PAGE, &[(GPU, RW)]);
        },
    },
    Crash {
        call: "vmem_set_access for the CPU at an address that is not page-aligned",
        cause: "assertion `ret_cpu_addr == va`: Debian's 6.1.2 has assertions",
        releases: &[R6_1_2],
        signal: libc::SIGABRT,
        act: |table| {
            let mut runtime = start_with_handle(&table);
            map(&mut runtime, 16);
            set_access(&mut runtime, 16, PAGE, &[(CPU, RW)]);
        },
    },
    Crash {
        call: "vmem_set_access for the CPU to two mappings at once",
        cause: "each mapping is mapped with the total size of both mappings; assertion `ret_cpu_addr == va` fails",
        releases: &[R6_1_2],
        signal: libc::SIGABRT,
        act: |table| {
            let mut runtime = start_with_mapping(&table, &[]);
            map(&mut runtime, PAGE as i64);
            set_access(&mut runtime, 0, 2 * PAGE, &[(CPU, RW)]);
        },
    },
    Crash {
        call: "vmem_set_access to two mappings, the second of which has an agent that is not listed",
        cause: "assertion `agentPermsIt->second.va == va`: va is the address of the first mapping",
        releases: &[R6_1_2],
        signal: libc::SIGABRT,
        act: |table| {
            let mut runtime = start_with_mapping(&table, &[]);
            map(&mut runtime, PAGE as i64);
            set_access(&mut runtime, PAGE as i64, PAGE, &[(GPU, RW), (PEER, RW)]);
            set_access(&mut runtime, 0, 2 * PAGE, &[(GPU, RO)]);
        },
    },
    Crash {
        call: "memory_fill of virtual memory that the CPU cannot write",
        cause: "the runtime treats the memory as the CPU's (runtime.cpp, FillMemory)",
        releases: &[R6_1_2],
        signal: libc::SIGSEGV,
        act: |table| {
            let mut runtime = start_with_mapping(&table, &[(CPU, RO), (GPU, RW)]);
            runtime.perform(&Call::Fill { at: Location::In(0, 0), value: 7, words: 4 });
        },
    },
    Crash {
        call: "hsa_memory_copy of virtual memory that the CPU cannot access",
        cause: "pointer_info reports the CPU as the owner, so that memcpy is used (runtime.cpp, CopyMemory)",
        releases: &[R6_1_2, R6_4_3],
        signal: libc::SIGSEGV,
        act: |table| {
            let mut runtime = start_with_mapping(&table, &[(CPU, NONE), (GPU, RW)]);
            runtime.perform(&Call::Peek { at: Location::In(0, 0) });
        },
    },
    Crash {
        call: "memory_unlock more often than the memory was locked",
        cause: "assertion `Failed to deregister host pointer`: Debian's 7.2.4 has assertions",
        releases: &[R7_2_4],
        signal: libc::SIGABRT,
        act: |table| {
            let _runtime = TestedRuntime::start(&table, AREA_START);
            let lock = table.core.hsa_amd_memory_lock.expect("in the table");
            let unlock = table.core.hsa_amd_memory_unlock.expect("in the table");
            let (mut words, mut agent_address) = (vec![0u64; 512], null_mut());
            let at = words.as_mut_ptr().cast();
            // All releases count locks as the simulation does.
            let both =
                [(); 2].map(|()| unsafe { lock(at, 4096, null_mut(), 0, &mut agent_address) });
            assert_eq!(both, [OK; 2]);
            assert_eq!([(); 3].map(|()| unsafe { unlock(at) }), [OK; 3]);
        },
    },
    Crash {
        call: "a copy by a GPU that has no page at the address",
        cause: "a memory fault aborts the process unless the program has a handler",
        releases: ALL,
        signal: libc::SIGABRT,
        act: |table| {
            let mut runtime = start_with_mapping(&table, &[]);
            let (to, from) = (Location::In(0, 0), Location::In(0, 8));
            runtime.perform(&Call::CopyAsync { to, from, size: 8, gpu: 0 });
        },
    },
];

/// Starts a runtime, reserves 16 pages (object 0) and creates a handle of one page (object 1).
fn start_with_handle(table: &Table) -> TestedRuntime {
    let mut runtime = TestedRuntime::start(table, AREA_START);
    let (hint, alignment, flags) = (Hint::Area(0), 0, 0);
    let reserve = Call::Reserve { id: 0, size: 16 * PAGE, hint, alignment, flags };
    assert_eq!(runtime.perform(&reserve).status, OK);
    let (pool, memory_type) = (Pool::Gpu(0), MEMORY_TYPE_PINNED);
    let create = Call::Create { id: 1, pool, size: PAGE, memory_type, flags };
    assert_eq!(runtime.perform(&create).status, OK);
    runtime
}

fn map(runtime: &mut TestedRuntime, offset: i64) {
    let at = Location::In(0, offset);
    let map = Call::Map { at, size: PAGE, offset: 0, handle: Handle::Of(1), flags: 0 };
    // Do not check the status: some releases reject an unaligned address.
    runtime.perform(&map);
}

fn set_access(runtime: &mut TestedRuntime, offset: i64, size: u64, requests: &[AccessRequest]) {
    let (at, requests) = (Location::In(0, offset), requests.to_vec());
    runtime.perform(&Call::SetAccess { at, size, requests });
}

/// Starts a runtime, and maps a page at the start of a reservation with the requested access.
fn start_with_mapping(table: &Table, requests: &[AccessRequest]) -> TestedRuntime {
    let mut runtime = start_with_handle(table);
    map(&mut runtime, 0);
    if !requests.is_empty() {
        set_access(&mut runtime, 0, PAGE, requests);
    }
    runtime
}

/// Makes each call of the table in a separate process. Checks that the process crashes on the
/// listed releases, and on no others.
pub fn check_all(fixture: &Fixture) {
    let mut failures = Vec::new();
    for Crash { call, cause, releases, signal, act } in TABLE {
        let ended = in_child(|| {
            let search = Search::only(fixture.runtime());
            // SAFETY: the library is AMD's runtime.
            let library = unsafe { Library::load(&search) }.expect("AMD's runtime");
            act(*library.table());
            // Skip the cleanup.
            unsafe { libc::_exit(0) };
        });
        let expected = match releases.contains(&fixture.release()) {
            true => Ended::Signal(*signal),
            false => Ended::Exit(0),
        };
        if ended != expected {
            failures.push(format!("{call}: {ended:?} instead of {expected:?} ({cause})"));
        }
    }
    assert!(failures.is_empty(), "on {}:\n{}", fixture.release(), failures.join("\n"));
}
