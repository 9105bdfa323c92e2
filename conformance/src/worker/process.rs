//! The worker, as the process that started it sees it.

use super::{End, LastCall, WORKS_FOR};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a line may be; a picture of an address space is some ten thousand bytes.
const LONGEST: usize = 64 << 20;
/// How much of what makes no sense is shown.
const SHOWN: usize = 80;
/// How much of what was printed is kept: what prints for hours does not fill the memory.
const KEPT: u64 = 64 << 20;
/// How often it is looked whether the worker still lives, if its end is not heard because others
/// hold the socket.
const LOOK: Duration = Duration::from_millis(100);
/// How often, of one that has closed the socket and will have ended soon.
const SOON: Duration = Duration::from_millis(2);

/// A worker. Dropped, it is killed with all that it has started.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    /// Of the process, and of its group.
    pid: Option<Pid>,
    socket: UnixStream,
    last_call: LastCall,
    printed: Option<File>,
    /// What was read and is no whole line yet.
    rest: Vec<u8>,
    /// Nothing more will come.
    closed: bool,
    ended: Option<End>,
}

/// Where that goes which the worker and its runtime print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prints {
    /// To this process's standard error.
    Here,
    /// Nowhere; it is kept for [`Worker::printed`].
    Kept,
}

/// What was heard of a worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard<A> {
    /// An answer.
    Answer(A),
    /// A line that is no answer; its beginning.
    Garbage(String),
    /// Nothing within the time it had.
    Late,
    /// It has said all, and ended.
    Ended(End),
}

impl Worker {
    /// Starts one. The command's standard input, output and errors are taken.
    ///
    /// # Errors
    /// What the system answers.
    pub fn start(mut command: Command, prints: Prints) -> io::Result<Self> {
        let last_call = LastCall::blank()?;
        let (socket, theirs) = UnixStream::pair()?;
        let mut printed = None;
        let to = match prints {
            Prints::Here => io::stderr().as_fd().try_clone_to_owned().ok(),
            Prints::Kept => {
                let file = memfd_create("hsa-vmm printed", MemfdFlags::CLOEXEC)?;
                let file = printed.insert(File::from(file));
                // Appended to, so that what several processes print does not overwrite each other.
                let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
                Some(File::options().append(true).open(path)?.into())
            }
        };
        let and_errors = to.as_ref().map(OwnedFd::try_clone).transpose()?;
        let stdio = |to: Option<OwnedFd>| to.map_or_else(Stdio::null, Stdio::from);
        command.env(WORKS_FOR, format!("{}:{}", std::process::id(), last_call.number()));
        command.stdin(OwnedFd::from(theirs)).stdout(stdio(to)).stderr(stdio(and_errors));
        let child = command.process_group(0).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let (rest, closed, ended) = (Vec::new(), false, None);
        Ok(Self { child, pid, socket, last_call, printed, rest, closed, ended })
    }

    /// Tells it something. Who does not hear it any more is found out by [`hear`](Self::hear).
    pub fn tell(&mut self, order: &impl Serialize) {
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        let _ = self.socket.write_all(&line);
    }

    /// There are no more orders.
    pub fn enough(&self) {
        // It has ended.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Waits for the next that it says, so long and no longer. An answer that is there is taken
    /// however late it is: this process may have been stopped meanwhile.
    pub fn hear<A: DeserializeOwned>(&mut self, limit: Duration) -> Heard<A> {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.line() {
                return serde_json::from_slice(&line)
                    .map_or_else(|_| garbage(&line), Heard::Answer);
            }
            let left = limit.saturating_sub(begun.elapsed());
            if self.closed {
                return self.wait(left).map_or(Heard::Late, Heard::Ended);
            }
            if self.read(left.min(LOOK)) {
                continue;
            }
            if self.has_ended() {
                // What it said before is still to be read, if others hold the socket open.
                self.closed |= !self.read(Duration::ZERO);
            } else if left.is_zero() {
                return Heard::Late;
            }
        }
    }

    /// What it noted last of what it does.
    pub fn last_call(&self) -> Option<String> {
        self.last_call.read()
    }

    /// What it has printed; of very much, the end.
    pub fn printed(&self) -> String {
        let read = || {
            let Some(mut file) = self.printed.as_ref() else { return Ok(String::new()) };
            file.seek(SeekFrom::Start(0))?;
            let mut bytes = Vec::new();
            file.take(2 * KEPT).read_to_end(&mut bytes)?;
            io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|error| format!("(what it printed cannot be read: {error})"))
    }

    /// Ends it and what it has started. What it has said can still be heard.
    pub fn stop(&mut self) {
        if self.has_ended() {
            return;
        }
        self.kill_group();
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.ended = Some(End::Stopped);
    }

