//! Planned faults of the driver's calls, and which faults each call supports.
//!
//! `hsa-faults` parses plans and counts calls. The code that implements a fault calls [`Faults::has_fault`], which
//! costs one comparison while the plan is empty.

use crate::errno::{EAGAIN, EINTR, Errno, Result};
use crate::page_table::{READABLE, WRITABLE};
use crate::queue::with_signals_blocked;
use crate::{drm, kfd};
use hsa_faults::{FaultKind, Injector, Plan, Target, with_fault};
use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::Duration;

/// Operations of the driver other than `ioctl`: opening and mapping a device, and the copies and fills of
/// a GPU's engines.
const OTHER_OPERATIONS: [&str; 4] = ["OPEN", "MMAP", "COPY", "FILL"];

/// How much longer a call with the planned error EAGAIN or EINTR takes. libdrm and libhsakmt repeat such a call at
/// once. If every call has the error, they would otherwise fill the log with 100,000 lines per second.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// The shortest delay that is logged before the call, so that the log names the call if the program is killed during the
/// delay.
const LOGGED_DELAY: Duration = Duration::from_millis(100);

/// A plan and its counters.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    injector: Injector<Errno>,
}

/// The emulated driver as the target of a plan.
struct DriverTarget;

impl Target for DriverTarget {
    type Code = Errno;

    const CODES: Option<&'static str> = Some("an error such as ENOMEM");

    fn code(&self, word: &str) -> Option<Errno> {
        Errno::from_name(word)
    }

    fn calls(&self) -> Vec<&str> {
        [kfd::NAMES, drm::NAMES, &drm::VA_OPERATIONS, &OTHER_OPERATIONS].concat()
    }

    fn supports(&self, call: &str, fault: FaultKind) -> bool {
        const FREEING_CALLS: [&str; 2] = ["FREE_MEMORY_OF_GPU", "GEM_CLOSE"];
        const EXPORTING_CALLS: [&str; 2] = ["EXPORT_DMABUF", "PRIME_HANDLE_TO_FD"];
        const SIZE_QUERIES: [&str; 3] = ["AVAILABLE_MEMORY", "GET_DMABUF_INFO", "GEM_OP"];
        let is_engine = call == "COPY" || call == "FILL";
        let maps = ["GEM_VA", "GEM_VA.MAP", "GEM_VA.REPLACE"].contains(&call);
        match fault {
            FaultKind::Lost | FaultKind::Hang | FaultKind::Crash => true,
            FaultKind::Late(_) => {
                call.starts_with("GEM_VA") || FREEING_CALLS.contains(&call) || is_engine
            }
            FaultKind::Unseen(_) => maps,
            FaultKind::Stale(_) => call == "GEM_VA" || call == "GEM_VA.UNMAP",
            FaultKind::Evict => call == "PRIME_FD_TO_HANDLE",
            FaultKind::Wide | FaultKind::Narrow | FaultKind::Shifted => maps || call == "MMAP",
            FaultKind::WrongMemory => EXPORTING_CALLS.contains(&call) || call == "IMPORT_DMABUF",
            FaultKind::Leak => FREEING_CALLS.contains(&call) || EXPORTING_CALLS.contains(&call),
            FaultKind::Garbled => is_engine,
            FaultKind::Half => maps || is_engine || SIZE_QUERIES.contains(&call),
            FaultKind::Double => SIZE_QUERIES.contains(&call),
            // `FaultKind` is non-exhaustive.
            _ => false,
        }
    }
}

