//! Reads the kernel's log.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

const PATH: &str = "/dev/kmsg";

/// The kernel's log, opened at its end, or the reason why the log cannot be read.
#[derive(Debug)]
pub struct KernelLog {
    file: Result<File, String>,
}

impl KernelLog {
    pub fn open_at_end() -> Self {
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
        let opened = File::options().read(true).custom_flags(nonblocking).open(PATH);
        let file = opened.and_then(|mut file| file.seek(SeekFrom::End(0)).map(|_| file));
        Self { file: file.map_err(|error| format!("{PATH}: {error}")) }
    }

    /// Returns the lines that were logged since the previous call of this method, or since the log was opened. If the
    /// log cannot be read, returns the reason.
    pub fn new_lines(&mut self) -> Result<Vec<String>, String> {
        let file = self.file.as_mut().map_err(|error| error.clone())?;
        let mut lines = Vec::new();
        // One read returns one entry of at most 8 KiB.
        let mut entry = [0; 8192];
        loop {
            match file.read(&mut entry) {
                Ok(0) => break,
                Ok(length) => lines.push(message(&String::from_utf8_lossy(&entry[..length]))),
                // The kernel has overwritten older entries. The next read returns the oldest remaining entry.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("{PATH}: {error}")),
            }
        }
        Ok(lines)
    }
}

/// Returns the message of an entry such as `6,339,5140900,-;amdgpu: …`.
fn message(entry: &str) -> String {
    let message = entry.split_once(';').map_or(entry, |(_, message)| message);
    message.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn message_omits_header_and_continuation() {
        let entry = "4,812,99911,-;amdgpu 0000:03:00.0: page fault\n SUBSYSTEM=pci\n";
        assert_eq!(super::message(entry), "amdgpu 0000:03:00.0: page fault");
        assert_eq!(super::message("odd"), "odd");
    }
}
