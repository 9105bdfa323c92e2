# The installed version is compatible if it is at least the requested version and has the same major number.
# Before 1.0, the installed and the requested version must also have the same minor number.
set(PACKAGE_VERSION "@VERSION@")
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" _numbers "${PACKAGE_VERSION}")
set(_major "${CMAKE_MATCH_1}")
set(_minor "${CMAKE_MATCH_2}")
set(PACKAGE_VERSION_COMPATIBLE TRUE)
if(PACKAGE_FIND_VERSION_COUNT GREATER 0)
  if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
  elseif(NOT PACKAGE_FIND_VERSION_MAJOR EQUAL _major)
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
  elseif(_major EQUAL 0 AND PACKAGE_FIND_VERSION_COUNT GREATER 1 AND
         NOT PACKAGE_FIND_VERSION_MINOR EQUAL _minor)
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
  endif()
endif()
# A version range, such as 6.0...<7.0, has a maximum, too. PACKAGE_FIND_VERSION is its minimum.
if(PACKAGE_FIND_VERSION_RANGE)
  if(PACKAGE_VERSION VERSION_GREATER PACKAGE_FIND_VERSION_MAX OR
     (PACKAGE_FIND_VERSION_RANGE_MAX STREQUAL "EXCLUDE" AND
      PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION_MAX))
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
  endif()
elseif(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
unset(_numbers)
unset(_major)
unset(_minor)
