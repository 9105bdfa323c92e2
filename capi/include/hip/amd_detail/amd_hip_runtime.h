/* Some programs include this file of HIP by name. */
#ifndef HSAVMM_HIP_AMD_HIP_RUNTIME_H
#define HSAVMM_HIP_AMD_HIP_RUNTIME_H

#include <hip/hip_runtime.h>

#endif
