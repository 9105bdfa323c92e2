//! Replaces page-table entries through the copy of libdrm that the runtime has loaded, waits until the new entries take
//! effect, and notes GPU faults.

use super::{Address, Agent, Hsa, Named, Result, hex};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use hsa_sys as sys;
use hsa_sys::driver as abi;
use std::fs::{File, read_to_string};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What [`Hsa::wait_for_fault`] reports after its time limit.
pub const NEITHER_ENDED_NOR_FAULTED: &str = "the copy neither ended nor faulted";

/// What follows the name of a function of libdrm that failed. The error follows.
pub const FAILED: &str = " failed: ";

/// The function that replaces entries.
pub const REPLACE: &str = "amdgpu_bo_va_op_raw";

/// The names of libdrm: AMD's builds rename their copy.
const LIBDRM: [&CStr; 2] = [c"librocm_sysdeps_drm_amdgpu.so.1", c"libdrm_amdgpu.so.1"];
/// The shortest time within which a copy must end or fault.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Whether a GPU has faulted.
static FAULTED: AtomicBool = AtomicBool::new(false);

/// Notes a fault. Returns success, so that the runtime does not abort the process.
unsafe extern "C" fn note_fault(event: *const sys::hsa_amd_event_t, _: *mut c_void) -> u32 {
    // SAFETY: the runtime passes a valid event.
    if unsafe { (*event).event_type } == sys::HSA_AMD_GPU_MEMORY_FAULT_EVENT {
        FAULTED.store(true, Ordering::SeqCst);
    }
    sys::HSA_STATUS_SUCCESS
}

/// The address space in which the runtime maps memory for a GPU. libdrm already has a device for the GPU, with the DRM
/// file that the runtime has opened, and returns this device. The device stays open until the process ends.
#[derive(Debug)]
pub struct AddressSpace<'a> {
    hsa: &'a Hsa<'a>,
    library: *mut c_void,
    device: abi::amdgpu_device_handle,
    all_permissions: Named<u64>,
}

