//! The reader of traces: whatever the bytes, an answer.
#![no_main]

use hsa_vmm_conformance::trace::Reader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(reader) = Reader::new(bytes) {
        // A line that cannot be read is an error, and the next one is read all the same.
        for trace in reader.take(1000) {
            drop(trace);
        }
    }
});
