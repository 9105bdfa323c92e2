//! HIP's calls in C. This library's functions are linked; HIP's own functions are loaded at run time.

use super::{Caller, Layout, Outcome, call_error};
use crate::run::BenchError;
use crate::runtime::{Backend, BenchRuntime, LibraryFile, SIZE};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use core::ptr::null_mut;
use std::error::Error;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

// Links the library for C programs.
use hsavmm as _;

type Status = c_int;
type Handle = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_int,
    id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct AccessDescriptor {
    location: Location,
    flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Properties {
    kind: c_int,
    handle_types: c_uint,
    location: Location,
    win32: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
}

// Values of HIP's enumerations.
const DEVICE: c_int = 1;
const PINNED: c_int = 1;
const DESCRIPTOR: c_uint = 1;
const READ_WRITE: c_uint = 3;
/// The version 7.1 as `hipRuntimeGetVersion` returns it: ten million times the major version, plus 100,000 times the
/// minor version, plus the patch.
const HIP_7_1: c_int = 70_100_000;

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions, with their public signatures.
        #[allow(non_snake_case)]
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        mod linked {
            use super::*;
            unsafe extern "C" {
                $(#[allow(non_snake_case)] pub fn $name($(_: $argument),*) -> Status;)*
            }
        }

        impl Functions {
            /// Returns this library's own functions.
            fn linked() -> Self {
                Self { $($name: linked::$name,)* }
            }

            /// Loads the functions of a library.
            ///
            /// # Safety
            /// The library must be HIP's.
            unsafe fn load(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: HIP's functions have these signatures. The caller keeps the library loaded.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes())? },)*
                })
            }
        }
    };
}

functions! {
    hipInit(c_uint);
    hipRuntimeGetVersion(*mut c_int);
    hipGetDeviceCount(*mut c_int);
    hipMemAddressReserve(*mut *mut c_void, usize, usize, *mut c_void, c_ulonglong);
    hipMemAddressFree(*mut c_void, usize);
    hipMemCreate(*mut Handle, usize, *const Properties, c_ulonglong);
    hipMemRelease(Handle);
    hipMemMap(*mut c_void, usize, usize, Handle, c_ulonglong);
    hipMemUnmap(*mut c_void, usize);
    hipMemSetAccess(*mut c_void, usize, *const AccessDescriptor, usize);
    hipMemGetAccess(*mut c_ulonglong, *const Location, *mut c_void);
    hipMemRetainAllocationHandle(*mut Handle, *mut c_void);
    hipMemGetAllocationPropertiesFromHandle(*mut Properties, Handle);
    hipMemExportToShareableHandle(*mut c_void, Handle, c_uint, c_ulonglong);
    hipMemImportFromShareableHandle(*mut Handle, *mut c_void, c_uint);
}

unsafe extern "C" {
    fn hsavmm_use_runtime(path: *const c_char) -> Status;
    fn hsavmm_use_simulation(configuration: *const c_char) -> Status;
    fn hsavmm_use_profile(profile: c_int) -> Status;
    fn hsavmm_shut_down() -> Status;
}

macro_rules! call {
    ($functions:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: the arguments are the library's own results, and pointers to locals and fields
        // that outlive the call.
        let status = unsafe { ($functions.$name)($($argument),*) };
        if status == 0 { Ok(()) } else { Err(call_error(stringify!($name), format_args!("error {status}"))) }
    }};
}

/// The origin of the functions: this library, or HIP's own library.
#[derive(Debug)]
enum Source {
    Linked,
    Loaded,
}

/// HIP's calls, in this library's C interface or in HIP's own library, and the objects of a round.
#[derive(Debug)]
pub(crate) struct CInterface {
    functions: Functions,
    source: Source,
    /// Whether import takes a pointer to the descriptor, as in HIP before 7.1. HIP 7.1 and later take the descriptor
    /// itself, cast to a pointer.
    import_by_pointer: bool,
    grants: Vec<AccessDescriptor>,
    reserved: Vec<*mut c_void>,
    created: Vec<Handle>,
    retained: Vec<Handle>,
    exported: Vec<c_int>,
    imported: Vec<Handle>,
    /// The live mappings: base address, size, handle, and the addresses of the mappings.
    live: Option<(*mut c_void, usize, Handle, Vec<usize>)>,
}

const PROPERTIES: Properties = Properties {
    kind: PINNED,
    handle_types: DESCRIPTOR,
    location: Location { kind: DEVICE, id: 0 },
    win32: null_mut(),
    compression: 0,
    rdma: 0,
    usage: 0,
};

impl CInterface {
    /// Uses this library's C interface, which opens the target's runtime a second time. A round makes `calls` calls
    /// of each operation.
    pub fn linked(target: &BenchRuntime, calls: usize) -> Result<Self, BenchError> {
        Self::configure_linked(&target.backend)?;
        Ok(Self::new(Functions::linked(), Source::Linked, target, false, calls))
    }

