//! The probes that were made on AMD's own runtime, group by group, and what it answered. Where
//! three versions differ, three answers are written down: 6.1.2, 6.4.3, 7.2.4. Where one of them
//! crashed, its place has what a runtime that checks would have said.
#![allow(clippy::undocumented_unsafe_blocks)] // calls with null pointers or pointers to locals

mod rig;
use core::ptr::{null, null_mut, without_provenance_mut};
use rig::*;
use std::fs::File;
use std::os::fd::AsRawFd;

const N: usize = 4 * MIB;
const GARBAGE: u64 = 0xdead_beef_0000;

/// 6.1.2, 6.4.3, 7.2.4.
const VERSIONS: [&str; 3] = ["era=a,extension=4", "era=a,extension=7", "era=b,extension=15"];

struct Version {
    rig: Rig,
    index: usize,
}

/// What is expected: of all versions, or of each.
trait Expected<T> {
    fn of(self, version: usize) -> T;
}
impl Expected<hsa_status_t> for hsa_status_t {
    fn of(self, _: usize) -> hsa_status_t {
        self
    }
}
impl<T: Copy> Expected<T> for [T; 3] {
    fn of(self, version: usize) -> T {
        self[version]
    }
}

impl Version {
    #[track_caller]
    fn says(&self, probe: &str, got: hsa_status_t, expected: impl Expected<hsa_status_t>) {
        let expected = expected.of(self.index);
        assert_eq!(
            got, expected,
            "{probe} ({}): {got:#x}, not {expected:#x}",
            VERSIONS[self.index]
        );
    }

    fn all(&self) -> [(hsa_agent_t, u32); 3] {
        [(self.rig.gpus[0], RW), (self.rig.gpus[1], RW), (self.rig.cpus[0], RW)]
    }

    fn gpu(&self, gpu: usize, permission: u32) -> [(hsa_agent_t, u32); 1] {
        [(self.rig.gpus[gpu], permission)]
    }

    fn cpu(&self, permission: u32) -> [(hsa_agent_t, u32); 1] {
        [(self.rig.cpus[0], permission)]
    }
}

/// Every version in a process of its own, as they were recorded.
#[track_caller]
fn on_each(probes: impl Fn(&Version)) {
    for (index, version) in VERSIONS.iter().enumerate() {
        let work = || {
            let rig = start(&format!("mi300x,gpus=2,vram=64g,{version}"));
            probes(&Version { rig, index });
        };
        assert_eq!(in_child(work), Ended::Exit(0), "{version}: see standard error");
    }
}

fn status<T>(result: Result<T, hsa_status_t>) -> hsa_status_t {
    result.map_or_else(|status| status, |_| OK)
}

/// The lines of `/proc/self/maps` that lie in a range: permissions and KiB.
fn maps(start: usize, size: usize) -> Vec<(String, usize)> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let from = usize::from_str_radix(from, 16).ok()?.max(start);
        let to = usize::from_str_radix(to, 16).ok()?.min(start + size);
        (from < to).then(|| (permissions.to_owned(), (to - from) / KIB))
    };
    text.lines().filter_map(line).collect()
}

fn kib_present(start: usize, size: usize) -> usize {
    maps(start, size).iter().map(|(_, kib)| kib).sum()
}

