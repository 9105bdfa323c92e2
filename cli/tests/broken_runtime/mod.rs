//! Runtimes that fail according to the environment variable `BREAK` (`wrap.c`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Compiles `wrap.c` to a library that wraps a runtime and fails according to `BREAK`.
pub fn wrap(real: &Path, library: PathBuf) -> PathBuf {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let folder = real.parent().unwrap().display();
    // Compile to a temporary file and rename it, because other tests may compile the same library meanwhile.
    let temporary_file = library.with_extension(format!("{}", std::process::id()));
    let output = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&temporary_file)
        .arg(format!("-DREAL=\"{}\"", real.display()))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broken_runtime/wrap.c"))
        .args(["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"])
        .arg(real)
        .args([format!("-Wl,-rpath,{folder}"), "-ldl".to_owned()])
        .output()
        .expect("a C compiler, $CC or cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(temporary_file, &library).unwrap();
    library
}

/// Builds the simulation as a library that fails according to `BREAK`. Returns the path of the library.
pub fn simulation() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = temporary.join("broken runtime");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../hsa/sim/shared/build");
        let output = Command::new(script)
            .arg(&folder)
            .env("CARGO_TARGET_DIR", temporary.parent().unwrap())
            .env("HSA_SIM_PROFILE", "dev")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        wrap(&folder.join("libhsa-runtime64.so.1"), folder.join("libhsa-broken.so"))
    })
}
