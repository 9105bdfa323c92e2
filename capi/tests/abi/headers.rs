//! The declarations in the headers.

use crate::program::{Language, Program, expect_success, package};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Returns the headers' paths, relative to the folder `include`.
pub fn headers() -> Vec<PathBuf> {
    let include = package().join("include");
    let mut found = Vec::new();
    let mut folders = vec![include.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(&include).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Returns a header without comments.
pub fn code(header: &std::path::Path) -> String {
    let text = std::fs::read_to_string(package().join("include").join(header)).unwrap();
    let mut code = String::new();
    for (index, part) in text.split("/*").enumerate() {
        code.push_str(if index == 0 { part } else { part.split_once("*/").unwrap().1 });
    }
    code
}

/// Returns the functions of all headers, by the names that the library exports. Every identifier before `(` that starts
/// with `hip` or `hsavmm_` counts as a function, except in comments and in `hip/hip_runtime.h`, which declares none.
pub fn functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in headers().iter().filter(|header| !header.ends_with("hip/hip_runtime.h")) {
        let code = code(header);
        // Skip HIP's templates, which call functions of the same name.
        let code = code.split("template <class").next().unwrap();
        for (end, _) in code.match_indices('(') {
            let letters = code[..end]
                .chars()
                .rev()
                .take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_');
            let name: String = letters.collect::<Vec<_>>().into_iter().rev().collect();
            if name.starts_with("hip") || name.starts_with("hsavmm_") {
                names.insert(match name.as_str() {
                    // HIP defines this name as a macro.
                    "hipGetDeviceProperties" => "hipGetDevicePropertiesR0600".to_owned(),
                    _ => name,
                });
            }
        }
    }
    names
}

/// Mneme, a tool that records kernels, includes an internal header of HIP, and reads attributes of kernels.
#[test]
fn programs_that_inspect_kernels_compile() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("kernels.c");
    let text = "#include <hip/amd_detail/amd_hip_runtime.h>\n\
        #include <stdio.h>\n\
        int main(void) {\n  hipModule_t module;\n  hipFunction_t function = NULL;\n  void *at;\n\
        \x20 hipDeviceptr_t global;\n  size_t size;\n  int number;\n\
        \x20 if (hipModuleLoadData(&module, \"\") != hipErrorNotSupported ||\n\
        \x20     hipModuleGetGlobal(&global, &size, NULL, \"g\") != hipErrorNotSupported ||\n\
        \x20     hipGetSymbolAddress(&at, \"s\") != hipErrorNotSupported ||\n\
        \x20     hipFuncGetAttribute(&number, HIP_FUNC_ATTRIBUTE_NUM_REGS, function) !=\n\
        \x20       hipErrorNotSupported)\n\
        \x20   return 1;\n  puts(\"done\");\n  return 0;\n}\n";
    std::fs::write(&source, text).unwrap();
    for language in Language::ALL {
        let program = Program::compile(source.to_str().unwrap(), language, &[]);
        let output = program.on_simulation("").output().unwrap();
        assert_eq!(expect_success(&output, "kernels"), "done\n");
    }
}

/// Kernels compile: templates, launch bounds, and HIP's macros for coordinates and names. Their launches fail.
#[test]
fn source_with_a_kernel_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("kernel.cpp");
    let text = "#include <hip/hip_runtime.h>\n#include <stdio.h>\n\
        __global__ void __launch_bounds__(256) fill(int *values) { values[threadIdx.x] = 1; }\n\
        template <class T, int N> __global__ void set(T *values, T value) {\n\
        \x20 values[hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x + N] = value;\n}\n\
        template <class T> __noinline__ __global__ void add(T *values, T value) { *values += value; }\n\
        static int launches;\n\
        static void expect_failure() {\n\
        \x20 if (hipGetLastError() == hipErrorNotSupported) launches++;\n}\n\
        int main(void) {\n  int *at = nullptr;\n\
        \x20 hipLaunchKernelGGL(fill, dim3(1), dim3(256), 0, nullptr, (int *)nullptr);\n\
        \x20 expect_failure();\n\
        \x20 hipLaunchKernelGGL(add, dim3(1), 256, 0, 0, at, 1);\n\
        \x20 expect_failure();\n\
        \x20 hipLaunchKernelGGL(add<float>, 1, 1, 0, 0, nullptr, 1);\n\
        \x20 expect_failure();\n\
        \x20 hipLaunchKernelGGL((set<int, 2>), 1, 1, 0, 0, at, 1);\n\
        \x20 expect_failure();\n\
        \x20 if (at == nullptr)\n\
        \x20   hipLaunchKernelGGL(HIP_KERNEL_NAME(set<int, 2>), 1, 1, 0, 0, at, 1);\n\
        \x20 else\n\
        \x20   return 1;\n\
        \x20 expect_failure();\n\
        \x20 printf(\"%d\\n\", launches);\n}\n";
    std::fs::write(&source, text).unwrap();
    let program = Program::compile(source.to_str().unwrap(), Language::Cpp17, &[]);
    let output = program.on_simulation("").output().unwrap();
    assert_eq!(expect_success(&output, "kernel"), "5\n");
}

