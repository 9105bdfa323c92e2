//! `hsa-vmm bench --hip` with a substitute for HIP that checks arguments, and with libraries that are not HIP. If HIP
//! was fetched, one test measures HIP itself on the emulated kernel driver.

use hsa_rocr::{Emulation, Release, test};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Compiles `hip.c` to the library `name`, with compiler options.
fn compile_hip(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let (file, source) =
        (folder.join(name), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench_hip/hip.c"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&file)
        .arg(source)
        .args(options)
        .output()
        .expect("a C compiler, $CC or cc");
    assert!(output.status.success(), "{}", text(&output.stderr));
    file
}

/// Builds the simulation as a shared library, because `bench --hip` accepts only a runtime in a shared library.
fn runtime() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = temporary.join("runtime for bench");
        let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../hsa/sim/shared/build"))
            .arg(&folder)
            .env("CARGO_TARGET_DIR", temporary.parent().unwrap())
            .env("HSA_SIM_PROFILE", "dev")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        folder.join("libhsa-runtime64.so.1")
    })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hsa-vmm"));
    for variable in ["HSA_VMM_RUNTIME", "HSA_SIM", "HSA_VMM_LOG"] {
        command.env_remove(variable);
    }
    command
}

fn bench(hip: &Path, arguments: &[&str]) -> Command {
    let mut command = command();
    command.arg("bench").arg("--runtime").arg(runtime()).env("HSA_SIM", "gpus=2").arg("--hip");
    command.arg(hip).args(["--samples", "3"]).args(arguments);
    command
}

fn results(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["results"].as_array().unwrap().clone()
}

#[test]
fn bench_measures_hip_before_and_since_7_1() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = [
        compile_hip(folder.path(), "libamdhip64.so.6.4.43484", &["-DBY_POINTER"]),
        compile_hip(folder.path(), "libamdhip64.so.7", &[]),
    ];
    for library in libraries {
        let counts = folder.path().join("counts");
        let mut command = bench(&library, &["--live", "5", "--format", "json"]);
        let results = results(&command.env("FAKE_HIP_LEFT", &counts).output().unwrap());
        let operations = |level: &str| {
            let has_level = |it: &&serde_json::Value| it["level"] == level;
            let names =
                results.iter().filter(has_level).map(|it| it["operation"].as_str().unwrap());
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        // `open` is not measured at the level `hip`, because HIP cannot be closed and opened again.
        let expected =
            operations("raw").into_iter().filter(|name| name != "open").collect::<Vec<_>>();
        assert_eq!(operations("hip"), expected, "{}", library.display());
        assert_eq!(operations("hip").len(), 13);
        for result in results.iter().filter(|it| it["level"] == "hip") {
            assert_eq!((&result["gpus"], &result["live_mappings"]), (&2.into(), &5.into()));
            assert!(result["over_raw_ns"].is_number(), "{result}");
        }
        // One warm-up and three samples import a handle each. `bench` releases all objects.
        let counts = std::fs::read_to_string(counts).unwrap();
        assert_eq!(counts, "reserved 0 created 0 mapped 0 imported 4\n");
    }
}

/// The substitute rejects a descriptor that is passed in the form of another HIP version.
/// `bench_measures_hip_before_and_since_7_1` relies on this check.
#[test]
fn substitute_rejects_calls_of_another_version() {
    let folder = tempfile::tempdir().unwrap();
    // The library takes a descriptor by value, but reports a version that takes a pointer.
    let library = compile_hip(folder.path(), "libamdhip64.so.6", &["-DVERSION=60443484"]);
    let output = bench(&library, &["--operation", "import"]).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("hipMemImportFromShareableHandle returned error 1"), "{stderr}");
}

#[test]
fn bench_table_has_a_row_for_hip() {
    let folder = tempfile::tempdir().unwrap();
    let library = compile_hip(folder.path(), "libamdhip64.so.6", &["-DBY_POINTER"]);
    let output = bench(&library, &["--operation", "cycle", "--level", "raw,vmm"]).output().unwrap();
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let levels = table.lines().skip(1).map(|line| line.split_whitespace().nth(1).unwrap());
    assert_eq!(levels.collect::<Vec<_>>(), ["raw", "vmm", "hip"], "{table}");
}

