//! Compares the bindings of the kernel driver and of libdrm with the installed headers.

mod compiler;

use core::mem::{offset_of, size_of};
use hsa_sys::driver as abi;
use std::io::Write as _;
use std::process::Stdio;

/// Returns C assertions of the size of a structure and the offsets of its fields.
macro_rules! layout {
    ($name:ident { $($field:ident),* }) => {
        layout!($name as $name { $($field),* })
    };
    ($name:ident as $c_name:ident { $($field:ident),* }) => {
        [
            format!(
                "_Static_assert(sizeof(struct {0}) == {1}, \"{0}\");\n",
                stringify!($c_name), size_of::<abi::$name>()
            ),
            $(format!(
                "_Static_assert(__builtin_offsetof(struct {0}, {1}) == {2}, \"{0}.{1}\");\n",
                stringify!($c_name), stringify!($field), offset_of!(abi::$name, $field)
            )),*
        ]
        .concat()
    };
}

/// Returns C assertions of the values of constants.
macro_rules! constants {
    ($($name:ident),*) => {
        [$(format!(
            "_Static_assert((uint32_t)({0}) == {1}u, \"{0}\");\n",
            stringify!($name), abi::$name
        )),*]
        .concat()
    };
}

/// Compiles assertions about a header. Returns the compiler's messages as an error, or `None` if the header is not
/// installed.
fn check(header: &str, assertions: &str) -> Option<Result<(), String>> {
    // The kernel's header includes libdrm's `drm/drm.h` for the names of integer types.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("drm")).expect("a new folder");
    std::fs::write(folder.path().join("drm/drm.h"), "#include <linux/types.h>\n").expect("a file");
    let compile = |source: String| {
        let mut command = compiler::command();
        command.arg("-idirafter").arg(folder.path());
        // libdrm's headers include each other by file names without a folder.
        command.args(["-fsyntax-only", "-I/usr/include/libdrm", "-x", "c", "-"]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a C compiler");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(source.as_bytes()).expect("the compiler reads");
        drop(input);
        let output = child.wait_with_output().expect("the compiler ends");
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(messages) }
    };
    compile(format!("#if !__has_include(<{header}>)\n#error missing\n#endif\n")).ok()?;
    let include = format!("#include <stdint.h>\n#include <{header}>\n");
    if let Err(messages) = compile(include.clone()) {
        return Some(Err(messages));
    }
    let false_assertion = format!("{include}_Static_assert(0, \"\");\n");
    assert!(compile(false_assertion).is_err(), "the compiler ignores assertions");
    Some(compile(include + assertions))
}

/// Fails if the header differs, or if the header is missing and `HSA_VMM_REQUIRE` contains `headers`.
fn assert_agrees(test: &str, header: &str, assertions: &str) {
    match check(header, assertions) {
        Some(result) => assert_eq!(result, Ok(()), "{header}"),
        None => {
            let message = format!("SKIPPED {test}: {header} is not installed");
            let required = std::env::var("HSA_VMM_REQUIRE").unwrap_or_default();
            assert!(!required.split_whitespace().any(|word| word == "headers"), "{message}");
            let _ = writeln!(std::io::stderr(), "{message}");
        }
    }
}

#[test]
fn kfd_bindings_agree_with_kernel_headers() {
    let assertions = [
        layout!(kfd_ioctl_alloc_memory_of_gpu_args {
            va_addr, size, handle, mmap_offset, gpu_id, flags
        }),
        layout!(kfd_ioctl_free_memory_of_gpu_args { handle }),
        layout!(kfd_ioctl_map_memory_to_gpu_args {
            handle, device_ids_array_ptr, n_devices, n_success
        }),
        layout!(kfd_ioctl_map_memory_to_gpu_args as kfd_ioctl_unmap_memory_from_gpu_args {
            handle, device_ids_array_ptr, n_devices, n_success
        }),
        constants!(KFD_IOC_ALLOC_MEM_FLAGS_GTT, KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE),
        "#include <sys/ioctl.h>\n_Static_assert(_IOC_NR(AMDKFD_IOC_ALLOC_MEMORY_OF_GPU) == 0x16, \"\");\n\
         _Static_assert(_IOC_NR(AMDKFD_IOC_FREE_MEMORY_OF_GPU) == 0x17, \"\");\n\
         _Static_assert(_IOC_NR(AMDKFD_IOC_MAP_MEMORY_TO_GPU) == 0x18, \"\");\n\
         _Static_assert(_IOC_NR(AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU) == 0x19, \"\");\n"
            .to_owned(),
    ];
    let test = "kfd_bindings_agree_with_kernel_headers";
    assert_agrees(test, "linux/kfd_ioctl.h", &assertions.concat());
}

#[test]
fn libdrm_bindings_agree_with_its_headers() {
    // `HSA_VMM_REQUIRE` does not cover libdrm's headers, because AMD's runtime does not need them.
    let constants = constants!(
        AMDGPU_VA_OP_MAP,
        AMDGPU_VA_OP_UNMAP,
        AMDGPU_VA_OP_CLEAR,
        AMDGPU_VA_OP_REPLACE,
        AMDGPU_VM_PAGE_READABLE,
        AMDGPU_VM_PAGE_WRITEABLE,
        AMDGPU_VM_PAGE_EXECUTABLE
    );
    let functions = "
        #include <amdgpu_drm.h>
        int (*initialize)(int, uint32_t *, uint32_t *, amdgpu_device_handle *) = amdgpu_device_initialize;
        int (*deinitialize)(amdgpu_device_handle) = amdgpu_device_deinitialize;
        int (*get_fd)(amdgpu_device_handle) = amdgpu_device_get_fd;
        int (*import)(amdgpu_device_handle, enum amdgpu_bo_handle_type, uint32_t,
                      struct amdgpu_bo_import_result *) = amdgpu_bo_import;
        int (*bo_free)(amdgpu_bo_handle) = amdgpu_bo_free;
        int (*va_op)(amdgpu_device_handle, amdgpu_bo_handle, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint32_t) = amdgpu_bo_va_op_raw;
        _Static_assert(amdgpu_bo_handle_type_dma_buf_fd == 2, \"\");
    ";
    let layout = layout!(amdgpu_bo_import_result { buf_handle, alloc_size });
    match check("amdgpu.h", &[functions, &constants, &layout].concat()) {
        Some(result) => assert_eq!(result, Ok(()), "amdgpu.h"),
        None => drop(writeln!(
            std::io::stderr(),
            "SKIPPED libdrm_bindings_agree_with_its_headers: libdrm's amdgpu.h is not installed"
        )),
    }
}
