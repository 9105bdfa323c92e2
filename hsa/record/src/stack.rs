//! Call stacks: for each frame the object, the offset in it and, if exported, the function.

use crate::line::Line;
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr;

/// The maximum number of frames that are looked at.
const MAX_FRAMES: usize = 64;

/// Loads the library that unwinds stacks, which later calls need.
pub(crate) fn prepare() {
    let mut frames = [ptr::null_mut::<c_void>(); 1];
    // SAFETY: the array has one element.
    unsafe { libc::backtrace(frames.as_mut_ptr(), 1) };
}

/// Writes the callers of the runtime's function, the innermost first: `FILE+0xOFFSET FUNCTION`.
pub(crate) fn write(line: &mut Line) {
    let mut frames = [ptr::null_mut::<c_void>(); MAX_FRAMES];
    // SAFETY: the array has as many elements.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), MAX_FRAMES as i32) };
    let count = usize::try_from(count).unwrap_or(0);
    let own = object_of(write as *const c_void).map(|frame| frame.base);
    let frames = frames.iter().take(count);
    // Return addresses follow the call, possibly in the next function or line.
    let frames = frames.map(|address| address.wrapping_byte_sub(1));
    let frames = frames.map(|address| (address, object_of(address)));
    let frames = frames.skip_while(|(_, frame)| frame.as_ref().map(|frame| frame.base) == own);
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
    base: usize,
    function: Option<&'static [u8]>,
}

fn object_of(address: *const c_void) -> Option<Frame> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: writes the structure; any address is allowed.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: zeros are valid, too.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the names are valid as long as the object is loaded, which its code is running in.
    let name = |text: *const libc::c_char| unsafe { CStr::from_ptr(text) }.to_bytes();
    Some(Frame {
        file: name(info.dli_fname),
        base: info.dli_fbase as usize,
        function: (!info.dli_sname.is_null()).then(|| name(info.dli_sname)),
    })
}

/// Returns the file of the object that contains an address.
pub(crate) fn file_of(address: *const c_void) -> Option<&'static [u8]> {
    object_of(address).map(|frame| frame.file)
}