impl<'a> AddressSpace<'a> {
    /// Opens the address space of a GPU. Skips the level if libdrm or the render node is not available.
    pub fn open(hsa: &'a Hsa<'a>, gpu: &Agent) -> Result<Self> {
        let name = "HSA_AMD_AGENT_INFO_DRIVER_NODE_ID";
        let node = hsa.agent_attribute(gpu, sys::HSA_AMD_AGENT_INFO_DRIVER_NODE_ID, name)?;
        // SAFETY: RTLD_NOLOAD runs no code: the library is already loaded, or the call fails.
        let find = |name: &CStr| unsafe {
            libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD)
        };
        let Some(library) = LIBDRM.map(find).into_iter().find(|library| !library.is_null()) else {
            return Err(hsa.recorder.skip("the runtime has not loaded libdrm_amdgpu"));
        };
        let path = format!("/sys/class/kfd/kfd/topology/nodes/{node}/properties");
        let properties = read_to_string(&path).unwrap_or_default();
        let minor = properties.lines().find_map(|line| line.strip_prefix("drm_render_minor "));
        let Some(minor) = minor.and_then(|minor| minor.trim().parse::<u32>().ok()) else {
            return Err(hsa.recorder.skip(format!("{path} names no render node")));
        };
        let path = format!("/dev/dri/renderD{minor}");
        let file = match File::options().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) => return Err(hsa.recorder.skip(format!("cannot open {path}: {error}"))),
        };
        let bits = abi::AMDGPU_VM_PAGE_READABLE
            | abi::AMDGPU_VM_PAGE_WRITEABLE
            | abi::AMDGPU_VM_PAGE_EXECUTABLE;
        let all_permissions = Named::new("ALL_PERMISSIONS", bits.into());
        let mut space = Self { hsa, library, device: null_mut(), all_permissions };
        let (mut major, mut minor) = (0, 0);
        let arguments = [("file", file.as_raw_fd().to_string()), ("&device", "out".to_owned())];
        let c_statement = format!("open_address_space({});", gpu.c_expression);
        space.call("amdgpu_device_initialize", &arguments, Some(c_statement), |space| {
            // SAFETY: the type is that of libdrm's header, the descriptor is open, and the results are writable.
            unsafe {
                let initialize: abi::amdgpu_device_initialize_fn =
                    space.function(c"amdgpu_device_initialize");
                initialize.map(|it| it(file.as_raw_fd(), &mut major, &mut minor, &mut space.device))
            }
        })?;
        // Keep the file open, because libdrm can use it.
        std::mem::forget(file);
        Ok(space)
    }

    /// Returns the permissions that the runtime grants: read, write and execute.
    pub fn all_permissions(&self) -> &Named<u64> {
        &self.all_permissions
    }

    /// Replaces the page-table entries of a range. The new entries refer to the memory of `dmabuf` that begins at
    /// `offset`.
    pub fn replace(
        &self,
        dmabuf: &OwnedFd,
        va: &Address,
        size: &Named<usize>,
        offset: &Named<usize>,
        permissions: &Named<u64>,
    ) -> Result<()> {
        let mut space = Self { all_permissions: self.all_permissions.clone(), ..*self };
        let buffer = space.import(dmabuf)?;
        let arguments = [
            (va.c_expression.as_str(), hex(va.value)),
            (size.c_expression.as_str(), hex(size.value)),
            (offset.c_expression.as_str(), hex(offset.value)),
            (permissions.c_expression.as_str(), hex(permissions.value)),
        ];
        let names: Vec<&str> = arguments.iter().map(|argument| argument.0).collect();
        let c_statement = Some(format!("replace({});", names.join(", ")));
        space.call(REPLACE, &arguments, c_statement, |space| {
            // SAFETY: the types are those of libdrm's header; the range is a mapping of this memory, which no GPU uses.
            unsafe {
                let operate: abi::amdgpu_bo_va_op_raw_fn = space.function(c"amdgpu_bo_va_op_raw");
                let free: abi::amdgpu_bo_free_fn = space.function(c"amdgpu_bo_free");
                let (operate, free) = (operate?, free?);
                let (offset, size) = (offset.value as u64, size.value as u64);
                let (address, replace) = (va.value as u64, abi::AMDGPU_VA_OP_REPLACE);
                let bits = permissions.value;
                let replaced = operate(space.device, buffer, offset, size, address, bits, replace);
                free(buffer);
                Some(replaced)
            }
        })
    }

    /// Imports the memory of `dmabuf` into the address space's device.
    fn import(&mut self, dmabuf: &OwnedFd) -> Result<abi::amdgpu_bo_handle> {
        let mut buffer = abi::amdgpu_bo_import_result { buf_handle: null_mut(), alloc_size: 0 };
        let arguments = [("dmabuf", dmabuf.as_raw_fd().to_string())];
        let c_statement = Some("import_memory(dmabuf);".to_owned());
        self.call("amdgpu_bo_import", &arguments, c_statement, |space| {
            let kind = abi::amdgpu_bo_handle_type_dma_buf_fd;
            // SAFETY: the type is that of libdrm's header, the descriptor is open, and the result is writable.
            unsafe {
                let import: abi::amdgpu_bo_import_fn = space.function(c"amdgpu_bo_import");
                import.map(|it| it(space.device, kind, dmabuf.as_raw_fd() as u32, &mut buffer))
            }
        })?;
        Ok(buffer.buf_handle)
    }

    /// Calls a function of libdrm that returns an error number.
    fn call(
        &mut self,
        name: &str,
        arguments: &[(&str, String)],
        c_statement: Option<String>,
        perform: impl FnOnce(&mut Self) -> Option<c_int>,
    ) -> Result<()> {
        let hsa = self.hsa;
        let (_, result) =
            hsa.recorder.record(name, arguments, c_statement, || (perform(self), None, vec![]));
        match result {
            Some(0) => Ok(()),
            Some(error) => {
                let error = match error {
                    -1 => std::io::Error::last_os_error(),
                    number => std::io::Error::from_raw_os_error(-number),
                };
                // Names this call, also if it repeats a check.
                Err(hsa.recorder.fail(format!("{name}{FAILED}{error}")))
            }
            None => Err(hsa.recorder.skip(format!("libdrm_amdgpu has no {name}"))),
        }
    }

    /// Returns a function of libdrm. Returns `None` if the library does not have it.
    ///
    /// # Safety
    /// `F` must be an `Option` of the function's type.
    unsafe fn function<F: Default>(&self, name: &CStr) -> F {
        // SAFETY: `dlopen` returned `library`, which is never closed.
        let found = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        if found.is_null() || size_of::<F>() != size_of::<*mut c_void>() {
            return F::default();
        }
        // SAFETY: the caller guarantees the type; an `Option` of a function pointer has the size of a pointer.
        unsafe { core::mem::transmute_copy(&found) }
    }
}