    /// Opens a runtime through this library's C interface.
    pub fn open_linked(backend: &Backend) -> Result<(), BenchError> {
        Self::configure_linked(backend)?;
        call!(Functions::linked(), hipInit(0))
            .map_err(|error| BenchError::Configuration(error.to_string()))
    }

    /// Closes the runtime that [`open_linked`](Self::open_linked) has opened.
    pub fn close_linked() {
        // SAFETY: the function takes no arguments, and no object of the runtime is in use.
        unsafe { hsavmm_shut_down() };
    }

    /// Closes the runtime that the C interface has opened, and sets which runtime it opens next.
    fn configure_linked(backend: &Backend) -> Result<(), BenchError> {
        let failed = |reason: &str| BenchError::Configuration(reason.to_owned());
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| failed("a name contains a NUL"));
        // SAFETY: the strings are zero-terminated and outlive the calls. The creator of the `LibraryFile`
        // promises that the file is sound to load.
        let status = unsafe {
            hsavmm_shut_down();
            // Behave like HIP 7.
            hsavmm_use_profile(7);
            match backend {
                Backend::Simulated(config) => {
                    hsavmm_use_simulation(text(config.as_bytes())?.as_ptr())
                }
                Backend::Loaded(file) => {
                    hsavmm_use_runtime(text(file.path().as_os_str().as_bytes())?.as_ptr())
                }
            }
        };
        if status != 0 {
            return Err(failed("the C interface does not support this runtime"));
        }
        Ok(())
    }

    /// Loads HIP's own library.
    pub fn load(
        file: &LibraryFile,
        target: &BenchRuntime,
        calls: usize,
    ) -> Result<Self, BenchError> {
        let path = file.path();
        let failed = |error: &dyn core::fmt::Display| BenchError::Hip {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        // SAFETY: the creator of the `LibraryFile` promises that the file is sound to load.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|error| failed(&full_message(&error)))?;
        // SAFETY: the file is HIP's library, and is never unloaded.
        let functions = unsafe { Functions::load(&library) };
        let functions = functions.map_err(|error| failed(&full_message(&error)))?;
        // Never unloads the library: HIP's threads may still run its code.
        core::mem::forget(library);
        call!(functions, hipInit(0)).map_err(|error| failed(&error))?;
        let mut devices = 0;
        call!(functions, hipGetDeviceCount(&mut devices)).map_err(|error| failed(&error))?;
        let gpus = target.runtime.gpus().count();
        if devices < gpus as c_int {
            return Err(failed(&format_args!(
                "HIP finds {devices} devices, but the runtime has {gpus}"
            )));
        }
        let mut version = 0;
        call!(functions, hipRuntimeGetVersion(&mut version)).map_err(|error| failed(&error))?;
        let import_by_pointer = version < HIP_7_1;
        Ok(Self::new(functions, Source::Loaded, target, import_by_pointer, calls))
    }

    fn new(
        functions: Functions,
        source: Source,
        target: &BenchRuntime,
        import_by_pointer: bool,
        calls: usize,
    ) -> Self {
        let location = |id| Location { kind: DEVICE, id };
        let grant = |(number, _)| AccessDescriptor {
            location: location(number as c_int),
            flags: READ_WRITE,
        };
        Self {
            functions,
            source,
            import_by_pointer,
            grants: target.granted_gpus().into_iter().rev().map(grant).collect(),
            reserved: vec![null_mut(); calls],
            created: vec![null_mut(); calls],
            retained: Vec::with_capacity(calls),
            exported: vec![-1; calls],
            imported: Vec::with_capacity(calls),
            live: None,
        }
    }

    /// Reserves addresses and maps `live` pages of them.
    pub fn map_live(&mut self, live: usize) -> Result<Layout, Box<dyn Error>> {
        let size = Layout::size(live);
        let base = self.reserve_one(size)?;
        let handle = self.create_one()?;
        let layout = Layout::new(base as usize, live);
        let mut mapped = Vec::with_capacity(live);
        for at in layout.live_addresses() {
            call!(self.functions, hipMemMap(at as *mut c_void, SIZE, 0, handle, 0))?;
            mapped.push(at);
        }
        self.live = Some((base, size, handle, mapped));
        Ok(layout)
    }

    fn reserve_one(&self, size: usize) -> Result<*mut c_void, Box<dyn Error>> {
        let mut address = null_mut();
        call!(self.functions, hipMemAddressReserve(&mut address, size, SIZE, null_mut(), 0))?;
        Ok(address)
    }

    fn create_one(&self) -> Result<Handle, Box<dyn Error>> {
        let mut handle = null_mut();
        call!(self.functions, hipMemCreate(&mut handle, SIZE, &PROPERTIES, 0))?;
        Ok(handle)
    }
}

