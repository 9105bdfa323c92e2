/* HIP has a header of this name, which some programs include directly. */
#ifndef HSAVMM_HIP_AMD_HIP_RUNTIME_H
#define HSAVMM_HIP_AMD_HIP_RUNTIME_H

#include <hip/hip_runtime.h>

#endif