#[test]
fn bench_names_library_that_is_not_hip() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("libamdhip64.so.6");
    let no_library = folder.path().join("text.so");
    std::fs::write(&no_library, "this is not a library\n".repeat(9)).unwrap();
    let compile = |name: &str, options: &[&str]| compile_hip(folder.path(), name, options);
    let one_device = compile("one_device.so", &["-DDEVICES=1"]);
    let incomplete = compile("incomplete.so", &["-DWITHOUT_RETAIN"]);
    let failing = compile("failing.so", &["-DACCESS_ERROR=719"]);
    let hsa_runtime = runtime().to_owned();
    for (library, words) in [
        (&absent, &["cannot be used", "No such file"][..]),
        (&no_library, &["cannot be used", "invalid ELF header"]),
        (&incomplete, &["cannot be used", "hipMemRetainAllocationHandle"]),
        (&hsa_runtime, &["cannot be used", "hipInit"]),
        (&one_device, &["cannot be used", "HIP finds 1 devices, but the runtime has 2"]),
        (
            &failing,
            &["at level `hip` failed with 1 live mapping:", "hipMemSetAccess returned error 719"],
        ),
    ] {
        let output = bench(library, &[]).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{}: {stderr}", library.display());
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
        assert!(words.iter().all(|word| stderr.contains(word)), "{}: {stderr}", library.display());
        let is_named = stderr.contains(library.to_str().unwrap());
        assert!(is_named || *library == failing, "{stderr}");
    }
}

/// Measures the operation `cycle` with HIP itself and at the other levels, on the same runtime and the emulated driver.
/// Returns the measured levels, or `None` if HIP was not fetched.
fn measure_hip(name: &str, emulation: &Emulation) -> Option<Vec<String>> {
    let mut fetched_releases = test::fetch_releases(name).unwrap_or_default().iter();
    // On the emulated driver, HIP is known to run only with ROCm 6.4.3.
    let fetched = fetched_releases.find(|fetched| fetched.release() == Release::R6_4_3);
    let Some((fetched, hip)) = fetched.and_then(|fetched| Some((fetched, fetched.hip()?))) else {
        let reason = "HIP was not fetched (`hsa-vmm rocr fetch 6.4.3 --hip`)";
        assert!(!test::is_required("hip"), "HSA_VMM_REQUIRE contains `hip`: {reason}");
        test::report(&format!("SKIPPED {name}: {reason}"));
        return None;
    };
    let mut command = fetched.command(Path::new(env!("CARGO_BIN_EXE_hsa-vmm")));
    emulation.apply(&mut command).expect("hsa-kfd is built");
    command.arg("bench").arg("--hip").arg(hip).args(["--samples", "3", "--format", "json"]);
    command.arg("--runtime").arg(fetched.runtime()).args(["--operation", "cycle"]);
    let results = results(&command.output().unwrap());
    Some(results.iter().map(|it| it["level"].as_str().unwrap().to_owned()).collect())
}

#[test]
fn bench_measures_hip_on_the_emulated_driver() {
    let emulation = Emulation::with_gpus(2);
    let levels = measure_hip("bench_measures_hip_on_the_emulated_driver", &emulation);
    assert!(levels.is_none_or(|levels| levels == ["raw", "vmm", "owned", "c", "hip"]));
}

/// HIP asks for the layout of images on these machines.
#[test]
fn hip_runs_on_each_emulated_machine() {
    // The GPUs of `apu` and `rdna3` cannot access each other's memory. Then only the first GPU gets access.
    for (machine, gpus) in [("mi210", 1), ("rdna3", 2), ("apu", 2)] {
        let emulation = Emulation::with_gpus(gpus).with_profile(machine);
        let levels = measure_hip("hip_runs_on_each_emulated_machine", &emulation);
        assert!(levels.is_none_or(|levels| levels.contains(&"hip".to_owned())), "{machine}");
    }
}
