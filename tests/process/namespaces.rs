//! Processes of other users, and in other namespaces. If this process lacks the privileges, it prints what is
//! missing, and the test is skipped.

use super::{End, in_child_with_status};
use libc::{CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, c_int};
use std::io::Error;

/// The user `nobody`.
pub const NOBODY_UID: u32 = 65534;

/// The privileges that a test needs.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Becoming another user.
    OtherUser,
    /// A PID namespace with its `/proc`.
    PidNamespace,
    /// A user namespace.
    UserNamespace,
}

/// Returns whether this process has the privileges that a test needs; prints otherwise that it is skipped.
pub fn may(need: Need, test: &str) -> bool {
    let end = in_child_with_status(|| match need {
        Need::OtherUser => i32::from(!rustix::process::geteuid().is_root()),
        Need::PidNamespace => {
            i32::from(enter_pid_namespace().is_err() || super::in_child(own_proc) != End::Success)
        }
        Need::UserNamespace => i32::from(unshare(CLONE_NEWUSER).is_err()),
    });
    if end != End::Success {
        hsa_rocr::test::report(&format!("SKIPPED {test}: this process may not have {need:?}"));
    }
    end == End::Success
}

fn unshare(what: c_int) -> Result<(), Error> {
    // SAFETY: a child of one thread leaves what it shares; no memory is touched.
    if unsafe { libc::unshare(what) } == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// Has the next child of this process be the first of a PID namespace.
pub fn new_pid_namespace() {
    enter_pid_namespace().expect("a PID namespace");
}

fn enter_pid_namespace() -> Result<(), Error> {
    // In one network namespace, AMD's runtimes of two processes with the same number would use one socket.
    let all = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET;
    if unshare(all).is_ok() {
        return Ok(());
    }
    // Users other than root can do it in a user namespace, where this user keeps its number.
    let user = rustix::process::geteuid().as_raw();
    if user == NOBODY_UID {
        // In a user namespace, that number also stands for all who have none.
        return Err(Error::from(std::io::ErrorKind::PermissionDenied));
    }
    unshare(all | CLONE_NEWUSER)?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))
}

/// Enters a user namespace in which no user has a number.
pub fn new_user_namespace() {
    unshare(CLONE_NEWUSER).expect("a user namespace");
}

/// Mounts `/proc` for the PID namespace of this process, for it and its children alone.
pub fn own_proc() {
    let (root, proc) = (c"/", c"proc");
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let none = std::ptr::null();
    // SAFETY: all strings end with a zero, and the rest may be null.
    let alone = unsafe { libc::mount(none, root.as_ptr(), none, private, none.cast()) };
    assert_eq!(alone, 0, "{}", Error::last_os_error());
    let at = c"/proc".as_ptr();
    // SAFETY: as above.
    let mounted = unsafe { libc::mount(proc.as_ptr(), at, proc.as_ptr(), 0, none.cast()) };
    assert_eq!(mounted, 0, "{}", Error::last_os_error());
}

/// Gives this process the credentials of a set-user-id program of this user that another user started: only
/// the real user is the other.
pub fn be_started_by(number: u32) {
    let own = rustix::process::geteuid().as_raw();
    // SAFETY: changes the user of the process, but no memory.
    assert_eq!(unsafe { libc::setresuid(number, own, own) }, 0);
}

/// Becomes another user, as a process that drops its privileges does.
pub fn become_user(number: u32) {
    // SAFETY: changes the user of the process, but no memory.
    assert_eq!(unsafe { libc::setresuid(number, number, number) }, 0);
}
