//! Records which calls of the runtime overlap.
//!
//! The library logs each call of the runtime before it releases the locks that it holds for the call.
//! At that moment this module switches to the other threads, so that a call takes any time, and records which
//! calls overlap.

use crate::log;
use shuttle::thread::yield_now;
use std::cell::RefCell;
use tracing::Metadata;

/// Calls that AMD's runtime does not lock itself before ROCm 10.
const UNLOCKED: [&str; 3] =
    ["import_shareable_handle", "export_shareable_handle", "get_alloc_properties_from_handle"];
/// Other calls that use handles or mappings.
const LOCKED: [&str; 5] =
    ["handle_create", "handle_release", "vmem_map", "vmem_unmap", "vmem_set_access"];

thread_local! {
    /// All threads of shuttle's are coroutines of one.
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// The overlaps since [`expect`].
#[derive(Clone, Debug, Default)]
pub struct Seen {
    under_way: Vec<String>,
    /// Calls that began while another was under way.
    pub overlaps: Vec<(String, String)>,
}

impl Seen {
    pub fn overlapped(&self, one: &str, other: &str) -> bool {
        let is =
            |pair: &(String, String), one, other| pair.0.ends_with(one) && pair.1.ends_with(other);
        self.overlaps.iter().any(|pair| is(pair, one, other) || is(pair, other, one))
    }

    /// Overlapping calls that must not overlap, because the runtime takes no lock.
    pub fn races(&self) -> impl Iterator<Item = &(String, String)> {
        self.overlaps.iter().filter(|(one, other)| races(one, other) || races(other, one))
    }
}

fn races(one: &str, other: &str) -> bool {
    let is_unlocked = |call: &str| UNLOCKED.iter().any(|it| call.ends_with(it));
    is_unlocked(one) && (is_unlocked(other) || LOCKED.iter().any(|it| other.ends_with(it)))
}

/// From now on every call of the runtime switches to other threads, and is recorded.
pub fn begin() {
    SEEN.set(Some(Seen::default()));
}

/// Ends the recording, and returns the overlaps.
pub fn end() -> Seen {
    SEEN.take().unwrap_or_default()
}

/// Subscribes this module to the log of this process.
pub fn watch() {
    let wants = |metadata: &Metadata<'_>| {
        metadata.target().starts_with("hsa_vmm_interleaved::native")
            && metadata.fields().field("call").is_some()
    };
    log::watch(wants, |fields| {
        for (_, call) in fields.into_iter().filter(|(field, _)| *field == "call") {
            takes_its_time(call);
        }
    });
}

fn takes_its_time(call: String) {
    let begins = |seen: &mut Option<Seen>| {
        let Some(seen) = seen else { return false };
        for other in &seen.under_way {
            seen.overlaps.push((other.clone(), call.clone()));
        }
        seen.under_way.push(call.clone());
        true
    };
    // No lock is held across the switch, because the other thread gets here, too.
    if SEEN.with_borrow_mut(begins) {
        yield_now();
        SEEN.with_borrow_mut(|seen| {
            let under_way = seen.as_mut().map(|seen| &mut seen.under_way);
            if let Some(list) = under_way
                && let Some(at) = list.iter().position(|other| *other == call)
            {
                list.swap_remove(at);
            }
        });
    }
}
