//! The files of sysfs and devfs, written to a folder that stands for `/`.
//!
//! What is in them depends on the configuration alone, so that processes of one configuration
//! share one folder, named after its contents: it is written under another name and renamed.

mod topology;

use crate::config::Config;
use crate::driver::{DRM_MAJOR, FIRST_RENDER};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file, by its path below the folder, and its text.
pub(crate) type File = (String, String);

/// Writes the files and names their folder. If that fails it says so on standard error; the
/// paths of the driver then lead nowhere, as on a machine without it.
pub(crate) fn write(config: &Config) -> String {
    let mut files = topology::files(config);
    for gpu in 0..config.gpus {
        files.extend(device(config, gpu));
    }
    files.push(("dev/kfd".to_owned(), String::new()));
    files.push(("sys/module/amdgpu/initstate".to_owned(), "live\n".to_owned()));
    match store(&files) {
        Ok(folder) => folder.to_string_lossy().into_owned(),
        Err(error) => {
            eprintln!("hsa-kfd: the files of the emulated driver cannot be written: {error}");
            "/nonexistent".to_owned()
        }
    }
}

/// What libdrm looks for behind a device number. It tells two GPUs apart by the name of their
/// primary node, so there has to be one for each.
fn device(config: &Config, gpu: usize) -> Vec<File> {
    let render = FIRST_RENDER + gpu;
    let mut files = vec![
        (format!("dev/dri/renderD{render}"), String::new()),
        (format!("dev/dri/card{gpu}"), String::new()),
    ];
    for minor in [render, gpu] {
        let folder = format!("sys/dev/char/{DRM_MAJOR}:{minor}/device");
        for name in [format!("renderD{render}"), format!("card{gpu}")] {
            files.push((format!("{folder}/drm/{name}/uevent"), String::new()));
        }
        files.push((format!("{folder}/vendor"), "0x1002\n".to_owned()));
        files.push((format!("{folder}/device"), format!("{:#06x}\n", config.profile.device)));
        files.push((format!("{folder}/uevent"), "DRIVER=amdgpu\n".to_owned()));
    }
    files
}

fn store(files: &[File]) -> std::io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    // SAFETY: asks for numbers and touches no memory.
    let (user, process) = unsafe { (libc::geteuid(), libc::getpid()) };
    let name = format!("hsa-kfd-{user}-{:016x}", hasher.finish());
    let folder = std::env::temp_dir().join(&name);
    if is_own(&folder, user) {
        return Ok(folder);
    }
    let draft = std::env::temp_dir().join(format!("{name}.{process}"));
    fs::DirBuilder::new().mode(0o700).create(&draft)?;
    for (path, text) in files {
        let path = draft.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, text)?;
    }
    if let Err(error) = fs::rename(&draft, &folder) {
        fs::remove_dir_all(&draft)?;
        // Another process of the same configuration may have been first.
        if !is_own(&folder, user) {
            return Err(error);
        }
    }
    Ok(folder)
}

/// Whether a folder is there and nobody else can have written to it.
fn is_own(folder: &Path, user: u32) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|status| status.is_dir() && status.uid() == user && status.mode() & 0o077 == 0)
}
