//! The loader: the files that it tries, their order, and its errors.

mod compiler;
mod stub;

use hsa_sys::library::{FILE_NAME, ROCM_VARIABLE, RUNTIME_VARIABLE};
use hsa_sys::{Core, Library, LoadError, MissingSymbol, Search, Symbol, Vmem};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn load(path: &Path) -> Result<Library, LoadError> {
    // SAFETY: the file is a stub or not a library. A stub has no initialisers, and only its
    // `hsa_init` is called, which takes no arguments and returns a number, as in the ABI.
    unsafe { Library::load(&Search::only(path)) }
}

fn temporary_folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn names_of(symbols: &'static [Symbol]) -> impl Iterator<Item = &'static str> {
    symbols.iter().map(|symbol| symbol.name)
}

fn required_names(symbols: &'static [Symbol]) -> impl Iterator<Item = &'static str> {
    symbols.iter().filter(|symbol| symbol.required).map(|symbol| symbol.name)
}

fn all_names() -> impl Iterator<Item = &'static str> {
    names_of(Core::SYMBOLS).chain(names_of(Vmem::SYMBOLS))
}

/// Returns the reason of the only attempt. The error's text must contain the path and the reason.
fn only_reason(error: &LoadError, path: &Path) -> String {
    let [candidate] = error.rejected.as_slice() else { panic!("expected one file: {error}") };
    assert_eq!(candidate.path, path);
    let text = error.to_string();
    assert!(text.contains(&format!("{}: {}", path.display(), candidate.reason)), "{text}");
    candidate.reason.clone()
}

#[test]
fn missing_file_error_quotes_dlopen() {
    let folder = temporary_folder();
    let path = folder.path().join("absent.so");
    let reason = only_reason(&load(&path).unwrap_err(), &path);
    assert!(reason.contains("No such file"), "{reason}");
    assert!(!reason.contains("absent.so"), "the reason repeats the path: {reason}");
}

#[test]
fn load_error_escapes_paths_and_reasons() {
    let root = temporary_folder();
    let folder = root.path().join("a\u{1b}]0;t\u{7}\u{9b}31m\u{202e}\r");
    std::fs::create_dir(&folder).unwrap();
    let missing = folder.join("absent.so");
    let text = folder.join("text.so");
    std::fs::write(&text, "no library\n".repeat(1000)).unwrap();
    for path in [missing, text] {
        let message = load(&path).unwrap_err().to_string();
        assert!(!message.contains(|c: char| c.is_control() && c != '\n'), "{message:?}");
        assert!(message.contains("a\\u001b]0;t\\u0007\\u009b31m\\u202e\\u000d/"), "{message:?}");
    }
}

#[test]
fn invalid_library_error_quotes_dlopen() {
    let folder = temporary_folder();
    let path = folder.path().join("text.so");
    std::fs::write(&path, "no library\n".repeat(1000)).unwrap();
    let reason = only_reason(&load(&path).unwrap_err(), &path);
    assert!(reason.contains("ELF"), "{reason}");
    assert!(!reason.contains("text.so"), "the reason repeats the path: {reason}");
}

#[test]
fn load_rejects_empty_name() {
    assert_eq!(only_reason(&load(Path::new("")).unwrap_err(), Path::new("")), "the name is empty");
}

#[test]
fn load_rejects_folder() {
    let folder = temporary_folder();
    only_reason(&load(folder.path()).unwrap_err(), folder.path());
}

#[test]
fn incomplete_library_error_names_function() {
    let folder = temporary_folder();
    let path = stub::build(folder.path().join("init.so"), ["hsa_init"]);
    let reason = only_reason(&load(&path).unwrap_err(), &path);
    assert_eq!(reason, "does not export `hsa_status_string`");
}

#[test]
fn each_missing_function_is_named() {
    let folder = temporary_folder();
    for missing in required_names(Core::SYMBOLS) {
        let functions = all_names().filter(|name| *name != missing);
        let path = stub::build(folder.path().join(missing), functions);
        let reason = only_reason(&load(&path).unwrap_err(), &path);
        assert_eq!(reason, format!("does not export `{missing}`"));
    }
    for missing in required_names(Vmem::SYMBOLS) {
        let functions = all_names().filter(|name| *name != missing);
        let library = load(&stub::build(folder.path().join(missing), functions)).unwrap();
        assert_eq!(library.table().vmem.unwrap_err(), MissingSymbol(missing));
    }
}

#[test]
fn runtime_without_virtual_memory_loads() {
    let folder = temporary_folder();
    let path = stub::build(folder.path().join("old.so"), names_of(Core::SYMBOLS));
    let library = load(&path).unwrap();
    assert_eq!(
        library.table().vmem.unwrap_err(),
        MissingSymbol("hsa_amd_vmem_address_reserve"),
        "the first missing function"
    );
    // SAFETY: the stub's function takes no arguments and returns a number.
    assert_eq!(unsafe { (library.table().core.hsa_init)() }, stub::RESULT);
}

#[test]
fn optional_functions_may_be_missing() {
    let folder = temporary_folder();
    let few = required_names(Core::SYMBOLS).chain(required_names(Vmem::SYMBOLS));
    for (name, functions, present) in
        [("few.so", few.collect::<Vec<_>>(), false), ("all.so", all_names().collect(), true)]
    {
        let library = load(&stub::build(folder.path().join(name), functions)).unwrap();
        let table = library.table();
        let vmem = table.vmem.as_ref().unwrap();
        for (function, found) in table.core.optional().chain(vmem.optional()) {
            assert_eq!(found, present, "{function} in {name}");
        }
    }
}

#[test]
fn two_runtimes_load_side_by_side() {
    let folder = temporary_folder();
    let [first, second] = ["first.so", "second.so"]
        .map(|name| load(&stub::build(folder.path().join(name), all_names())).unwrap());
    assert_eq!(first.path(), folder.path().join("first.so"));
    assert_eq!(second.path(), folder.path().join("second.so"));
    assert!(!std::ptr::fn_addr_eq(first.table().core.hsa_init, second.table().core.hsa_init));
}

#[test]
fn path_follows_symbolic_links() {
    let folder = temporary_folder();
    let real = stub::build(folder.path().join("libhsa-runtime64.so.1.2.3"), all_names());
    let link = folder.path().join(FILE_NAME);
    std::os::unix::fs::symlink("libhsa-runtime64.so.1.2.3", &link).unwrap();
    let library = load(&link).unwrap();
    assert_eq!(library.path().canonicalize().unwrap(), real.canonicalize().unwrap());
}

/// Loads the library that the environment selects. The tests below run this test in child
/// processes, because a process cannot safely change its own environment. In the test process itself, this test
/// checks that the usual search on this machine finds a library or lists its attempts.
#[test]
fn search_finds_a_file_or_lists_attempts() {
    let search = Search::usual(None);
    // SAFETY: the environment of child processes names stubs. In the test process itself, it names HSA runtimes.
    match unsafe { Library::load(&search) } {
        Ok(library) => {
            assert!(library.path().is_absolute() && library.path().is_file(), "{library:?}");
            println!("\nLOADED {}\nbecause {}", library.path().display(), library.origin());
            let listed = hsa_sys::loaded();
            assert!(listed.iter().any(|listed| listed.path == library.path()), "{listed:?}");
        }
        Err(error) => {
            let tried = error.rejected.iter().map(|candidate| &candidate.path);
            assert!(tried.eq(search.candidates().iter().map(|(path, _)| path)), "{error}");
            println!("\n{error}");
        }
    }
}

/// Runs the usual search in a child process: unsets `HSA_VMM_RUNTIME` and `ROCM_PATH`, then sets
/// `variables`. Returns the output.
fn run_usual_search(variables: &[(&str, &OsStr)]) -> String {
    let mut child = Command::new(std::env::current_exe().expect("a test is a program"));
    child
        .args(["--exact", "search_finds_a_file_or_lists_attempts", "--nocapture"])
        .env_remove(RUNTIME_VARIABLE)
        .env_remove(ROCM_VARIABLE)
        .envs(variables.iter().copied());
    let output = child.output().expect("the test's own program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the test by that name did not run:\n{text}");
    text
}

fn loaded_line(path: &Path) -> String {
    format!("\nLOADED {}\n", path.display())
}

/// Returns the current `LD_LIBRARY_PATH` with `folder` added at the front.
fn library_path_with(folder: &Path) -> OsString {
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&before));
    std::env::join_paths(folders).expect("a temporary folder has no colon")
}

