//! Processes that do what a test tells them, one line at a time.
//!
//! A player is a fork of the test that has no runtime yet and opens its own. It can fork once more,
//! so that there are children and grandchildren, and it can be stopped or killed at any moment.

use crate::ground::Ground;
use crate::process::namespaces;
use hsa_vmm::{Address, Ipc, IpcError, IpcHandle, OpenedMemory, PoolMemory, Runtime, Trust};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a player may take for one line: longer than anything that is bounded may last.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where players report.
pub struct Stage {
    listener: UnixListener,
    address: SocketAddr,
    ground: Ground,
}

/// What a player answered instead of success: HIP's number, and the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub hip: i32,
    pub text: String,
}

/// Another process, which ends with this value.
pub struct Player {
    pub process: i32,
    stream: BufReader<UnixStream>,
    is_own_child: bool,
}

impl Stage {
    pub fn on(ground: &Ground) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hsa-vmm-test-{}-{next}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        let listener = UnixListener::bind_addr(&address).expect("a name of our own");
        Self { listener, address, ground: ground.clone() }
    }

    /// A player with a runtime of its own.
    #[track_caller]
    pub fn player(&self) -> Player {
        self.player_on(0)
    }

    /// A player whose copies are done by that GPU.
    #[track_caller]
    pub fn player_on(&self, gpu: usize) -> Player {
        let mut player = self.spare_player();
        player.ok(&format!("runtime {gpu}"));
        player
    }

    /// A player without a runtime.
    #[track_caller]
    pub fn spare_player(&self) -> Player {
        // SAFETY: the child runs Rust code of this thread only; glibc makes its allocator usable
        // after a fork, and the child leaves by _exit.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "fork: {}", std::io::Error::last_os_error());
        if process == 0 {
            self.play();
        }
        self.meet(true)
    }

    /// A child of a player, without a runtime of its own.
    #[track_caller]
    pub fn child_of(&self, parent: &mut Player) -> Player {
        parent.ok("fork");
        self.meet(false)
    }

    fn meet(&self, is_own_child: bool) -> Player {
        let (stream, _) = self.listener.accept().expect("a player reports");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("a player says who it is");
        // Its number here; in its own namespace it may have another.
        let who = rustix::net::sockopt::socket_peercred(stream.get_ref()).expect("a socket");
        Player { process: who.pid.as_raw_nonzero().get(), stream, is_own_child }
    }

    /// The life of a player.
    fn play(&self) -> ! {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is a valid one; it keeps core files away.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        // SAFETY: children of a player are nobody's to wait for.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let stream = UnixStream::connect_addr(&self.address).expect("the stage");
        let mut reader = BufReader::new(stream);
        say(&mut reader, &std::process::id().to_string());
        let mut props = Props::default();
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words == ["fork"] {
                // SAFETY: as in `spare_player`.
                if unsafe { libc::fork() } == 0 {
                    drop(reader);
                    // What the parent has is not this child's to drop.
                    std::mem::forget(props);
                    self.play();
                }
                say(&mut reader, "ok ");
            } else {
                let answer = props.act(&self.ground, &words);
                say(&mut reader, &answer);
            }
            line.clear();
        }
        drop(props);
        // SAFETY: ends this process at once, as a child of a fork should.
        unsafe { libc::_exit(0) }
    }
}

fn say(stream: &mut BufReader<UnixStream>, text: &str) {
    // If nobody listens any more, the next read ends this player.
    let _ = writeln!(stream.get_mut(), "{text}");
}

/// What a player has. Dropped in this order.
#[derive(Default)]
struct Props {
    opened: Vec<OpenedMemory>,
    allocated: Vec<PoolMemory>,
    ipc: Option<Ipc>,
}

type Answer = Result<String, (i32, String)>;

fn of_ipc(error: IpcError) -> (i32, String) {
    (error.hip(Default::default()).code(), error.to_string())
}

fn of_memory(error: hsa_vmm::MemoryError) -> (i32, String) {
    (error.hip(Default::default()).code(), error.to_string())
}

impl Props {
    fn act(&mut self, ground: &Ground, words: &[&str]) -> String {
        match self.try_to(ground, words) {
            Ok(text) => format!("ok {text}"),
            Err((code, text)) => format!("error {code} {}", text.replace('\n', " ")),
        }
    }

