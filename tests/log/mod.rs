//! Passes the library's log events to a test.

use std::fmt::Debug;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of an event, by name: text unchanged, everything else as `Debug` prints it.
pub type Fields = Vec<(&'static str, String)>;

/// Calls a test's function for the events that it selects, on the thread that logs them.
///
/// Installs a subscriber once for the process. Subscribers of single threads do not work: tracing caches the
/// interest in each event by the thread that logs it first.
pub fn watch(wants: fn(&Metadata<'_>) -> bool, on_event: fn(Fields)) {
    static ONCE: Once = Once::new();
    let set = || tracing::subscriber::set_global_default(Log { wants, on_event });
    ONCE.call_once(|| set().expect("there is no other"));
}

struct Log {
    wants: fn(&Metadata<'_>) -> bool,
    on_event: fn(Fields),
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && (self.wants)(metadata)
    }
    fn event(&self, event: &Event<'_>) {
        let mut reader = Reader(Fields::new());
        event.record(&mut reader);
        (self.on_event)(reader.0);
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
