//! `hsa-vmm kfd-version`: prints the version of the interface of `/dev/kfd`, and the versions of the render nodes'
//! drivers.
//!
//! Other subcommands run this subcommand in a process of its own, because a defective driver can hang.
//! `emulate` runs it with `--open`, to check the emulated driver's configuration, which the driver loads when the
//! device is opened.

use crate::Exit;
use crate::screen::Screen;
use clap::Args;
use hsa_vmm_conformance::worker::{End, Output, Received, Worker};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `AMDKFD_IOC_GET_VERSION`: reads eight bytes, group `K`, number 1.
const GET_VERSION: libc::Ioctl = (2_u32 << 30 | 8 << 16 | (b'K' as u32) << 8 | 1) as libc::Ioctl;

/// `DRM_IOCTL_VERSION`: reads and writes a [`DrmVersion`], group `d`, number 0.
const DRM_VERSION: libc::Ioctl =
    (3_u32 << 30 | (size_of::<DrmVersion>() as u32) << 16 | (b'd' as u32) << 8) as libc::Ioctl;

#[derive(Args, Debug)]
pub struct KfdVersion {
    /// Only open /dev/kfd
    #[arg(long)]
    pub open: bool,
    /// Only open this device
    #[arg(long)]
    pub device: Option<PathBuf>,
    /// Print the version of each render node, too
    #[arg(long)]
    pub render_nodes: bool,
}

/// The time limit of the other process that queries the versions.
pub const QUERY_LIMIT: Duration = Duration::from_secs(5);

/// Runs this subcommand in another process, because a defective driver can hang. Returns the output, which contains the
/// reason if the subcommand fails. In the other process, the emulated driver writes no logs. Without `with_faults`, it
/// also injects no planned faults.
///
/// # Errors
/// Returns the reason if the process cannot be started, is ended by a signal, or does not end in time.
pub fn query(options: &[&str], with_faults: bool) -> Result<String, String> {
    let not_started = |error: io::Error| format!("cannot start this program again: {error}");
    let mut command = hsa_rocr::restart_command().map_err(not_started)?;
    command.arg("kfd-version").args(options);
    let removed: &[&str] = match with_faults {
        true => &["HSA_KFD_LOG", "HSA_KFD_PAGE_TABLES"],
        false => &["HSA_KFD_FAULTS", "HSA_KFD_LOG", "HSA_KFD_PAGE_TABLES"],
    };
    for name in removed {
        command.env_remove(name);
    }
    let mut worker = Worker::start(command, Output::Capture).map_err(not_started)?;
    match worker.receive::<()>(QUERY_LIMIT) {
        Received::Exited(End::Exited(_)) => Ok(worker.captured_output()),
        Received::Exited(end) => Err(format!("the query crashes: {end}")),
        _ => Err(format!("the query hangs: no answer within {QUERY_LIMIT:?}")),
    }
}

/// Opens a device in another process, because a defective driver can hang or crash.
///
/// # Errors
/// Returns the error of the system call `open`, or describes how the process ended.
pub fn open(path: &Path) -> io::Result<()> {
    let path = path.to_string_lossy();
    let printed = query(&["--device", &path], true).map_err(io::Error::other)?;
    let number = printed.rsplit_once("(os error ").and_then(|(_, rest)| rest.split(')').next());
    match number.and_then(|number| number.parse().ok()) {
        Some(number) => Err(io::Error::from_raw_os_error(number)),
        None if printed.trim().is_empty() => Ok(()),
        None => Err(io::Error::other(printed.trim())),
    }
}

/// The argument of `AMDKFD_IOC_GET_VERSION`.
#[repr(C)]
#[derive(Default)]
struct Version {
    major: u32,
    minor: u32,
}

/// The argument of `DRM_IOCTL_VERSION`: three numbers, and the lengths and addresses of three texts.
#[repr(C)]
#[derive(Default)]
struct DrmVersion {
    major: i32,
    minor: i32,
    patch: i32,
    texts: [(usize, usize); 3],
}

pub fn run(args: &KfdVersion) -> anyhow::Result<Exit> {
    if let Some(device) = &args.device {
        File::options().read(true).write(true).open(device)?;
        return Ok(Exit::Success);
    }
    let device = File::options().read(true).write(true).open("/dev/kfd")?;
    if args.open {
        return Ok(Exit::Success);
    }
    let mut version = Version::default();
    // Use libc, because the emulated driver cannot intercept the system calls of rustix.
    // SAFETY: the request writes two 32-bit numbers; `Version` has two such fields.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_VERSION, &raw mut version) };
    if result != 0 {
        return Err(io::Error::last_os_error().into());
    }
    writeln!(Screen::stdout(), "{}.{}", version.major, version.minor)?;
    if args.render_nodes {
        for node in render_nodes() {
            let version = drm_version(&node)?;
            writeln!(Screen::stdout(), "{} {version}", node.display())?;
        }
    }
    Ok(Exit::Success)
}

/// Returns the render nodes, in order.
pub fn render_nodes() -> Vec<PathBuf> {
    let nodes = fs::read_dir("/dev/dri").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_render_node = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("renderD"))
    };
    let mut nodes: Vec<_> = nodes.filter(is_render_node).collect();
    nodes.sort();
    nodes
}

/// Returns the version of a render node's driver: `3.57.0`.
fn drm_version(node: &Path) -> io::Result<String> {
    let device = File::options().read(true).write(true).open(node)?;
    let mut version = DrmVersion::default();
    // SAFETY: without buffers for texts, the request writes only the numbers and the lengths of the texts.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), DRM_VERSION, &raw mut version) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let DrmVersion { major, minor, patch, .. } = version;
    Ok(format!("{major}.{minor}.{patch}"))
}
