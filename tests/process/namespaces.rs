//! Processes of other users, and in other namespaces. If this process lacks a privilege that a test needs, the test
//! prints the privilege and is skipped.

use super::{End, in_child_with_status};
use libc::{CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, c_int};
use std::io::Error;

/// The user `nobody`.
pub const NOBODY_UID: u32 = 65534;

/// A privilege that a test needs.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// To become another user.
    OtherUser,
    /// To create a PID namespace and mount its `/proc`.
    PidNamespace,
    /// To create a user namespace.
    UserNamespace,
}

/// Returns whether this process has a privilege. If not, prints that `test` is skipped.
pub fn has_privilege(need: Need, test: &str) -> bool {
    let end = in_child_with_status(|| match need {
        Need::OtherUser => i32::from(!rustix::process::geteuid().is_root()),
        Need::PidNamespace => i32::from(
            enter_pid_namespace().is_err() || super::in_child(mount_own_proc) != End::Success,
        ),
        Need::UserNamespace => i32::from(unshare(CLONE_NEWUSER).is_err()),
    });
    if end != End::Success {
        hsa_rocr::test::report(&format!(
            "SKIPPED {test}: this process lacks the privilege {need:?}"
        ));
    }
    end == End::Success
}

fn unshare(namespaces: c_int) -> Result<(), Error> {
    // SAFETY: the call changes the namespaces of this process, and accesses no memory.
    if unsafe { libc::unshare(namespaces) } == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Creates a PID namespace. The next child of this process becomes the first process of the namespace.
pub fn new_pid_namespace() {
    enter_pid_namespace().expect("a PID namespace");
}

fn enter_pid_namespace() -> Result<(), Error> {
    // Also creates a network namespace. AMD's runtime names its socket by the process ID. In a PID namespace, this ID
    // may equal the ID of a process outside.
    let all = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET;
    if unshare(all).is_ok() {
        return Ok(());
    }
    // Users other than root need a user namespace. The user keeps its ID in this namespace.
    let user = rustix::process::geteuid().as_raw();
    if user == NOBODY_UID {
        // In a user namespace, the ID of `nobody` also stands for all users that are not mapped into the namespace.
        return Err(Error::from(std::io::ErrorKind::PermissionDenied));
    }
    unshare(all | CLONE_NEWUSER)?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))
}

/// Enters a user namespace into which no user is mapped. All users have the ID of `nobody` there.
pub fn new_user_namespace() {
    unshare(CLONE_NEWUSER).expect("a user namespace");
}

/// Mounts the `/proc` of this process's PID namespace. Only this process and its children see the mount.
pub fn mount_own_proc() {
    let (root, proc) = (c"/", c"proc");
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    let null = std::ptr::null();
    // SAFETY: all strings end with a zero byte, and the other pointers may be null.
    let status = unsafe { libc::mount(null, root.as_ptr(), null, flags, null.cast()) };
    assert_eq!(status, 0, "{}", Error::last_os_error());
    let target = c"/proc".as_ptr();
    // SAFETY: all strings end with a zero byte, and the last pointer may be null.
    let status = unsafe { libc::mount(proc.as_ptr(), target, proc.as_ptr(), 0, null.cast()) };
    assert_eq!(status, 0, "{}", Error::last_os_error());
}

/// Changes the real user of this process, but not the effective user. The two users also differ in a set-user-ID
/// program that another user starts.
pub fn set_real_user(user: u32) {
    let effective_user = rustix::process::geteuid().as_raw();
    // SAFETY: the call changes the user of the process, and accesses no memory.
    assert_eq!(unsafe { libc::setresuid(user, effective_user, effective_user) }, 0);
}

/// Becomes another user, as a process that drops its privileges does.
pub fn become_user(user: u32) {
    // SAFETY: the call changes the user of the process, and accesses no memory.
    assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0);
}