#[test]
fn reserve() {
    on_each(|v| {
        let r = &v.rig;
        let reserve = |size, hint, align, flags| status(r.try_reserve(size, hint, align, flags));
        v.says("size 0", reserve(0, 0, 0, 0), INVALID_ARGUMENT);
        v.says("size 4095", reserve(4095, 0, 0, 0), OUT_OF_RESOURCES);
        v.says("size 4096", reserve(4096, 0, 0, 0), OK);
        assert!(r.reserve(3 * MIB).is_multiple_of(2 * MIB), "aligned unasked");
        // 6.1.2 has no reserve_align; the probe ignored the alignment there.
        let refused = [OK, OUT_OF_RESOURCES, OUT_OF_RESOURCES];
        v.says("align 3000", reserve(N, 0, 3000, 0), refused);
        v.says("align 12288", reserve(N, 0, 12288, 0), refused);
        v.says("align 1024", reserve(N, 0, 1024, 0), refused);
        let aligned = r.try_reserve(N, 0, GIB, 0).expect("align 1 GiB");
        assert!(v.index == 0 || aligned.is_multiple_of(GIB));
        v.says("flags 0xff", reserve(N, 0, 0, 0xfe), OK);
        v.says("64 TiB", reserve(64 << 40, 0, 0, 0), [OUT_OF_RESOURCES, OK, OK]);
        v.says("128 TiB", reserve(128 << 40, 0, 0, 0), OUT_OF_RESOURCES);
        let hint = 0x6000_0000_0000;
        assert_eq!(r.try_reserve(N, hint, 0, 0), Ok(hint), "a free hint");
        let elsewhere = r.try_reserve(N, hint, 0, 0).expect("a busy hint");
        assert_ne!(elsewhere, hint);
        let aligned = r.try_reserve(N, hint, GIB, 0).expect("a busy hint, align 1 GiB");
        assert!(v.index == 0 || aligned.is_multiple_of(GIB));
        let odd = 0x6000_0400_1000;
        assert_eq!(r.try_reserve(N, odd, 2 * MIB, 0), Ok(odd), "misaligned, but the hint wins");
        let other = r.try_reserve(N, 0x6000_0800_0010, 0, 0).expect("a hint that is no page");
        assert!(other.is_multiple_of(2 * MIB));
        let expected = if v.index == 0 { "rw-p" } else { "---p" };
        assert_eq!(maps(hint, N), [(expected.to_owned(), N / KIB)]);
    });
}

#[test]
fn address_free() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(2 * N);
        v.says("NULL", r.free(0, N), INVALID_ARGUMENT);
        v.says("size 0", r.free(base, 0), INVALID_ARGUMENT);
        v.says("the wrong size", r.free(base, N), INVALID_ARGUMENT);
        v.says("from the middle", r.free(base + N, N), INVALID_ALLOCATION);
        v.says("an unreserved address", r.free(0x1234_5000, N), INVALID_ALLOCATION);
        let handle = r.create(N);
        assert_eq!(r.map(base, N, handle), OK);
        v.says("while mapped", r.free(base, 2 * N), RESOURCE_FREE);
        assert_eq!(r.unmap(base, N), OK);
        v.says("after unmap", r.free(base, 2 * N), OK);
        v.says("twice", r.free(base, 2 * N), INVALID_ALLOCATION);
    });
}

#[test]
fn create() {
    on_each(|v| {
        let r = &v.rig;
        let vram = r.vram[0];
        let create = |pool, size, kind, flags| status(r.try_create(pool, size, kind, flags));
        let pinned = |size| create(vram, size, MEMORY_TYPE_PINNED, 0);
        v.says("size 0", pinned(0), INVALID_ARGUMENT);
        v.says("size 1", pinned(1), INVALID_ARGUMENT);
        let small = r.create(4096);
        assert_eq!(small, 0x0002_8000_0000_1000);
        v.says("size 4097", pinned(4097), INVALID_ARGUMENT);
        v.says("2 MiB + 4 KiB", pinned(2 * MIB + 4 * KIB), OK);
        v.says("65 GiB on a 64 GiB GPU", pinned(65 * GIB), INVALID_ALLOCATION);
        let large = r.create(63 * GIB);
        // 6.1.2 answers SUCCESS although its kernel has refused.
        v.says("2 GiB more", pinned(2 * GIB), [OK, OUT_OF_RESOURCES, OUT_OF_RESOURCES]);
        assert_eq!(r.release(large), OK);
        v.says("type 7", create(vram, N, 7, 0), INVALID_ARGUMENT);
        v.says("type NONE", create(vram, N, MEMORY_TYPE_NONE, 0), OK);
        v.says("flags 0xff", create(vram, N, MEMORY_TYPE_PINNED, 0xff), OK);
        v.says("on the CPU pool", create(r.system, N, MEMORY_TYPE_PINNED, 0), INVALID_ARGUMENT);
        let pool = |handle| hsa_amd_memory_pool_t { handle };
        v.says("on pool 0", create(pool(0), N, MEMORY_TYPE_PINNED, 0), INVALID_ARGUMENT);
        // Both killed AMD's runtime.
        v.says("garbage pool", create(pool(GARBAGE), N, MEMORY_TYPE_PINNED, 0), INVALID_ARGUMENT);
        let create = r.vmem.hsa_amd_vmem_handle_create;
        let nowhere = unsafe { create(vram, N, MEMORY_TYPE_PINNED, 0, null_mut()) };
        v.says("NULL handle", nowhere, INVALID_ARGUMENT);
    });
}

