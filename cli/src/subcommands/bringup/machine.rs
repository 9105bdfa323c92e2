//! Checks this machine's kernel module, devices and permissions, which a runtime needs. Changes nothing.

use crate::subcommands::kfd_version;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCheck {
    /// Whether the check passed. `None` if the state is not known.
    pub passed: Option<bool>,
    /// The state that the check found, or which state is not known and why.
    pub what: String,
    /// How to solve the problem, if there is one.
    pub advice: Option<String>,
}

fn pass(what: impl Into<String>) -> MachineCheck {
    MachineCheck { passed: Some(true), what: what.into(), advice: None }
}

fn fail(what: impl Into<String>, advice: impl Into<String>) -> MachineCheck {
    MachineCheck { passed: Some(false), what: what.into(), advice: Some(advice.into()) }
}

fn not_known(what: impl Into<String>) -> MachineCheck {
    MachineCheck { passed: None, what: what.into(), advice: None }
}

/// Runs all checks. An emulated driver has neither a kernel module nor PCI devices.
pub fn check(emulated: bool) -> Vec<MachineCheck> {
    let mut checks = if emulated { Vec::new() } else { vec![check_module(), check_pci()] };
    checks.push(check_device(Path::new("/dev/kfd"), kfd_version::open));
    checks.extend(check_render_nodes());
    checks.push(check_topology());
    let versions = kfd_version::query(&["--render-nodes"], true);
    checks.extend(check_versions(versions.as_deref(), &kfd_version::render_nodes()));
    // The emulated driver does not write to the kernel's log.
    let advice = checks.iter_mut().filter_map(|check| check.advice.as_mut());
    for advice in advice.filter(|advice| emulated && advice.contains("dmesg")) {
        *advice = "read the log of the emulated driver: emulate --log FILE".to_owned();
    }
    checks
}

/// Checks that the kernel module amdgpu is loaded.
fn check_module() -> MachineCheck {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    match fs::read_to_string("/sys/module/amdgpu/initstate") {
        Ok(state) if state.trim() == "live" => pass(format!("amdgpu is loaded (Linux {release})")),
        Ok(state) => fail(
            format!("the kernel module amdgpu is `{}` (Linux {release})", state.trim()),
            "look for amdgpu's errors in the kernel log: dmesg | grep -i amdgpu",
        ),
        // A module that is built into the kernel has no state.
        Err(_) if Path::new("/sys/module/amdgpu").is_dir() => {
            pass(format!("amdgpu is built into the kernel (Linux {release})"))
        }
        Err(_) => fail(
            format!("the kernel module amdgpu is not loaded (Linux {release})"),
            "load the module: modprobe amdgpu; the kernel needs CONFIG_DRM_AMDGPU and CONFIG_HSA_AMD",
        ),
    }
}

/// Checks that a GPU of AMD is on the PCI bus and has the driver amdgpu.
fn check_pci() -> MachineCheck {
    let mut drivers = Vec::new();
    for entry in fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        // Class 0x03 contains display controllers, class 0x12 processing accelerators.
        let class = read("class");
        let is_gpu = class.starts_with("0x03") || class.starts_with("0x12");
        if read("vendor").trim() == "0x1002" && is_gpu {
            let driver = fs::read_link(entry.path().join("driver")).ok();
            let driver = driver.as_deref().and_then(Path::file_name);
            let driver = driver.map_or("none".into(), |name| name.to_string_lossy().into_owned());
            drivers.push((entry.file_name().to_string_lossy().into_owned(), driver));
        }
    }
    if drivers.is_empty() {
        let advice = "check with lspci -d 1002:; firmware or a hypervisor may hide the GPU";
        return fail("no AMD GPU is on the PCI bus", advice);
    }
    let list: Vec<_> =
        drivers.iter().map(|(address, driver)| format!("{address} ({driver})")).collect();
    let what = format!("AMD GPUs on the PCI bus, and their drivers: {}", list.join(", "));
    if drivers.iter().any(|(_, driver)| driver == "amdgpu") {
        pass(what)
    } else {
        fail(what, "bind a GPU to amdgpu; vfio-pci or a module blacklist may prevent that")
    }
}