/// A page that only [`Hsa::wait_for_page_tables`] uses.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "only its address is used")] [u8; 4096]);

impl Hsa<'_> {
    /// Waits until earlier changes of page tables have taken effect: locking memory waits for these changes.
    pub fn wait_for_page_tables(&self) -> Result<()> {
        let page = Box::new(Page([0; 4096]));
        let start = (&raw const *page).expose_provenance();
        let arguments = [
            ("page", hex(start)),
            ("4096", "size".to_owned()),
            ("NULL", "0".to_owned()),
            ("0", "agents".into()),
            ("&locked", "out".into()),
        ];
        let lock = self.table.core.hsa_amd_memory_lock;
        self.call_optional(lock, "hsa_amd_memory_lock", &arguments, true, |lock| {
            let mut locked = null_mut();
            // SAFETY: the page stays allocated until it is unlocked.
            let status =
                unsafe { lock(without_provenance_mut(start), 4096, null_mut(), 0, &mut locked) };
            (status, vec![])
        })?;
        let unlock = self.table.core.hsa_amd_memory_unlock;
        self.call_optional(
            unlock,
            "hsa_amd_memory_unlock",
            &[("page", hex(start))],
            true,
            |unlock| {
                // SAFETY: the page was just locked.
                (unsafe { unlock(without_provenance_mut(start)) }, vec![])
            },
        )
    }

    /// Notes faults of GPUs from now on, so that the runtime does not abort the process.
    pub fn note_faults(&self) -> Result<()> {
        let name = "hsa_amd_register_system_event_handler";
        let arguments = [("note_fault", "callback".to_owned()), ("NULL", "0".into())];
        let register = self.table.core.hsa_amd_register_system_event_handler;
        self.call_optional(register, name, &arguments, true, |register| {
            // SAFETY: `note_fault` reads only the event that the runtime passes. It ignores the data pointer, which is
            // null.
            (unsafe { register(Some(note_fault), null_mut()) }, vec![])
        })
    }

    /// Waits until a copy ends or a GPU faults. Returns whether a GPU has faulted. Fails after half of the level's
    /// remaining time, but at least [`TIME_LIMIT`].
    pub(super) fn wait_for_fault(&self, signal: &Named<sys::hsa_signal_t>) -> Result<bool> {
        let arguments = [(signal.c_expression.as_str(), hex(signal.value.handle))];
        let load = self.table.core.hsa_signal_load_scacquire;
        let c_statement = Some(format!("expect_fault({});", signal.c_expression));
        let limit = (self.deadline.saturating_duration_since(Instant::now()) / 2).max(TIME_LIMIT);
        let (_, faulted) =
            self.recorder.record("hsa_signal_load_scacquire", &arguments, c_statement, || {
                let began = Instant::now();
                let result = loop {
                    if FAULTED.load(Ordering::SeqCst) {
                        break Some(true);
                    }
                    // SAFETY: the signal was not destroyed.
                    match load.map(|load| unsafe { load(signal.value) }) {
                        Some(value) if value < 1 => break Some(false),
                        Some(_) if began.elapsed() < limit => {
                            std::thread::sleep(Duration::from_millis(1))
                        }
                        _ => break None,
                    }
                };
                (result, None, vec![])
            });
        let message = || format!("{NEITHER_ENDED_NOR_FAULTED} within {} s", limit.as_secs());
        faulted.ok_or_else(|| self.recorder.fail(message()))
    }

    /// Closes an exported descriptor.
    pub fn close(&self, dmabuf: OwnedFd) -> Result<()> {
        let arguments = [("dmabuf", dmabuf.as_raw_fd().to_string())];
        let c_statement = Some("close(dmabuf);".to_owned());
        self.recorder.record("close", &arguments, c_statement, || {
            drop(dmabuf);
            ((), None, vec![])
        });
        Ok(())
    }
}