#[test]
fn runtime_variable_has_priority() {
    let folder = temporary_folder();
    let named = stub::build(folder.path().join("named.so"), all_names());
    let rocm = stub::build(folder.path().join("rocm/lib").join(FILE_NAME), all_names());
    let output = run_usual_search(&[
        (RUNTIME_VARIABLE, named.as_os_str()),
        (ROCM_VARIABLE, folder.path().join("rocm").as_os_str()),
        ("LD_LIBRARY_PATH", &library_path_with(stub::folder(&rocm))),
    ]);
    assert!(output.contains(&loaded_line(&named)), "{output}");
}

#[test]
fn runtime_variable_has_no_fallback() {
    let folder = temporary_folder();
    let absent = folder.path().join("absent.so");
    let rocm = stub::build(folder.path().join("rocm/lib").join(FILE_NAME), all_names());
    let output = run_usual_search(&[
        (RUNTIME_VARIABLE, absent.as_os_str()),
        (ROCM_VARIABLE, folder.path().join("rocm").as_os_str()),
        ("LD_LIBRARY_PATH", &library_path_with(stub::folder(&rocm))),
    ]);
    assert!(output.contains(&format!("tried or ignored:\n  {}: ", absent.display())), "{output}");
    assert!(!output.contains("LOADED"), "{output}");
}