impl Faults {
    /// Parses a plan. Rejects unsupported rules.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let plan = Plan::parse(text, &DriverTarget).map_err(|error| error.to_string())?;
        Ok(Self { injector: Injector::new(plan) })
    }

    /// Writes a line to a file ([`hsa_faults::RECORD`]) when a rule first takes effect.
    pub(crate) fn recording_to(self, file: File) -> Self {
        // A single write, so that lines of several processes do not mix. Ignore errors: the call must
        // not fail because of the record.
        let write = move |rule| drop((&file).write_all(format!("driver {rule}\n").as_bytes()));
        Self { injector: self.injector.with_reporter(write) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.injector.is_empty()
    }

    /// Counts a call and applies its planned delay. Returns its planned error or other fault. Before
    /// a call that does not return, or that is delayed by at least [`LOGGED_DELAY`], calls `log_unfinished` with the
    /// reason.
    ///
    /// Sleeps for [`RETRY_DELAY`] before returning EAGAIN or EINTR.
    pub(crate) fn begin(
        &self,
        name: &str,
        log_unfinished: impl FnOnce(&str),
    ) -> Result<Option<FaultKind>> {
        if self.injector.is_empty() {
            return Ok(None);
        }
        let injection = self.injector.count_call(name);
        if !injection.returns() {
            log_unfinished("has not returned");
        } else if injection.delay() >= LOGGED_DELAY {
            log_unfinished(&format!("delayed by {:?}", injection.delay()));
        }
        let planned = injection.apply();
        if matches!(planned, Err(EAGAIN | EINTR)) {
            thread::sleep(RETRY_DELAY);
        }
        planned
    }

    /// Returns whether the current call has this fault.
    pub(crate) fn has_fault(&self, fault: FaultKind) -> bool {
        !self.injector.is_empty() && hsa_faults::has_fault(fault)
    }

    /// Returns whether the current call has this fault. If so, records that the fault changes the call.
    pub(crate) fn change_call(&self, fault: FaultKind) -> bool {
        let changes = self.has_fault(fault);
        if changes {
            self.record_effect();
        }
        changes
    }

    /// Records that the fault of the current call changes the call.
    pub(crate) fn record_effect(&self) {
        self.injector.report_effect();
    }

    /// Returns `planned`. If it differs from `requested`, records that the fault of the current call changes the call.
    fn changed<T: PartialEq>(&self, requested: &T, planned: T) -> T {
        if planned != *requested {
            self.record_effect();
        }
        planned
    }

    /// Returns how long the engines do not see the mapping of the current call.
    pub(crate) fn unseen_time(&self) -> Option<Duration> {
        match self.current()? {
            FaultKind::Unseen(time) => {
                self.record_effect();
                Some(time)
            }
            _ => None,
        }
    }

    /// Returns how long the engines keep using the mapping that the current call removes.
    pub(crate) fn stale_time(&self) -> Option<Duration> {
        match self.current()? {
            FaultKind::Stale(time) => {
                self.record_effect();
                Some(time)
            }
            _ => None,
        }
    }

    fn current(&self) -> Option<FaultKind> {
        if self.injector.is_empty() { None } else { hsa_faults::current_fault() }
    }

    /// Returns the size that the call reports.
    pub(crate) fn reported_size(&self, size: u64) -> u64 {
        let reported = match () {
            () if self.has_fault(FaultKind::Half) => size / 2,
            () if self.has_fault(FaultKind::Double) => size.saturating_mul(2),
            () => size,
        };
        self.changed(&size, reported)
    }

    /// Returns the permissions that a page-table entry gets.
    pub(crate) fn page_flags(&self, flags: u32) -> u32 {
        let applied = match () {
            () if self.has_fault(FaultKind::Wide) => flags | READABLE | WRITABLE,
            () if self.has_fault(FaultKind::Narrow) => (flags | READABLE) & !WRITABLE,
            () => flags,
        };
        self.changed(&flags, applied)
    }

    /// Returns the protection that a CPU mapping gets.
    pub(crate) fn protection(&self, protection: libc::c_int) -> libc::c_int {
        let applied = match () {
            () if self.has_fault(FaultKind::Wide) => libc::PROT_READ | libc::PROT_WRITE,
            () if self.has_fault(FaultKind::Narrow) => libc::PROT_READ,
            () => protection,
        };
        self.changed(&protection, applied)
    }
}

