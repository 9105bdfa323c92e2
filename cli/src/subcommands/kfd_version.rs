//! `hsa-vmm kfd-version`: prints the version of the interface of `/dev/kfd`.
//!
//! Other subcommands run this subcommand in a process of its own, because a defective driver may hang. With
//! `--open`, `emulate` checks the emulated driver's configuration, which is loaded when the device is opened.

use crate::Exit;
use crate::screen::Screen;
use clap::Args;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

/// `AMDKFD_IOC_GET_VERSION`: reads eight bytes, group `K`, number 1.
const GET_VERSION: libc::Ioctl = (2_u32 << 30 | 8 << 16 | (b'K' as u32) << 8 | 1) as libc::Ioctl;

#[derive(Args, Debug)]
pub struct KfdVersion {
    /// Only open the device
    #[arg(long)]
    pub open: bool,
}

/// The argument of `AMDKFD_IOC_GET_VERSION`.
#[repr(C)]
#[derive(Default)]
struct Version {
    major: u32,
    minor: u32,
}

pub fn run(args: &KfdVersion) -> anyhow::Result<Exit> {
    let device = File::options().read(true).write(true).open("/dev/kfd")?;
    if args.open {
        return Ok(Exit::Success);
    }
    let mut version = Version::default();
    // libc, because the emulated driver cannot intercept the system calls of rustix.
    // SAFETY: the request writes two 32-bit numbers; `Version` has two such fields.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_VERSION, &raw mut version) };
    if result != 0 {
        return Err(io::Error::last_os_error().into());
    }
    writeln!(Screen::stdout(), "{}.{}", version.major, version.minor)?;
    Ok(Exit::Success)
}
