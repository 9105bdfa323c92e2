//! Counts the open file descriptors of this process.

/// Counts the entries of `/proc/self/fd`. Returns `None` if the directory cannot be read.
pub(crate) fn count() -> Option<usize> {
    // Each count includes the descriptor of the directory itself, so a difference of two counts is correct.
    std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

/// Formats a result of [`count`].
pub(crate) fn format_count(count: Option<usize>) -> String {
    count.map_or("an unknown number".to_owned(), |count| count.to_string())
}