#[test]
fn map() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let (one, other) = (r.create(N), r.create(N));
        v.says("NULL va", r.map(0, N, one), INVALID_ARGUMENT);
        v.says("size 0", r.map(base, 0, one), INVALID_ARGUMENT);
        v.says("handle 0", r.map(base, N, 0), INVALID_ARGUMENT);
        v.says("garbage handle", r.map(base, N, GARBAGE), INVALID_ARGUMENT);
        v.says("unreserved", r.map(0x1234_5000, N, one), INVALID_ARGUMENT);
        v.says("beyond the reservation", r.map(base + 3 * N, 2 * N, one), INVALID_ARGUMENT);
        let too_large = [OUT_OF_RESOURCES, OUT_OF_RESOURCES, INVALID_ARGUMENT];
        v.says("larger than the handle", r.map(base, 2 * N, one), too_large);
        v.says("size 4095", r.map(base, 4095, one), OK);
        v.says("unmap it", r.unmap(base, 4095), OK);
        v.says("va + 16", r.map(base + 16, 4096, one), [OK, OK, ERROR]);
        let set = r.set(base + 16, 4096, &v.gpu(0, RW));
        v.says("set_access there", set, [ERROR, ERROR, INVALID_ALLOCATION]);
        v.says("unmap it", r.unmap(base + 16, 4096), [OK, OK, INVALID_ALLOCATION]);
        v.says("map", r.map(base, N, one), OK);
        v.says("double map, same handle", r.map(base, N, one), INVALID_ARGUMENT);
        v.says("double map, other handle", r.map(base, N, other), INVALID_ARGUMENT);
        v.says("overlap the tail", r.map(base + N / 2, N, other), INVALID_ARGUMENT);
        v.says("same handle at a second va", r.map(base + N, N, one), OK);
        v.says("set_access on both", r.set(base, 2 * N, &v.cpu(RW)), OK);
        write(base, 77);
        assert_eq!(read(base + N), 77);
    });
}

#[test]
fn part_of_a_handle_and_in_offset() {
    on_each(|v| {
        let r = &v.rig;
        let (base, handle) = (r.reserve(4 * N), r.create(N));
        v.says("the first half", r.map(base, N / 2, handle), OK);
        v.says("set_access", r.set(base, N / 2, &v.all()), OK);
        assert!(r.simulation.page(0, base + N / 2).is_none());
        v.says("behind it", r.map_at(base + N / 2, N / 2, N / 2, handle), OK);
        v.says("set_access", r.set(base + N / 2, N / 2, &v.all()), OK);
        assert_eq!(r.simulation.page(0, base + N / 2).expect("mapped").offset, 0);
        write(base + N / 2, 2);
        assert_eq!(read(base), 2, "in_offset is ignored");
        v.says("unmap second", r.unmap(base + N / 2, N / 2), OK);
        v.says("in_offset 100 GiB", r.map_at(base + N, N, 100 * GIB, handle), OK);
        v.says("unmap", r.unmap(base + N, N), OK);
        v.says("in_offset 3", r.map_at(base + N, N, 3, handle), OK);
    });
}

