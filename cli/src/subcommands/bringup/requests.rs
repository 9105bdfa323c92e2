//! The requests of a level to the emulated driver: their lines in the driver's log, and the failures among them.

use super::engine;
use super::interface::function_of;
use super::level::Level;
use super::record::status_name;
use super::supervisor::{Call, Cause, LevelRun, Outcome};
use super::suspicion::missing_result;
use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

/// Returns the call and the error in a line of the driver's log.
pub fn call_and_error(line: &str) -> (String, &str) {
    let words: Vec<_> = line.split(' ').skip(2).take(2).collect();
    let error = line.split(" = ").nth(1).and_then(|rest| rest.split(' ').next());
    (words.join(" "), error.unwrap_or("an error"))
}

/// Returns the first line of each call and error, with the number of lines if there are several.
pub fn count_failures<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut failed: Vec<((String, &str), &str, usize)> = Vec::new();
    for line in lines {
        let key = call_and_error(line);
        match failed.iter_mut().find(|(other, ..)| *other == key) {
            Some((.., count)) => *count += 1,
            None => failed.push((key, line, 1)),
        }
    }
    let line = |(_, line, count): &(_, &str, usize)| match count {
        1 => (*line).to_owned(),
        _ => format!("{line} ({count} times)"),
    };
    failed.iter().map(line).collect()
}

/// Returns whether a line of the driver's log reports an error or a call that has not returned: `… = ENOMEM (1.0 us)`
/// or `… = ?`, not `… -> ok (1.0 us)` or `field=0x1`. Optional calls that the driver does not support, `NOT EMULATED:
/// kfd call …`, are no failures.
pub fn returned_error(line: &str) -> bool {
    let has_error = line.contains(" = E") || line.contains(" = errno ") || is_unfinished(line);
    has_error && !line.contains("NOT EMULATED")
}

/// Returns whether a line of the driver's log reports an error after which the runtime does not repeat the request: an
/// error other than EINTR and EAGAIN, or any error of a request that is never repeated.
pub fn returned_final_error(line: &str) -> bool {
    let is_final =
        || is_never_repeated(line) || !matches!(call_and_error(line).1, "EINTR" | "EAGAIN");
    returned_error(line) && is_final()
}

/// Returns the lines of requests that failed. Omits EINTR and EAGAIN if the last request of the same name succeeded:
/// the runtime repeats a request after these errors.
pub fn failed_lines(lines: &[String]) -> Vec<&String> {
    let was_repeated = |line: &str| {
        let (call, _) = call_and_error(line);
        let last = lines.iter().rev().find(|later| call_and_error(later).0 == call);
        !returned_final_error(line) && last.is_some_and(|last| !returned_error(last))
    };
    lines.iter().filter(|line| returned_error(line) && !was_repeated(line)).collect()
}

/// Returns whether a line of the driver's log shows a system call or an engine's operation: only `ioctl` is repeated.
fn is_never_repeated(line: &str) -> bool {
    let name = line.split(' ').nth(3);
    matches!(name, Some("MMAP" | "OPEN")) || engine::operation(line).is_some()
}

/// Returns whether a line of the driver's log has no result, `… = ?`.
pub fn is_unfinished(line: &str) -> bool {
    line.contains(" = ? ")
}

/// Marks a line that the driver logs before it delays a request.
const DELAYED: &str = " = ? (delayed by ";

/// The end of the driver's message about a log that cannot be written.
const UNWRITTEN: &str = "; the log is incomplete";

/// The beginning of the description of a level that is not judged.
const INCOMPLETE_LOG: &str =
    "the emulated driver's log is incomplete, so errors of the driver can be missing";

/// Returns whether a line of the driver's log reports the start of a delayed request.
fn is_delayed(line: &str) -> bool {
    line.contains(DELAYED)
}

