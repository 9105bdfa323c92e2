# find_package(hip) for projects that use HIP's memory and IPC calls, and no kernels. Defines the targets hip::host
# and hip::amdhip64, which link libhsavmm. Installed only in a drop-in folder (install --drop-in).
get_filename_component(hip_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(HIP_PLATFORM amd)
set(HIP_COMPILER "")
set(HIP_RUNTIME "hsavmm")
set(hip_INCLUDE_DIR "${hip_PREFIX}/include")
set(hip_INCLUDE_DIRS "${hip_INCLUDE_DIR}")
set(hip_LIB_INSTALL_DIR "${hip_PREFIX}/lib")
set(hip_LIBRARY hip::host)
set(hip_LIBRARIES "${hip_LIBRARY}")
if(NOT TARGET hip::amdhip64)
  add_library(hip::amdhip64 SHARED IMPORTED)
  set_target_properties(hip::amdhip64 PROPERTIES
    IMPORTED_LOCATION "${hip_LIB_INSTALL_DIR}/libhsavmm.so.@ABI@"
    IMPORTED_SONAME "libhsavmm.so.@ABI@"
    INTERFACE_COMPILE_DEFINITIONS "__HIP_PLATFORM_AMD__=1"
    INTERFACE_INCLUDE_DIRECTORIES "${hip_INCLUDE_DIR}")
  add_library(hip::host INTERFACE IMPORTED)
  set_target_properties(hip::host PROPERTIES INTERFACE_LINK_LIBRARIES hip::amdhip64)
endif()