    /// The next whole line, if it has been read.
    fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.rest.iter().position(|&byte| byte == b'\n');
        let too_long = self.rest.len().checked_sub(LONGEST).map(|_| self.rest.len() - 1);
        end.or(too_long).map(|end| self.rest.drain(..=end).collect())
    }

    /// Reads what is there, waiting so long for it; whether that was something.
    fn read(&mut self, wait: Duration) -> bool {
        wait_for(&mut [PollFd::new(&self.socket, PollFlags::IN)], wait);
        let mut bytes = [0; 1 << 14];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((count, _)) if count > 0 => self.rest.extend_from_slice(&bytes[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return false,
            // It has closed the socket, which is its end, or will be.
            Ok(_) | Err(_) => self.closed = true,
        }
        if let Some(printed) = &self.printed
            && printed.metadata().is_ok_and(|it| it.len() > KEPT)
        {
            let _ = printed.set_len(0);
        }
        true
    }

    /// How it ended, if it does in this time.
    fn wait(&mut self, limit: Duration) -> Option<End> {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() >= limit {
                return None;
            }
            std::thread::sleep(SOON.min(limit));
        }
        self.ended
    }

    /// Whether it has ended. What it has started ends with it.
    fn has_ended(&mut self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = |pid| matches!(waitid(WaitId::Pid(pid), look), Ok(Some(_)));
        if self.ended.is_none() && self.pid.is_some_and(ended) {
            // As long as it is not waited for, its number is nobody else's.
            self.kill_group();
            self.ended = Some(self.child.wait().map_or(End::Stopped, End::of));
        }
        self.ended.is_some()
    }

    fn kill_group(&self) {
        if let Some(group) = self.pid {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The socket: also descriptors may go through it, where no orders do.
impl AsFd for Worker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until one of several says something or ends, so long at the most. It may be nothing.
pub fn listen<'a>(workers: impl IntoIterator<Item = &'a Worker>, limit: Duration) {
    let (mut sockets, mut limit) = (Vec::new(), limit);
    for worker in workers {
        match worker.closed {
            // Its end is not heard but looked for.
            true => limit = limit.min(SOON),
            false => sockets.push(PollFd::new(&worker.socket, PollFlags::IN)),
        }
    }
    wait_for(&mut sockets, limit);
}

fn wait_for(sockets: &mut [PollFd<'_>], limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    // Whoever waits looks for itself what came of it.
    let _ = poll(sockets, limit.as_ref());
}

fn garbage<A>(line: &[u8]) -> Heard<A> {
    let shown = line.get(..SHOWN).unwrap_or(line);
    Heard::Garbage(String::from_utf8_lossy(shown).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LONG: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Worker {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Worker::start(command, Prints::Kept).unwrap()
    }

    fn next(worker: &mut Worker) -> Heard<u32> {
        worker.hear(LONG)
    }

    #[test]
    fn what_it_says_and_how_it_ends_is_known() {
        let mut worker = shell("read x; echo words >&2; echo 1 >&0; echo $x >&0; echo no; exit 7");
        assert_eq!(worker.hear::<u32>(Duration::ZERO), Heard::Late);
        worker.tell(&5);
        assert_eq!(next(&mut worker), Heard::Answer(1));
        assert_eq!(next(&mut worker), Heard::Answer(5));
        assert_eq!(next(&mut worker), Heard::Ended(End::Exited(7)));
        assert_eq!(next(&mut worker), Heard::Ended(End::Exited(7)));
        assert_eq!(worker.printed(), "words\nno\n");
        worker.tell(&5);
    }

    #[test]
    fn what_is_no_answer_is_shown_and_the_rest_still_heard() {
        let mut worker = shell("echo nonsense >&0; echo 3 >&0; printf half >&0; kill -SEGV $$");
        assert_eq!(next(&mut worker), Heard::Garbage("nonsense".into()));
        assert_eq!(next(&mut worker), Heard::Answer(3));
        let Heard::Ended(end) = next(&mut worker) else { panic!("it lives") };
        assert!(end.to_string().starts_with("SIGSEGV ("), "{end}");
    }

    #[test]
    fn one_that_wants_no_more_orders_is_told_so() {
        let mut worker = shell("read x || echo 9 >&0");
        worker.enough();
        assert_eq!(next(&mut worker), Heard::Answer(9));
    }

    #[test]
    fn one_that_hangs_is_late_and_is_stopped_with_all_it_started() {
        let mut worker = shell("sleep 1000 & echo $! >&0; echo 8 >&0; wait");
        let Heard::Answer(sleeper) = next(&mut worker) else { panic!("no line") };
        assert_eq!(next(&mut worker), Heard::Answer(8));
        assert_eq!(worker.hear::<u32>(Duration::from_millis(20)), Heard::Late);
        worker.stop();
        assert_eq!(next(&mut worker), Heard::Ended(End::Stopped));
        is_gone(sleeper);
    }

    #[test]
    fn what_it_leaves_behind_is_ended_and_keeps_nobody_waiting() {
        // It has the socket, too.
        let mut worker = shell("exec 3<&0; sleep 1000 & echo $! >&0; exit 0");
        let Heard::Answer(sleeper) = next(&mut worker) else { panic!("no line") };
        assert_eq!(next(&mut worker), Heard::Ended(End::Exited(0)));
        is_gone(sleeper);
    }

    #[test]
    fn its_end_is_seen_where_others_keep_its_socket() {
        // Of a group of its own, it outlives the worker.
        let mut worker = shell("exec 3<&0; setsid sleep 10 & echo 4 >&0; exit 0");
        let begun = Instant::now();
        assert_eq!(next(&mut worker), Heard::Answer(4));
        assert_eq!(next(&mut worker), Heard::Ended(End::Exited(0)));
        assert!(begun.elapsed() < LONG / 2);
    }

    #[test]
    fn several_are_listened_to_at_once() {
        let mut workers = [shell("read x; echo 1 >&0"), shell("exec <&-; sleep 0.05")];
        let begun = Instant::now();
        while workers[1].hear::<u32>(Duration::ZERO) == Heard::Late {
            listen(&workers, LONG);
            assert!(begun.elapsed() < LONG, "the end of one was not looked for");
        }
        workers[0].tell(&0);
        let mut heard = Heard::Late;
        while heard == Heard::Late && begun.elapsed() < LONG {
            listen(&workers, LONG);
            heard = workers[0].hear(Duration::ZERO);
        }
        assert_eq!(heard, Heard::Answer(1));
    }

    fn is_gone(process: u32) {
        let gone = || match std::fs::read_to_string(format!("/proc/{process}/stat")) {
            // What waits to be collected by init is dead.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let mut waits = 0;
        while !gone() {
            waits += 1;
            assert!(waits < 1000, "{process} is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
