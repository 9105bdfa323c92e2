# The headers have the interface of HIP 7.2. It contains the functions for virtual memory of all older releases, so
# requests for older versions are compatible.
set(PACKAGE_VERSION "@HIP_VERSION@")
set(PACKAGE_VERSION_COMPATIBLE TRUE)
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
