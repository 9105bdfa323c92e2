//! Programs in the virtual machine that attack the host through the folder that host and guest share. In the virtual
//! machine, the programs run as root.

use crate::programs::{KeptMachines, run_kept};
use crate::run_command::stderr;
use crate::{lock_machine, run_in_machine, runs_slow_parts};
use std::fs;

#[test]
fn host_follows_no_link_of_the_guest() {
    let name = "host_follows_no_link_of_the_guest";
    let Some(_lock) = lock_machine(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let [file, log, tables] = ["file", "log", "tables"].map(|name| folder.path().join(name));
    fs::write(&file, "text").unwrap();
    // The host writes `received` and `ready`, and reads `log`. The preloaded object would create the log again.
    let script = "cd /run/hsa-vmm; unset LD_PRELOAD; rm log; \
        for name in received ready log; do ln -s $0 $name; done; \
        touch ../hsa-vmm-job/received && echo written; echo entry >page_tables";
    let files = ["--log", log.to_str().unwrap(), "--page-tables", tables.to_str().unwrap()];
    let options = [&["--gpus", "1", "--time-limit", "10min"], &files[..]].concat();
    let output = run_in_machine(&options, &["sh", "-c", script, file.to_str().unwrap()]);
    // The host must not copy the log, because the guest has replaced it by a link.
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert!(stderr(&output).contains("not a regular file"), "{}", stderr(&output));
    assert_eq!(output.stdout, b"");
    assert_eq!(fs::read(&file).unwrap(), b"text");
    assert_eq!([&log, &tables].map(|path| fs::read_to_string(path).unwrap()), ["", "entry\n"]);
}

#[test]
fn kept_machine_removes_folders_of_a_program() {
    let name = "kept_machine_removes_folders_of_a_program";
    let Some(_lock) = lock_machine(name) else { return };
    let machines = KeptMachines(tempfile::tempdir().unwrap());
    let folder = machines.0.path();
    let script = "mkdir -p /run/hsa-vmm/folder/.inner && touch /run/hsa-vmm/.hidden";
    let list = "test \"$(ls -A /run/hsa-vmm)\" = started";
    // The second program runs in the machine of the first. The third and the fourth program run in new machines.
    let programs = [("60s", script), ("1s", list), ("1s", script), ("1s", list)];
    let count = if runs_slow_parts(&format!("{name}, new machines")) { 4 } else { 2 };
    for (keep, script) in &programs[..count] {
        let (output, _) = run_kept(folder, &[&format!("--keep={keep}")], script);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        if *keep == "1s" {
            std::thread::sleep(std::time::Duration::from_secs(5));
        }
    }
}
