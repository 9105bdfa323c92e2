//! Runs programs with another dynamic loader and C library: those of a release of AMD's runtime.
//!
//! A release can need a newer C library than the machine has. `HSA_KFD_LOADER` names the loader that belongs to that C
//! library, and `LD_AUDIT` names this object. The machine's loader then calls [`la_version`] before it loads any
//! library of the program. `la_version` maps the other loader and enters it, as the kernel does when it starts a
//! program. The program, its scripts and its child processes therefore need no wrapper, and `/proc/self/exe` is the
//! program.
//!
//! The other loader finds its libraries through `LD_LIBRARY_PATH`, which takes the place of `LD_AUDIT` in the
//! environment. [`record_stack`] restores `LD_AUDIT` before the program reads the environment.

use crate::errno::{EINVAL, Errno, Result};
use crate::log::print_error;
use crate::real::{self, Mapping};
use crate::{environment, page_table::PAGE};
use libc::{Elf64_Ehdr, Elf64_Phdr, c_char, c_int, c_uint, c_void};
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The variable with the loader's path.
const VARIABLE: &str = "HSA_KFD_LOADER";
/// The exit status of a program that cannot be started.
const NOT_STARTED: c_int = 126;

/// The first element of the environment, on the initial stack.
static ENVIRONMENT: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());
/// The first argument, on the initial stack.
static ARGUMENTS: AtomicPtr<*mut c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Records where the arguments and the environment are. Restores `LD_AUDIT` if [`la_version`] has replaced it.
extern "C" fn record_stack(
    _count: c_int,
    arguments: *mut *mut c_char,
    variables: *mut *mut c_char,
) {
    ARGUMENTS.store(arguments, Ordering::Relaxed);
    ENVIRONMENT.store(variables, Ordering::Relaxed);
    let Some(libraries) = environment::variable(VARIABLE).and_then(|loader| library_path(&loader))
    else {
        return;
    };
    // SAFETY: the loader passes the environment, and no other thread runs yet.
    let replaced = unsafe { find(variables, libraries.as_bytes()) };
    if let (Some(slot), Some(object)) = (replaced, own_file()) {
        let audit = [b"LD_AUDIT=", object.to_bytes()].concat();
        // The file name contains no zero. The string lives as long as the process.
        let audit = CString::new(audit).unwrap_or_default();
        // SAFETY: the slot is a writable element of the environment.
        unsafe { *slot = audit.into_raw() };
    }
}

/// The dynamic loader calls [`record_stack`] before the program starts, and before [`la_version`].
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_STACK: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = record_stack;

/// Enters the loader that `HSA_KFD_LOADER` names. Does nothing if the variable is not set or the program was
/// started as an argument of a loader. The result 0 means that this object audits nothing.
#[unsafe(no_mangle)]
extern "C" fn la_version(_version: c_uint) -> c_uint {
    // SAFETY: the call only reads the process's auxiliary vector.
    let is_started_by_kernel = unsafe { libc::getauxval(libc::AT_BASE) != 0 };
    if let Some(loader) = environment::variable(VARIABLE).filter(|_| is_started_by_kernel) {
        let Err(error) = enter_loader(&loader);
        print_error(format_args!("cannot start the loader {}: {error}", loader.display()));
        // SAFETY: the call ends the process; nothing of the program has run.
        unsafe { libc::_exit(NOT_STARTED) };
    }
    0
}

/// Returns the variable that makes a loader use the libraries in its own folder.
fn library_path(loader: &OsStr) -> Option<CString> {
    let folder = Path::new(loader).parent()?.as_os_str();
    CString::new([b"LD_LIBRARY_PATH=", folder.as_bytes()].concat()).ok()
}

/// Finds the first variable that begins with `prefix`.
///
/// # Safety
/// `variables` must be an array of strings that ends with null.
unsafe fn find(variables: *mut *mut c_char, prefix: &[u8]) -> Option<*mut *mut c_char> {
    // SAFETY: the caller promises an array that ends with null, where the iteration stops.
    (0..)
        .map(|index| unsafe { variables.add(index) })
        .map_while(|slot| unsafe { (!(*slot).is_null()).then(|| (slot, CStr::from_ptr(*slot))) })
        .find(|(_, text)| text.to_bytes().starts_with(prefix))
        .map(|(slot, _)| slot)
}

fn own_file() -> Option<&'static CStr> {
    // SAFETY: all zeros is a value of the struct.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is this object's, the struct is writable. The loader keeps the name.
    unsafe {
        let found = libc::dladdr((&raw const RECORD_STACK).cast(), &raw mut info) != 0;
        (found && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))
    }
}

