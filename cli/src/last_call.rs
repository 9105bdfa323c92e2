//! Notes the last native call on a shared page that survives a crash of this process.

use hsa_vmm_conformance::worker::LastCall;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, filter::LevelFilter};

/// Creates a logging layer that notes each native call on the page.
pub fn layer<S>(page: LastCall) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let calls = Targets::new().with_target("hsa_vmm::native", LevelFilter::TRACE);
    Noting(page).with_filter(calls)
}

struct Noting(LastCall);

impl<S: Subscriber> Layer<S> for Noting {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut call = Call::default();
        event.record(&mut call);
        match call {
            Call { begun: Some(name), .. } => self.0.note(&format!("in {name}")),
            Call { name: Some(name), status, .. } => {
                self.0.note(&format!("after {name} ({status})"));
            }
            Call { .. } => {}
        }
    }
}

/// A log event before (`begun`) or after a native call.
#[derive(Default)]
struct Call {
    begun: Option<String>,
    name: Option<String>,
    status: String,
}

impl Visit for Call {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "calling" => self.begun = Some(value.to_owned()),
            "call" => self.name = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "status" {
            // Writing to a string cannot fail.
            let _ = write!(self.status, "{value:?}");
        }
    }
}
