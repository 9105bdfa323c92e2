//! `ioctl`.

use super::catch_panic;
use crate::descriptors::{self, Device};
use crate::errno::EBADF;
use crate::real::next;
use crate::request::Request;
use crate::{driver, drm, kfd, observe};
use libc::{c_int, c_ulong, c_void};

/// The type (`_IOC_TYPE`) of generic requests (`FIOCLEX`, `FIONBIO`) and terminal queries. These requests are passed on
/// to libc, because amdkfd and DRM define no request of this type.
const GENERAL_FAMILY: u8 = b'T';

#[unsafe(no_mangle)]
extern "C" fn ioctl(descriptor: c_int, code: c_ulong, argument: *mut c_void) -> c_int {
    // The upper half of the register is not part of the code.
    let request = Request { code: code & 0xffff_ffff, argument };
    let device = match request.family() {
        GENERAL_FAMILY => None,
        _ => catch_panic(|| descriptors::get(descriptor), None),
    };
    let Some(device) = device else {
        let perform = || {
            next!("ioctl", fn(c_int, c_ulong, *mut c_void) -> c_int, descriptor, code, argument)
                .unwrap_or(-1)
        };
        // Other families are not those of AMD's driver.
        let observer = match request.family() {
            b'K' | b'd' => observe::current(),
            _ => None,
        };
        return match observer {
            Some(observer) => observe::ioctl(observer, descriptor, request, perform),
            None => perform(),
        };
    };
    catch_panic(
        || {
            let driver = driver::get();
            if !descriptors::is_owner() {
                return EBADF.set_errno();
            }
            let result = match &device {
                Device::Kfd(opener) => kfd::ioctl(driver, *opener, request),
                Device::Render(file) => drm::ioctl(driver, file, request),
            };
            result.map_or_else(|error| error.set_errno(), |()| 0)
        },
        -1,
    )
}