#[test]
fn adjacent_reservations() {
    on_each(|v| {
        let r = &v.rig;
        let one = r.try_reserve(N, 0x6100_0000_0000, 0, 0).expect("free");
        let two = r.try_reserve(N, one + N, 0, 0).expect("free");
        assert_eq!(two, one + N);
        let handle = r.create(2 * N);
        v.says("one handle across both", r.map(one, 2 * N, handle), INVALID_ARGUMENT);
        v.says("one in each", r.map(one, N, handle), OK);
        v.says("one in each", r.map(two, N, handle), OK);
        v.says("set_access across", r.set(one, 2 * N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.says("unmap across", r.unmap(one, 2 * N), [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]);
    });
}

#[test]
fn set_access() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        v.says("before any map", r.set(base, N, &v.gpu(0, RW)), INVALID_ALLOCATION);
        assert_eq!(r.map(base, N, r.create(N)), OK);
        assert_eq!(r.map(base + N, N, r.create(N)), OK);
        v.says("desc_cnt 0", r.set(base, N, &[]), INVALID_ARGUMENT);
        let set = r.vmem.hsa_amd_vmem_set_access;
        let nothing = unsafe { set(without_provenance_mut(base), N, null(), 1) };
        v.says("NULL desc", nothing, INVALID_ARGUMENT);
        let empty = [OK, INVALID_ARGUMENT, INVALID_ARGUMENT];
        v.says("size 0", r.set(base, 0, &v.gpu(0, RW)), empty);
        let agent = |handle| [(hsa_agent_t { handle }, RW)];
        v.says("agent 0", r.set(base, N, &agent(0)), INVALID_AGENT);
        // Killed AMD's runtime.
        v.says("garbage agent", r.set(base, N, &agent(GARBAGE)), INVALID_AGENT);
        v.says("unreserved", r.set(0x1234_5000, N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.says("beyond", r.set(base, 5 * N, &v.gpu(0, RW)), INVALID_ARGUMENT);
        v.says("inside", r.set(base + 4096, N, &v.gpu(0, RW)), INVALID_ALLOCATION);
        assert!(r.simulation.page(0, base).is_none());
        v.says("the first 4 KiB (GPU0)", r.set(base, 4096, &v.gpu(0, RW)), OK);
        assert!(r.simulation.page(0, base + N - 4096).is_some(), "the whole mapping");
        assert!(r.simulation.page(0, base + N).is_none(), "and no other");
        v.says("N + 4 KiB (GPU1)", r.set(base, N + 4096, &v.gpu(1, RW)), OK);
        assert!(r.simulation.page(1, base + 2 * N - 4096).is_some(), "both whole mappings");
        v.says("and a tail", r.set(base, 3 * N, &v.cpu(RW)), INVALID_ALLOCATION);
        assert_eq!(readable(base), [true, false, false][v.index], "6.1.2 reserves memory");
        v.says("both, all agents", r.set(base, 2 * N, &v.all()), OK);
        v.says("again", r.set(base, 2 * N, &v.all()), OK);
        let both = |permission| [(r.gpus[0], permission), (r.cpus[0], permission)];
        v.says("RO", r.set(base, N, &both(RO)), OK);
        assert!(r.simulation.page(0, base).expect("mapped").writable, "only recorded");
        assert_eq!(r.get(base, r.gpus[0]), Ok(RO));
        assert_eq!(maps(base, N), [("r--s".to_owned(), N / KIB)]);
        v.says("WO for GPU0", r.set(base, N, &v.gpu(0, WO)), OK);
        v.says("9 for GPU0", r.set(base, N, &v.gpu(0, 9)), OK);
        assert_eq!(r.get(base, r.gpus[0]), Ok(9));
        v.says("NONE", r.set(base, N, &both(NONE)), OK);
        assert!(r.simulation.page(0, base).is_some(), "NONE takes nothing from a GPU");
        assert_eq!(r.get(base, r.gpus[0]), Ok(NONE));
        assert_eq!(maps(base, N), [("---s".to_owned(), N / KIB)]);
        let twice = [(r.gpus[1], RW), (r.gpus[1], RO)];
        v.says("GPU1 twice", r.set(base, N, &twice), OK);
        assert_eq!(r.get(base, r.gpus[1]), Ok(RO), "the last one counts");
        v.says("GPU0 only", r.set(base + N, N, &v.gpu(0, RW)), OK);
        if v.index > 0 {
            // By source: before extension 1.7 agents that are not named are dropped.
            assert_eq!(r.get(base + N, r.gpus[1]), Ok(RW), "GPU1 keeps what it has");
        }
    });
}

#[test]
fn get_access() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let gpu = r.gpus[0];
        let get = |address, agent| status(r.get(address, agent));
        v.says("before map", get(base, gpu), INVALID_ALLOCATION);
        assert_eq!(r.map(base + N, N, r.create(N)), OK);
        assert_eq!(r.get(base + N, gpu), Ok(NONE), "mapped, no set_access yet");
        assert_eq!(r.set(base + N, N, &v.all()), OK);
        v.says("CPU agent", get(base + N, r.cpus[0]), INVALID_AGENT);
        v.says("agent 0", get(base + N, hsa_agent_t { handle: 0 }), INVALID_AGENT);
        let ask = r.vmem.hsa_amd_vmem_get_access;
        let nowhere = unsafe { ask(without_provenance_mut(base + N), null_mut(), gpu) };
        v.says("NULL perms", nowhere, INVALID_ARGUMENT);
        assert_eq!(r.get(base + N + N / 2, gpu), Ok(RW), "in the middle");
        assert_eq!(r.get(base + 2 * N - 1, gpu), Ok(RW), "at the last byte");
        assert_eq!(r.get(base + 2 * N, gpu), Ok(RW), "at the END address");
        v.says("one further", get(base + 2 * N + 1, gpu), INVALID_ALLOCATION);
        v.says("below", get(base + N - 1, gpu), INVALID_ALLOCATION);
    });
}

