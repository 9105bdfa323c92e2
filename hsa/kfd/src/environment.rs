//! The process's user, and its environment variables, which are ignored in privileged processes.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// Returns whether the process has more privileges than its caller (set-user-id, set-group-id, file
/// capabilities). Such a process must not write files that the caller's variables name.
fn is_privileged() -> bool {
    // SAFETY: the call only reads the process's auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns a variable's value, or `None` if the variable is empty. Always returns `None` in a privileged process.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    let value = if is_privileged() { None } else { env::var_os(name) };
    value.filter(|value| !value.is_empty())
}

/// Returns the file that `HSA_KFD_PAGE_TABLES` names. The path is absolute, because the process may exit in another
/// folder.
pub(crate) fn page_tables_file() -> Result<Option<PathBuf>, String> {
    let path = variable("HSA_KFD_PAGE_TABLES").map(std::path::absolute).transpose();
    path.map_err(|error| format!("cannot use the path in HSA_KFD_PAGE_TABLES: {error}"))
}

/// Returns the folder for temporary files: `TMPDIR`, or `/tmp`.
pub(crate) fn temporary_folder() -> PathBuf {
    if is_privileged() { PathBuf::from("/tmp") } else { env::temp_dir() }
}

/// Returns the user that owns the files shared between processes.
pub(crate) fn user() -> libc::uid_t {
    // SAFETY: the call accesses no memory.
    unsafe { libc::geteuid() }
}
