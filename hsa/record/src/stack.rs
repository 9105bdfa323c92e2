//! Call stacks: for each frame the object, the offset in it and, if exported, the function.

use crate::line::Line;
use crate::recording::bytes;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The maximum number of frames that are read from a stack.
const MAX_FRAMES: usize = 64;
/// Makes `dladdr1` return the `link_map` (`dlfcn.h`).
const RTLD_DL_LINKMAP: c_int = 2;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Stores the path of the program's file, and loads the library that unwinds stacks. The function `write` needs both.
pub(crate) fn prepare() {
    if let Ok(program) = std::env::current_exe() {
        PROGRAM.get_or_init(|| program);
    }
    let mut frames = [ptr::null_mut::<c_void>(); 1];
    // SAFETY: `backtrace` writes at most one element.
    unsafe { libc::backtrace(frames.as_mut_ptr(), 1) };
}

/// Writes the callers of the runtime's function, the innermost first: `FILE+0xOFFSET FUNCTION`.
pub(crate) fn write(line: &mut Line) {
    let mut frames = [ptr::null_mut::<c_void>(); MAX_FRAMES];
    // SAFETY: `backtrace` writes at most `MAX_FRAMES` elements.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), MAX_FRAMES as c_int) };
    let count = usize::try_from(count).unwrap_or(0);
    let own_base = frame_of(write as *const c_void).map(|frame| frame.base);
    let frames = frames.iter().take(count);
    // A return address is after the call instruction, possibly in the next function or source line. The byte before
    // the return address belongs to the call.
    let frames = frames.map(|address| address.wrapping_byte_sub(1));
    let frames = frames.map(|address| (address, frame_of(address)));
    let frames = frames.skip_while(|(_, frame)| frame.as_ref().map(|frame| frame.base) == own_base);
    line.list("stack", frames, |line, (address, frame)| {
        let text = match frame {
            Some(frame) => {
                let mut text = frame.file.to_vec();
                let offset = (address as usize).wrapping_sub(frame.base);
                text.extend_from_slice(format!("+{offset:#x}").as_bytes());
                if let Some(function) = frame.function {
                    text.push(b' ');
                    text.extend_from_slice(function);
                }
                text
            }
            None => format!("{:#x}", address as usize).into_bytes(),
        };
        line.text_item(&text);
    });
}

/// The object that contains an address, and the exported function at the address.
struct Frame {
    file: &'static [u8],
    /// The difference between an address in memory and the same address in the file.
    base: usize,
    function: Option<&'static [u8]>,
}

/// The beginning of glibc's `link_map`.
#[repr(C)]
struct LinkMap {
    base: usize,
    /// Empty for the program.
    name: *const c_char,
}

fn frame_of(address: *const c_void) -> Option<Frame> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let mut map = ptr::null_mut::<c_void>();
    // SAFETY: `dladdr1` writes only `info` and `map`, and accepts any address.
    let found = unsafe { libc::dladdr1(address, info.as_mut_ptr(), &raw mut map, RTLD_DL_LINKMAP) };
    // SAFETY: even without a result, all zeros is a value of `Dl_info`.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() || map.is_null() {
        return None;
    }
    // SAFETY: glibc returns the `link_map` of a loaded object.
    let map = unsafe { &*map.cast::<LinkMap>() };
    // SAFETY: the names are valid as long as the object is loaded, and its code is running.
    let name = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_bytes();
    let file = name(info.dli_fname);
    // glibc's name of the program is empty or `argv[0]`, possibly a relative path.
    let is_program = map.name.is_null() || name(map.name).is_empty() || !file.starts_with(b"/");
    let program = PROGRAM.get().filter(|_| is_program);
    Some(Frame {
        file: program.map_or(file, |program| bytes(program)),
        base: map.base,
        function: (!info.dli_sname.is_null()).then(|| name(info.dli_sname)),
    })
}

/// Returns the file of the object that contains an address.
pub(crate) fn file_of(address: *const c_void) -> Option<&'static [u8]> {
    frame_of(address).map(|frame| frame.file)
}
