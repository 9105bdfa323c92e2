pub const KFD_IOC_ALLOC_MEM_FLAGS_GTT: kfd_alloc_memory_flags = 2;
pub const KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE: kfd_alloc_memory_flags = 2147483648;
pub type kfd_alloc_memory_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct kfd_ioctl_alloc_memory_of_gpu_args {
    pub va_addr: u64,
    pub size: u64,
    pub handle: u64,
    pub mmap_offset: u64,
    pub gpu_id: u32,
    pub flags: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of kfd_ioctl_alloc_memory_of_gpu_args"]
        [::core::mem::size_of::<kfd_ioctl_alloc_memory_of_gpu_args>() - 40usize];
    ["Alignment of kfd_ioctl_alloc_memory_of_gpu_args"]
        [::core::mem::align_of::<kfd_ioctl_alloc_memory_of_gpu_args>() - 8usize];
    ["Offset of field: kfd_ioctl_alloc_memory_of_gpu_args::va_addr"]
        [::core::mem::offset_of!(kfd_ioctl_alloc_memory_of_gpu_args, va_addr) - 0usize];
    ["Offset of field: kfd_ioctl_alloc_memory_of_gpu_args::size"]
        [::core::mem::offset_of!(kfd_ioctl_alloc_memory_of_gpu_args, size) - 8usize];
    ["Offset of field: kfd_ioctl_alloc_memory_of_gpu_args::handle"]
        [::core::mem::offset_of!(kfd_ioctl_alloc_memory_of_gpu_args, handle) - 16usize];
    ["Offset of field: kfd_ioctl_alloc_memory_of_gpu_args::mmap_offset"]
        [::core::mem::offset_of!(kfd_ioctl_alloc_memory_of_gpu_args, mmap_offset) - 24usize];
    ["Offset of field: kfd_ioctl_alloc_memory_of_gpu_args::gpu_id"]
        [::core::mem::offset_of!(kfd_ioctl_alloc_memory_of_gpu_args, gpu_id) - 32usize];
    ["Offset of field: kfd_ioctl_alloc_memory_of_gpu_args::flags"]
        [::core::mem::offset_of!(kfd_ioctl_alloc_memory_of_gpu_args, flags) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct kfd_ioctl_free_memory_of_gpu_args {
    pub handle: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of kfd_ioctl_free_memory_of_gpu_args"]
        [::core::mem::size_of::<kfd_ioctl_free_memory_of_gpu_args>() - 8usize];
    ["Alignment of kfd_ioctl_free_memory_of_gpu_args"]
        [::core::mem::align_of::<kfd_ioctl_free_memory_of_gpu_args>() - 8usize];
    ["Offset of field: kfd_ioctl_free_memory_of_gpu_args::handle"]
        [::core::mem::offset_of!(kfd_ioctl_free_memory_of_gpu_args, handle) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct kfd_ioctl_map_memory_to_gpu_args {
    pub handle: u64,
    pub device_ids_array_ptr: u64,
    pub n_devices: u32,
    pub n_success: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of kfd_ioctl_map_memory_to_gpu_args"]
        [::core::mem::size_of::<kfd_ioctl_map_memory_to_gpu_args>() - 24usize];
    ["Alignment of kfd_ioctl_map_memory_to_gpu_args"]
        [::core::mem::align_of::<kfd_ioctl_map_memory_to_gpu_args>() - 8usize];
    ["Offset of field: kfd_ioctl_map_memory_to_gpu_args::handle"]
        [::core::mem::offset_of!(kfd_ioctl_map_memory_to_gpu_args, handle) - 0usize];
    ["Offset of field: kfd_ioctl_map_memory_to_gpu_args::device_ids_array_ptr"]
        [::core::mem::offset_of!(kfd_ioctl_map_memory_to_gpu_args, device_ids_array_ptr) - 8usize];
    ["Offset of field: kfd_ioctl_map_memory_to_gpu_args::n_devices"]
        [::core::mem::offset_of!(kfd_ioctl_map_memory_to_gpu_args, n_devices) - 16usize];
    ["Offset of field: kfd_ioctl_map_memory_to_gpu_args::n_success"]
        [::core::mem::offset_of!(kfd_ioctl_map_memory_to_gpu_args, n_success) - 20usize];
};
pub const AMDGPU_VA_OP_MAP: amdgpu_va_operation = 1;
pub const AMDGPU_VA_OP_UNMAP: amdgpu_va_operation = 2;
pub const AMDGPU_VA_OP_CLEAR: amdgpu_va_operation = 3;
pub const AMDGPU_VA_OP_REPLACE: amdgpu_va_operation = 4;
pub type amdgpu_va_operation = ::core::ffi::c_uint;
pub const AMDGPU_VM_PAGE_READABLE: amdgpu_vm_page_flags = 2;
pub const AMDGPU_VM_PAGE_WRITEABLE: amdgpu_vm_page_flags = 4;
pub const AMDGPU_VM_PAGE_EXECUTABLE: amdgpu_vm_page_flags = 8;
pub type amdgpu_vm_page_flags = ::core::ffi::c_uint;
pub const amdgpu_bo_handle_type_dma_buf_fd: amdgpu_bo_handle_type = 2;
pub type amdgpu_bo_handle_type = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug)]
pub struct amdgpu_device {
    _unused: [u8; 0],
}
pub type amdgpu_device_handle = *mut amdgpu_device;
#[repr(C)]
#[derive(Debug)]
pub struct amdgpu_bo {
    _unused: [u8; 0],
}
pub type amdgpu_bo_handle = *mut amdgpu_bo;
#[repr(C)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct amdgpu_bo_import_result {
    pub buf_handle: amdgpu_bo_handle,
    pub alloc_size: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of amdgpu_bo_import_result"]
        [::core::mem::size_of::<amdgpu_bo_import_result>() - 16usize];
    ["Alignment of amdgpu_bo_import_result"]
        [::core::mem::align_of::<amdgpu_bo_import_result>() - 8usize];
    ["Offset of field: amdgpu_bo_import_result::buf_handle"]
        [::core::mem::offset_of!(amdgpu_bo_import_result, buf_handle) - 0usize];
    ["Offset of field: amdgpu_bo_import_result::alloc_size"]
        [::core::mem::offset_of!(amdgpu_bo_import_result, alloc_size) - 8usize];
};
pub type amdgpu_device_initialize_fn = ::core::option::Option<
    unsafe extern "C" fn(
        fd: ::core::ffi::c_int,
        major: *mut u32,
        minor: *mut u32,
        device: *mut amdgpu_device_handle,
    ) -> ::core::ffi::c_int,
>;
pub type amdgpu_device_deinitialize_fn = ::core::option::Option<
    unsafe extern "C" fn(device: amdgpu_device_handle) -> ::core::ffi::c_int,
>;
pub type amdgpu_device_get_fd_fn = ::core::option::Option<
    unsafe extern "C" fn(device: amdgpu_device_handle) -> ::core::ffi::c_int,
>;
pub type amdgpu_bo_import_fn = ::core::option::Option<
    unsafe extern "C" fn(
        device: amdgpu_device_handle,
        type_: amdgpu_bo_handle_type,
        shared_handle: u32,
        result: *mut amdgpu_bo_import_result,
    ) -> ::core::ffi::c_int,
>;
pub type amdgpu_bo_free_fn =
    ::core::option::Option<unsafe extern "C" fn(buffer: amdgpu_bo_handle) -> ::core::ffi::c_int>;
pub type amdgpu_bo_va_op_raw_fn = ::core::option::Option<
    unsafe extern "C" fn(
        device: amdgpu_device_handle,
        buffer: amdgpu_bo_handle,
        offset: u64,
        size: u64,
        address: u64,
        flags: u64,
        operation: u32,
    ) -> ::core::ffi::c_int,
>;