/// Maps a loader and enters it with this process's arguments. Returns only on failure.
fn enter_loader(loader: &OsStr) -> Result<std::convert::Infallible> {
    let (arguments, variables) =
        (ARGUMENTS.load(Ordering::Relaxed), ENVIRONMENT.load(Ordering::Relaxed));
    if arguments.is_null() || variables.is_null() {
        return Err(EINVAL);
    }
    let (base, entry) = map(Path::new(loader))?;
    restore_dynamic_section()?;
    // SAFETY: the stack is the one that the kernel has written, nothing of the program has run, and no other
    // thread exists. The machine's loader is not used again; its memory stays mapped.
    unsafe {
        replace_audit(variables, loader)?;
        set_base(variables, base)?;
        jump(entry, arguments.sub(1).cast());
    }
}

/// Puts `LD_LIBRARY_PATH` in the place of `LD_AUDIT` in the environment. If the environment already
/// contains `LD_LIBRARY_PATH`, the new value also contains the old folders. The new value is placed
/// after the old one, because the loader uses the last value.
///
/// # Safety
/// `variables` must be the environment on the initial stack.
unsafe fn replace_audit(variables: *mut *mut c_char, loader: &OsStr) -> Result<()> {
    let mut libraries = library_path(loader).ok_or(EINVAL)?.into_bytes();
    // SAFETY: the environment is a writable array of strings that ends with null. `into_raw` leaks the new string.
    unsafe {
        let mut slot = find(variables, b"LD_AUDIT=").ok_or(EINVAL)?;
        if let Some(other) = find(variables, b"LD_LIBRARY_PATH=") {
            let value = CStr::from_ptr(*other).to_bytes();
            libraries.push(b':');
            libraries.extend(&value["LD_LIBRARY_PATH=".len()..]);
            if other > slot {
                std::ptr::swap(other, slot);
                slot = other;
            }
        }
        *slot = CString::new(libraries).map_err(|_| EINVAL)?.into_raw();
    }
    Ok(())
}

/// Sets `AT_BASE`, the address of the loader, in the auxiliary vector, which follows the environment.
///
/// # Safety
/// `variables` must be the environment on the initial stack.
unsafe fn set_base(variables: *mut *mut c_char, base: usize) -> Result<()> {
    // SAFETY: on the initial stack, the auxiliary vector follows the environment, and ends with `AT_NULL`.
    unsafe {
        let end = (0..).map(|index| variables.add(index)).find(|slot| (**slot).is_null());
        let mut entry: *mut [u64; 2] = end.ok_or(EINVAL)?.add(1).cast();
        while (*entry)[0] != libc::AT_NULL {
            if (*entry)[0] == libc::AT_BASE {
                (*entry)[1] = base as u64;
                return Ok(());
            }
            entry = entry.add(1);
        }
    }
    Err(EINVAL)
}

fn read_at<T>(file: &File, offset: u64) -> Result<T> {
    let mut bytes = vec![0; size_of::<T>()];
    file.read_exact_at(&mut bytes, offset).map_err(to_errno)?;
    // SAFETY: the array has as many bytes as `T`, an ELF struct of numbers, for which all bytes are valid.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

fn to_errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(EINVAL, Errno)
}

/// Reads the file header and the program headers of an ELF file.
fn headers(file: &File) -> Result<(Elf64_Ehdr, Vec<Elf64_Phdr>)> {
    let header: Elf64_Ehdr = read_at(file, 0)?;
    if header.e_ident[..5] != *b"\x7fELF\x02" {
        return Err(EINVAL);
    }
    let size = size_of::<Elf64_Phdr>() as u64;
    let segments =
        (0..u64::from(header.e_phnum)).map(|index| read_at(file, header.e_phoff + index * size));
    Ok((header, segments.collect::<Result<_>>()?))
}