    fn try_to(&mut self, ground: &Ground, words: &[&str]) -> Answer {
        let number = |index: usize| -> usize { words[index].parse().expect("a number") };
        let handle = |index: usize| IpcHandle::from_bytes(&from_hex(words[index]));
        match words[0] {
            "user" => {
                namespaces::become_user(number(1) as u32);
                Ok(String::new())
            }
            "namespace" => {
                namespaces::new_pid_namespace();
                Ok(String::new())
            }
            "proc" => {
                namespaces::own_proc();
                Ok(String::new())
            }
            "trust" => {
                self.ipc = self.ipc.take().map(|ipc| ipc.trusting(Trust::User(number(1) as u32)));
                Ok(String::new())
            }
            "runtime" => {
                let runtime = ground.open();
                let gpu = runtime.gpus().nth(number(1)).expect("there is such a GPU").id();
                self.ipc = Some(Ipc::on(&runtime, gpu).map_err(of_ipc)?);
                Ok(String::new())
            }
            "forked" => {
                let address = Address::new(number(1));
                let (ipc, handle) = (self.ipc().clone(), handle(2));
                // SAFETY: from here on this player waits for its children.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
                let end = crate::process::in_child(|| {
                    let answers = [
                        Ipc::open(ipc.runtime()).map(drop),
                        ipc.get_mem_handle(address).map(drop),
                        ipc.get_mem_handle(Address::NULL).map(drop),
                        ipc.open_mem_handle(&handle, 0).map(drop),
                        ipc.open_mem_handle(&handle, 77).map(drop),
                        ipc.close_mem_handle(address),
                        ipc.close_mem_handle(Address::NULL),
                    ];
                    for answer in answers {
                        assert!(matches!(answer, Err(IpcError::Forked { .. })), "{answer:?}");
                    }
                    drop(self.allocated.drain(..));
                    drop(self.opened.drain(..));
                });
                assert_eq!(end, crate::process::End::Well);
                Ok(String::new())
            }
            "allocate" => {
                let runtime = self.runtime();
                let gpu = runtime.gpus().nth(number(1)).expect("there is such a GPU").id();
                let memory = PoolMemory::allocate(runtime, gpu, number(2)).map_err(of_memory)?;
                let all: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
                memory.allow(&all).map_err(of_memory)?;
                let address = memory.address().get();
                self.allocated.push(memory);
                Ok(address.to_string())
            }
            "free" => {
                let at = self.allocated.iter().position(|it| it.address().get() == number(1));
                let memory = self.allocated.remove(at.expect("allocated here"));
                memory.free().map_err(|(_, error)| of_memory(error))?;
                Ok(String::new())
            }
            "get" => {
                let handle = self.ipc().get_mem_handle(Address::new(number(1))).map_err(of_ipc)?;
                Ok(to_hex(&handle.to_bytes()))
            }
            "open" => {
                let memory = OpenedMemory::open(self.ipc(), &handle(1)).map_err(of_ipc)?;
                let address = memory.address().get();
                self.opened.push(memory);
                Ok(address.to_string())
            }
            "open_raw" => {
                let flags = number(2) as u32;
                let opened = self.ipc().open_mem_handle(&handle(1), flags).map_err(of_ipc)?;
                Ok(opened.get().to_string())
            }
            "close" => {
                let at = self.opened.iter().position(|it| it.address().get() == number(1));
                let memory = self.opened.remove(at.expect("opened here"));
                memory.close().map_err(|(_, error)| of_ipc(error))?;
                Ok(String::new())
            }
            "close_raw" => {
                let address = Address::new(number(1));
                self.ipc().close_mem_handle(address).map_err(of_ipc).map(|()| String::new())
            }
            "rounds" => {
                for _ in 0..number(2) {
                    let opened = self.ipc().open_mem_handle(&handle(1), 0).map_err(of_ipc)?;
                    self.ipc().close_mem_handle(opened).map_err(of_ipc)?;
                }
                Ok(String::new())
            }
            "thread_rounds" => {
                let (ipc, handles) = (self.ipc(), [handle(1), handle(2)]);
                let rounds = number(3);
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..4)
                        .map(|thread| {
                            scope.spawn(move || {
                                for round in 0..rounds {
                                    let handle = &handles[(thread + round) % 2];
                                    let opened = ipc.open_mem_handle(handle, 0)?;
                                    ipc.close_mem_handle(opened)?;
                                }
                                Ok(())
                            })
                        })
                        .collect();
                    threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
                })
                .map_err(of_ipc)?;
                Ok(String::new())
            }
            "get_rounds" => {
                for _ in 0..number(2) {
                    self.ipc().get_mem_handle(Address::new(number(1))).map_err(of_ipc)?;
                }
                Ok(String::new())
            }
            "new_rounds" => {
                let runtime = self.runtime();
                let gpu = runtime.gpus().next().expect("a GPU").id();
                for _ in 0..number(1) {
                    let memory = PoolMemory::allocate(runtime, gpu, 2 << 20).map_err(of_memory)?;
                    self.ipc().get_mem_handle(memory.address()).map_err(of_ipc)?;
                    memory.free().map_err(|(_, error)| of_memory(error))?;
                }
                Ok(String::new())
            }
            "write" => self.write(number(1), words[2]),
            "read" => self.read(number(1), number(2)),
            "fill" => {
                let (at, value, size) = (number(1), number(2) as u32, number(3));
                self.find(
                    at,
                    |opened| opened.fill(0, value, size),
                    |own, offset| own.fill(offset, value, size),
                )?;
                Ok(String::new())
            }
            "state" => Ok(format!("{} {}", crate::process::descriptors(), mappings())),
            "limit" => {
                limit_descriptors(number(1) as u64);
                Ok(String::new())
            }
            "no_limit" => {
                limit_descriptors(u64::MAX);
                Ok(String::new())
            }
            other => panic!("no such line: {other}"),
        }
    }

    fn ipc(&self) -> &Ipc {
        self.ipc.as_ref().expect("a player with a runtime")
    }

    fn runtime(&self) -> &Runtime {
        self.ipc().runtime()
    }

    /// What is at an address: the start of something opened, or inside something allocated.
    fn find<T>(
        &self,
        at: usize,
        opened: impl FnOnce(&OpenedMemory) -> Result<T, hsa_vmm::MemoryError>,
        own: impl FnOnce(&PoolMemory, usize) -> Result<T, hsa_vmm::MemoryError>,
    ) -> Result<T, (i32, String)> {
        if let Some(memory) = self.opened.iter().find(|it| it.address().get() == at) {
            return opened(memory).map_err(of_memory);
        }
        let around =
            |it: &&PoolMemory| (0..it.size()).contains(&at.wrapping_sub(it.address().get()));
        let memory = self.allocated.iter().find(around).expect("memory of this player");
        own(memory, at - memory.address().get()).map_err(of_memory)
    }

    fn write(&self, at: usize, text: &str) -> Answer {
        let bytes = text.as_bytes();
        self.find(at, |it| it.write(0, bytes), |it, offset| it.write(offset, bytes))?;
        Ok(String::new())
    }

    fn read(&self, at: usize, size: usize) -> Answer {
        let bytes = std::cell::RefCell::new(vec![0; size]);
        self.find(
            at,
            |it| it.read(0, &mut bytes.borrow_mut()),
            |it, offset| it.read(offset, &mut bytes.borrow_mut()),
        )?;
        Ok(to_hex(&bytes.into_inner()))
    }
}

