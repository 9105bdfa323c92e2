//! Runs programs of the system with `libhsa_kfd.so`, the emulated driver, preloaded. Programs that
//! do not use the devices run unchanged. Programs that use the devices find GPUs.

mod fixture;

use fixture::{output, program, run};
use std::process::Command;

const NODES: &str = "/sys/devices/virtual/kfd/kfd/topology/nodes";

#[test]
fn topology_is_readable_as_files() {
    let nodes = output("gpus=3", "ls", &[NODES]);
    assert_eq!(nodes.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let properties = output("profile=rdna3", "cat", &[&format!("{NODES}/1/properties")]);
    assert!(properties.contains("gfx_target_version 110000\n"), "{properties}");
    assert!(properties.contains("drm_render_minor 128\n"), "{properties}");
    let class = "/sys/class/kfd/kfd/topology/nodes/1/gpu_id";
    assert_eq!(output("gpus=1", "cat", &[class]), "4097\n", "by its symbolic link");
}

/// amdkfd lists the link from a GPU to the CPU always, but the opposite link only if the GPU has a large BAR.
#[test]
fn cpu_has_links_only_to_gpus_with_large_bar() {
    for (profile, from_cpu) in [("mi300x", 2), ("mi210", 2), ("apu", 2), ("rdna3", 0)] {
        let setting = format!("gpus=2,profile={profile}");
        let properties = output(&setting, "cat", &[&format!("{NODES}/0/properties")]);
        assert!(properties.contains(&format!("io_links_count {from_cpu}\n")), "{properties}");
        let links = output(&setting, "find", &[&format!("{NODES}/"), "-path", "*/io_links/*/*"]);
        let count = |node| links.lines().filter(|link| link.starts_with(node)).count();
        assert_eq!(count(&format!("{NODES}/0/")), from_cpu, "{links}");
        let to_cpu = output(&setting, "cat", &[&format!("{NODES}/2/io_links/0/properties")]);
        assert!(to_cpu.contains("node_from 2\nnode_to 0\n"), "{to_cpu}");
    }
}

#[test]
fn stat_reports_character_devices() {
    let status = output("gpus=2", "stat", &["-c", "%F %t:%T", "/dev/dri/renderD129"]);
    assert_eq!(status, "character special file e2:81\n");
    assert!(output("gpus=1", "stat", &["-c", "%F", "/dev/kfd"]).starts_with("character special"));
    assert_eq!(output("gpus=2", "ls", &["/dev/dri"]), "card0\ncard1\nrenderD128\nrenderD129\n");
}

#[test]
fn paths_resolve_in_every_form() {
    let driver_paths = ["/dev/kfd", "/dev//kfd", "/dev/dri/../kfd", "/dev/dri/renderD128", NODES];
    for path in driver_paths {
        for test in ["-e", "-r"] {
            output("gpus=1", "test", &[test, path]);
            output("gpus=1", "sh", &["-c", &format!("test {test} {path}")]);
            output("gpus=1", "bash", &["-c", &format!("[[ {test} {path} ]]")]);
        }
    }
    output("gpus=1", "test", &["-c", "/dev/kfd"]);
    output("gpus=1", "test", &["-d", "/dev/dri"]);
    for path in ["/dev/dri/renderD129", "/sys/class/kfd/other", "/dev/dri/nothing"] {
        let output = run(&mut program("gpus=1", "test", &["-e", path]));
        assert_eq!(output.status.code(), Some(1), "{path}: {output:?}");
    }
    // Relative to a directory's descriptor (openat, fstatat).
    let found = output("gpus=1", "find", &["/sys/devices/virtual/kfd/", "-name", "gpu_id"]);
    assert_eq!(found.lines().count(), 2, "{found}");
    assert_eq!(
        output("gpus=1", "grep", &["-rl", "XYZ\\|live", "/sys/module/amdgpu"]).lines().count(),
        1
    );
}

#[test]
fn card_reports_its_memory() {
    let folder = "/sys/class/drm/card0/device";
    let total = output("vram=3GiB", "cat", &[&format!("{folder}/mem_info_vram_total")]);
    assert_eq!(total, "3221225472\n");
    let used = output("gpus=1", "cat", &[&format!("{folder}/mem_info_vram_used")]);
    assert_eq!(used, "0\n");
    let listed = output("gpus=1", "ls", &[folder]);
    assert!(listed.contains("mem_info_vram_used"), "{listed}");
    let visible = "/sys/dev/char/226:128/device/mem_info_vis_vram_total";
    assert_eq!(output("profile=rdna3", "cat", &[visible]), "268435456\n");
    let denied = run(&mut program(
        "gpus=1",
        "sh",
        &["-c", &format!("echo 1 > {folder}/mem_info_vram_used")],
    ));
    assert!(!denied.status.success());
}

/// As in sysfs, programs cannot change the files, which all processes of one configuration share.
#[test]
fn sysfs_files_are_read_only() {
    let folder = "/sys/class/drm/card0/device";
    let device = || output("gpus=1", "cat", &[&format!("{folder}/device")]);
    let before = device();
    for command in [
        format!("echo changed > {folder}/device"),
        format!("echo high > {folder}/power_dpm_force_performance_level"),
        "echo 1 >> /sys/dev/char/226:128/device/new".to_owned(),
    ] {
        let denied = run(&mut program("gpus=1", "bash", &["-c", &command]));
        let errors = String::from_utf8_lossy(&denied.stderr);
        assert!(errors.contains("Permission denied"), "{command}: {denied:?}");
    }
    assert_eq!(device(), before);
    output("gpus=1", "test", &["!", "-e", &format!("{folder}/power_dpm_force_performance_level")]);
}

/// Programs that clean `/tmp` remove the files that nobody has read for days.
#[test]
fn removed_files_are_written_again() {
    let temporary = std::env::temp_dir().join(format!("hsa-kfd-cleaned-{}", std::process::id()));
    std::fs::create_dir(&temporary).expect("a new folder");
    let output = |name: &str, arguments: &[&str]| {
        let output = run(program("gpus=2", name, arguments).env("TMPDIR", &temporary));
        assert!(output.status.success(), "{name} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let list = ["-R", "/dev/dri", "/sys/devices/virtual/kfd", "/sys/class/kfd/kfd/"];
    let before = output("ls", &list);
    let tree = std::fs::read_dir(&temporary).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(tree.join("dev/kfd")).unwrap();
    for folder in ["dev/dri", "sys/devices", "sys/class/kfd"] {
        std::fs::remove_dir_all(tree.join(folder)).unwrap();
    }
    output("test", &["-r", "/dev/kfd"]);
    assert_eq!(output("ls", &list), before);
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1);
    std::fs::remove_dir_all(temporary).expect("the folder");
}

#[test]
fn other_files_pass_through() {
    let version = std::fs::read_to_string("/proc/version").expect("the kernel's version");
    assert_eq!(output("gpus=1", "cat", &["/proc/version"]), version);
    assert_eq!(
        output("gpus=1", "stat", &["-c", "%F %t:%T", "/dev/null"]),
        "character special file 1:3\n"
    );
}

/// A program that does not use the devices prints the same output as without the object, even if the
/// object's configuration is invalid.
#[test]
fn other_programs_run_unchanged() {
    let loop_of_forks =
        "i=0; while [ $i -lt 200 ]; do i=$((i+1)); (exit $((i%7))); echo $i:$?; done";
    let pipes = "seq 1000 | sort -R | sort -n | tail -n 3; echo a | tee /dev/null | cat";
    let descriptors =
        "exec 5>&1 6<&0 7>/dev/null; echo x >&5; exec 5>&- 7>&-; ls /proc/self/fd | wc -l";
    let folder = env!("CARGO_MANIFEST_DIR");
    let programs: [(&str, &[&str]); 9] = [
        ("sh", &["-c", loop_of_forks]),
        ("bash", &["-c", pipes]),
        ("bash", &["-c", descriptors]),
        ("ls", &["-lR", folder]),
        ("cat", &["/etc/passwd"]),
        ("sort", &["--parallel=4", "-S1M", "/etc/services"]),
        ("find", &[folder, "-name", "*.rs"]),
        ("env", &["-i", "sh", "-c", "echo $0"]),
        (env!("CARGO"), &["--version"]),
    ];
    for (name, arguments) in programs {
        let plain = run(Command::new(name).args(arguments));
        let preloaded = run(&mut program("not a setting", name, arguments));
        assert_eq!(preloaded, plain, "{name} {arguments:?}");
    }
}

#[test]
fn unused_driver_opens_no_files() {
    let status = |setting, variable, value, name, arguments: &[&str]| {
        let output = run(program(setting, name, arguments).env(variable, value));
        assert!(output.stderr.is_empty(), "{output:?}");
        output.status.code()
    };
    for variable in ["HSA_KFD_LOG", "HSA_KFD_PAGE_TABLES"] {
        assert_eq!(status("real", variable, "/nonexistent/file", "true", &[]), Some(0));
        // An empty variable is the same as an unset one.
        assert_eq!(status("gpus=1", variable, "", "cat", &["/dev/dri/renderD128"]), Some(0));
    }
}

/// A relative path in `HSA_KFD_PAGE_TABLES` does not depend on the folder in which the process exits. Without debugfs,
/// the error names the file.
#[test]
fn page_tables_of_real_driver_go_to_initial_folder() {
    let folder = std::env::temp_dir().join(format!("hsa-kfd-real-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    let mut command = program("real", "bash", &["-c", "test -e /dev/kfd; cd /; exit 0"]);
    command.env("HSA_KFD_PAGE_TABLES", "tables").current_dir(&folder);
    let output = run(&mut command);
    let file = folder.join("tables");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(file.exists() || errors.contains(file.to_str().expect("UTF-8")), "{errors}");
    std::fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn invalid_configuration_ends_the_process() {
    let output = |variable: &str, value: &str| {
        let mut command = program("gpus=1", "cat", &["/dev/dri/renderD128"]);
        let output = run(command.env(variable, value));
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let rejection = |variable: &str, value: &str| {
        let text = output(variable, value);
        assert!(text.starts_with(&format!("hsa-kfd: {variable}: ")), "{text}");
        text
    };
    assert!(rejection("HSA_KFD", "gpus=2,colour=red").contains("colour=red"));
    assert!(rejection("HSA_KFD", "gpus=200").contains("gpus=200"));
    assert!(rejection("HSA_KFD_FAULTS", "GEM_VA=EIO,GEM_V=EIO").contains("GEM_V=EIO"));
    assert!(rejection("HSA_KFD_FAULTS", "GEM_VA#0=EIO").contains("GEM_VA#0=EIO"));
    let error = output("HSA_KFD_LOG", "/dev/null/log");
    let expected = "hsa-kfd: cannot open the log /dev/null/log (HSA_KFD_LOG): ";
    assert!(error.starts_with(expected), "{error}");
}
