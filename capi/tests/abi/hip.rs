//! A process with AMD's own HIP and a process with this library open each other's memory, over the emulated driver.

use crate::program::{Language, Program, expect_success, library_folder};
use hsa_rocr::{Emulation, FetchedRelease, Release, test};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

/// The number of GPUs. HIP 7 writes the number of the GPU to the handle.
const GPUS: u8 = 2;

/// The GPU that owns the memory.
#[derive(Clone, Copy, Debug)]
enum Gpu {
    /// Both processes see all GPUs, and use this one.
    Same(u8),
    /// `HIP_VISIBLE_DEVICES` selects another GPU in each process.
    OneEach,
}

/// Has a process with the library `exporter` export memory of a GPU, and a process with the library `importer` open it.
/// Returns the bytes that the exporter finds in its memory in the end.
#[track_caller]
fn share(
    fetched: &FetchedRelease,
    program: &Program,
    gpu: Gpu,
    [exporter, importer]: [&Path; 2],
) -> String {
    let description = format!("{exporter:?} to {importer:?}, {gpu:?}");
    let emulation = Emulation::with_gpus(GPUS).with_vram("1G");
    let command = |library: &Path, visible: &str| {
        let mut command = program.on_release(fetched, &emulation);
        match gpu {
            Gpu::Same(gpu) => command.arg(library).arg(gpu.to_string()),
            Gpu::OneEach => command.env("HIP_VISIBLE_DEVICES", visible).arg(library).arg("0"),
        };
        command
    };
    let mut exporting = command(exporter, "1");
    exporting.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut exporting = exporting.spawn().unwrap();
    let mut lines = BufReader::new(exporting.stdout.take().unwrap()).lines();
    let handle = lines.next().unwrap().unwrap();
    let opened = command(importer, "0").arg(&handle).output().unwrap();
    // The exporter ends only after this line, even if the importer has failed.
    writeln!(exporting.stdin.take().unwrap()).unwrap();
    let found = lines.next().unwrap().unwrap();
    assert!(exporting.wait().unwrap().success(), "{description}: {found}");
    expect_success(&opened, &format!("{description}, handle {handle}"));
    found
}

#[test]
fn hip_and_the_library_open_each_others_memory() {
    let name = "hip::hip_and_the_library_open_each_others_memory";
    let program = Program::compile("tests/c/hip_ipc.c", Language::C99, &["-ldl"]);
    let own = library_folder().join("libhsavmm.so");
    for (release, word) in [(Release::R6_4_3, "hip"), (Release::R7_2_4, "hip-7")] {
        let releases = test::fetch_releases(name).unwrap_or_default();
        let fetched = releases.iter().find(|fetched| fetched.release() == release);
        let Some((fetched, hip)) = fetched.and_then(|it| Some((it, it.hip()?))) else {
            assert!(!test::is_required(word), "HIP is not fetched");
            test::report(&format!(
                "SKIPPED {name}: HIP is not fetched (`rocr fetch {release} --hip`)"
            ));
            continue;
        };
        for gpu in (0..GPUS).map(Gpu::Same).chain([Gpu::OneEach]) {
            let found = share(fetched, &program, gpu, [&hip, &own]);
            assert_eq!(found, "written by the importer", "{release}");
            // The program accesses no memory that AMD's HIP has opened.
            let found = share(fetched, &program, gpu, [&own, &hip]);
            assert_eq!(found, "written by the exporter", "{release}");
        }
        test::report(&format!("{name}: ran with HIP of {release}"));
    }
}
