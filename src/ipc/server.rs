//! AMD's server: what the exporter's runtime answers to whoever maps its memory.
//!
//! Where the runtime shares memory by dma-buf, the exporting process has a thread that waits at
//! the abstract socket `hsa<process>` for the address in decimal, and sends a descriptor. To an
//! address that it does not know it answers by closing the connection, for which the importing
//! runtime then waits for ever (ROCm 6). So it is asked here first, by somebody who takes no for
//! an answer.

use crate::native::NativeIpc;
use rustix::io::{Errno, read, write};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::time::{Duration, Instant};

/// How long the server is waited for. It is a thread that does nothing else.
const PATIENCE: Duration = Duration::from_secs(5);
/// What the server reads at a time.
const REQUEST: usize = 64;
/// The room for a name in a Unix socket's address, after the byte that makes it abstract. The
/// runtime's name is filled up with zeros to the end.
const NAME: usize = 107;

/// What the exporter's runtime says of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It will hand the memory out.
    Known,
    /// It knows of no such memory.
    Unknown,
    /// There is no server: the process has ended, or its runtime has stopped.
    Nobody,
    /// It does not answer: the process is stopped, or has no descriptor left.
    Silent,
}

/// Whether a handle is one for which the exporter's server will be asked.
pub(super) fn is_asked_for(native: NativeIpc, process: i32) -> bool {
    // The third word is the server's process; in a handle of the kernel's it is a random number.
    process > 0 && native[2] == process as u32
}

/// Asks the exporter's runtime whether it would hand the memory out.
pub(super) fn ask(native: NativeIpc) -> Result<Answer, Errno> {
    let deadline = Instant::now() + PATIENCE;
    let mut name = [0; NAME];
    let text = format!("hsa{}", native[2] as i32);
    name[..text.len()].copy_from_slice(text.as_bytes());
    let address = SocketAddrUnix::new_abstract_name(&name)?;
    // Connecting waits for ever where the server's queue is full, unless it must not wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    loop {
        match connect(&stream, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Answer::Silent),
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(Answer::Nobody),
            Err(errno) => return Err(errno),
        }
    }
    rustix::io::ioctl_fionbio(&stream, false)?;
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&stream, direction, Some(left))?;
    }
    let pointer = u64::from(native[1]) << 32 | u64::from(native[0]);
    let mut request = [0; REQUEST];
    let text = pointer.to_string();
    request[..text.len()].copy_from_slice(text.as_bytes());
    // A descriptor that comes with the answer is closed by the kernel, as nobody makes room for it.
    let answer = write(&stream, &request).and_then(|_| read(&stream, &mut [0; 1]));
    match answer {
        Ok(0) | Err(Errno::CONNRESET | Errno::PIPE) => Ok(Answer::Unknown),
        Ok(_) => {
            // The server waits for this, with its lock held.
            let _ = write(&stream, &request);
            Ok(Answer::Known)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(Answer::Silent),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    /// A server under a number that is no process's, which answers to one address.
    fn serve(number: u32, known: u64) -> std::thread::JoinHandle<()> {
        let mut name = format!("hsa{}", number as i32).into_bytes();
        name.resize(NAME, 0);
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; REQUEST];
                stream.read_exact(&mut request).unwrap();
                let text = std::str::from_utf8(&request).unwrap().trim_end_matches('\0');
                if text.parse() == Ok(known) {
                    stream.write_all(b"y").unwrap();
                    stream.read_exact(&mut request).unwrap();
                }
            }
        })
    }

    #[test]
    fn the_server_is_asked_and_a_no_is_taken() {
        // Numbers of processes end at 2^22.
        let number = (1 << 30) + std::process::id();
        let server = serve(number, 0x7f00_0000_2000);
        let handle = |low| [low, 0x7f00, number, 0, 0, 0, 0, 0];
        assert_eq!(ask(handle(0x2000)), Ok(Answer::Known));
        assert_eq!(ask(handle(0x3000)), Ok(Answer::Unknown));
        server.join().unwrap();
        assert_eq!(ask(handle(0x2000)), Ok(Answer::Nobody));
    }
}
