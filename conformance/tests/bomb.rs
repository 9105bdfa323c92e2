//! Checks that files cannot exhaust the memory.

use flate2::Compression;
use flate2::write::GzEncoder;
use hsa_vmm_conformance::Report;
use hsa_vmm_conformance::trace::{Reader, TraceError};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

const MIB: usize = 1 << 20;

/// Makes the tests of this file run one at a time, because some tests measure the memory of this process.
fn lock_tests() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes 128 MiB of repeated text, compressed to half a megabyte of gzip.
fn write_bomb(path: &Path, text: &[u8]) {
    let file = fs::File::create(path).unwrap();
    let mut gzip = GzEncoder::new(file, Compression::fast());
    let chunk = text.repeat(MIB / text.len());
    (0..128).for_each(|_| gzip.write_all(&chunk).unwrap());
    gzip.finish().unwrap();
}

/// Returns the peak memory use of this process in bytes.
fn peak_memory() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn reader_bounds_memory_of_long_lines() {
    let _lock = lock_tests();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bomb.jsonl.gz");
    let texts = [&b"[[[["[..], b"aaaa", b"    "];
    for text in texts.into_iter().take(hsa_rocr::test::count_to_run(3)) {
        write_bomb(&path, text);
        let before = peak_memory();
        let errors = [
            Reader::open(&path).unwrap().next().unwrap().unwrap_err(),
            Reader::open(&path).unwrap().with_sequences().next().unwrap().unwrap_err(),
        ];
        let grown = peak_memory() - before;
        assert!(grown < 64 * MIB, "{grown} bytes for {text:?}");
        for error in errors {
            assert!(matches!(error, TraceError::TooLong { line: 1, .. }), "{error}");
            assert!(error.to_string().contains("longer than 8 MiB"), "{error}");
        }
    }
}

#[test]
fn reader_bounds_blank_lines() {
    let _lock = lock_tests();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blank.jsonl.gz");
    for text in [&b"\n"[..], b" \t\r\n"] {
        write_bomb(&path, text);
        for error in [
            Reader::open(&path).unwrap().next().unwrap().unwrap_err(),
            Reader::open(&path).unwrap().with_sequences().next().unwrap().unwrap_err(),
        ] {
            let expected = (MIB / text.len() + 1) as u64;
            assert!(matches!(error, TraceError::Blank { line, .. } if line == expected), "{error}");
            assert!(error.to_string().contains("more than 1 MiB of blank lines"), "{error}");
        }
    }
}

#[test]
fn reader_bounds_memory_of_many_elements() {
    let _lock = lock_tests();
    // The line has the maximum length. Short array elements use more memory for each byte of text than other JSON.
    let head = r#"{"seed":1,"trace":0,"granule":1,"devices":1,"ops":[{"op":"free","r":1,"#;
    let tail = r#""size":1,"result":"SUCCESS"}]}"#;
    let length = 8 * MIB - head.len() - tail.len() - 16;
    for (name, field) in [("array", "1,"), ("nested", "[],")] {
        let inner = field.repeat(length / field.len());
        let line = format!("{head}\"x\":[{}1],{tail}", inner);
        let before = peak_memory();
        let read = Reader::new(line.as_bytes()).unwrap().next().unwrap();
        let grown = peak_memory() - before;
        println!("{name}: {} MiB, {:?}", grown / MIB, read.map(|_| ()).map_err(|e| e.to_string()));
        assert!(grown < 512 * MIB, "{name}: {grown} bytes");
    }
}

#[test]
fn reader_survives_deep_nesting() {
    let _lock = lock_tests();
    let line = "[".repeat(4 * MIB);
    let error = Reader::new(line.as_bytes()).unwrap().next().unwrap().unwrap_err();
    assert!(matches!(error, TraceError::Parse { line: 1, .. }), "{error}");
    let line = format!(r#"{{"operations":{line}"#);
    let mut reader = Reader::new(line.as_bytes()).unwrap().with_sequences();
    let error = reader.next().unwrap().unwrap_err();
    assert!(matches!(error, TraceError::Parse { line: 1, .. }), "{error}");
}

#[test]
fn report_bounds_file_size() {
    let _lock = lock_tests();
    let error = Report::read("/dev/zero").unwrap_err();
    assert!(error.to_string().contains("larger than 64 MiB"), "{error}");
}
