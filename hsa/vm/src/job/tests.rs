use super::{
    ARGUMENTS, ENDED, ENVIRONMENT, Job, LOCK, LOG, MAX_COPY, PREFIX, RECEIVED, STARTED, STATUS,
    WRITTEN, remove_abandoned, split_words,
};
use rustix::fs::{FileType, FlockOperation, Mode, flock, mknodat};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

fn create_fifo(path: &Path) {
    mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Creates a job that was started and whose guest has booted.
fn booted_job() -> Job {
    let mut job = Job::temporary().unwrap();
    job.prepare(&Command::new("program"), None).unwrap();
    job.start().unwrap();
    fs::write(job.guest_folder().join(STARTED), format!("{}\n", job.number)).unwrap();
    assert!(job.has_started());
    job
}

#[test]
fn folders_of_killed_processes_are_removed() {
    let temporary = tempfile::tempdir().unwrap();
    let [abandoned, foreign] =
        [format!("{PREFIX}abandoned"), "foreign".into()].map(|name| temporary.path().join(name));
    for folder in [&abandoned, &foreign] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join(LOCK), "").unwrap();
    }
    let lock = fs::File::open(abandoned.join(LOCK)).unwrap();
    flock(&lock, FlockOperation::LockShared).unwrap();
    remove_abandoned(temporary.path());
    assert!(abandoned.exists(), "its process runs");
    drop(lock);
    remove_abandoned(temporary.path());
    assert!(!abandoned.exists() && foreign.exists());
}

#[test]
fn planted_job_folders_are_ignored() {
    let temporary = tempfile::tempdir().unwrap();
    let [fifo, foreign] =
        ["fifo", "foreign"].map(|name| temporary.path().join(format!("{PREFIX}{name}")));
    fs::create_dir(&fifo).unwrap();
    create_fifo(&fifo.join(LOCK));
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join(LOCK), "").unwrap();
    let is_root = chown(&foreign, Some(65534), None).is_ok();
    // Opening the FIFO would wait for a writer.
    remove_abandoned(temporary.path());
    assert!(fifo.exists());
    assert_eq!(foreign.exists(), is_root);
    if !is_root {
        // The test harness captures the output of `println!`.
        let _ = writeln!(
            io::stderr(),
            "SKIPPED planted_job_folders_are_ignored, in part: only root can change owners"
        );
    }
}

#[test]
fn job_contains_arguments_and_environment() {
    let mut command = Command::new("program");
    command.args(["", "two words", "line\nend"]).env("HSA_VM_TEST", "a=b").env_remove("PATH");
    let job = Job::temporary().unwrap();
    let mode = fs::metadata(&job.folder).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "other users must not read the environment");
    job.write(RECEIVED, "").unwrap();
    job.prepare(&command, None).unwrap();
    assert!(!job.host_folder().join(RECEIVED).exists(), "the folder has a file of a previous job");
    let read = |name: &str| split_words(&fs::read(job.host_folder().join(name)).unwrap());
    assert_eq!(read(ARGUMENTS), ["program", "", "two words", "line\nend"]);
    assert!(read(ENVIRONMENT).contains(&"HSA_VM_TEST=a=b".into()));
    assert!(
        !read(ENVIRONMENT).iter().any(|variable| variable.to_string_lossy().starts_with("PATH="))
    );
}

#[test]
fn files_of_previous_job_are_ignored() {
    let mut job = booted_job();
    for (name, text) in
        [(STATUS, "1".to_owned()), (WRITTEN, "2 3\n".into()), (ENDED, job.number.to_string())]
    {
        fs::write(job.guest_folder().join(name), text).unwrap();
    }
    assert!(job.has_ended());
    assert_eq!((job.status(), job.written()), (Some(1), Some([2, 3])));
    // Another process finds the same state.
    let other = Job::open(job.folder().to_owned()).unwrap();
    assert!(other.has_ended());
    job.prepare(&Command::new("next"), None).unwrap();
    job.start().unwrap();
    assert!(!job.has_ended() && !job.has_started());
    assert_eq!((job.status(), job.written()), (None, None));
    let other = Job::open(job.folder().to_owned()).unwrap();
    assert!(!other.has_ended(), "the machine is busy");
}

#[test]
fn host_does_not_write_to_the_guest_folder() {
    let job = booted_job();
    let file = job.folder().join("file");
    fs::write(&file, "text").unwrap();
    for name in [RECEIVED, ARGUMENTS] {
        symlink(&file, job.guest_folder().join(name)).unwrap();
    }
    job.write(RECEIVED, "").unwrap();
    job.prepare(&Command::new("next"), None).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"text");
    assert!(!job.guest_folder().starts_with(job.host_folder()));
    for own in [job.console(), job.qemu_errors()] {
        assert!(!own.starts_with(job.guest_folder()) && !own.starts_with(job.host_folder()));
    }
}

#[test]
fn special_files_of_the_guest_are_not_read() {
    let job = booted_job();
    let target = job.folder().join("target");
    let [log, status] = [LOG, STATUS].map(|name| job.guest_folder().join(name));
    for name in [LOG, STATUS, WRITTEN] {
        create_fifo(&job.guest_folder().join(name));
    }
    assert_eq!((job.status(), job.written()), (None, None));
    job.copy(LOG, &target).unwrap_err();
    for path in [&log, &status] {
        fs::remove_file(path).unwrap();
        symlink("/dev/zero", path).unwrap();
    }
    assert_eq!(job.status(), None);
    job.copy(LOG, &target).unwrap_err();
    fs::remove_file(&status).unwrap();
    // Reading the file whole would need a terabyte.
    fs::File::create(&status).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(job.status(), None);
    assert!(!target.exists());
}

#[test]
fn copy_ignores_the_mode_of_the_file() {
    let job = booted_job();
    let [log, target] = [job.guest_folder().join(LOG), job.folder().join("target")];
    fs::write(&log, "text").unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o4777)).unwrap();
    job.copy(LOG, &target).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"text");
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7111, 0);
}

#[test]
fn copy_rejects_large_sparse_files() {
    let job = booted_job();
    let [log, target] = [job.guest_folder().join(LOG), job.folder().join("target")];
    fs::File::create(&log).unwrap().set_len(MAX_COPY).unwrap();
    let error = job.copy(LOG, &target).unwrap_err().to_string();
    assert_eq!(error, "log of the virtual machine has 256 MiB or more");
    assert!(!target.exists());
}

#[test]
fn leftover_folders_do_not_prevent_booting() {
    let job = booted_job();
    let inner = job.guest_folder().join("folder/inner");
    fs::create_dir_all(&inner).unwrap();
    // Only root can remove the contents of this folder.
    fs::set_permissions(inner.parent().unwrap(), fs::Permissions::from_mode(0o000)).unwrap();
    job.renew_guest_folder().unwrap();
    assert_eq!(fs::read_dir(job.guest_folder()).unwrap().count(), 0);
}
