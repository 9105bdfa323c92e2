//! Processes that execute the commands of a test, one line at a time.
//!
//! A peer is a fork of the test that has no runtime yet and opens its own. It can fork once more,
//! so that there are children and grandchildren, and it can be stopped or killed at any moment.

use crate::executor::{Executor, from_hex, to_hex};
use crate::fixture::Fixture;
use hsa_vmm::ipc::IpcHandle;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;
use tempfile::TempDir;

/// The time limit of a command: longer than every time limit of the library.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts peers, which connect to its socket.
pub struct Setup {
    listener: UnixListener,
    /// A path, because abstract names are not visible in other network namespaces.
    address: SocketAddr,
    _folder: TempDir,
    fixture: Fixture,
}

/// The error that a peer returned: HIP's number, and the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub hip: i32,
    pub text: String,
}

/// Another process, which is killed when this value is dropped.
pub struct Peer {
    pub process: i32,
    stream: BufReader<UnixStream>,
    is_own_child: bool,
}

impl Setup {
    pub fn on(fixture: &Fixture) -> Self {
        let folder = TempDir::new().expect("a folder");
        let name = folder.path().join("setup");
        let address = SocketAddr::from_pathname(name).expect("TMPDIR is short");
        let listener = UnixListener::bind_addr(&address).expect("a name of our own");
        Self { listener, address, _folder: folder, fixture: fixture.clone() }
    }

    /// Starts a peer with a runtime of its own.
    #[track_caller]
    pub fn peer(&self) -> Peer {
        self.peer_on(0)
    }

    /// Starts a peer whose copies that GPU performs.
    #[track_caller]
    pub fn peer_on(&self, gpu: usize) -> Peer {
        let mut peer = self.spare_peer();
        peer.ok(&format!("runtime {gpu}"));
        peer
    }

    /// Starts a peer without a runtime.
    #[track_caller]
    pub fn spare_peer(&self) -> Peer {
        // SAFETY: the child runs Rust code of this thread only; glibc makes its allocator usable
        // after a fork, and the child leaves by _exit.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "fork: {}", std::io::Error::last_os_error());
        if process == 0 {
            self.serve();
        }
        self.meet(true)
    }

    /// Forks a child of a peer, without a runtime of its own.
    #[track_caller]
    pub fn child_of(&self, parent: &mut Peer) -> Peer {
        parent.ok("fork");
        self.meet(false)
    }

    fn meet(&self, is_own_child: bool) -> Peer {
        let (stream, _) = self.listener.accept().expect("a peer reports");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("a peer sends its number");
        // Its number in this namespace.
        let who = rustix::net::sockopt::socket_peercred(stream.get_ref()).expect("a socket");
        Peer { process: who.pid.as_raw_nonzero().get(), stream, is_own_child }
    }

    /// Runs a peer until the test disconnects.
    fn serve(&self) -> ! {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is a valid one; it keeps core files away.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        // SAFETY: no process waits for the children of a peer.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let stream = UnixStream::connect_addr(&self.address).expect("the setup");
        let mut reader = BufReader::new(stream);
        say(&mut reader, &std::process::id().to_string());
        let mut executor = Executor::default();
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words == ["fork"] {
                // SAFETY: as in `spare_peer`.
                if unsafe { libc::fork() } == 0 {
                    drop(reader);
                    // This child must not drop its parent's values.
                    std::mem::forget(executor);
                    self.serve();
                }
                say(&mut reader, "ok ");
            } else {
                let answer = executor.act(&self.fixture, &words);
                say(&mut reader, &answer);
            }
            line.clear();
        }
        drop(executor);
        // SAFETY: ends this process at once, as a child of a fork should.
        unsafe { libc::_exit(0) }
    }
}

fn say(stream: &mut BufReader<UnixStream>, text: &str) {
    // If the test has disconnected, the next read ends this peer.
    let _ = writeln!(stream.get_mut(), "{text}");
}

impl Peer {
    /// Sends a command, without waiting for the answer.
    #[track_caller]
    pub fn send(&mut self, line: &str) {
        writeln!(self.stream.get_mut(), "{line}").expect("the peer is running");
    }

