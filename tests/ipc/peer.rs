//! Peers: processes that execute the commands of a test, one line at a time.
//!
//! The test forks its peers before it has a runtime, and each peer opens a runtime of its own. Peers fork children and
//! grandchildren on command. The test can stop or kill a peer at any moment.

use crate::executor::{Executor, from_hex, to_hex};
use crate::fixture::Fixture;
use hsa_vmm::ipc::IpcHandle;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;
use tempfile::TempDir;

/// The time limit of a command: longer than every time limit of the library.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Starts peers, and accepts their connections.
pub struct Setup {
    listener: UnixListener,
    /// The listener's address: a path, because processes in other network namespaces cannot use abstract names.
    address: SocketAddr,
    _folder: TempDir,
    fixture: Fixture,
}

/// The error that a peer returned: HIP's error code, and the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerError {
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
        let folder = TempDir::new().expect("a temporary folder");
        let name = folder.path().join("setup");
        let address = SocketAddr::from_pathname(name).expect("TMPDIR is short");
        let listener = UnixListener::bind_addr(&address).expect("the folder is new");
        Self { listener, address, _folder: folder, fixture: fixture.clone() }
    }

    /// Starts a peer with a runtime of its own.
    #[track_caller]
    pub fn peer(&self) -> Peer {
        self.peer_on(0)
    }

    /// Starts a peer whose runtime copies with this GPU.
    #[track_caller]
    pub fn peer_on(&self, gpu: usize) -> Peer {
        let mut peer = self.peer_without_runtime();
        peer.run(&format!("open_runtime {gpu}"));
        peer
    }

    /// Starts a peer without a runtime.
    #[track_caller]
    pub fn peer_without_runtime(&self) -> Peer {
        // SAFETY: the child runs Rust code of this thread only; glibc makes its allocator usable
        // after a fork, and the child leaves by _exit.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "fork: {}", std::io::Error::last_os_error());
        if process == 0 {
            self.execute_commands();
        }
        self.accept_peer(true)
    }

    /// Makes `parent` fork a child without a runtime.
    #[track_caller]
    pub fn child_of(&self, parent: &mut Peer) -> Peer {
        parent.run("fork");
        self.accept_peer(false)
    }

    /// Accepts the connection of a new peer.
    fn accept_peer(&self, is_own_child: bool) -> Peer {
        let (stream, _) = self.listener.accept().expect("a peer connects");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("a peer sends its process ID");
        // Ignores the ID that the peer has sent, which is valid only in the peer's PID namespace. The socket's
        // credentials contain the peer's ID in the test's namespace.
        let credentials =
            rustix::net::sockopt::socket_peercred(stream.get_ref()).expect("a socket");
        Peer { process: credentials.pid.as_raw_nonzero().get(), stream, is_own_child }
    }

    /// Runs in a peer: executes commands until the test disconnects.
    fn execute_commands(&self) -> ! {
        let no_core_files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel only reads the limit, which prevents core files.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core_files) };
        // SAFETY: the call installs no handler; a peer does not wait for its children.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let stream = UnixStream::connect_addr(&self.address).expect("the test listens");
        let mut reader = BufReader::new(stream);
        write_line(&mut reader, &std::process::id().to_string());
        let mut executor = Executor::default();
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words == ["fork"] {
                // SAFETY: the child is single-threaded, as in `peer_without_runtime`.
                if unsafe { libc::fork() } == 0 {
                    drop(reader);
                    // This child must not drop its parent's values.
                    std::mem::forget(executor);
                    self.execute_commands();
                }
                write_line(&mut reader, "ok ");
            } else {
                let reply = executor.execute(&self.fixture, &words);
                write_line(&mut reader, &reply);
            }
            line.clear();
        }
        drop(executor);
        // SAFETY: `_exit` runs no exit handlers, which belong to the parent.
        unsafe { libc::_exit(0) }
    }
}

fn write_line(stream: &mut BufReader<UnixStream>, text: &str) {
    // If the test has disconnected, the next read ends this peer.
    let _ = writeln!(stream.get_mut(), "{text}");
}

impl Peer {
    /// Sends a command, without waiting for the reply.
    #[track_caller]
    pub fn send(&mut self, line: &str) {
        writeln!(self.stream.get_mut(), "{line}").expect("the peer is running");
    }