/// Returns the message of an error, followed by the message of the dynamic linker, if any.
fn full_message(error: &libloading::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl Caller for CInterface {
    fn reserve(&mut self, index: usize) -> Outcome {
        self.reserved[index] = self.reserve_one(SIZE)?;
        Ok(())
    }

    fn create(&mut self, index: usize) -> Outcome {
        self.created[index] = self.create_one()?;
        Ok(())
    }

    fn map(&mut self, index: usize, at: usize) -> Outcome {
        call!(self.functions, hipMemMap(at as *mut c_void, SIZE, 0, self.created[index], 0))
    }

    fn set_access(&mut self, _: usize, at: usize) -> Outcome {
        let (list, count) = (self.grants.as_ptr(), self.grants.len());
        call!(self.functions, hipMemSetAccess(at as *mut c_void, SIZE, list, count))
    }

    fn get_access(&mut self, at: usize) -> Outcome {
        let mut flags = 0;
        let location = &PROPERTIES.location;
        call!(self.functions, hipMemGetAccess(&mut flags, location, at as *mut c_void))
    }

    fn retain(&mut self, _: usize, at: usize) -> Outcome {
        let mut handle = null_mut();
        call!(self.functions, hipMemRetainAllocationHandle(&mut handle, at as *mut c_void))?;
        self.retained.push(handle);
        Ok(())
    }

    fn properties(&mut self, index: usize) -> Outcome {
        let mut properties = PROPERTIES;
        let handle = self.created[index];
        call!(self.functions, hipMemGetAllocationPropertiesFromHandle(&mut properties, handle))
    }

    fn export(&mut self, index: usize) -> Outcome {
        let destination = (&raw mut self.exported[index]).cast();
        let handle = self.created[index];
        call!(self.functions, hipMemExportToShareableHandle(destination, handle, DESCRIPTOR, 0))
    }

    fn import(&mut self, index: usize) -> Outcome {
        let mut handle = null_mut();
        let mut descriptor = self.exported[index];
        let argument = match self.import_by_pointer {
            true => (&raw mut descriptor).cast(),
            false => descriptor as usize as *mut c_void,
        };
        call!(self.functions, hipMemImportFromShareableHandle(&mut handle, argument, DESCRIPTOR))?;
        self.imported.push(handle);
        Ok(())
    }

    fn unmap(&mut self, _: usize, at: usize) -> Outcome {
        call!(self.functions, hipMemUnmap(at as *mut c_void, SIZE))
    }

    fn release(&mut self, index: usize) -> Outcome {
        call!(self.functions, hipMemRelease(self.created[index]))
    }

    fn free(&mut self, index: usize) -> Outcome {
        call!(self.functions, hipMemAddressFree(self.reserved[index], SIZE))
    }

    fn cycle(&mut self) -> Outcome {
        let address = self.reserve_one(SIZE)?;
        let handle = self.create_one()?;
        call!(self.functions, hipMemMap(address, SIZE, 0, handle, 0))?;
        self.set_access(0, address as usize)?;
        self.get_access(address as usize)?;
        call!(self.functions, hipMemUnmap(address, SIZE))?;
        call!(self.functions, hipMemRelease(handle))?;
        call!(self.functions, hipMemAddressFree(address, SIZE))
    }

    fn release_extras(&mut self) -> Outcome {
        match self.source {
            Source::Linked => {
                for handle in self.retained.drain(..) {
                    call!(self.functions, hipMemRelease(handle))?;
                }
            }
            // HIP 6.4.3 adds no reference in `retain`, so a release would free the memory.
            Source::Loaded => self.retained.clear(),
        }
        for handle in self.imported.drain(..) {
            call!(self.functions, hipMemRelease(handle))?;
        }
        for descriptor in &mut self.exported {
            if *descriptor >= 0 {
                // SAFETY: the caller of the export owns the descriptor.
                unsafe { libc::close(*descriptor) };
                *descriptor = -1;
            }
        }
        Ok(())
    }
}

impl Drop for CInterface {
    fn drop(&mut self) {
        // Ignore failures: the measurement is over.
        if let Some((base, size, handle, mapped)) = self.live.take() {
            for at in mapped {
                let _ = call!(self.functions, hipMemUnmap(at as *mut c_void, SIZE));
            }
            let _ = call!(self.functions, hipMemRelease(handle));
            let _ = call!(self.functions, hipMemAddressFree(base, size));
        }
        if let Source::Linked = self.source {
            // SAFETY: the function takes no arguments, and no object of the runtime is used afterwards.
            unsafe { hsavmm_shut_down() };
        }
    }
}
