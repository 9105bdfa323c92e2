//! Writes the emulated files of `/sys` and `/dev` to a temporary folder, the tree.
//!
//! The contents depend only on the configuration. Processes of one configuration share a folder, whose
//! name contains a hash of the contents. The first process writes the folder under another name, then renames it. A
//! process that finds a folder without some of the files adds them.

mod generated;
mod topology;

pub(crate) use generated::GeneratedFile;
pub(crate) use topology::gtt_memory;

use crate::config::Config;
use crate::driver::{DRM_MAJOR, FIRST_RENDER_MINOR};
use crate::{environment, memory_file};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// A file (path and text) or a symbolic link (path and target).
pub(crate) type File = (String, String);

/// Writes the files. Returns their folder.
pub(crate) fn write(config: &Config) -> io::Result<String> {
    let mut files = topology::files(config);
    let mut links =
        vec![("sys/class/kfd/kfd".to_owned(), "../../devices/virtual/kfd/kfd".to_owned())];
    for gpu in 0..config.gpus {
        files.extend(device_files(config, gpu));
        for (name, minor) in [("card", gpu), ("renderD", FIRST_RENDER_MINOR + gpu)] {
            let target = format!("../../../dev/char/{DRM_MAJOR}:{minor}/device");
            links.push((format!("sys/class/drm/{name}{minor}/device"), target));
        }
    }
    files.push(("dev/kfd".to_owned(), String::new()));
    files.push(("sys/module/amdgpu/initstate".to_owned(), "live\n".to_owned()));
    // `stat` of a generated file reports this file.
    files.push(("generated".to_owned(), String::new()));
    store(&files, &links).map(|folder| folder.to_string_lossy().into_owned())
}

/// Returns the files that libdrm reads for a GPU's device numbers. libdrm distinguishes GPUs by the
/// name of their primary node, so each GPU has a primary node.
fn device_files(config: &Config, gpu: usize) -> Vec<File> {
    let render = FIRST_RENDER_MINOR + gpu;
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
        for name in generated::MEMORY_FILES {
            files.push((format!("{folder}/{name}"), String::new()));
        }
    }
    files
}

fn store(files: &[File], links: &[File]) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (files, links).hash(&mut hasher);
    let user = environment::user();
    let name = format!("hsa-kfd-{user}-{:016x}", hasher.finish());
    let folder = environment::temporary_folder().join(&name);
    // Programs that clean the folder for temporary files remove files that nobody has read for days.
    let missing = || {
        let paths = files.iter().chain(links).map(|(path, _)| path);
        paths.filter(|path| fs::symlink_metadata(folder.join(path)).is_err())
    };
    if is_own(&folder, user) && missing().next().is_none() {
        return Ok(folder);
    }
    let draft = environment::temporary_folder()
        .join(format!("{name}.{:016x}", memory_file::random_token()));
    fs::DirBuilder::new().mode(0o700).create(&draft).map_err(|error| {
        io::Error::other(format!("{}: {error}; set TMPDIR to another folder", draft.display()))
    })?;
    if let Err(error) = fill(&draft, files, links) {
        fs::remove_dir_all(&draft)?;
        let path = draft.display();
        return Err(io::Error::other(format!("{path}: {error}; set TMPDIR to another folder")));
    }
    if let Err(error) = fs::rename(&draft, &folder) {
        // The folder exists: it lacks files, or another process of the same configuration has written it meanwhile.
        let repaired = if is_own(&folder, user) {
            missing()
                .try_for_each(|path| fs::rename(draft.join(path), path_in_tree(&folder, path)?))
        } else {
            Err(error)
        };
        fs::remove_dir_all(&draft)?;
        repaired.map_err(|error| {
            let path = folder.display();
            io::Error::other(format!("{path}: {error}; remove it, or set TMPDIR to another folder"))
        })?;
    }
    Ok(folder)
}

fn fill(folder: &Path, files: &[File], links: &[File]) -> io::Result<()> {
    for (path, text) in files {
        fs::write(path_in_tree(folder, path)?, text)?;
    }
    for (path, target) in links {
        symlink(target, path_in_tree(folder, path)?)?;
    }
    Ok(())
}

/// Returns the path of a file in a folder. Creates the folders above the file.
fn path_in_tree(folder: &Path, path: &str) -> io::Result<PathBuf> {
    let path = folder.join(path);
    path.parent().map_or(Ok(()), fs::create_dir_all).map(|()| path)
}

/// Returns whether a folder exists and only this user has access to it.
fn is_own(folder: &Path, user: u32) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|status| status.is_dir() && status.uid() == user && status.mode() & 0o077 == 0)
}