/// Returns whether a line of the driver's log reports the start of a delayed request that has ended: the same thread
/// has logged one of the `later` lines.
pub fn has_ended<'a>(line: &str, mut later: impl Iterator<Item = &'a str>) -> bool {
    let task = line.split(' ').next();
    is_delayed(line) && later.any(|other| other.split(' ').next() == task)
}

/// Reads the lines of the level's processes from the emulated driver's log. Returns `None` if the driver has not
/// created the log.
pub fn driver_lines(
    path: &Path,
    start: u64,
    calls: &[Call],
) -> io::Result<Option<Vec<(u64, String)>>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let bytes = usize::try_from(start).ok().and_then(|start| bytes.get(start..));
    let bytes = bytes.ok_or_else(|| io::Error::other("the file became shorter"))?;
    let process = |call: &Call| call.begin.task.split_inclusive(':').next().map(str::to_owned);
    let pids: BTreeSet<_> = calls.iter().filter_map(process).collect();
    let mut offset = start;
    let mut lines = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        if pids.iter().any(|pid| text.starts_with(pid.as_str())) {
            lines.push((offset, text.trim_end().to_owned()));
        }
        offset += line.len() as u64;
    }
    Ok(Some(lines))
}

/// Describes what the runtime returned from a call during which the driver returned an error.
pub fn reaction(call: Option<&Call>) -> String {
    let status = call.and_then(|call| Some((&call.begin.call, call.end.as_ref()?.status?)));
    match status {
        Some((name, 0)) => format!("ignored it: {name} returned {}", status_name(0)),
        Some((name, status)) => format!("returned {} from {name} instead", status_name(status)),
        None => "ignored it".to_owned(),
    }
}

impl LevelRun {
    /// Removes the lines of delayed requests. If the level hangs, keeps the lines of those that were running at the
    /// time limit.
    pub fn remove_delays(&mut self) {
        let hangs = matches!(&self.outcome, Outcome::Failed(Cause::Hang(_, limit)) if !self.may_be_slow(*limit));
        let Some(lines) = &mut self.driver else { return };
        let is_kept = |index: usize| {
            let (line, later) = (&lines[index].1, lines[index + 1..].iter().map(|(_, it)| &**it));
            !is_delayed(line) || (hangs && !has_ended(line, later))
        };
        let mut kept = (0..lines.len()).map(is_kept).collect::<Vec<_>>().into_iter();
        lines.retain(|_| kept.next().unwrap_or(true));
    }

    /// Sorts the calls in flight: first those during which the driver returned an error other than EINTR and EAGAIN,
    /// then those with these errors.
    pub fn order_by_driver_errors(&mut self) {
        let Outcome::Failed(mut cause) = self.outcome.clone() else { return };
        if let Cause::Crash(calls, _) | Cause::Hang(calls, _) = &mut cause {
            calls.sort_by_cached_key(|index| {
                let lines = self.requests_during(&self.calls[*index]);
                let has = |is_error: fn(&str) -> bool| lines.iter().any(|line| is_error(line));
                (!has(returned_final_error), !has(returned_error))
            });
        }
        self.outcome = Outcome::Failed(cause);
    }

