//! Processes of other users, and in namespaces of their own. What this process may not do is said,
//! and then the test is skipped.

use super::{End, in_child_with_status};
use libc::{CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, c_int};
use std::io::Error;

/// Somebody who owns nothing.
pub const NOBODY_UID: u32 = 65534;

/// What a test needs of the system.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Becoming another user.
    OtherUser,
    /// A PID namespace with its `/proc`.
    PidNamespace,
    /// A user namespace.
    UserNamespace,
}

/// Whether this process may do what a test needs; if not, it says that the test is skipped.
pub fn may(need: Need, test: &str) -> bool {
    let end = in_child_with_status(|| match need {
        Need::OtherUser => i32::from(!rustix::process::geteuid().is_root()),
        Need::PidNamespace => {
            i32::from(enter_pid_namespace().is_err() || super::in_child(own_proc) != End::Well)
        }
        Need::UserNamespace => i32::from(unshare(CLONE_NEWUSER).is_err()),
    });
    if end != End::Well {
        hsa_rocr::test::tell(&format!("SKIPPED {test}: this process may not have {need:?}"));
    }
    end == End::Well
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
    // AMD's runtimes of two processes of the same number meet at one socket, in the same network.
    let all = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET;
    if unshare(all).is_ok() {
        return Ok(());
    }
    // Who is not root may do it in a user namespace; this user keeps its number there.
    let user = rustix::process::geteuid().as_raw();
    if user == NOBODY_UID {
        // In a user namespace, that number also stands for all who have none.
        return Err(Error::from(std::io::ErrorKind::PermissionDenied));
    }
    unshare(all | CLONE_NEWUSER)?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))
}

/// Enters a user namespace in which nobody has a number.
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

/// Leaves a process that another user started with the credentials it has while it runs a set-user-id
/// program of this user's: only the real user is the other.
pub fn be_started_by(number: u32) {
    let own = rustix::process::geteuid().as_raw();
    // SAFETY: changes whose process this is, and nothing in its memory.
    assert_eq!(unsafe { libc::setresuid(number, own, own) }, 0);
}

/// Becomes another user, as a process that drops its privileges does.
pub fn become_user(number: u32) {
    // SAFETY: changes whose process this is, and nothing in its memory.
    assert_eq!(unsafe { libc::setresuid(number, number, number) }, 0);
}
