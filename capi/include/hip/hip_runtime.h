/*
 * HIP's header for sources with kernels. Kernels need AMD's compiler. With another compiler, a C++ source with kernels
 * compiles if it launches them with hipLaunchKernelGGL(), and if the kernels use only the names of HIP that this header
 * declares. Other names, such as atomicAdd() and __shfl(), are missing, and a kernel with an array `extern __shared__`
 * does not link. The launch fails: hipGetLastError() then returns hipErrorNotSupported.
 */
#ifndef HSAVMM_HIP_HIP_RUNTIME_H
#define HSAVMM_HIP_HIP_RUNTIME_H

#include <hip/hip_runtime_api.h>

/* HIP's header includes these headers, directly or through others, and programs rely on this. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#ifdef __cplusplus
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <tuple>
#endif

#if !defined(__HIP__)
/* The C++ headers of GCC 16 use this word themselves. */
#if !defined(_GLIBCXX_RELEASE) || _GLIBCXX_RELEASE < 16
#define __noinline__
#endif
#define __launch_bounds__(...)
#define HIP_SYMBOL(symbol) symbol

#ifdef __cplusplus
/* Placeholders for the coordinates that a kernel reads. No kernel runs. */
static constexpr dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), blockDim(1, 1, 1), gridDim(1, 1, 1);
#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z

/* Placeholders for the fences and the barrier that a kernel calls. */
static inline void __threadfence(void) {}
static inline void __threadfence_block(void) {}
static inline void __threadfence_system(void) {}
static inline void __syncthreads(void) {}

static inline void hsavmm_launch(const dim3 &grid, const dim3 &block, uint32_t shared_bytes, hipStream_t stream) {
  /* As in HIP, the caller gets the error from hipGetLastError(). */
  const hipError_t error = hipLaunchKernel(nullptr, grid, block, nullptr, shared_bytes, stream);
  (void)error;
}

/* The call that never runs selects the kernel, also from a template, and checks the arguments. */
#define HSAVMM_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  do { \
    if (false) kernel(__VA_ARGS__); \
    hsavmm_launch(grid, block, shared_bytes, stream); \
  } while (false)
#define hipLaunchKernelGGL(kernel, ...) HSAVMM_LAUNCH((kernel), __VA_ARGS__)
#define HIP_KERNEL_NAME(...) __VA_ARGS__
#endif
#endif

#endif
