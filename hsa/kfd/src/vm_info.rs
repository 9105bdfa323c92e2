//! The page tables as text, for people and tests.

use crate::driver::Driver;
use crate::drm::DrmFile;
use crate::page_table::{EXECUTABLE, Entry, READABLE, WRITABLE};
use crate::{descriptors, driver, log, observe, own_descriptors};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Returns the open files of a GPU's render node, each with its own page table. The file whose page table amdkfd uses
/// is first.
fn files(driver: &Driver, gpu: usize) -> Vec<Arc<DrmFile>> {
    let mut files: Vec<_> = driver.process.state().drm_file(gpu).into_iter().collect();
    for file in descriptors::render_files() {
        if file.gpu == gpu && !files.iter().any(|listed| Arc::ptr_eq(listed, &file)) {
            files.push(file);
        }
    }
    files
}

fn line(address: u64, entry: &Entry) -> String {
    let flag = |bit, letter| if entry.flags & bit != 0 { letter } else { '-' };
    let flags: String =
        [flag(READABLE, 'r'), flag(WRITABLE, 'w'), flag(EXECUTABLE, 'x')].iter().collect();
    let (size, offset) = (entry.size, entry.offset);
    let memory = match &entry.buffer {
        Some(buffer) => format!("buffer {:016x} of gpu {}", buffer.label.token, buffer.label.gpu),
        None if offset == 0 => "doorbells or registers".to_owned(),
        None => "memory of the process".to_owned(),
    };
    format!("{address:#018x} size {size:#x} {memory} offset {offset:#x} {flags}")
}

/// Formats the page tables of one GPU: a line for each table and for each of its mappings.
fn tables(driver: &Driver, gpu: usize) -> String {
    let mut text = String::new();
    for (index, file) in files(driver, gpu).iter().enumerate() {
        let state = file.state();
        let count = state.table.entries().count();
        let plural = if count == 1 { "" } else { "s" };
        let id = driver.gpus[gpu].id;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "gpu {gpu} id {id} file {index}: {count} mapping{plural}");
        for (address, entry) in state.table.entries() {
            let _ = writeln!(text, "  {}", line(address, entry));
        }
    }
    text
}

fn totals(driver: &Driver) -> String {
    format!("buffers {}, descriptors {}\n", driver.buffers.count(), own_descriptors::count())
}

/// Formats the page tables of one GPU, and the numbers of buffers and descriptors of the driver.
pub(crate) fn of_gpu(driver: &Driver, gpu: usize) -> String {
    tables(driver, gpu) + &totals(driver)
}

/// Appends all page tables to the file that `HSA_KFD_PAGE_TABLES` names, if the process has used
/// the driver.
extern "C" fn write_at_exit() {
    if let Some(observer) = observe::existing() {
        return observe::write_page_tables(observer);
    }
    if let Some(driver) = driver::current() {
        append(driver, "");
    }
}

/// Appends the page tables after a GPU fault. The runtime then aborts the process, which does not exit normally.
pub(crate) fn write_at_fault(driver: &Driver) {
    append(driver, " at a GPU fault");
}

fn append(driver: &Driver, when: &str) {
    let Some(path) = &driver.config.page_tables else { return };
    let mut text = format!("process {}{when}\n", std::process::id());
    (0..driver.gpus.len()).for_each(|gpu| text.push_str(&tables(driver, gpu)));
    text.push_str(&totals(driver));
    let file = File::options().create(true).append(true).open(path);
    if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
        print_write_error(path, &error);
    }
}

/// Prints why page tables could not be appended to the file that `HSA_KFD_PAGE_TABLES` names.
pub(crate) fn print_write_error(path: &Path, error: &std::io::Error) {
    let path = path.display();
    log::print_error(format_args!(
        "cannot append page tables to {path} (HSA_KFD_PAGE_TABLES): {error}"
    ));
}

/// The dynamic loader calls [`write_at_exit`] at exit.
#[used]
#[unsafe(link_section = ".fini_array")]
static WRITE_AT_EXIT: extern "C" fn() = write_at_exit;