    /// Marks a level as failed if it passed or was skipped although the driver returned an error. The runtime has then
    /// ignored the error, or returned a status that the level accepts. Does not count errors in the level `pressure`,
    /// which provokes errors. Does not count EINTR and EAGAIN, after which the runtime repeats the call. First names an
    /// earlier request that succeeded without a result, such as an event of 0, because the error can be its effect.
    pub fn fail_on_driver_errors(&mut self) {
        if matches!(self.outcome, Outcome::Failed(_)) || self.level == Level::Pressure {
            return;
        }
        let lines = self.driver.iter().flatten();
        let is_counted = |line: &&(u64, String)| returned_final_error(&line.1);
        let errors: Vec<_> = lines.filter(is_counted).collect();
        let Some((offset, line)) = errors.first() else { return };
        let (call, error) = call_and_error(line);
        let function = function_of(line).map_or(String::new(), |name| format!(" ({name})"));
        let index = self.call_of_request(*offset, line);
        let call_with_error = index.map(|index| &self.calls[index]);
        let effect = match &self.outcome {
            Outcome::Skipped(why) => format!("the level was skipped ({why})"),
            _ => format!("the runtime {}", reaction(call_with_error)),
        };
        let problem = match is_unfinished(line) {
            true => "has not returned from".to_owned(),
            false => format!("returned {error} for"),
        };
        let mut earlier = self.driver.iter().flatten().take_while(|(other, _)| other < offset);
        let earlier = earlier.find_map(|(_, line)| {
            let (field, (call, _)) = (missing_result(line)?, call_and_error(line));
            let function = function_of(line).map_or(String::new(), |name| format!(" ({name})"));
            Some(format!(
                "returned success for {call}{function}, but did not set {field}; it then "
            ))
        });
        let earlier = earlier.unwrap_or_default();
        let what = format!(
            "the driver {earlier}{problem} {call}{function}, and {effect}; errors of the driver in this level: {}",
            errors.len()
        );
        self.outcome = Outcome::Failed(Cause::DriverError(index, what));
    }

    /// Marks a level as failed if lines of the emulated driver's log are missing: the level may then have passed, or
    /// suspect a wrong function, because a line with an error is missing. `error` says why the log could not be read.
    pub fn fail_on_incomplete_log(&mut self, error: Option<String>) {
        let mut output = self.output.lines();
        let mut unwritten =
            || output.find_map(|line| line.split_once("hsa-kfd: ")?.1.strip_suffix(UNWRITTEN));
        let Some(error) = error.or_else(|| unwritten().map(str::to_owned)) else { return };
        self.outcome = Outcome::Failed(Cause::Wrong(None, format!("{INCOMPLETE_LOG}: {error}")));
    }

