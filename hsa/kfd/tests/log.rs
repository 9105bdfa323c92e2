//! The driver's log, planned faults, and page tables.

mod fixture;
mod kernel;

use fixture::{is_child, rerun, run_preloaded};
use kernel::{Gpu, PUBLIC, VRAM, call, calls, mmap};
use libc::EBUSY;
use std::fs;
use std::os::unix::process::ExitStatusExt;

const MIB: u64 = 1 << 20;
const ADDRESS: u64 = 0x1000_0000;

/// Runs a test's body in a child process and returns the log, or `None` in the child.
fn log_of(name: &str, faults: &str, body: impl FnOnce()) -> Option<String> {
    let log = std::env::temp_dir().join(format!("hsa-kfd-{name}-{}", std::process::id()));
    let path = log.to_str().expect("a UTF-8 path").to_owned();
    let is_child = std::env::var_os("HSA_KFD_LOG").is_some();
    run_preloaded(name, &[("HSA_KFD_LOG", &path), ("HSA_KFD_FAULTS", faults)], body);
    if is_child {
        return None;
    }
    let text = fs::read_to_string(&log).expect("a log");
    fs::remove_file(&log).expect("a log");
    Some(text)
}

/// A call that does not return has a line of its own, as in `strace`. The log then shows which call hangs or crashes.
#[test]
fn call_that_does_not_return_is_logged() {
    let name = "call_that_does_not_return_is_logged";
    if is_child() {
        let _ = Gpu::open().alloc(4096, VRAM);
        return;
    }
    let log = std::env::temp_dir().join(format!("hsa-kfd-{name}-{}", std::process::id()));
    let path = log.to_str().expect("a UTF-8 path");
    let environment = [("HSA_KFD_LOG", path), ("HSA_KFD_FAULTS", "ALLOC_MEMORY_OF_GPU=crash")];
    let output = rerun(name, &environment);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    let text = fs::read_to_string(&log).expect("a log");
    fs::remove_file(&log).expect("a log");
    let last = text.lines().last().expect("a line");
    assert!(last.contains(" kfd ALLOC_MEMORY_OF_GPU address=0x0 size=0x1000 "), "{text}");
    assert!(last.ends_with(" = ? (has not returned)"), "{text}");
}

#[test]
fn log_records_each_call() {
    let text = log_of("log_records_each_call", "", || {
        let gpu = Gpu::open();
        let (handle, offset) = gpu.alloc(4096, VRAM | PUBLIC).unwrap();
        let mapped = mmap(gpu.drm, offset, 4096).unwrap();
        // SAFETY: the test has just mapped the memory.
        unsafe { libc::munmap(mapped.cast(), 4096) };
        gpu.free(handle).unwrap();
        gpu.free(handle).unwrap_err();
        call(gpu.kfd, calls::SVM, &mut [0u64]).unwrap_err();
        gpu.close();
    });
    let Some(text) = text else { return };
    let expected = [
        "kfd OPEN descriptor=",
        "drm0 OPEN descriptor=",
        "kfd ACQUIRE_VM drm_fd=",
        "kfd ALLOC_MEMORY_OF_GPU address=0x0 size=0x1000 handle=0x0 offset=0x0 gpu_id=4097 \
         flags=VRAM|PUBLIC|WRITABLE -> handle=0x100100000001 offset=0x100000000 (",
        "drm0 MMAP address=0x0 length=0x1000 protection=R|W flags=SHARED offset=0x100000000 -> 0x",
        "drm0 MUNMAP address=0x",
        "kfd FREE_MEMORY_OF_GPU handle=0x100100000001 -> ok (",
        "kfd FREE_MEMORY_OF_GPU handle=0x100100000001 = EINVAL (",
        "NOT EMULATED: kfd call 0xc0084b20 SVM = ENOTTY",
        "drm0 CLOSE descriptor=",
        "kfd CLOSE descriptor=",
    ];
    // Each line starts with process, thread and time.
    let lines: Vec<_> = text.lines().map(|line| line.splitn(3, ' ').nth(2).unwrap()).collect();
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
}

