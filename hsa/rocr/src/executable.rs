//! Checks whether the emulated driver can be preloaded into a program.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The maximum number of interpreters in a chain that the kernel follows.
const MAX_INTERPRETERS: usize = 5;
/// The set-user-ID and set-group-ID bits of a file's mode.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// `PT_INTERP`: the program header with the path of the loader.
const INTERPRETER_HEADER: u64 = 3;

/// Why the emulated driver cannot be preloaded into a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPreloadable {
    /// The program has no dynamic loader.
    #[error(
        "cannot emulate a driver for {0}: the program is statically linked, so nothing can be preloaded; \
         link it dynamically, or use `hsa-vmm vm`"
    )]
    Static(PathBuf),
    /// The program has another dynamic loader than glibc's.
    #[error(
        "cannot emulate a driver for {program}: its loader {loader} is not glibc's; link it with glibc, or use \
         `hsa-vmm vm`", program = program.display()
    )]
    OtherLoader {
        /// The program.
        program: PathBuf,
        /// The program's loader.
        loader: String,
    },
    /// The program is for another architecture.
    #[error(
        "cannot emulate a driver for {program}: the program is not for {arch}",
        program = .0.display(), arch = env::consts::ARCH
    )]
    OtherArchitecture(PathBuf),
    /// The loader ignores preloaded objects, because the program changes its user or group.
    #[error(
        "cannot emulate a driver for {0}: the program is set-user-ID or set-group-ID, so the loader \
         preloads nothing; run a copy without these bits"
    )]
    Privileged(PathBuf),
}

/// Checks that the emulated driver can be preloaded into a program.
///
/// The program, or the interpreter of a script, must be for this architecture and dynamically linked with glibc. It
/// must not change the user or the group. Accepts files that cannot be read or have another format: starting them
/// reports the error.
///
/// # Errors
/// The driver cannot be preloaded; the message names the reason.
pub fn check_preloadable(program: &Path) -> Result<(), NotPreloadable> {
    let mut file = program.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        if is_privileged(&file) {
            return Err(NotPreloadable::Privileged(file));
        }
        match kind(&file) {
            Ok(Kind::Script(interpreter)) => file = interpreter,
            Ok(Kind::Static) => return Err(NotPreloadable::Static(file)),
            Ok(Kind::OtherArchitecture) => return Err(NotPreloadable::OtherArchitecture(file)),
            Ok(Kind::Dynamic(loader)) if !loader.contains("/ld-linux") => {
                return Err(NotPreloadable::OtherLoader { program: file, loader });
            }
            Ok(Kind::Dynamic(_) | Kind::Other) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// Returns whether starting a file changes the user or the group.
fn is_privileged(file: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    fs::metadata(file).is_ok_and(|file| {
        file.mode() & SET_USER != 0 && file.uid() != user
            || file.mode() & SET_GROUP != 0 && file.gid() != group
    })
}

/// The kind of an executable file.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A script with this interpreter.
    Script(PathBuf),
    /// A program with this loader.
    Dynamic(String),
    /// A program without a loader.
    Static,
    /// A program of another architecture.
    OtherArchitecture,
    /// Neither a script nor a program.
    Other,
}

/// Determines the kind of a file.
fn kind(path: &Path) -> io::Result<Kind> {
    let file = File::open(path)?;
    let mut start = Vec::new();
    // The kernel looks for the interpreter in the first 256 bytes of a script.
    (&file).take(256).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
        let interpreter = words.next().unwrap_or_default();
        return Ok(Kind::Script(OsStr::from_bytes(interpreter).into()));
    }
    let Some(header) = start.first_chunk::<64>().filter(|header| header.starts_with(b"\x7fELF"))
    else {
        return Ok(Kind::Other);
    };
    // All architectures with AMD's runtime are 64-bit and little-endian.
    if header[4..6] != [2, 1] || header[18..20] != own_architecture()? {
        return Ok(Kind::OtherArchitecture);
    }
    // `e_phoff`, `e_phentsize`, `e_phnum`: the table of program headers.
    let (offset, size, count) = (
        little_endian(&header[32..40]),
        little_endian(&header[54..56]),
        little_endian(&header[56..58]),
    );
    for index in 0..count {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, offset.saturating_add(index * size))?;
        if little_endian(&entry[..4]) == INTERPRETER_HEADER {
            // `p_offset` and `p_filesz`.
            let (at, length) = (little_endian(&entry[8..16]), little_endian(&entry[32..40]));
            let mut loader = vec![0; length.min(4096) as usize];
            file.read_exact_at(&mut loader, at)?;
            let loader = loader.split(|&byte| byte == 0).next().unwrap_or_default();
            return Ok(Kind::Dynamic(String::from_utf8_lossy(loader).into_owned()));
        }
    }
    Ok(Kind::Static)
}

/// Decodes a little-endian number.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Returns the architecture in the header of this program's own file.
fn own_architecture() -> io::Result<[u8; 2]> {
    let mut machine = [0; 2];
    File::open("/proc/self/exe")?.read_exact_at(&mut machine, 18)?;
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_without_glibc_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            check_preloadable(&path)
        };
        assert_eq!(check(&own), Ok(()));
        assert_eq!(check(b"#!/bin/sh -e\necho"), Ok(()));
        assert_eq!(check(b"neither a program nor a script"), Ok(()));
        assert_eq!(check(b""), Ok(()));
        assert_eq!(check_preloadable("/no/such/file".as_ref()), Ok(()));
        let header = &own[..64];
        let mut without_segments = header.to_vec();
        without_segments[56..58].fill(0);
        assert_eq!(check(&without_segments), Err(NotPreloadable::Static(path.clone())));
        let mut other = header.to_vec();
        other[18] ^= 1;
        assert_eq!(check(&other), Err(NotPreloadable::OtherArchitecture(path.clone())));
        // One program header: PT_INTERP at the end of the file.
        let loader = b"/lib/ld-musl-x86_64.so.1\0";
        let mut musl = [header, &[0; 56], loader].concat();
        musl[32..40].copy_from_slice(&64_u64.to_le_bytes());
        musl[56] = 1;
        musl[57] = 0;
        musl[64] = 3;
        musl[72..80].copy_from_slice(&120_u64.to_le_bytes());
        musl[96..104].copy_from_slice(&(loader.len() as u64).to_le_bytes());
        let loader = "/lib/ld-musl-x86_64.so.1".to_owned();
        let expected = NotPreloadable::OtherLoader { program: path.clone(), loader };
        assert_eq!(check(&musl), Err(expected));
        // A script whose interpreter is the program without glibc.
        let script = folder.path().join("script");
        fs::write(&script, format!("#! {} -x\n", path.display())).unwrap();
        assert!(check_preloadable(&script).is_err());
    }
}
