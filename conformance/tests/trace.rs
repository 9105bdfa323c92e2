//! Reads and writes traces.

use hsa_vmm_conformance::trace::{Call, Operation, Reader, Trace, TraceError, Writer};
use std::io::Write;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/cuda_h200_traces_seed1.jsonl.gz");
const LINE: &str = r#"{"seed":1,"trace":0,"granule":4096,"devices":1,"ops":[{"op":"reserve","r":1,"size":4096,"result":"SUCCESS"},{"op":"set_access","r":1,"offset":0,"size":4096,"descs":[[0,3],[77,1]],"result":"INVALID_VALUE"}]}"#;

fn read(bytes: &[u8]) -> Vec<Result<Trace, TraceError>> {
    Reader::new(bytes).unwrap().collect()
}

/// Returns the line number and the message of the error that ends reading.
fn last_error(bytes: &[u8]) -> (u64, String) {
    let error = read(bytes).pop().unwrap().unwrap_err();
    (error.line().unwrap(), error.to_string())
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn recorded_traces_can_be_read() {
    let traces: Vec<Trace> = Reader::open(RECORDED).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(traces.len(), 1500);
    assert_eq!(traces.iter().map(|trace| trace.ops.len()).sum::<usize>(), 120_000);
    assert_eq!(
        traces[0].ops[0],
        Operation { call: Call::Reserve { r: 1, size: 23_068_672 }, result: "SUCCESS".into() }
    );
    assert!(traces.iter().all(|trace| trace.granule == 2 << 20 && trace.devices == 2));
}

#[test]
fn reader_detects_compression_by_content() {
    let text = format!("{LINE}\n\n  \n{LINE}");
    let (plain, compressed) = (read(text.as_bytes()), read(&gzip(&text)));
    for traces in [&plain, &compressed] {
        assert_eq!(traces.len(), 2);
        assert_eq!(traces[0].as_ref().unwrap(), traces[1].as_ref().unwrap());
    }
    assert!(read(b"").is_empty());
    // Several compressed files in a row.
    let concatenated = [gzip(&format!("{LINE}\n")), gzip(LINE)].concat();
    assert_eq!(read(&concatenated).len(), 2);
}

#[test]
fn written_trace_is_read_back_identically() {
    let traces: Vec<Trace> =
        Reader::open(RECORDED).unwrap().take(20).collect::<Result<_, _>>().unwrap();
    let mut plain = Writer::plain(Vec::new());
    let mut compressed = Writer::gzip(Vec::new());
    for trace in &traces {
        plain.write(trace).unwrap();
        compressed.write(trace).unwrap();
    }
    let (plain, compressed) = (plain.finish().unwrap(), compressed.finish().unwrap());
    assert_eq!(plain.iter().filter(|&&byte| byte == b'\n').count(), 20);
    for written in [plain, compressed] {
        let read_back: Vec<Trace> = read(&written).into_iter().map(Result::unwrap).collect();
        assert_eq!(read_back, traces);
    }
    let trace: Trace = serde_json::from_str(LINE).unwrap();
    assert_eq!(serde_json::to_string(&trace).unwrap(), LINE);
}

#[test]
fn error_names_line_of_invalid_trace() {
    for (invalid, expected) in [
        ("garbage", "expected value"),
        ("[]", "trace"),
        ("{}", "missing field `seed`"),
        (&LINE[..LINE.len() - 3], "EOF"),
        (&LINE.replace("reserve", "frobnicate"), "unknown variant `frobnicate`"),
        (&LINE.replace("\"r\":1", "\"r\":\"one\""), "invalid type: string"),
        (&LINE.replace("4096", "-1"), "-1"),
        (&LINE.replace("[[0,3],[77,1]]", "[[0]]"), "invalid length"),
        (&LINE.replace("\"SUCCESS\"", "0"), "invalid type: integer"),
        (&LINE.replace(",\"result\":\"SUCCESS\"", ""), "missing field `result`"),
        (&format!("{LINE} {LINE}"), "trailing characters"),
    ] {
        let (line, message) = last_error(format!("{LINE}\n\n{LINE}\n{invalid}\n{LINE}").as_bytes());
        assert_eq!(line, 4, "{message}");
        assert!(
            message.starts_with("line 4: ") && message.contains(expected),
            "{invalid}: {message}"
        );
    }
}

#[test]
fn reader_stops_after_an_error() {
    let mut reader = Reader::new(b"garbage\n{}".as_slice()).unwrap();
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn error_names_line_of_damaged_file() {
    let complete = gzip(&format!("{LINE}\n").repeat(50));
    let (line, message) = last_error(&complete[..complete.len() / 2]);
    assert!((1..=50).contains(&line) && message.contains("cannot be read"), "{message}");
    let mut damaged = complete.clone();
    let last = damaged.len() - 6;
    damaged[last] ^= 0xff;
    let (_, message) = last_error(&damaged);
    assert!(message.contains("cannot be read"), "{message}");
    let (line, message) = last_error(&[0x1f, 0x8b]);
    assert_eq!(line, 1, "{message}");
    let (line, message) = last_error(b"\xff\xfe\n");
    assert_eq!(line, 1);
    assert!(message.contains("UTF-8"), "{message}");
}

#[test]
fn error_names_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no such file");
    let error = Reader::open(&path).unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
    assert_eq!(error.line(), None);
}