/// Programs that set the device's memory pool, if there is one, compile and allocate without it.
#[test]
fn programs_with_memory_pools_compile() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("pools.cpp");
    let text = "#include <hip/hip_runtime_api.h>\n#include <stdio.h>\n\
        int main(void) {\n  hipMemPool_t pool = nullptr;\n  float *at = nullptr;\n\
        \x20 std::uint64_t keep = UINT64_MAX;\n  int supported = 1;\n\
        \x20 if (hipDeviceGetAttribute(&supported, hipDeviceAttributeMemoryPoolsSupported, 0) ||\n\
        \x20     supported != 0)\n    return 1;\n\
        \x20 if (hipDeviceGetDefaultMemPool(&pool, 0) != hipErrorNotSupported ||\n\
        \x20     hipMemPoolSetAttribute(pool, hipMemPoolAttrReleaseThreshold, &keep) !=\n\
        \x20       hipErrorNotSupported ||\n\
        \x20     hipMallocAsync(&at, 64, pool, nullptr) != hipErrorNotSupported ||\n\
        \x20     hipMallocFromPoolAsync(&at, 64, pool, nullptr) != hipErrorNotSupported)\n\
        \x20   return 2;\n\
        \x20 if (hipMallocAsync(&at, 64, nullptr) || hipFreeAsync(at, nullptr)) return 3;\n\
        \x20 puts(\"done\");\n}\n";
    std::fs::write(&source, text).unwrap();
    let program = Program::compile(source.to_str().unwrap(), Language::Cpp17, &[]);
    let output = program.on_simulation("").output().unwrap();
    assert_eq!(expect_success(&output, "pools"), "done\n");
}

/// rocSHMEM declares the type itself if `#ifndef` does not find it, because AMD's header of HIP 7.2 lacks the type.
#[test]
fn fabric_handle_is_found_by_ifndef() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("fabric.c");
    let text = "#include <hip/hip_runtime_api.h>\n\
        #ifndef hipMemFabricHandle_t\ntypedef int hipMemFabricHandle_t;\n#endif\n\
        int main(void) {\n  hipMemFabricHandle_t handle;\n  return sizeof handle != 64;\n}\n";
    std::fs::write(&source, text).unwrap();
    for language in Language::ALL {
        let program = Program::compile(source.to_str().unwrap(), language, &[]);
        expect_success(&program.on_simulation("").output().unwrap(), "fabric");
    }
}

/// HIP's header includes three C headers (`limits.h`, `stdlib.h`, `string.h`). Some programs, such as vLLM's allocator,
/// use them without including them.
#[test]
fn header_includes_c_headers_as_hips_does() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("names.c");
    let text = "#include <hip/hip_runtime_api.h>\n\
        int main(void) {\n  char text[4];\n  memset(text, 0, sizeof text);\n\
        \x20 if (ULLONG_MAX == 0 || strlen(text) > 0) abort();\n  return 0;\n}\n";
    std::fs::write(&source, text).unwrap();
    for language in Language::ALL {
        Program::compile(source.to_str().unwrap(), language, &[]);
    }
}

/// Some programs, such as TensorFlow's, need the types of functions. HIP's macro disables the templates of the same
/// names.
#[test]
fn functions_have_types_without_templates() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("types.cpp");
    let text = "#define __HIP_DISABLE_CPP_FUNCTIONS__\n#include <hip/hip_runtime_api.h>\n\
        static decltype(&hipMalloc) allocate = hipMalloc;\n\
        static decltype(&hipHostMalloc) host_malloc = hipHostMalloc;\n\
        static decltype(&hipHostAlloc) host_alloc = hipHostAlloc;\n\
        static decltype(&hipMallocManaged) managed = hipMallocManaged;\n\
        int main(void) { return !(allocate && host_malloc && host_alloc && managed); }\n";
    std::fs::write(&source, text).unwrap();
    Program::compile(source.to_str().unwrap(), Language::Cpp17, &[]);
}

/// As HIP's, the header of functions declares the words of kernels. Inline functions in two sources do not collide, and
/// a source that hides its own functions finds those of the library.
#[test]
fn words_of_kernels_compile_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "words.h",
        "#pragma GCC visibility push(hidden)\n#include <hip/hip_runtime_api.h>\n\
         #include <hsavmm.h>\n#pragma GCC visibility pop\n\
         struct heap { char *base; __host__ __device__ char *get() const { return base; } };\n\
         __device__ static volatile int counter;\n\
         __host__ __device__ __forceinline__ int twice(int number) { return 2 * number; }\n",
    );
    write("second.cpp", "#include \"words.h\"\nint four() { return twice(2); }\n");
    write(
        "first.cpp",
        "#include \"words.h\"\nint four();\n\
         int main(void) {\n  void *at;\n  std::uint64_t zero = 0;\n  heap heap{nullptr};\n\
         \x20 if (hipGetSymbolAddress(&at, counter) != hipErrorNotSupported) return 1;\n\
         \x20 if (hsavmm_shut_down() != hipSuccess) return 2;\n\
         \x20 return HIP_VERSION_GITHASH[0] + HIP_VERSION_BUILD_ID + HIP_VERSION_BUILD_NAME[0] +\n\
         \x20   (four() != 4) + (std::move(heap).get() != nullptr) + int(zero);\n}\n",
    );
    let program = Program::compile_folder(folder.path());
    expect_success(&program.on_simulation("").output().unwrap(), "words");
}
