# find_package(hsavmm) defines hsavmm::hsavmm (the shared library) and hsavmm::static (the static library).
get_filename_component(_hsavmm_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(_hsavmm_include "${_hsavmm_lib}/@TO_PREFIX@/include/hsavmm" ABSOLUTE)
if(NOT TARGET hsavmm::hsavmm)
  add_library(hsavmm::hsavmm SHARED IMPORTED)
  set_target_properties(hsavmm::hsavmm PROPERTIES
    IMPORTED_LOCATION "${_hsavmm_lib}/libhsavmm.so.@ABI@"
    IMPORTED_SONAME "libhsavmm.so.@ABI@"
    INTERFACE_COMPILE_DEFINITIONS "__HIP_PLATFORM_AMD__=1"
    INTERFACE_INCLUDE_DIRECTORIES "${_hsavmm_include}")
  add_library(hsavmm::static STATIC IMPORTED)
  set_target_properties(hsavmm::static PROPERTIES
    IMPORTED_LOCATION "${_hsavmm_lib}/libhsavmm.a"
    INTERFACE_COMPILE_DEFINITIONS "__HIP_PLATFORM_AMD__=1"
    INTERFACE_INCLUDE_DIRECTORIES "${_hsavmm_include}"
    INTERFACE_LINK_LIBRARIES "gcc_s;m;pthread;dl")
endif()
unset(_hsavmm_lib)
unset(_hsavmm_include)