#[test]
fn unmap() {
    on_each(|v| {
        let r = &v.rig;
        let base = r.reserve(4 * N);
        let map = |address| {
            assert_eq!(r.map(address, N, r.create(N)), OK);
            assert_eq!(r.set(address, N, &v.gpu(0, RW)), OK);
        };
        map(base);
        map(base + N);
        let half = [INVALID_ARGUMENT, INVALID_ARGUMENT, INVALID_ALLOCATION];
        v.says("half a mapping", r.unmap(base, N / 2), half);
        v.says("from the middle", r.unmap(base + N / 2, N / 2), INVALID_ALLOCATION);
        let two = r.unmap(base, 2 * N);
        v.says("two mappings", two, [INVALID_ARGUMENT, INVALID_ARGUMENT, OK]);
        if two == OK {
            map(base);
            map(base + N);
        }
        v.says("an unmapped part", r.unmap(base + 2 * N, N), INVALID_ALLOCATION);
        v.says("size 0", r.unmap(base, 0), INVALID_ARGUMENT);
        v.says("NULL", r.unmap(0, N), INVALID_ARGUMENT);
        assert_eq!(r.set(base + N, N, &v.cpu(RW)), OK);
        v.says("GPU0 only", r.unmap(base, N), OK);
        assert_eq!(kib_present(base, N), N / KIB, "still reserved");
        v.says("the CPU too", r.unmap(base + N, N), OK);
        v.says("twice", r.unmap(base + N, N), INVALID_ALLOCATION);
        // 7.2.4 keeps the addresses; before, there is a hole that a stranger can fall into.
        let left = [0, 0, N / KIB][v.index];
        assert_eq!(kib_present(base + N, N), left);
        if left == 0 {
            stranger(v, base);
        }
    });
}

/// What era A's hole does to somebody else's memory.
fn stranger(v: &Version, base: usize) {
    let r = &v.rig;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let hint = without_provenance_mut(base + N);
    let stranger = unsafe { libc::mmap(hint, N, protection, flags, -1, 0) }.addr();
    assert_eq!(stranger, base + N, "inside the reservation");
    write(stranger, 5);
    let again = r.try_reserve(N, base + N, 0, 0).expect("somewhere");
    assert_ne!(again, base + N);
    v.says("map over the stranger", r.map(base + N, N, r.create(N)), OK);
    v.says("set_access CPU", r.set(base + N, N, &v.cpu(RW)), OK);
    assert_eq!(read(stranger), 0, "it was 5");
    assert_eq!(r.unmap(base + N, N), OK);
    let stranger = unsafe { libc::mmap(hint, N, protection, flags, -1, 0) }.addr();
    assert_eq!(stranger, base + N);
    v.says("address_free", r.free(base, 4 * N), OK);
    assert_eq!(kib_present(stranger, N), 0, "the stranger's memory is gone");
}

#[test]
fn remap() {
    on_each(|v| {
        let r = &v.rig;
        let (base, first) = r.mapped(N, &v.all());
        write(base, 1);
        assert_eq!(r.unmap(base, N), OK);
        let second = r.create(N);
        assert_eq!(r.map(base, N, second), OK);
        assert_eq!(r.set(base, N, &v.all()), OK);
        assert_eq!(read(base), 0, "fresh memory");
        assert_eq!(r.unmap(base, N), OK);
        assert_eq!(r.map(base, N, first), OK);
        assert_eq!(r.set(base, N, &v.all()), OK);
        assert_eq!(read(base), 1, "contents kept by the handle");
    });
}