#[test]
fn flags_that_are_not_emulated_are_logged() {
    let text = log_of("flags_that_are_not_emulated_are_logged", "", || {
        let gpu = Gpu::open();
        let (handle, _) = gpu.alloc(4096, VRAM).unwrap();
        let gem = gpu.prime(gpu.export(handle).unwrap()).unwrap();
        for flags in [0x7, 0x10, 1 << 20] {
            let mut arguments = [gem, kernel::MAP | flags << 32, ADDRESS, 0, 4096];
            call(gpu.drm, calls::GEM_VA, &mut arguments).unwrap_err();
        }
        call(gpu.kfd, calls::EXPORT_DMABUF, &mut [handle, 1 << 20]).unwrap_err();
    });
    let Some(text) = text else { return };
    let count = |line: &str| text.matches(&format!("NOT EMULATED: {line}")).count();
    assert_eq!(count("GEM_VA with DELAY_UPDATE or PRT = EINVAL\n"), 2, "{text}");
    assert_eq!(count("EXPORT_DMABUF with flags 0x100000 = EINVAL\n"), 1, "{text}");
}

#[test]
fn full_disk_is_reported_once() {
    let name = "full_disk_is_reported_once";
    if is_child() {
        Gpu::open().close();
        return;
    }
    let output = rerun(name, &[("HSA_KFD_LOG", "/dev/full")]);
    assert!(output.status.success(), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    let message = "hsa-kfd: cannot write the log /dev/full: No space left on device";
    assert_eq!(errors.matches(message).count(), 1, "{errors}");
}

#[test]
fn plan_injects_errors_and_delays() {
    let plan = "ALLOC_MEMORY_OF_GPU#2-3=EBUSY,MMAP#1=EIO,AVAILABLE_MEMORY#2=30ms,\
                AVAILABLE_MEMORY#3=100ms";
    let text = log_of("plan_injects_errors_and_delays", plan, || {
        let gpu = Gpu::open();
        let results = [(); 4].map(|()| gpu.alloc(4096, VRAM));
        assert_eq!(results.map(|result| result.err()), [None, Some(EBUSY), Some(EBUSY), None]);
        let (_, offset) = results[0].unwrap();
        assert_eq!(mmap(gpu.drm, offset, 4096), Err(libc::EIO));
        assert!(mmap(gpu.drm, offset, 4096).is_ok());
        gpu.available();
        let began = std::time::Instant::now();
        gpu.available();
        assert!(began.elapsed().as_millis() >= 30);
        gpu.available();
    });
    if let Some(text) = text {
        assert_eq!(text.matches(" = EBUSY (").count(), 2, "{text}");
        let lines: Vec<_> = text.lines().collect();
        let delayed: Vec<_> = (0..lines.len()).filter(|at| lines[*at].contains(" = ? ")).collect();
        let [delayed] = delayed[..] else { panic!("{text}") };
        assert!(lines[delayed].ends_with(" = ? (delayed by 100ms)"), "{text}");
        assert!(lines[delayed + 1].contains(" kfd AVAILABLE_MEMORY "), "{text}");
        assert!(lines[delayed + 1].contains(" -> "), "{text}");
    }
}

#[test]
fn page_tables_are_written_at_exit() {
    let file = std::env::temp_dir().join(format!("hsa-kfd-tables-{}", std::process::id()));
    let name = file.to_str().expect("a UTF-8 path");
    let is_child = std::env::var_os("HSA_KFD_PAGE_TABLES").is_some();
    run_preloaded("page_tables_are_written_at_exit", &[("HSA_KFD_PAGE_TABLES", name)], || {
        let gpu = Gpu::open();
        let (handle, _) = gpu.alloc_at(ADDRESS, MIB, VRAM).unwrap();
        gpu.map_memory(handle).unwrap();
    });
    if is_child {
        return;
    }
    let text = fs::read_to_string(&file).expect("page tables");
    fs::remove_file(&file).expect("page tables");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("process "), "{text}");
    assert_eq!(lines[1], "gpu 0 id 4097 file 0: 1 mapping");
    assert!(lines[2].starts_with(&format!("  {ADDRESS:#018x} size 0x100000 buffer ")), "{text}");
    assert!(lines[2].ends_with(" offset 0x0 rw-"), "{text}");
    assert_eq!(lines[3..], ["buffers 1, descriptors 0"]);
}