#[test]
fn rocm_path_precedes_library_path() {
    let folder = temporary_folder();
    let rocm = stub::build(folder.path().join("rocm/lib").join(FILE_NAME), all_names());
    let in_library_path = stub::build(folder.path().join("linker").join(FILE_NAME), all_names());
    let output = run_usual_search(&[
        (RUNTIME_VARIABLE, OsStr::new("")),
        (ROCM_VARIABLE, folder.path().join("rocm").as_os_str()),
        ("LD_LIBRARY_PATH", &library_path_with(stub::folder(&in_library_path))),
    ]);
    assert!(output.contains(&loaded_line(&rocm)), "{output}");
}

#[test]
fn loaded_library_precedes_other_folders() {
    let folder = temporary_folder();
    let preloaded =
        stub::build_named(folder.path().join("wheel/libhsa-runtime64.so.1.15.0"), all_names());
    let rocm = stub::build(folder.path().join("rocm/lib").join(FILE_NAME), all_names());
    let (rocm_folder, library_path) =
        (folder.path().join("rocm"), library_path_with(stub::folder(&rocm)));
    let variables = [
        ("LD_PRELOAD", preloaded.as_os_str()),
        (ROCM_VARIABLE, rocm_folder.as_os_str()),
        ("LD_LIBRARY_PATH", &library_path),
    ];
    let output = run_usual_search(&variables);
    assert!(output.contains(&loaded_line(&preloaded)), "{output}");
    assert!(output.contains("because the process had loaded it already"), "{output}");
    // HSA_VMM_RUNTIME has priority over the loaded library.
    let output =
        run_usual_search(&[&variables[..], &[(RUNTIME_VARIABLE, rocm.as_os_str())]].concat());
    assert!(output.contains(&loaded_line(&rocm)), "{output}");
}

