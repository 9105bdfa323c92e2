//! What the library logs, told to a test.

use std::fmt::Debug;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of an event, by name; texts are as they are, everything else as it is debugged.
pub type Fields = Vec<(&'static str, String)>;

/// Has a test told of the events that it wants, on the thread that logs them.
///
/// Once for a process: what a thread's own subscriber would be asked for, another thread may have
/// decided by then (tracing asks once for each place in the program, on the thread that comes by
/// first).
pub fn watch(wants: fn(&Metadata<'_>) -> bool, told: fn(Fields)) {
    static ONCE: Once = Once::new();
    let set = || tracing::subscriber::set_global_default(Log { wants, told });
    ONCE.call_once(|| set().expect("there is no other"));
}

struct Log {
    wants: fn(&Metadata<'_>) -> bool,
    told: fn(Fields),
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && (self.wants)(metadata)
    }
    fn event(&self, event: &Event<'_>) {
        let mut reader = Reader(Fields::new());
        event.record(&mut reader);
        (self.told)(reader.0);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Reader(Fields);

impl Visit for Reader {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}
