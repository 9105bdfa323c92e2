//! Reads arbitrary bytes as traces and sequences. Checks that an accepted trace or sequence does not change when it is
//! written and read again.
#![no_main]

use hsa_vmm_conformance::trace::{Reader, Recorded};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(reader) = Reader::new(bytes) else { return };
    for recorded in reader.with_sequences().take(1000) {
        let written = match &recorded {
            Ok(Recorded::Trace(trace)) => serde_json::to_string(trace),
            Ok(Recorded::Sequence(sequence)) => {
                // `fault_plan` must not panic.
                drop(sequence.fault_plan());
                serde_json::to_string(sequence)
            }
            Err(_) => continue,
        };
        let written = written.expect("a trace that was read can be written");
        let reread = Reader::new(written.as_bytes()).expect("bytes").with_sequences().next();
        assert_eq!(reread.expect("a line").expect("valid"), recorded.expect("valid"));
    }
});