/// Maps the segments of a loader at an unused address. Returns its address and its entry point.
fn map(path: &Path) -> Result<(usize, usize)> {
    let file = File::open(path).map_err(to_errno)?;
    let (header, mut segments) = headers(&file)?;
    segments.retain(|segment| segment.p_type == libc::PT_LOAD);
    let end = segments.iter().map(|segment| segment.p_vaddr + segment.p_memsz).max();
    let reserve = Mapping {
        address: std::ptr::null_mut(),
        length: end.ok_or(EINVAL)? as usize,
        protection: libc::PROT_NONE,
        flags: libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    // SAFETY: without MAP_FIXED, the call replaces no mapping.
    let base = unsafe { real::map(reserve, -1, 0)? } as usize;
    for segment in &segments {
        // SAFETY: the segment lies in the range reserved above, which nothing uses.
        unsafe { map_segment(&file, base, segment)? };
    }
    Ok((base, base + header.e_entry as usize))
}

/// Maps a segment of a file, and zeroed memory where the segment is longer than its part of the file.
///
/// # Safety
/// Nothing may use the range of the segment.
unsafe fn map_segment(file: &File, base: usize, segment: &Elf64_Phdr) -> Result<()> {
    let page = PAGE as usize;
    let (start, offset) = (base + segment.p_vaddr as usize, segment.p_offset as usize);
    let within_page = start % page;
    let flags = [
        (libc::PF_R, libc::PROT_READ),
        (libc::PF_W, libc::PROT_WRITE),
        (libc::PF_X, libc::PROT_EXEC),
    ];
    let flags = flags.iter().filter(|(flag, _)| segment.p_flags & flag != 0);
    let protection = flags.fold(0, |protection, (_, bit)| protection | bit);
    let file_end = start + segment.p_filesz as usize;
    let mapping = |address: usize, end: usize, flags| Mapping {
        address: address as *mut c_void,
        length: end - address,
        protection,
        flags: libc::MAP_PRIVATE | libc::MAP_FIXED | flags,
    };
    // SAFETY: nothing uses the range of the segment, which contains these mappings and writes.
    unsafe {
        let part = mapping(start - within_page, file_end, 0);
        real::map(part, file.as_raw_fd(), (offset - within_page) as u64)?;
        if segment.p_memsz > segment.p_filesz {
            let next_page = file_end.next_multiple_of(page);
            // Zero the remainder of the file's last page.
            (file_end as *mut u8).write_bytes(0, next_page - file_end);
            let end = start + segment.p_memsz as usize;
            if end > next_page {
                real::map(mapping(next_page, end, libc::MAP_ANONYMOUS), -1, 0)?;
            }
        }
    }
    Ok(())
}

/// Reads the program's `.dynamic` section from its file again, because the machine's loader has added the
/// program's address to entries of the section.
fn restore_dynamic_section() -> Result<()> {
    let file = File::open("/proc/self/exe").map_err(to_errno)?;
    let (header, segments) = headers(&file)?;
    // SAFETY: the call only reads the process's auxiliary vector.
    let headers_address = unsafe { libc::getauxval(libc::AT_PHDR) };
    let contains = |segment: &&Elf64_Phdr, offset: u64| {
        segment.p_type == libc::PT_LOAD
            && (segment.p_offset..segment.p_offset + segment.p_filesz).contains(&offset)
    };
    let segment_at = |offset| segments.iter().find(|segment| contains(segment, offset));
    let Some(dynamic) = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC) else {
        return Ok(());
    };
    let headers_segment = segment_at(header.e_phoff).ok_or(EINVAL)?;
    let dynamic_segment = segment_at(dynamic.p_offset).ok_or(EINVAL)?;
    if dynamic_segment.p_flags & libc::PF_W == 0 {
        return Ok(());
    }
    let headers_offset = header.e_phoff - headers_segment.p_offset + headers_segment.p_vaddr;
    let address = headers_address.wrapping_sub(headers_offset).wrapping_add(dynamic.p_vaddr);
    // SAFETY: the section is writable memory of the program, which does not run yet.
    let section =
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, dynamic.p_filesz as usize) };
    file.read_exact_at(section, dynamic.p_offset).map_err(to_errno)
}

/// Enters a loader with a stack that begins with the number of arguments.
///
/// # Safety
/// `entry` must be the entry point of a mapped loader, and `stack` the stack that the kernel has written.
#[cfg(target_arch = "x86_64")]
unsafe fn jump(entry: usize, stack: *const c_void) -> ! {
    // SAFETY: the caller promises the loader's entry point and the kernel's stack. As after execve, rdx is 0: the
    // loader registers no function for exit.
    unsafe {
        std::arch::asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "jmp {entry}",
            stack = in(reg) stack,
            entry = in(reg) entry,
            // Passed as an operand, so that the compiler puts no other operand in this register.
            in("rdx") 0,
            options(noreturn),
        )
    }
}

/// Enters a loader with a stack that begins with the number of arguments.
///
/// # Safety
/// `entry` must be the entry point of a mapped loader, and `stack` the stack that the kernel has written.
#[cfg(target_arch = "aarch64")]
unsafe fn jump(entry: usize, stack: *const c_void) -> ! {
    // SAFETY: the caller promises the loader's entry point and the kernel's stack. As after execve, x0 is 0: the
    // loader registers no function for exit.
    unsafe {
        std::arch::asm!(
            "mov sp, {stack}",
            "br {entry}",
            stack = in(reg) stack,
            entry = in(reg) entry,
            // Passed as an operand, so that the compiler puts no other operand in this register.
            in("x0") 0,
            options(noreturn),
        )
    }
}

/// Ends the process: this architecture is not supported.
///
/// # Safety
/// None.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn jump(_entry: usize, _stack: *const c_void) -> ! {
    print_error(format_args!("{VARIABLE} needs x86-64 or AArch64"));
    // SAFETY: the call ends the process; nothing of the program has run.
    unsafe { libc::_exit(NOT_STARTED) }
}
