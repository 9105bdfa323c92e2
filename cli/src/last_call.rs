//! Records the last runtime call in a shared page that survives a crash of this process.

use hsa_vmm_conformance::worker::LastCall;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, filter::LevelFilter};

/// Creates a logging layer that records each runtime call in the page.
pub fn layer<S>(page: LastCall) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let calls = Targets::new().with_target("hsa_vmm::native", LevelFilter::TRACE);
    PageLayer(page).with_filter(calls)
}

struct PageLayer(LastCall);

impl<S: Subscriber> Layer<S> for PageLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut call = Call::default();
        event.record(&mut call);
        match call {
            Call { calling: Some(name), .. } => self.0.note(&format!("in {name}")),
            // Calls of the driver have no status of HSA.
            Call { returned: Some(name), status, .. } if status.is_empty() => {
                self.0.note(&format!("after {name}"));
            }
            Call { returned: Some(name), status, .. } => {
                self.0.note(&format!("after {name} ({status})"));
            }
            Call { .. } => {}
        }
    }
}

/// The runtime call in a log event: `calling` before the call, `returned` and `status` after it.
#[derive(Default)]
struct Call {
    calling: Option<String>,
    returned: Option<String>,
    status: String,
}

impl Visit for Call {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "calling" => self.calling = Some(value.to_owned()),
            "call" => self.returned = Some(value.to_owned()),
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