    /// Returns why the level is not judged, if lines of the emulated driver's log are missing.
    pub fn incomplete_log(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Failed(Cause::Wrong(None, what)) if what.starts_with(INCOMPLETE_LOG) => {
                Some(what)
            }
            _ => None,
        }
    }

    /// Returns the index of the call that made a request: the call that this task had in flight. If there is none, one
    /// of the runtime's own threads made the request. Then returns the first call of the process that was in flight.
    fn call_of_request(&self, offset: u64, line: &str) -> Option<usize> {
        let during = |call: &Call| {
            let end = call.end.as_ref().map_or(u64::MAX, |end| end.logs.driver);
            (call.begin.logs.driver..end).contains(&offset)
        };
        let task = line.split(' ').next()?;
        let process = task.split_inclusive(':').next()?;
        let position = |is_by: &dyn Fn(&str) -> bool| {
            self.calls.iter().position(|call| during(call) && is_by(&call.begin.task))
        };
        position(&|of_call| of_call == task)
            .or_else(|| position(&|of_call| of_call.starts_with(process)))
    }

    /// Returns whether requests to the emulated driver failed, and all of these failed after a call had returned.
    pub fn requests_fail_after(&self, call: &Call) -> bool {
        let lines = self.driver.iter().flatten();
        let mut failed = lines.filter(|(_, line)| returned_error(line)).peekable();
        let end = call.end.as_ref().map_or(u64::MAX, |end| end.logs.driver);
        failed.peek().is_some() && failed.all(|(offset, _)| *offset >= end)
    }

    /// Returns the lines of the emulated driver's log that the call's thread wrote during the call, and the errors that
    /// the runtime's own threads received during the call. EINTR and EAGAIN are included only in the last line of a
    /// thread: the thread then repeats the request without end.
    pub fn requests_during(&self, call: &Call) -> Vec<&str> {
        let start = call.begin.logs.driver;
        let end = call.end.as_ref().map_or(u64::MAX, |end| end.logs.driver);
        let task = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        let process = call.begin.task.split_inclusive(':').next().unwrap_or_default();
        let is_by_runtime = |line: &str| {
            line.starts_with(process) && !self.calls.iter().any(|it| it.begin.task == task(line))
        };
        let is_last = |line: &str| {
            let mut lines = self.driver.iter().flatten().rev();
            lines.find(|(_, it)| task(it) == task(line)).is_some_and(|(_, it)| it == line)
        };
        let is_error =
            |line: &str| returned_final_error(line) || (returned_error(line) && is_last(line));
        let is_shown =
            |line: &str| task(line) == call.begin.task || (is_error(line) && is_by_runtime(line));
        let lines = self.driver.iter().flatten();
        lines
            .filter(|(offset, line)| (start..end).contains(offset) && is_shown(line))
            .map(|(_, line)| line.as_str())
            .collect()
    }

    /// Returns the lines of the emulated driver's log that the call's thread wrote during the call.
    pub fn driver_during(&self, call: &Call) -> Vec<&str> {
        let start = call.begin.logs.driver;
        let end = call.end.as_ref().map_or(u64::MAX, |end| end.logs.driver);
        let prefix = format!("{} ", call.begin.task);
        let lines = self.driver.iter().flatten();
        lines
            .filter(|(offset, line)| (start..end).contains(offset) && line.starts_with(&prefix))
            .map(|(_, line)| line.as_str())
            .collect()
    }

    /// Returns the lines of the emulated driver's log until the end of a call. Returns no lines for the level `pressure`,
    /// which provokes errors.
    pub fn requests_until_end(&self, call: &Call) -> Vec<String> {
        let end = call.end.as_ref().map_or(u64::MAX, |end| end.logs.driver);
        let lines = self.driver.iter().flatten().filter(|_| self.level != Level::Pressure);
        lines.filter(|(offset, _)| *offset < end).map(|(_, line)| line.clone()).collect()
    }

    /// Returns the failed requests of the level: at most `limit` lines, one for each call and error, with the number of
    /// equal failures.
    pub fn failed_requests(&self, limit: usize) -> Vec<String> {
        let lines = self.driver.iter().flatten().map(|(_, line)| line.as_str());
        let mut failed = count_failures(lines.filter(|line| returned_error(line)));
        failed.truncate(limit);
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::super::advice::Setup;
    use super::super::failure::Failure;
    use super::super::record::{Logs, Return};
    use super::*;
    use hsa_vmm_conformance::worker::End;
    use std::time::Duration;

    /// Returns a call of a task, during which the driver's log grew from `start` to `end`.
    fn call(task: &str, name: &str, start: u64, end: u64) -> Call {
        let logs = |driver| Logs { driver, runtime: 0 };
        let mut call = Call::with_name(name);
        (call.begin.task, call.begin.logs) = (task.to_owned(), logs(start));
        let (id, outputs) = (call.begin.id, Vec::new());
        let status = Some(0);
        call.end = Some(Return { id, status, outputs, microseconds: 1, logs: logs(end) });
        call
    }

    fn run(calls: Vec<Call>, driver: &[(u64, &str)]) -> LevelRun {
        let driver = driver.iter().map(|(at, line)| (*at, (*line).to_owned())).collect();
        LevelRun { driver: Some(driver), ..LevelRun::passed(Level::Load, calls) }
    }

    #[test]
    fn ignored_error_belongs_to_the_call_of_its_task() {
        let calls = || {
            vec![
                call("2:2", "wait", 0, 100),
                call("1:1", "hsa_signal_wait_scacquire", 0, 100),
                call("1:3", "hsa_amd_vmem_unmap", 10, 50),
            ]
        };
        for (line, expected) in [
            ("1:3 0.1 drm0 GEM_CLOSE handle=1 = EIO (1.0 us)", Some(2)),
            // A thread of the runtime.
            ("1:9 0.1 kfd WAIT_EVENTS = EIO (1.0 us)", Some(1)),
            ("4:4 0.1 kfd WAIT_EVENTS = EIO (1.0 us)", None),
        ] {
            let mut run = run(calls(), &[(20, line)]);
            run.fail_on_driver_errors();
            let Outcome::Failed(Cause::DriverError(index, _)) = run.outcome else {
                panic!("{run:?}")
            };
            assert_eq!(index, expected, "{line}");
        }
    }

    #[test]
    fn ignored_error_explains_a_later_crash() {
        let copy = call("1:1", "hsa_amd_memory_async_copy", 0, 50);
        let stop = call("1:1", "hsa_shut_down", 50, 100);
        let error = "1:1 0.1 kfd ALLOC_MEMORY_OF_GPU handle=0x0 = EIO (1.0 us)";
        let (command, earlier) = ("hsa-vmm bringup", Duration::ZERO);
        let setup = Setup { command, earlier, config: None, planned_faults: &[], program: None };
        for (offset, expected) in [(20, true), (200, false)] {
            let mut run = run(vec![copy.clone(), stop.clone()], &[(offset, error)]);
            let status = Cause::Status(1, 0x1000);
            for cause in [Cause::Crash(vec![1], End::Signal(6)), status] {
                run.outcome = Outcome::Failed(cause);
                let advice = Failure::of(&run, setup).unwrap().try_next;
                let is_first = advice[0].starts_with("the driver returned EIO for kfd ALLOC_M");
                assert_eq!(is_first, expected, "{advice:?}");
            }
        }
    }

    #[test]
    fn endless_repetition_by_a_runtime_thread_is_shown() {
        let again = "1:9 0.1 kfd WAIT_EVENTS = EAGAIN (1.0 us)";
        let last = "1:9 0.2 kfd WAIT_EVENTS = EAGAIN (1.0 us)";
        let ended = "1:9 0.3 kfd WAIT_EVENTS -> ok (1.0 us)";
        let stop = call("1:1", "hsa_shut_down", 0, 100);
        let repeated = run(vec![stop.clone()], &[(20, again), (30, last)]);
        assert_eq!(repeated.requests_during(&stop), [last]);
        let ended = run(vec![stop.clone()], &[(20, again), (30, ended)]);
        assert_eq!(ended.requests_during(&stop), [""; 0]);
    }

    #[test]
    fn unfinished_request_returned_no_error() {
        let line = "1:9 0.1 kfd WAIT_EVENTS = ? (has not returned)";
        let mut run = run(Vec::new(), &[(20, line)]);
        run.fail_on_driver_errors();
        let Outcome::Failed(Cause::DriverError(None, what)) = run.outcome else {
            panic!("{run:?}")
        };
        assert!(what.starts_with("the driver has not returned from kfd WAIT_EVENTS ("), "{what}");
    }

    #[test]
    fn level_with_incomplete_log_is_not_judged() {
        let mut complete = run(Vec::new(), &[]);
        complete.fail_on_incomplete_log(None);
        assert_eq!(complete.outcome, Outcome::Reached);
        let printed = "cannot write the log /a: No space left on device (os error 28)";
        let unread = "cannot read /a: Permission denied";
        for (output, error, expected) in [
            (format!("1\nhsa-kfd: {printed}; the log is incomplete\n"), None, printed),
            (String::new(), Some(unread.to_owned()), unread),
        ] {
            let mut run = run(Vec::new(), &[]);
            run.output = output;
            run.fail_on_incomplete_log(error);
            assert_eq!(run.incomplete_log(), Some(&*format!("{INCOMPLETE_LOG}: {expected}")));
        }
        let shorter = driver_lines(Path::new("/dev/null"), 1, &[]).unwrap_err();
        assert_eq!(shorter.to_string(), "the file became shorter");
    }

    #[test]
    fn delay_is_unfinished_only_in_a_hang() {
        let delay = |task| format!("{task} 0.1 kfd CREATE_QUEUE = ? (delayed by 60s)");
        let ended = delay("1:2");
        let lines = [(20, &*delay("1:1")), (30, &ended), (40, "1:2 60.1 kfd CREATE_QUEUE -> ok")];
        let limit = Duration::from_secs(20);
        let hang = Outcome::Failed(Cause::Hang(Vec::new(), limit));
        for (outcome, idle, expected) in [
            (&hang, limit, &[20, 40][..]),
            (&hang, limit / 10, &[40]),
            (&Outcome::Reached, limit, &[40]),
        ] {
            let mut run = run(Vec::new(), &lines);
            (run.outcome, run.idle) = (outcome.clone(), idle);
            run.remove_delays();
            let kept: Vec<_> = run.driver.iter().flatten().map(|(offset, _)| *offset).collect();
            assert_eq!(kept, expected, "{outcome:?}");
        }
    }

    #[test]
    fn missing_result_precedes_its_effect() {
        let created = "1:1 0.1 kfd CREATE_EVENT event_id=0 -> ok (1.0 us)";
        let failed = "1:9 0.2 kfd WAIT_EVENTS count=1 = EINVAL (1.0 us)";
        let mut run = run(Vec::new(), &[(10, created), (20, failed)]);
        run.fail_on_driver_errors();
        let Outcome::Failed(Cause::DriverError(None, what)) = run.outcome else {
            panic!("{run:?}")
        };
        let expected = "the driver returned success for kfd CREATE_EVENT (kfd_ioctl_create_event), but did not set \
                        event_id; it then returned EINVAL for kfd WAIT_EVENTS (kfd_ioctl_wait_events), and ";
        assert!(what.starts_with(expected), "{what}");
    }

    #[test]
    fn driver_error_fails_a_skipped_level() {
        // Only `ioctl` is repeated after EAGAIN.
        for error in ["EIO", "EAGAIN"] {
            let mut run =
                run(Vec::new(), &[(20, &format!("1:1 0.1 drm0 OPEN = {error} (1.0 us)"))]);
            run.outcome = Outcome::Skipped("cannot open /dev/dri/renderD128".to_owned());
            run.fail_on_driver_errors();
            let Outcome::Failed(Cause::DriverError(None, what)) = run.outcome else {
                panic!("{run:?}")
            };
            let expected = format!("{error} for drm0 OPEN (drm_open), and the level was skipped");
            assert!(what.contains(&expected), "{what}");
        }
    }

    #[test]
    fn repeated_request_is_no_failure() {
        let line = |request: &str, result: &str| format!("1:1 0.1 {request} handle=0x1 {result}");
        let again = line("kfd EXPORT_DMABUF", "= EAGAIN (1.0 us)");
        let succeeded = line("kfd EXPORT_DMABUF", "-> fd=7 (1.0 us)");
        let failed = line("drm0 GEM_MMAP", "= EIO (1.0 us)");
        for (log, expected) in [
            (vec![&again, &again, &succeeded, &failed], vec![&failed]),
            (vec![&again, &again], vec![&again, &again]),
            (vec![&failed, &again], vec![&failed, &again]),
        ] {
            let log: Vec<_> = log.into_iter().cloned().collect();
            assert_eq!(failed_lines(&log), expected, "{log:?}");
        }
    }

    #[test]
    fn unsupported_optional_call_is_no_failure() {
        assert!(returned_error("1:1 0.1 kfd GET_VERSION = EIO (1.0 us)"));
        assert!(returned_error("1:1 0.1 engine COPY length=0x1000 = ? (has not returned)"));
        assert!(!returned_error("1:1 0.1 kfd ALLOC_MEMORY_OF_GPU handle=0x0 -> ok (1.0 us)"));
        assert!(!returned_error("1:1 0.1 NOT EMULATED: kfd call 0xc0384b20 SVM = ENOTTY"));
    }
}
