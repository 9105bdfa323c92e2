//! The installed library, which pkg-config and CMake find, and the drop-in folder, which replaces HIP.

use crate::program::{expect_success, library_folder, package};
use hsa_rocr::test;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Returns a command that installs the library of this build.
pub fn installer() -> Command {
    let mut command = Command::new(package().join("install"));
    command.arg("--built").arg(library_folder());
    command
}

pub fn install(prefix: &Path) {
    expect_success(&installer().arg(prefix).output().unwrap(), "install");
}

/// Returns whether a tool is installed. If not, reports that the test `name` is skipped.
pub fn is_installed(tool: &str, name: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        test::report(&format!("SKIPPED {name}: {tool} is not installed"));
    }
    found
}

/// Returns the libraries that a program needs (`DT_NEEDED`).
fn needed_libraries(program: &Path) -> String {
    let output = Command::new("readelf").arg("-d").arg(program).output().unwrap();
    expect_success(&output, "readelf").lines().filter(|line| line.contains("NEEDED")).collect()
}

#[test]
fn pkg_config_finds_the_installation() {
    if !is_installed("pkg-config", "installed::pkg_config_finds_the_installation") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("prefix");
    install(&prefix);
    for (name, is_shared) in [("hsavmm", true), ("hsavmm-rpath", true), ("hsavmm-static", false)] {
        let mut query = Command::new("pkg-config");
        query.args(["--cflags", "--libs", "--print-errors", name]);
        query.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let flags = expect_success(&query.output().unwrap(), "pkg-config");
        assert!(flags.contains("-D__HIP_PLATFORM_AMD__=1"), "{name}: {flags}");
        let program = folder.path().join(name);
        let script = format!("cc -std=c99 \"$1\" {} -o \"$2\"", flags.trim());
        let mut compile = Command::new("sh");
        compile.args(["-c", &script, "sh"]).arg(package().join("examples/cycle.c")).arg(&program);
        expect_success(&compile.output().unwrap(), name);
        assert_eq!(needed_libraries(&program).contains("libhsavmm.so.1"), is_shared, "{name}");
        let mut run = Command::new(&program);
        run.env("HSA_VMM_RUNTIME", "sim").env_remove("LD_LIBRARY_PATH");
        if name == "hsavmm" {
            run.env("LD_LIBRARY_PATH", prefix.join("lib"));
        }
        assert!(expect_success(&run.output().unwrap(), name).contains("written at the first"));
    }
}

/// Configures and builds a CMake project. Returns CMake's errors if either step fails.
fn build(folder: &Path, project: &str, prefix: &Path) -> Result<(), String> {
    std::fs::write(folder.join("CMakeLists.txt"), project).unwrap();
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    for arguments in [&["-S", ".", "-B", "build", &prefix] as &[&str], &["--build", "build"]] {
        let output = Command::new("cmake").args(arguments).current_dir(folder).output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    Ok(())
}

#[test]
fn cmake_finds_the_installation() {
    if !is_installed("cmake", "installed::cmake_finds_the_installation") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // As in Debian, the libraries are in a folder of the architecture.
    let prefix = folder.path().join("prefix");
    let mut command = installer();
    expect_success(
        &command.args(["--libdir", "lib/some-arch"]).arg(&prefix).output().unwrap(),
        "install",
    );
    std::fs::copy(package().join("examples/cycle.c"), folder.path().join("cycle.c")).unwrap();
    let platform = "#ifndef __HIP_PLATFORM_AMD__\n#error no platform\n#endif\n\
                    #include <hip/amd_detail/amd_hip_runtime.h>\nint platform;\n";
    std::fs::write(folder.path().join("platform.c"), platform).unwrap();
    let project = |version: &str| {
        format!(
            "cmake_minimum_required(VERSION 3.16)\nproject(cycle C)\n\
             find_package(hsavmm {version} REQUIRED NO_DEFAULT_PATH\n\
             \x20 PATHS ${{CMAKE_PREFIX_PATH}}/lib/some-arch/cmake/hsavmm)\n\
             foreach(kind hsavmm static)\n  add_executable(cycle_${{kind}} cycle.c platform.c)\n\
             \x20 target_link_libraries(cycle_${{kind}} hsavmm::${{kind}})\nendforeach()\n"
        )
    };
    let current = env!("CARGO_PKG_VERSION");
    for version in ["99", "0.99", "1.0", "99...100"] {
        let error = build(folder.path(), &project(version), &prefix).unwrap_err();
        assert!(error.contains("version"), "{version}: {error}");
    }
    for version in [&format!("0.1...{current}"), current] {
        build(folder.path(), &project(version), &prefix).unwrap();
    }
    for kind in ["hsavmm", "static"] {
        let program = folder.path().join(format!("build/cycle_{kind}"));
        assert_eq!(needed_libraries(&program).contains("libhsavmm"), kind == "hsavmm");
        let output = Command::new(program).env("HSA_VMM_RUNTIME", "sim").output().unwrap();
        assert!(expect_success(&output, kind).contains("written at the first"));
    }
}

#[test]
fn project_for_hip_builds_with_the_drop_in_folder() {
    if !is_installed("cmake", "installed::project_for_hip_builds_with_the_drop_in_folder") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let dropin = folder.path().join("hip");
    expect_success(&installer().arg("--drop-in").arg(&dropin).output().unwrap(), "install");
    for name in ["pool.cpp", "check.h"] {
        let source = package().join("tests/sequences").join(name);
        std::fs::copy(source, folder.path().join(name)).unwrap();
    }
    let project = "cmake_minimum_required(VERSION 3.16)\nproject(pool CXX)\n\
                   set(CMAKE_CXX_STANDARD 17)\nfind_package(hip 6.0 REQUIRED)\n\
                   add_executable(pool pool.cpp)\ntarget_link_libraries(pool hip::host)\n\
                   add_executable(by_name pool.cpp)\n\
                   target_include_directories(by_name PRIVATE ${hip_INCLUDE_DIRS})\n\
                   target_link_directories(by_name PRIVATE ${hip_LIB_INSTALL_DIR})\n\
                   target_link_libraries(by_name amdhip64)\n";
    build(folder.path(), project, &dropin).unwrap();
    for name in ["pool", "by_name"] {
        let program = folder.path().join("build").join(name);
        assert!(needed_libraries(&program).contains("libhsavmm.so.1"), "{name}");
        let output = Command::new(program).env("HSA_VMM_RUNTIME", "sim").output().unwrap();
        assert_eq!(expect_success(&output, name), "done\n");
    }
    for version in ["6.0...7.2", "6.0...<8.0"] {
        build(folder.path(), &project.replace("6.0", version), &dropin).unwrap();
    }
    for version in ["8.0", "6.0...<7.0", "5.0...6.4", "6.0...<7.2"] {
        let error = build(folder.path(), &project.replace("6.0", version), &dropin).unwrap_err();
        assert!(error.contains("version"), "{version}: {error}");
    }
}

#[test]
fn install_rejects_drop_in_folders_that_hide_hip() {
    let folder = tempfile::tempdir().unwrap();
    let hip = folder.path().join("rocm");
    std::fs::create_dir_all(hip.join("include/hip")).unwrap();
    std::fs::write(hip.join("include/hip/hip_runtime_api.h"), "/* AMD's */\n").unwrap();
    // The script writes to this folder if it does not reject the request.
    let destination = folder.path().join("destination");
    for prefix in ["/", "/usr", "/usr/local", "/usr/local/../../usr/", "/opt/rocm-7.2.4"] {
        let output =
            installer().arg("--drop-in").arg(prefix).env("DESTDIR", &destination).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{prefix}");
    }
    let output = installer().arg("--drop-in").arg(&hip).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!destination.exists());
    // DESTDIR followed by this prefix is the folder `hip`.
    let root = folder.path().file_name().unwrap();
    let output = installer()
        .args(["--drop-in".as_ref(), Path::new("/").join(root).join("rocm").as_os_str()])
        .env("DESTDIR", folder.path().parent().unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = std::fs::read_to_string(hip.join("include/hip/hip_runtime_api.h")).unwrap();
    assert_eq!(text, "/* AMD's */\n");
    // Without --drop-in, the headers are not in `include/hip`, where compilers would find them.
    let prefix = folder.path().join("prefix");
    install(&prefix);
    assert!(!prefix.join("include/hip").exists() && prefix.join("include/hsavmm/hip").exists());
}

/// Asserts that all users can read all files of a folder.
fn assert_readable(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.metadata().unwrap();
        let needed = if metadata.is_dir() { 0o555 } else { 0o444 };
        assert_eq!(metadata.permissions().mode() & needed, needed, "{path:?}");
        if metadata.is_dir() {
            assert_readable(&path);
        }
    }
}

