/*
 * HIP's header for sources with kernels. Kernels need AMD's compiler. With another compiler, a C++ source with kernels
 * compiles if it launches them with hipLaunchKernelGGL(), and if the kernels use only the names of HIP that this header
 * declares. Other names, such as atomicAdd() and __shfl(), are missing. The launch fails: hipGetLastError() then
 * returns hipErrorNotSupported.
 */
#ifndef HSAVMM_HIP_HIP_RUNTIME_H
#define HSAVMM_HIP_HIP_RUNTIME_H

#include <hip/hip_runtime_api.h>

#if !defined(__HIP__)
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __forceinline__
#define __launch_bounds__(...)

#ifdef __cplusplus
/* Placeholders for the coordinates that a kernel reads. No kernel runs. */
static constexpr dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim(1, 1, 1), gridDim(1, 1, 1);

/* Placeholders for the fences and the barrier that a kernel calls. */
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) {}
static inline void __syncthreads(void) {}

template <class Kernel, class... Arguments>
static inline void hipLaunchKernelGGL(Kernel kernel, const dim3 &grid, const dim3 &block,
                                      uint32_t shared_bytes, hipStream_t stream, Arguments...) {
  /* As in HIP, the caller gets the error from hipGetLastError(). */
  const hipError_t error = hipLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block,
                                           nullptr, shared_bytes, stream);
  (void)error;
}
#endif
#endif

#endif
