//! Passes the library's log events to a test.

use std::fmt::Debug;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The names and values of an event's fields. The last field is `level`. Values that are not strings have the format of
/// `Debug`.
pub type Fields = Vec<(&'static str, String)>;

/// Calls `on_event` for each event that passes the filter, on the thread that logs it.
///
/// The first call installs a subscriber for the whole process. Later calls have no effect. A subscriber of one thread
/// would not suffice: tracing caches for all threads whether the first thread's subscriber is interested in an event.
pub fn subscribe(filter: fn(&Metadata<'_>) -> bool, on_event: fn(Fields)) {
    static ONCE: Once = Once::new();
    let set = || tracing::subscriber::set_global_default(EventSubscriber { filter, on_event });
    ONCE.call_once(|| set().expect("no other subscriber is installed"));
}

struct EventSubscriber {
    filter: fn(&Metadata<'_>) -> bool,
    on_event: fn(Fields),
}

impl Subscriber for EventSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && (self.filter)(metadata)
    }
    fn event(&self, event: &Event<'_>) {
        let mut visitor = FieldVisitor(Fields::new());
        event.record(&mut visitor);
        visitor.0.push(("level", event.metadata().level().to_string()));
        (self.on_event)(visitor.0);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct FieldVisitor(Fields);

impl Visit for FieldVisitor {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}