    /// Receives the reply to the last command.
    #[track_caller]
    pub fn receive(&mut self) -> Result<String, PeerError> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        let read = read.unwrap_or_else(|error| panic!("peer {}: {error}", self.process));
        assert!(read > 0, "peer {} has ended", self.process);
        let line = line.trim_end_matches('\n');
        if let Some(text) = line.strip_prefix("ok ") {
            return Ok(text.to_owned());
        }
        let rest = line.strip_prefix("error ").expect("a reply begins with ok or error");
        let (code, text) = rest.split_once(' ').expect("an error code and a message");
        Err(PeerError { hip: code.parse().expect("a number"), text: text.to_owned() })
    }

    /// Executes a command, which may fail.
    #[track_caller]
    pub fn try_run(&mut self, line: &str) -> Result<String, PeerError> {
        self.send(line);
        self.receive()
    }

    /// Executes a command, which must succeed.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> String {
        let result = self.try_run(line);
        result.unwrap_or_else(|error| panic!("{line}: {} ({})", error.text, error.hip))
    }

    /// Exports and frees memory, and allocates until its address is reused. Returns the address and the old handle.
    ///
    /// Tries several sizes, because releases of AMD's runtime cache different sizes after a free, and choose different
    /// addresses.
    #[track_caller]
    pub fn reuse_address(&mut self) -> (usize, IpcHandle) {
        for size in [crate::SIZE, 8 * crate::SIZE, 4096, 16 * crate::SIZE] {
            let address = self.allocate(size);
            let handle = self.get_handle(address);
            self.free(address);
            if (0..10).any(|_| self.allocate(size) == address) {
                return (address, handle);
            }
        }
        panic!("no address was reused");
    }

    /// Allocates memory of the first GPU, and returns its address.
    #[track_caller]
    pub fn allocate(&mut self, size: usize) -> usize {
        self.run(&format!("allocate 0 {size}")).parse().expect("an address")
    }

    #[track_caller]
    pub fn get_handle(&mut self, address: usize) -> IpcHandle {
        IpcHandle::from_bytes(&from_hex(&self.run(&format!("get_handle {address}"))))
    }

    #[track_caller]
    pub fn free(&mut self, address: usize) {
        self.run(&format!("free {address}"));
    }

    #[track_caller]
    pub fn open(&mut self, handle: &IpcHandle) -> usize {
        self.try_open(handle).unwrap_or_else(|error| panic!("open: {error:?}"))
    }

    #[track_caller]
    pub fn try_open(&mut self, handle: &IpcHandle) -> Result<usize, PeerError> {
        let reply = self.try_run(&format!("open {}", to_hex(&handle.to_bytes())))?;
        Ok(reply.parse().expect("an address"))
    }

    #[track_caller]
    pub fn try_open_raw(&mut self, handle: &IpcHandle, flags: u32) -> Result<usize, PeerError> {
        let reply = self.try_run(&format!("open_raw {} {flags}", to_hex(&handle.to_bytes())))?;
        Ok(reply.parse().expect("an address"))
    }

    /// Opens the first handle in a thread. Until the thread ends, opens and closes the second handle repeatedly.
    /// Returns the time that opening the first handle took, and the longest time that opening and closing the second
    /// handle took.
    #[track_caller]
    pub fn open_concurrently(
        &mut self,
        first: &IpcHandle,
        second: &IpcHandle,
    ) -> (Duration, Duration) {
        let [first, second] = [first, second].map(|handle| to_hex(&handle.to_bytes()));
        let times = self.run(&format!("open_concurrently {first} {second}"));
        let (first_ms, longest_ms) = times.split_once(' ').expect("two numbers");
        let [first_time, longest_time] = [first_ms, longest_ms]
            .map(|text| Duration::from_millis(text.parse().expect("a number")));
        (first_time, longest_time)
    }

    #[track_caller]
    pub fn close(&mut self, address: usize) {
        self.run(&format!("close {address}"));
    }

    /// Writes a text, which must not contain spaces.
    #[track_caller]
    pub fn write(&mut self, address: usize, text: &str) {
        self.run(&format!("write {address} {text}"));
    }

    #[track_caller]
    pub fn assert_contains(&mut self, address: usize, text: &str) {
        let found = self.run(&format!("read {address} {}", text.len()));
        assert_eq!(found, to_hex(text.as_bytes()), "peer {} at {address:#x}", self.process);
    }

    pub fn send_signal(&self, signal: i32) {
        // SAFETY: the process was not reaped yet, so its ID belongs to no other process.
        unsafe { libc::kill(self.process, signal) };
    }

    /// Stops the peer, and returns when all its threads have stopped.
    pub fn stop(&self) {
        self.send_signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: the process is a child that was not reaped yet, and the kernel writes only to `status`. The call does
        // not reap a stopped process.
        let stopped = unsafe { libc::waitpid(self.process, &mut status, libc::WUNTRACED) };
        assert!(stopped == self.process && libc::WIFSTOPPED(status), "{stopped}, {status:#x}");
    }

    /// Kills the peer, and returns after it was reaped.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.send_signal(libc::SIGKILL);
        if self.is_own_child {
            let mut status = 0;
            // SAFETY: the process is a child that was not reaped yet, and the kernel writes only to `status`.
            unsafe { libc::waitpid(self.process, &mut status, 0) };
        } else {
            // The peer's parent ignores SIGCHLD, so the kernel reaps the peer.
            while std::path::Path::new(&format!("/proc/{}", self.process)).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