    /// Receives the answer to the last command.
    #[track_caller]
    pub fn answer(&mut self) -> Result<String, Refused> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        let read = read.unwrap_or_else(|error| panic!("peer {}: {error}", self.process));
        assert!(read > 0, "peer {} has ended", self.process);
        let line = line.trim_end_matches('\n');
        if let Some(text) = line.strip_prefix("ok ") {
            return Ok(text.to_owned());
        }
        let rest = line.strip_prefix("error ").expect("a word that is known");
        let (code, text) = rest.split_once(' ').expect("a number and a text");
        Err(Refused { hip: code.parse().expect("a number"), text: text.to_owned() })
    }

    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Result<String, Refused> {
        self.send(line);
        self.answer()
    }

    #[track_caller]
    pub fn ok(&mut self, line: &str) -> String {
        let answer = self.ask(line);
        answer.unwrap_or_else(|refused| panic!("{line}: {} ({})", refused.text, refused.hip))
    }

    /// Exports and frees memory, and allocates until its address is reused. Releases of AMD's runtime differ in
    /// the sizes that they keep in a pool, and in the addresses that they choose.
    #[track_caller]
    pub fn reuse(&mut self) -> (usize, IpcHandle) {
        for size in [crate::SIZE, 8 * crate::SIZE, 4096, 16 * crate::SIZE] {
            let address = self.allocate(size);
            let handle = self.get(address);
            self.free(address);
            if (0..10).any(|_| self.allocate(size) == address) {
                return (address, handle);
            }
        }
        panic!("no address was used again");
    }

    /// Memory of the first GPU.
    #[track_caller]
    pub fn allocate(&mut self, size: usize) -> usize {
        self.ok(&format!("allocate 0 {size}")).parse().expect("an address")
    }

    #[track_caller]
    pub fn get(&mut self, address: usize) -> IpcHandle {
        IpcHandle::from_bytes(&from_hex(&self.ok(&format!("get {address}"))))
    }

    #[track_caller]
    pub fn free(&mut self, address: usize) {
        self.ok(&format!("free {address}"));
    }

    #[track_caller]
    pub fn open(&mut self, handle: &IpcHandle) -> usize {
        self.try_open(handle).unwrap_or_else(|refused| panic!("open: {refused:?}"))
    }

    #[track_caller]
    pub fn try_open(&mut self, handle: &IpcHandle) -> Result<usize, Refused> {
        let answer = self.ask(&format!("open {}", to_hex(&handle.to_bytes())))?;
        Ok(answer.parse().expect("an address"))
    }

    #[track_caller]
    pub fn try_open_raw(&mut self, handle: &IpcHandle, flags: u32) -> Result<usize, Refused> {
        let answer = self.ask(&format!("open_raw {} {flags}", to_hex(&handle.to_bytes())))?;
        Ok(answer.parse().expect("an address"))
    }

    /// Opens one handle in a thread, and opens and closes another meanwhile. Returns the time of the first, and
    /// the longest time of the others.
    #[track_caller]
    pub fn open_beside(&mut self, first: &IpcHandle, other: &IpcHandle) -> (Duration, Duration) {
        let [first, other] = [first, other].map(|handle| to_hex(&handle.to_bytes()));
        let times = self.ok(&format!("open_beside {first} {other}"));
        let (first, longest) = times.split_once(' ').expect("two numbers");
        let [first, longest] = [first, longest].map(|text| text.parse().expect("a number"));
        (Duration::from_millis(first), Duration::from_millis(longest))
    }

    #[track_caller]
    pub fn close(&mut self, address: usize) {
        self.ok(&format!("close {address}"));
    }

    /// Writes a word without spaces.
    #[track_caller]
    pub fn write(&mut self, address: usize, text: &str) {
        self.ok(&format!("write {address} {text}"));
    }

    #[track_caller]
    pub fn holds(&mut self, address: usize, text: &str) {
        let found = self.ok(&format!("read {address} {}", text.len()));
        assert_eq!(found, to_hex(text.as_bytes()), "peer {} at {address:#x}", self.process);
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a process of this test, which was not reaped.
        unsafe { libc::kill(self.process, signal) };
    }

    /// Stops the peer, and returns when all its threads have stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: as above, and a writable status; one that has stopped is reported, not reaped.
        let stopped = unsafe { libc::waitpid(self.process, &mut status, libc::WUNTRACED) };
        assert!(stopped == self.process && libc::WIFSTOPPED(status), "{stopped}, {status:#x}");
    }

    /// Kills the peer, and returns when it is gone.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        if self.is_own_child {
            let mut status = 0;
            // SAFETY: our own child, and a writable status.
            unsafe { libc::waitpid(self.process, &mut status, 0) };
        } else {
            // Its parent ignores it, so the kernel reaps it.
            while std::path::Path::new(&format!("/proc/{}", self.process)).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