#[test]
fn installed_files_are_readable_despite_umask() {
    let folder = tempfile::tempdir().unwrap();
    for (name, dropin) in [("prefix", ""), ("hip", "--drop-in ")] {
        let mut shell = Command::new("sh");
        let script = format!("umask 077; exec \"$1\" --built \"$2\" {dropin}\"$3\"");
        shell.args(["-c", &script, "sh"]).arg(package().join("install"));
        shell.arg(library_folder()).arg(folder.path().join(name));
        expect_success(&shell.output().unwrap(), name);
    }
    assert_readable(folder.path());
}

/// Returns whether `install` ends with one line on standard error and status 2. Kills a script that does not end within
/// 10 seconds.
fn is_rejected(arguments: &[&std::ffi::OsStr]) -> bool {
    let mut command = Command::new("timeout");
    let output = command.arg("10").arg(package().join("install")).args(arguments).output().unwrap();
    let is_one_line = output.stderr.iter().filter(|byte| **byte == b'\n').count() == 1;
    output.status.code() == Some(2) && is_one_line
}

#[test]
fn install_rejects_wrong_arguments_before_writing() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("prefix");
    let prefix = prefix.as_os_str();
    let built = "--built".as_ref();
    assert!(is_rejected(&[built, "/nonexistent".as_ref(), prefix]));
    // The folder exists, and has no library.
    assert!(is_rejected(&[built, folder.path().as_os_str(), prefix]));
    assert!(is_rejected(&[prefix, built]));
    assert!(is_rejected(&[built, library_folder().as_os_str(), prefix, prefix]));
    let quoted = folder.path().join("it's");
    assert!(is_rejected(&[built, library_folder().as_os_str(), quoted.as_os_str()]));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn prefix_can_contain_a_space() {
    if !is_installed("pkg-config", "installed::prefix_can_contain_a_space") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("my prefix");
    let text = expect_success(&installer().arg(&prefix).output().unwrap(), "install");
    let printed = text.lines().last().unwrap();
    std::fs::copy(package().join("examples/cycle.c"), folder.path().join("program.c")).unwrap();
    // Run the printed command in a shell, as a user would.
    let mut shell = Command::new("sh");
    shell.args(["-c", printed]).current_dir(folder.path());
    expect_success(&shell.output().unwrap(), printed);
    let output =
        Command::new(folder.path().join("a.out")).env("HSA_VMM_RUNTIME", "sim").output().unwrap();
    assert!(expect_success(&output, printed).contains("written at the first"));
}
