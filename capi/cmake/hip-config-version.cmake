# The headers declare the interface of HIP 7.2, which contains the virtual memory functions of all older releases.
# Requests for older versions are therefore compatible.
set(PACKAGE_VERSION "@HIP_VERSION@")
set(PACKAGE_VERSION_COMPATIBLE TRUE)
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
