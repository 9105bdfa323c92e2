/* HIP's other header. Kernels need a compiler of AMD's; here there is nothing but the API. */
#ifndef HSAVMM_HIP_HIP_RUNTIME_H
#define HSAVMM_HIP_HIP_RUNTIME_H

#include <hip/hip_runtime_api.h>

#endif
