//! Loads the runtime with arbitrary values of environment variables, and with an arbitrary file in place of
//! libhsa-runtime64.so.1. Checks that the error of a failed load names the path.
#![no_main]

use hsa_vmm::simulation::Config;
use hsa_vmm::{ErrorKind, Runtime};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    runtime: Option<&'a [u8]>,
    rocm: Option<&'a [u8]>,
    simulation: Option<&'a str>,
    file: FileKind<'a>,
}

/// The file at the library's path.
#[derive(Arbitrary, Debug)]
enum FileKind<'a> {
    Missing,
    File(&'a [u8]),
    Folder,
    BrokenLink,
    LinkToItself,
}

const LIBRARY_NAME: &str = "libhsa-runtime64.so.1";

fuzz_target!(|input: Input| {
    let folder = create_folder();
    let library = folder.join("lib").join(LIBRARY_NAME);
    create_file(&library, &input.file);
    let runtime = input.runtime.map(|text| path_from_bytes(&folder, text));
    let rocm = input.rocm.map(|text| path_from_bytes(&folder, text));
    set_variable("HSA_VMM_RUNTIME", runtime.as_ref().map(|path| path.as_os_str()));
    set_variable("ROCM_PATH", rocm.as_ref().map(|path| path.as_os_str()));
    let simulation = input.simulation.map(|text| text.replace('\0', "0"));
    set_variable("HSA_SIM", simulation.as_ref().map(OsStr::new));
    let result = Runtime::load();
    let selected = runtime.filter(|it| !it.as_os_str().is_empty());
    match (&result, selected) {
        (_, Some(path)) if path == Path::new("sim") => {
            let config = env::var("HSA_SIM").unwrap_or_default().parse::<Config>();
            assert!(result.is_err() || config.is_ok(), "{result:?}");
        }
        // The loader tries only this path, and the file there is not a library.
        (Err(error), Some(path)) => {
            let ErrorKind::Load(error) = error.kind() else {
                panic!("expected ErrorKind::Load for {}, found {error:?}", path.display());
            };
            assert_eq!(error.rejected.len(), 1);
            assert_eq!(error.rejected[0].path, path);
            assert!(!error.rejected[0].reason.is_empty());
        }
        (result, Some(path)) => {
            panic!("{}, which is not a runtime, was loaded: {result:?}", path.display())
        }
        // AMD's runtime may be installed on this machine.
        (Ok(_), None) => {}
        (Err(error), None) => assert!(error.to_string().contains(LIBRARY_NAME), "{error}"),
    }
    remove(&library);
});

/// Creates a folder that only this process uses.
fn create_folder() -> PathBuf {
    let folder = env::temp_dir().join(format!("hsa-vmm-fuzz-loader-{}", std::process::id()));
    fs::create_dir_all(folder.join("lib")).expect("the folder can be created");
    folder
}

/// Makes a path from arbitrary bytes. Zero bytes become the digit `0`. Bytes that begin with `!` become the path of the
/// runtime's library, and bytes that begin with `~` become the folder itself. A path with a slash is placed inside the
/// folder, but a path with a slash and `..` becomes the folder itself. Other paths stay unchanged.
fn path_from_bytes(folder: &Path, text: &[u8]) -> PathBuf {
    let text: Vec<_> = text.iter().map(|&byte| if byte == 0 { b'0' } else { byte }).collect();
    if text.starts_with(b"!") {
        return folder.join("lib").join(LIBRARY_NAME);
    }
    if text.starts_with(b"~") {
        return folder.to_owned();
    }
    let has_slash = text.contains(&b'/');
    let path = Path::new(OsStr::from_bytes(&text));
    let has_parent = path.components().any(|it| it == std::path::Component::ParentDir);
    match (has_slash, has_parent) {
        (false, _) => path.to_owned(),
        (true, true) => folder.to_owned(),
        (true, false) => folder.join(path.strip_prefix("/").unwrap_or(path)),
    }
}

/// Replaces the file at the library's path.
fn create_file(library: &Path, file: &FileKind) {
    remove(library);
    let created = match file {
        FileKind::Missing => Ok(()),
        // Truncates ELF files, because the dynamic linker would run the code of a complete library. It rejects a
        // truncated file.
        FileKind::File(bytes) if bytes.starts_with(b"\x7fELF") => {
            fs::write(library, &bytes[..bytes.len().min(60)])
        }
        FileKind::File(bytes) => fs::write(library, bytes),
        FileKind::Folder => fs::create_dir(library),
        FileKind::BrokenLink => symlink("missing", library),
        FileKind::LinkToItself => symlink(LIBRARY_NAME, library),
    };
    created.expect("the file can be created");
}

fn remove(library: &Path) {
    let removed = match fs::symlink_metadata(library) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(library),
        Ok(_) => fs::remove_file(library),
        Err(_) => Ok(()),
    };
    removed.expect("the file can be removed");
}

fn set_variable(variable: &str, value: Option<&OsStr>) {
    // SAFETY: the fuzzer calls its target on one thread, and the simulations of earlier calls and their threads
    // have ended.
    unsafe {
        match value {
            Some(value) => env::set_var(variable, value),
            None => env::remove_var(variable),
        }
    }
}