/// Performs a call by `run`, or applies its planned fault.
pub(crate) fn perform<C, T, E>(
    fault: Option<FaultKind>,
    context: &C,
    argument: &mut T,
    run: impl FnOnce(&C, &mut T) -> std::result::Result<(), E> + Send + 'static,
) -> std::result::Result<(), E>
where
    C: Clone + Send + 'static,
    T: Clone + Send + 'static,
    E: 'static,
{
    match fault {
        None => run(context, argument),
        Some(FaultKind::Lost) => Ok(()),
        Some(FaultKind::Late(delay)) => {
            let (context, mut argument) = (context.clone(), argument.clone());
            let later = move || {
                thread::sleep(delay);
                // The caller has returned already, so the result is dropped.
                drop(run(&context, &mut argument));
            };
            // If no thread can be started, the call is lost.
            drop(with_signals_blocked(|| {
                thread::Builder::new().name("kfd-late".into()).spawn(later)
            }));
            Ok(())
        }
        Some(_) => with_fault(fault, || run(context, argument)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::ENOMEM;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    #[test]
    fn only_the_named_call_fails() {
        let faults = Faults::parse("GEM_VA#2=ENOMEM,GEM_VA.UNMAP=lost").unwrap();
        assert_eq!(faults.begin("GEM_VA.MAP", |_| ()), Ok(None));
        assert_eq!(faults.begin("GEM_VA.UNMAP", |_| ()), Err(ENOMEM), "the second GEM_VA call");
        assert_eq!(faults.begin("GEM_VA.UNMAP", |_| ()), Ok(Some(FaultKind::Lost)));
        assert_eq!(faults.begin("MMAP", |_| ()), Ok(None));
    }

    #[test]
    fn repeated_calls_do_not_flood_the_log() {
        let faults = Faults::parse("MMAP=EAGAIN,GEM_VA=EINTR").unwrap();
        for (call, error) in [("MMAP", EAGAIN), ("GEM_VA.MAP", EINTR)] {
            let began = Instant::now();
            for _ in 0..5 {
                assert_eq!(faults.begin(call, |_| ()), Err(error));
            }
            assert!(began.elapsed() >= 5 * RETRY_DELAY, "{call}: {:?}", began.elapsed());
        }
    }

    #[test]
    fn parse_rejects_unsupported_faults() {
        for rule in ["GEM_V=EIO", "GEM_VA=garbled", "GEM_VA.UNMAP=wide", "COPY=leak", "MMAP=EWHAT"]
        {
            let error = Faults::parse(&format!("GEM_VA=EIO,{rule}")).unwrap_err();
            assert!(error.contains(&format!("{rule:?}")), "{error}");
        }
    }

    #[test]
    fn replace_supports_the_faults_of_map() {
        for effect in ["wide", "narrow", "shifted", "half", "unseen:5ms"] {
            for call in ["GEM_VA.MAP", "GEM_VA.REPLACE"] {
                Faults::parse(&format!("{call}={effect}")).unwrap();
            }
        }
    }

    #[test]
    fn calls_are_lost_late_or_performed() {
        let done = Arc::new(AtomicU32::new(0));
        let count = |done: &Arc<AtomicU32>, by: &mut u32| {
            done.fetch_add(*by, Ordering::SeqCst);
            Err::<(), _>(ENOMEM)
        };
        assert_eq!(perform(None, &done, &mut 1, count), Err(ENOMEM));
        assert_eq!(perform(Some(FaultKind::Leak), &done, &mut 10, count), Err(ENOMEM));
        assert_eq!(perform(Some(FaultKind::Lost), &done, &mut 100, count), Ok(()));
        let late = FaultKind::Late(Duration::from_millis(30));
        assert_eq!(perform(Some(late), &done, &mut 1000, count), Ok(()));
        assert_eq!(done.load(Ordering::SeqCst), 11);
        let began = Instant::now();
        while done.load(Ordering::SeqCst) == 11 && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(done.load(Ordering::SeqCst), 1011);
    }
}
