//! Arbitrary environments that select a library, and arbitrary files at its path: loading returns a
//! result that names the path.
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
    there: FileKind<'a>,
}

/// The file at the library's path.
#[derive(Arbitrary, Debug)]
enum FileKind<'a> {
    Nothing,
    File(&'a [u8]),
    Folder,
    LinkToNothing,
    LinkToItself,
}

const FILE: &str = "libhsa-runtime64.so.1";

fuzz_target!(|input: Input| {
    let folder = folder();
    let library = folder.join("lib").join(FILE);
    put(&library, &input.there);
    let runtime = input.runtime.map(|text| inside(&folder, text));
    let rocm = input.rocm.map(|text| inside(&folder, text));
    set("HSA_VMM_RUNTIME", runtime.as_ref().map(|path| path.as_os_str()));
    set("ROCM_PATH", rocm.as_ref().map(|path| path.as_os_str()));
    let simulation = input.simulation.map(|text| text.replace('\0', "0"));
    set("HSA_SIM", simulation.as_ref().map(OsStr::new));
    let returned = Runtime::load();
    let named = runtime.filter(|it| !it.as_os_str().is_empty());
    match (&returned, named) {
        (_, Some(name)) if name == Path::new("sim") => {
            let config = env::var("HSA_SIM").unwrap_or_default().parse::<Config>();
            assert!(returned.is_err() || config.is_ok(), "{returned:?}");
        }
        // Only this path is tried, and it is not a library.
        (Err(error), Some(name)) => {
            let ErrorKind::Load(error) = error.kind() else {
                panic!("{} is not a runtime: {error:?}", name.display());
            };
            assert_eq!(error.attempts.len(), 1);
            assert_eq!(error.attempts[0].path, name);
            assert!(!error.attempts[0].reason.is_empty());
        }
        (other, Some(name)) => panic!("{} is not a runtime: {other:?}", name.display()),
        // This machine may have AMD's runtime.
        (Ok(_), None) => {}
        (Err(error), None) => assert!(error.to_string().contains(FILE), "{error}"),
    }
    remove(&library);
});

/// Returns a directory of this process.
fn folder() -> PathBuf {
    let folder = env::temp_dir().join(format!("hsa-vmm-fuzz-loader-{}", std::process::id()));
    fs::create_dir_all(folder.join("lib")).expect("a folder");
    folder
}

/// Returns a path with these bytes inside the directory. Bare names are not changed.
fn inside(folder: &Path, text: &[u8]) -> PathBuf {
    let text: Vec<_> = text.iter().map(|&byte| if byte == 0 { b'0' } else { byte }).collect();
    if text.starts_with(b"!") {
        return folder.join("lib").join(FILE);
    }
    if text.starts_with(b"~") {
        return folder.to_owned();
    }
    let has_slash = text.contains(&b'/');
    let path = Path::new(OsStr::from_bytes(&text));
    let leads_out = path.components().any(|it| it == std::path::Component::ParentDir);
    match (has_slash, leads_out) {
        (false, _) => path.to_owned(),
        (true, true) => folder.to_owned(),
        (true, false) => folder.join(path.strip_prefix("/").unwrap_or(path)),
    }
}

fn put(library: &Path, there: &FileKind) {
    remove(library);
    let done = match there {
        FileKind::Nothing => Ok(()),
        // The dynamic linker trusts complete libraries. It rejects truncated ones.
        FileKind::File(bytes) if bytes.starts_with(b"\x7fELF") => {
            fs::write(library, &bytes[..bytes.len().min(60)])
        }
        FileKind::File(bytes) => fs::write(library, bytes),
        FileKind::Folder => fs::create_dir(library),
        FileKind::LinkToNothing => symlink("nothing", library),
        FileKind::LinkToItself => symlink(FILE, library),
    };
    done.expect("a file system");
}

fn remove(library: &Path) {
    let removed = match fs::symlink_metadata(library) {
        Ok(found) if found.is_dir() => fs::remove_dir(library),
        Ok(_) => fs::remove_file(library),
        Err(_) => Ok(()),
    };
    removed.expect("a file system");
}

fn set(variable: &str, value: Option<&OsStr>) {
    // SAFETY: the fuzzer calls its target on one thread, and the simulations of earlier calls have
    // ended with their threads.
    unsafe {
        match value {
            Some(value) => env::set_var(variable, value),
            None => env::remove_var(variable),
        }
    }
}
