//! Executes the commands that a test sends to a peer.

use crate::fixture::Fixture;
use crate::impostor;
use crate::process::limit::{raise_limit, set_soft_limit};
use crate::process::{End, descriptors, in_child, namespaces, regions};
use hsa_vmm::ipc::{IpcHandle, OpenedMemory};
use hsa_vmm::transport::Trust;
use hsa_vmm::{Address, Error, ErrorKind, Ipc, PoolMemory, Runtime};
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Executes commands in a peer, and owns the peer's memory. Rust drops the fields in this order.
#[derive(Default)]
pub struct Executor {
    opened: Vec<OpenedMemory>,
    allocated: Vec<PoolMemory>,
    ipc: Option<Ipc>,
}

/// The output of a command, or HIP's code for the error and the error's message.
type CommandResult = Result<String, (i32, String)>;

fn code_and_text(error: Error) -> (i32, String) {
    (error.hip(Default::default()).code(), error.to_string())
}

impl Executor {
    /// Executes a command, and returns the reply, which is one line.
    pub fn execute(&mut self, fixture: &Fixture, words: &[&str]) -> String {
        match self.try_execute(fixture, words) {
            Ok(text) => format!("ok {text}"),
            Err((code, text)) => format!("error {code} {}", text.replace('\n', " ")),
        }
    }