#[test]
fn release() {
    on_each(|v| {
        let r = &v.rig;
        v.says("handle 0", r.release(0), INVALID_ALLOCATION);
        v.says("garbage", r.release(GARBAGE), INVALID_ALLOCATION);
        let (base, handle) = r.mapped(N, &v.all());
        let elsewhere = r.reserve(N);
        write(base, 3);
        v.says("while mapped", r.release(handle), OK);
        assert_eq!(read(base), 3, "memory still works");
        v.says("again", r.release(handle), INVALID_ALLOCATION);
        v.says("map it elsewhere", r.map(elsewhere, N, handle), OK);
        v.says("unmap that", r.unmap(elsewhere, N), OK);
        v.says("export", status(r.export(handle)), OK);
        assert_eq!(r.retain(base), Ok(handle));
        v.says("release that", r.release(handle), OK);
        v.says("unmap: last use", r.unmap(base, N), OK);
        v.says("release after that", r.release(handle), INVALID_ALLOCATION);
        v.says("export after it is gone", status(r.export(handle)), INVALID_ALLOCATION);
        v.says("map after it is gone", r.map(base, N, handle), INVALID_ARGUMENT);
        let first = r.create(N);
        assert_eq!(r.release(first), OK);
        v.says("create, release, release", r.release(first), INVALID_ALLOCATION);
        assert_eq!((r.create(N), first), (0x0002_8000_0020_0000, 0x0002_8000_0020_0000));
    });
}

#[test]
fn export_and_import() {
    on_each(|v| {
        let r = &v.rig;
        v.says("export handle 0", status(r.export(0)), INVALID_ALLOCATION);
        let original = r.create(N);
        let (one, two) = (r.export(original).expect("one"), r.export(original).expect("two"));
        assert_ne!(one, two, "a new descriptor each time");
        let cloexec = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } & libc::FD_CLOEXEC != 0;
        assert!(cloexec(one) && cloexec(two));
        let export = r.vmem.hsa_amd_vmem_export_shareable_handle;
        let handle = hsa_amd_vmem_alloc_handle_t { handle: original };
        v.says("export NULL", unsafe { export(null_mut(), handle, 0) }, INVALID_ARGUMENT);
        v.says("import -1", status(r.import(-1)), INVALID_ARGUMENT);
        v.says("import a closed fd", status(r.import(9999)), INCOMPATIBLE);
        let null = File::open("/dev/null").expect("it is there");
        v.says("import /dev/null", status(r.import(null.as_raw_fd())), INCOMPATIBLE);
        let plain = unsafe { libc::memfd_create(c"plain".as_ptr(), 0) };
        v.says("import a memfd", status(r.import(plain)), INCOMPATIBLE);
        let import = r.vmem.hsa_amd_vmem_import_shareable_handle;
        v.says("import NULL", unsafe { import(one, null_mut()) }, INVALID_ARGUMENT);
        let first = r.import(one).expect("import");
        let second = r.import(one).expect("the same fd again");
        let values = [0x0002_8000_0020_0000, 0x0002_8000_0080_0000, 0x0002_8000_00e0_0000];
        assert_eq!([original, first, second], values);
        let (pool, kind) = r.properties(first).expect("properties");
        assert_ne!(pool, r.vram[0].handle, "another pool");
        assert_eq!(kind, MEMORY_TYPE_NONE);
        let flags = HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS;
        let pool = hsa_amd_memory_pool_t { handle: pool };
        assert_eq!(pool_info::<u32>(r.hsa, pool, flags), Ok(2), "the fine-grained one");
        v.says("release the original", r.release(original), OK);
        unsafe { (libc::close(one), libc::close(two)) };
        let base = r.reserve(2 * N);
        v.says("map an import", r.map(base, N, first), OK);
        v.says("map the other", r.map(base + N, N, second), OK);
        v.says("set_access", r.set(base, 2 * N, &v.all()), OK);
        write(base, 9);
        assert_eq!(read(base + N), 9, "both imports alias");
        v.says("re-export an import", status(r.export(first)), OK);
        assert_eq!((r.unmap(base, N), r.unmap(base + N, N)), (OK, OK));
        assert_eq!((r.release(first), r.release(second)), (OK, OK));
    });
}