#[test]
fn loaded_library_that_is_no_runtime_is_skipped() {
    let folder = temporary_folder();
    let preloaded = stub::build_named(folder.path().join("other.so"), ["hsa_init"]);
    let rocm = stub::build(folder.path().join("rocm/lib").join(FILE_NAME), all_names());
    let output = run_usual_search(&[
        ("LD_PRELOAD", preloaded.as_os_str()),
        (ROCM_VARIABLE, folder.path().join("rocm").as_os_str()),
    ]);
    assert!(output.contains(&loaded_line(&rocm)), "{output}");
}

#[test]
fn rejected_library_does_not_hide_others() {
    let folder = temporary_folder();
    stub::build_named(folder.path().join("rocm/lib").join(FILE_NAME), ["hsa_init"]);
    let in_library_path = stub::build(folder.path().join("linker").join(FILE_NAME), all_names());
    let output = run_usual_search(&[
        (ROCM_VARIABLE, folder.path().join("rocm").as_os_str()),
        ("LD_LIBRARY_PATH", &library_path_with(stub::folder(&in_library_path))),
    ]);
    assert!(output.contains(&loaded_line(&in_library_path)), "{output}");
}

#[test]
fn loaded_libraries_are_listed() {
    let folder = temporary_folder();
    let paths = ["first.so", "second.so"].map(|name| folder.path().join(name));
    let [first, second] =
        paths.each_ref().map(|path| load(&stub::build(path.clone(), all_names())).unwrap());
    stub::build(folder.path().join("not-loaded.so"), all_names());
    let error = load(&folder.path().join("absent.so")).unwrap_err();
    for library in [first, second] {
        let is_library = |listed: &&hsa_sys::LoadedLibrary| listed.path == library.path();
        let listed = hsa_sys::loaded();
        let found = listed.iter().find(is_library).expect("the library is listed");
        assert_eq!((&found.build, found.extension), (&None, None), "the stub is not started");
        assert!(!library.has_rocr_symbol_version());
        assert!(error.loaded.iter().any(|listed| is_library(&listed)), "{error}");
        let line = format!(
            "\n  {} (unknown build, not started or without AMD's extension)",
            library.path().display()
        );
        assert!(error.to_string().contains(&line), "{error}");
    }
    assert!(!error.to_string().contains("not-loaded.so"), "{error}");
}

#[test]
fn path_from_the_dynamic_linker_is_absolute() {
    let folder = temporary_folder();
    let in_library_path = stub::build(folder.path().join(FILE_NAME), all_names());
    let output = run_usual_search(&[("LD_LIBRARY_PATH", &library_path_with(folder.path()))]);
    assert!(output.contains(&loaded_line(&in_library_path)), "{output}");
}

#[test]
fn failed_search_lists_attempts_in_order() {
    let folder = temporary_folder();
    // The dynamic linker finds these stubs before any library of the machine.
    stub::build(folder.path().join(FILE_NAME), ["hsa_init"]);
    stub::build(folder.path().join("libhsa-runtime64.so"), ["hsa_init"]);
    let rocm = folder.path().join("rocm");
    let output = run_usual_search(&[
        (ROCM_VARIABLE, rocm.as_os_str()),
        ("LD_LIBRARY_PATH", &library_path_with(folder.path())),
    ]);
    let installed = Path::new("/opt/rocm/lib").join(FILE_NAME);
    if installed.exists() {
        // The last usual folder has a real runtime on this machine: the search cannot fail.
        assert!(output.contains("\nLOADED "), "{output}");
        return;
    }
    let listed: Vec<_> =
        output.lines().skip_while(|line| !line.ends_with("tried or ignored:")).collect();
    let missing = "does not export `hsa_status_string`";
    let expected = [
        format!("no {FILE_NAME} could be loaded; tried or ignored:"),
        format!("  {}: ", rocm.join("lib").join(FILE_NAME).display()),
        format!("  {FILE_NAME}: {missing}"),
        format!("  libhsa-runtime64.so: {missing}"),
        format!("  {}: ", installed.display()),
    ];
    assert!(listed.len() >= expected.len(), "{output}");
    for (line, expected) in listed.iter().zip(&expected) {
        assert!(line.starts_with(expected.as_str()), "{line:?} is not {expected:?}");
    }
}