fn mappings() -> usize {
    crate::process::regions().len()
}

/// Sets how many descriptors this player may have.
fn limit_descriptors(descriptors: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is writable.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
    limit.rlim_cur = descriptors.min(limit.rlim_max);
    // SAFETY: a valid limit of this process's.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> [u8; IpcHandle::SIZE] {
    std::array::from_fn(|index| {
        u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("two digits")
    })
}

impl Player {
    /// Tells the player a line, without waiting for what comes of it.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stream.get_mut(), "{line}").expect("the player is there");
    }

    /// What came of the last line.
    #[track_caller]
    pub fn answer(&mut self) -> Result<String, Refused> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        let read = read.unwrap_or_else(|error| panic!("player {}: {error}", self.process));
        assert!(read > 0, "player {} has ended", self.process);
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
        self.tell(line);
        self.answer()
    }

    #[track_caller]
    pub fn ok(&mut self, line: &str) -> String {
        let answer = self.ask(line);
        answer.unwrap_or_else(|refused| panic!("{line}: {} ({})", refused.text, refused.hip))
    }

    /// Exports and frees memory, and allocates until its address is used again. Which sizes AMD's
    /// runtime keeps for later, and where it then puts others, differs between its releases.
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
        assert_eq!(found, to_hex(text.as_bytes()), "player {} at {address:#x}", self.process);
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a process of this test's, which nobody has waited for.
        unsafe { libc::kill(self.process, signal) };
    }

    /// Stops the player, and returns when all its threads have stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: as above, and a writable status; one that has stopped is told of, not reaped.
        let told = unsafe { libc::waitpid(self.process, &mut status, libc::WUNTRACED) };
        assert!(told == self.process && libc::WIFSTOPPED(status), "{told}, {status:#x}");
    }

    /// Kills the player, and returns when it is gone.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        if self.is_own_child {
            let mut status = 0;
            // SAFETY: our own child, and a writable status.
            unsafe { libc::waitpid(self.process, &mut status, 0) };
        } else {
            // Its parent does not wait for it either, so that it goes by itself.
            while std::path::Path::new(&format!("/proc/{}", self.process)).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