#[test]
fn retain_and_properties() {
    on_each(|v| {
        let r = &v.rig;
        let (base, handle) = r.mapped(N, &[]);
        let reserved = r.reserve(N);
        v.says("retain a reserved address", status(r.retain(reserved)), INVALID_ALLOCATION);
        v.says("retain NULL", status(r.retain(0)), INVALID_ARGUMENT);
        assert_eq!(r.retain(base), Ok(handle));
        v.says("retain inside", status(r.retain(base + 4096)), INVALID_ALLOCATION);
        assert_eq!(r.properties(handle), Ok((r.vram[0].handle, MEMORY_TYPE_PINNED)));
        v.says("properties of 0", status(r.properties(0)), INVALID_ALLOCATION);
        v.says("properties of garbage", status(r.properties(GARBAGE)), INVALID_ALLOCATION);
        v.says("release x1", r.release(handle), OK);
        v.says("release x2", r.release(handle), OK);
        v.says("release x3", r.release(handle), INVALID_ALLOCATION);
    });
}

#[test]
fn pointer_info_and_friends() {
    on_each(|v| {
        let r = &v.rig;
        let (base, handle) = (r.reserve(2 * N), r.create(N));
        assert_eq!(r.map(base, N, handle), OK);
        assert_eq!(r.set(base, N, &v.gpu(0, RW)), OK);
        let tell = |address| {
            let info = r.pointer_info(address);
            let (agent, host) = (info.agentBaseAddress.addr(), info.hostBaseAddress.addr());
            let owned = info.agentOwner == r.gpus[0];
            (info.type_, agent, host, info.sizeInBytes, owned)
        };
        let reserved =
            [(0, base, base, 2 * N, false), (5, base, 0, 2 * N, false), (5, 0, base, 2 * N, false)];
        assert_eq!(tell(base + N), reserved[v.index]);
        let at = base + 100;
        let mapped = [reserved[0], reserved[1], (6, at, at, N, true)];
        assert_eq!(tell(at), mapped[v.index]);
        assert_eq!(tell(handle as usize), (0, 0, 0, 0, false), "the handle's value");
        v.says("memory_pool_free", r.pool_free(base), INVALID_ALLOCATION);
        let allow = r.allow(&[r.gpus[1]], base);
        v.says("agents_allow_access GPU1", allow, [ERROR, OK, OK]);
        let (mut fd, mut offset) = (0, 0);
        let export = r.hsa.hsa_amd_portable_export_dmabuf.expect("there");
        let address = without_provenance_mut(base);
        let dmabuf = unsafe { export(address, N, &mut fd, &mut offset) };
        v.says("portable_export_dmabuf", dmabuf, INVALID_ALLOCATION);
        let lock = r.hsa.hsa_amd_memory_lock.expect("there");
        let mut agent_address = without_provenance_mut(1);
        let locked = unsafe { lock(address, N, null_mut(), 0, &mut agent_address) };
        v.says("memory_lock", locked, ERROR);
        assert!(agent_address.is_null());
    });
}

#[test]
fn after_shut_down() {
    on_each(|v| {
        let r = &v.rig;
        let (base, _) = r.mapped(N, &v.all());
        write(base, 1);
        let vram = r.vram[0];
        // 6.4.3 crashed here.
        v.says("shut_down with live mappings", r.shut_down(), OK);
        v.says("reserve", status(r.try_reserve(N, 0, 0, 0)), NOT_INITIALIZED);
        let create = r.try_create(vram, N, MEMORY_TYPE_PINNED, 0);
        v.says("create", status(create), NOT_INITIALIZED);
        // There is no check in the older ones, and 7.2.4 crashed.
        v.says("import", status(r.import(9999)), [INCOMPATIBLE, INCOMPATIBLE, NOT_INITIALIZED]);
        v.says("init again", r.init(), OK);
        v.says("reserve", status(r.try_reserve(N, 0, 0, 0)), OK);
        assert_eq!(read(base), 1, "the CPU still reads the old mapping");
    });
}

#[test]
fn fork() {
    on_each(|v| {
        let r = &v.rig;
        let (base, _) = r.mapped(N, &v.all());
        apart(|| {
            write(base, 2);
            v.says("reserve", status(r.try_reserve(N, 0, 0, 0)), OUT_OF_RESOURCES);
            // 6.1.2 answered SUCCESS; here every call of a child is refused.
            let create = r.try_create(r.vram[0], N, MEMORY_TYPE_PINNED, 0);
            v.says("create", status(create), OUT_OF_RESOURCES);
            v.says("init", r.init(), OUT_OF_RESOURCES);
        });
        assert_eq!(read(base), 2, "vmem is MAP_SHARED and not DONTFORK");
    });
}