/// Checks that a device file exists, is a device, and can be opened by this user. `open` opens the file.
fn check_device(path: &Path, open: impl Fn(&Path) -> io::Result<()>) -> MachineCheck {
    let shown = path.display();
    let opened = open(path);
    let metadata = fs::metadata(path);
    let is_device = metadata.as_ref().is_ok_and(|file| file.file_type().is_char_device());
    match opened {
        Ok(_) if is_device => pass(format!("{shown} can be opened")),
        Ok(_) => {
            fail(format!("{shown} is not a device"), format!("remove {shown}, then load amdgpu"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => fail(
            format!("{shown} is missing"),
            "amdgpu is not loaded or supports no GPU here; in a container, pass the devices: \
             --device /dev/kfd --device /dev/dri",
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let group = metadata.map_or_else(
                |_| "unknown".to_owned(),
                |file| format!("{}, mode {:o}", group_name(file.gid()), file.mode() & 0o7777),
            );
            fail(
                format!("{shown} cannot be opened: permission denied (its group is {group})"),
                "add this user to the group `render` (usermod -aG render,video USER) and log in \
                 again; if the mode allows access, check the container's list of devices",
            )
        }
        Err(error) => fail(
            format!("{shown} cannot be opened: {error}"),
            "read the kernel log for the reason: dmesg | grep -i -e kfd -e amdgpu",
        ),
    }
}

/// Returns the name of a group, or its number if it has no name.
fn group_name(id: u32) -> String {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| id.to_string())
}

/// Checks that there are render nodes, and that each can be opened.
fn check_render_nodes() -> Vec<MachineCheck> {
    let nodes = kfd_version::render_nodes();
    if nodes.is_empty() {
        let advice =
            "amdgpu creates render nodes; in a container, pass the devices: --device /dev/dri";
        return vec![fail("/dev/dri has no render nodes", advice)];
    }
    nodes.iter().map(|path| check_device(path, kfd_version::open)).collect()
}

/// Checks the versions of `/dev/kfd` and of the render nodes. `printed` is the output of `kfd-version`, or the reason
/// why there is no output. A version 0 means that the driver returned success without an answer. A version that was not
/// printed is not known.
fn check_versions(printed: Result<&str, &String>, nodes: &[PathBuf]) -> Vec<MachineCheck> {
    let text = printed.unwrap_or_else(|reason| reason);
    let is_number = |part: &str| part.parse::<u32>().is_ok();
    let is_version = |text: &&str| text.split('.').all(is_number);
    // After the versions, the last line is the error.
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    let reason = last.strip_prefix("error: ").unwrap_or(last);
    let check = |device: &str, version: Option<&str>, request: &str| {
        let Some(version) = version else {
            return not_known(format!("the interface version of {device} is not known ({reason})"));
        };
        let what = format!("{device} has interface version {version}");
        match version.split('.').next() {
            Some("0") => fail(
                what,
                format!("no driver has version 0: check what the driver returns ({request})"),
            ),
            _ => pass(what),
        }
    };
    let printed_version = text.lines().find(is_version);
    let kfd = check("/dev/kfd", printed_version, "AMDKFD_IOC_GET_VERSION, kfd_ioctl_get_version");
    let nodes = nodes.iter().map(|node| {
        let node = node.display().to_string();
        let versions = text.lines().filter_map(|line| line.strip_prefix(&node)?.strip_prefix(' '));
        let version = versions.into_iter().find(is_version);
        check(&node, version, "DRM_IOCTL_VERSION, drm_version")
    });
    std::iter::once(kfd).chain(nodes).collect()
}

/// Checks that amdkfd's topology has a GPU.
fn check_topology() -> MachineCheck {
    let folder = Path::new("/sys/devices/virtual/kfd/kfd/topology/nodes");
    let Ok(entries) = fs::read_dir(folder) else {
        return fail(
            format!("{} is missing", folder.display()),
            "amdkfd is missing: the kernel needs CONFIG_HSA_AMD; a container needs the host's /sys",
        );
    };
    let (mut nodes, mut gpus) = (0, 0);
    for entry in entries.flatten() {
        nodes += 1;
        let properties = fs::read_to_string(entry.path().join("properties")).unwrap_or_default();
        let count = properties.lines().find_map(|line| line.strip_prefix("simd_count "));
        gpus += usize::from(count.is_some_and(|count| count.trim() != "0"));
    }
    let what = format!("amdkfd's topology has {nodes} nodes, {gpus} of them GPUs");
    match gpus {
        0 => fail(what, "read the kernel log for the reason: dmesg | grep -i kfd"),
        _ => pass(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn check_device_rejects_missing_and_plain_files() {
        let open = |path: &Path| File::options().read(true).write(true).open(path).map(drop);
        let check_device = |path: &Path| check_device(path, open);
        let folder = tempfile::tempdir().unwrap();
        let missing = check_device(&folder.path().join("kfd"));
        assert!(
            missing.passed == Some(false) && missing.what.ends_with("is missing"),
            "{missing:?}"
        );
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(check_device(&file).what.ends_with("is not a device"));
        assert_eq!(check_device(Path::new("/dev/null")).passed, Some(true));
    }

    #[test]
    fn check_versions_rejects_version_zero() {
        let nodes = ["/dev/dri/renderD128", "/dev/dri/renderD129"].map(PathBuf::from);
        let printed = "1.17\n/dev/dri/renderD128 3.57.0\n/dev/dri/renderD129 0.0.0\n";
        let found = check_versions(Ok(printed), &nodes);
        let passed: Vec<_> = found.iter().map(|check| check.passed).collect();
        assert_eq!(passed, [Some(true), Some(true), Some(false)], "{found:?}");
        assert_eq!(found[2].what, "/dev/dri/renderD129 has interface version 0.0.0");
        let advice = found[2].advice.as_deref().unwrap();
        assert!(advice.contains("DRM_IOCTL_VERSION"), "{advice}");
        assert_eq!(check_versions(Ok("0.0\n"), &[])[0].passed, Some(false));
    }

    #[test]
    fn version_that_was_not_read_is_not_known() {
        let nodes = ["/dev/dri/renderD128", "/dev/dri/renderD129"].map(PathBuf::from);
        let what = |printed: Result<&str, &String>| {
            let found = check_versions(printed, &nodes);
            let unknown = found.into_iter().filter(|check| check.passed.is_none());
            unknown.map(|check| check.what).collect::<Vec<_>>()
        };
        let unknown = |device: &str, reason: &str| {
            format!("the interface version of {device} is not known ({reason})")
        };
        // The query of the second node failed.
        let printed = "1.17\n/dev/dri/renderD128 3.57.0\nerror: Input/output error (os error 5)\n";
        let reason = "Input/output error (os error 5)";
        assert_eq!(what(Ok(printed)), [unknown("/dev/dri/renderD129", reason)]);
        let all = ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"];
        let printed = "error: Permission denied (os error 13)\n";
        let reason = "Permission denied (os error 13)";
        assert_eq!(what(Ok(printed)), all.map(|device| unknown(device, reason)));
        let hangs = "the query hangs: no answer within 5s".to_owned();
        assert_eq!(what(Err(&hangs)), all.map(|device| unknown(device, &hangs)));
    }

    #[test]
    fn group_name_returns_name_or_number() {
        assert_eq!(group_name(0), "root");
        assert_eq!(group_name(u32::MAX - 7), (u32::MAX - 7).to_string());
    }
}