    fn try_execute(&mut self, fixture: &Fixture, words: &[&str]) -> CommandResult {
        let number = |index: usize| -> usize { words[index].parse().expect("a number") };
        let handle = |index: usize| IpcHandle::from_bytes(&from_hex(words[index]));
        match words[0] {
            "become_user" => {
                namespaces::become_user(number(1) as u32);
                Ok(String::new())
            }
            "set_real_user" => {
                namespaces::set_real_user(number(1) as u32);
                Ok(String::new())
            }
            "new_pid_namespace" => {
                namespaces::new_pid_namespace();
                Ok(String::new())
            }
            "mount_proc" => {
                namespaces::mount_own_proc();
                Ok(String::new())
            }
            "trust" => {
                self.ipc = self.ipc.take().map(|ipc| ipc.with_trust(Trust::User(number(1) as u32)));
                Ok(String::new())
            }
            "reset_sigpipe" => {
                // SAFETY: the call installs no handler; it restores the default of C programs.
                unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
                Ok(String::new())
            }
            "replace_server" => {
                impostor::replace_server(number(1) as i32, &handle(2));
                Ok(String::new())
            }
            "bind_relay_names" => {
                impostor::bind_relay_names(number(1) as i32);
                Ok(String::new())
            }
            "connect_to_relays" => {
                impostor::connect_to_relays();
                Ok(String::new())
            }
            "count_connections" => Ok(impostor::CONNECTIONS.load(Ordering::Relaxed).to_string()),
            "send_invalid_descriptor" => {
                impostor::send_invalid_descriptor();
                Ok(String::new())
            }
            "send_slow_descriptor" => {
                impostor::send_slow_descriptor();
                Ok(String::new())
            }
            "open_concurrently" => {
                let (ipc, first, second) = (self.ipc(), handle(1), handle(2));
                let (first_took, longest) = std::thread::scope(|scope| {
                    let stuck = scope.spawn(|| {
                        let begun = Instant::now();
                        let opened = ipc.open_mem_handle(&first, 0);
                        let took = begun.elapsed();
                        opened.ok().map(|opened| ipc.close_mem_handle(opened));
                        took
                    });
                    let mut longest = Duration::ZERO;
                    let mut rounds = 0;
                    while rounds < 3 || !stuck.is_finished() {
                        let begun = Instant::now();
                        let opened = ipc.open_mem_handle(&second, 0).map_err(code_and_text)?;
                        ipc.close_mem_handle(opened).map_err(code_and_text)?;
                        longest = longest.max(begun.elapsed());
                        rounds += 1;
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Ok((stuck.join().expect("no panic"), longest))
                })?;
                Ok(format!("{} {}", first_took.as_millis(), longest.as_millis()))
            }
            "free_concurrently" => {
                let mut take = |address| {
                    let index =
                        self.allocated.iter().position(|memory| memory.address().get() == address);
                    self.allocated.remove(index.expect("allocated by this peer"))
                };
                let (first, second) = (take(number(1)), take(number(2)));
                let timed = |memory: PoolMemory| {
                    let begun = Instant::now();
                    let freed = memory.free();
                    (begun.elapsed().as_millis(), freed)
                };
                let ((first_ms, first_result), (second_ms, second_result)) =
                    std::thread::scope(|scope| {
                        let first_thread = scope.spawn(|| timed(first));
                        let timed_second = timed(second);
                        (first_thread.join().expect("no panic"), timed_second)
                    });
                second_result.map_err(|rejected| code_and_text(rejected.error))?;
                self.allocated.extend(first_result.err().map(|rejected| rejected.value));
                Ok(format!("{first_ms} {second_ms}"))
            }
            "open_runtime" => {
                let runtime = fixture.open();
                let gpu = runtime.gpus().nth(number(1)).expect("the GPU exists").id();
                self.ipc = Some(Ipc::on(&runtime, gpu).map_err(code_and_text)?);
                Ok(String::new())
            }
            "call_in_child" => {
                let address = Address::new(number(1));
                let (ipc, handle) = (self.ipc().clone(), handle(2));
                // SAFETY: the call installs no handler; the default lets this peer wait for its children.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
                let end = in_child(|| {
                    let results = [
                        Ipc::open(ipc.runtime()).map(drop),
                        ipc.get_mem_handle(address).map(drop),
                        ipc.get_mem_handle(Address::NULL).map(drop),
                        ipc.open_mem_handle(&handle, 0).map(drop),
                        ipc.open_mem_handle(&handle, 77).map(drop),
                        ipc.close_mem_handle(address),
                        ipc.close_mem_handle(Address::NULL),
                    ];
                    for result in results {
                        let error = result.unwrap_err();
                        assert_eq!(*error.kind(), ErrorKind::Forked, "{error}");
                    }
                    drop(self.allocated.drain(..));
                    drop(self.opened.drain(..));
                });
                assert_eq!(end, End::Success);
                Ok(String::new())
            }
            "allocate" => {
                let runtime = self.runtime();
                let gpu = runtime.gpus().nth(number(1)).expect("the GPU exists").id();
                let memory =
                    PoolMemory::allocate(runtime, gpu, number(2)).map_err(code_and_text)?;
                let all: Vec<_> = runtime.gpus().map(|gpu| gpu.id()).collect();
                memory.allow(&all).map_err(code_and_text)?;
                let address = memory.address().get();
                self.allocated.push(memory);
                Ok(address.to_string())
            }
            "free" => {
                let index =
                    self.allocated.iter().position(|memory| memory.address().get() == number(1));
                let memory = self.allocated.remove(index.expect("allocated by this peer"));
                memory.free().map_err(|rejected| code_and_text(rejected.error))?;
                Ok(String::new())
            }
            "get_handle" => {
                let handle =
                    self.ipc().get_mem_handle(Address::new(number(1))).map_err(code_and_text)?;
                Ok(to_hex(&handle.to_bytes()))
            }
            "open" => {
                let memory = OpenedMemory::open(self.ipc(), &handle(1)).map_err(code_and_text)?;
                let address = memory.address().get();
                self.opened.push(memory);
                Ok(address.to_string())
            }
            "open_raw" => {
                let flags = number(2) as u32;
                let opened =
                    self.ipc().open_mem_handle(&handle(1), flags).map_err(code_and_text)?;
                Ok(opened.get().to_string())
            }
            "close" => {
                let index =
                    self.opened.iter().position(|memory| memory.address().get() == number(1));
                let memory = self.opened.remove(index.expect("opened by this peer"));
                memory.close().map_err(|rejected| code_and_text(rejected.error))?;
                Ok(String::new())
            }
            "close_raw" => {
                let address = Address::new(number(1));
                self.ipc().close_mem_handle(address).map_err(code_and_text).map(|()| String::new())
            }
            "open_repeatedly" => {
                for _ in 0..number(2) {
                    let opened =
                        self.ipc().open_mem_handle(&handle(1), 0).map_err(code_and_text)?;
                    self.ipc().close_mem_handle(opened).map_err(code_and_text)?;
                }
                Ok(String::new())
            }
            "open_in_threads" => {
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
                .map_err(code_and_text)?;
                Ok(String::new())
            }
            "get_handle_repeatedly" => {
                for _ in 0..number(2) {
                    self.ipc().get_mem_handle(Address::new(number(1))).map_err(code_and_text)?;
                }
                Ok(String::new())
            }
            "export_repeatedly" => {
                let runtime = self.runtime();
                let gpu = runtime.gpus().next().expect("a GPU").id();
                for _ in 0..number(1) {
                    let memory =
                        PoolMemory::allocate(runtime, gpu, 2 << 20).map_err(code_and_text)?;
                    self.ipc().get_mem_handle(memory.address()).map_err(code_and_text)?;
                    memory.free().map_err(|rejected| code_and_text(rejected.error))?;
                }
                Ok(String::new())
            }
            "write" => self.write(number(1), words[2]),
            "read" => self.read(number(1), number(2)),
            "fill" => {
                let (address, value, size) = (number(1), number(2) as u32, number(3));
                self.with_memory_at(
                    address,
                    |opened| opened.fill(0, value, size),
                    |own, offset| own.fill(offset, value, size),
                )?;
                Ok(String::new())
            }
            "get_size" => {
                let size = self.with_memory_at(
                    number(1),
                    |memory| Ok(memory.size()),
                    |memory, _| Ok(memory.size()),
                )?;
                Ok(size.to_string())
            }
            "count_resources" => Ok(format!("{} {}", descriptors(), regions().len())),
            "limit_descriptors" => {
                set_soft_limit(number(1) as u64);
                Ok(String::new())
            }
            "raise_descriptor_limit" => {
                raise_limit();
                Ok(String::new())
            }
            command => panic!("unknown command: {command}"),
        }
    }

    fn ipc(&self) -> &Ipc {
        self.ipc.as_ref().expect("a peer with a runtime")
    }

    fn runtime(&self) -> &Runtime {
        self.ipc().runtime()
    }

    /// Calls `opened` if opened memory starts at the address. Otherwise calls `own` with the allocated memory that
    /// contains the address, and with the offset in that memory.
    fn with_memory_at<T>(
        &self,
        address: usize,
        opened: impl FnOnce(&OpenedMemory) -> Result<T, Error>,
        own: impl FnOnce(&PoolMemory, usize) -> Result<T, Error>,
    ) -> Result<T, (i32, String)> {
        if let Some(memory) = self.opened.iter().find(|memory| memory.address().get() == address) {
            return opened(memory).map_err(code_and_text);
        }
        let contains = |memory: &&PoolMemory| {
            (0..memory.size()).contains(&address.wrapping_sub(memory.address().get()))
        };
        let memory = self.allocated.iter().find(contains).expect("memory of this peer");
        own(memory, address - memory.address().get()).map_err(code_and_text)
    }

    fn write(&self, address: usize, text: &str) -> CommandResult {
        let bytes = text.as_bytes();
        self.with_memory_at(
            address,
            |memory| memory.write(0, bytes),
            |memory, offset| memory.write(offset, bytes),
        )?;
        Ok(String::new())
    }

    fn read(&self, address: usize, size: usize) -> CommandResult {
        let bytes = std::cell::RefCell::new(vec![0; size]);
        self.with_memory_at(
            address,
            |memory| memory.read(0, &mut bytes.borrow_mut()),
            |memory, offset| memory.read(offset, &mut bytes.borrow_mut()),
        )?;
        Ok(to_hex(&bytes.into_inner()))
    }
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub fn from_hex(text: &str) -> [u8; IpcHandle::SIZE] {
    std::array::from_fn(|index| {
        u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("two digits")
    })
}
