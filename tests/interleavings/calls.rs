//! Which calls of the runtime are under way at the same time.
//!
//! The library logs each call of the runtime before the turn or the gate that it was made under
//! ends. Here that is the moment to let the other threads go on, so that a call takes as long as
//! it likes, and to see what it meets.

use crate::log;
use shuttle::thread::yield_now;
use std::cell::RefCell;
use tracing::Metadata;

/// Pairs of calls that AMD's runtime does not keep apart itself before ROCm 10.
const RACES: [(&str, &[&str]); 3] = [
    (IMPORT, &[IMPORT, EXPORT, PROPERTIES, "handle_create", "handle_release", "hsa_amd_vmem_map"]),
    (EXPORT, &["handle_create", "handle_release"]),
    (PROPERTIES, &["handle_create", "handle_release"]),
];
const IMPORT: &str = "import_shareable_handle";
const EXPORT: &str = "export_shareable_handle";
const PROPERTIES: &str = "get_alloc_properties_from_handle";

thread_local! {
    /// All threads of shuttle's are coroutines of one.
    static SEEN: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// What was seen since [`expect`].
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

    /// Calls that were under way together and must not be where the runtime takes no lock.
    pub fn races(&self) -> impl Iterator<Item = &(String, String)> {
        self.overlaps.iter().filter(|(one, other)| races(one, other) || races(other, one))
    }
}

fn races(one: &str, other: &str) -> bool {
    RACES.iter().any(|(unlocked, racing)| {
        one.ends_with(unlocked) && racing.iter().any(|racing| other.ends_with(racing))
    })
}

/// From now on every call of the runtime lets other threads go on, and is seen.
pub fn begin() {
    SEEN.set(Some(Seen::default()));
}

/// Ends that, and returns what was seen.
pub fn end() -> Seen {
    SEEN.take().unwrap_or_default()
}

/// Has this process's log told to this module.
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
    // Nothing is held over a switch: who goes on gets here too.
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
