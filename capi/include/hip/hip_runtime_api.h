/*
 * HIP's functions that libhsavmm implements: virtual memory management, IPC, and other functions that
 * the same programs call. Names, types and values are those of HIP, so that code written for HIP
 * compiles and links without change and without HIP.
 *
 * A function that gets an invalid handle returns an error, and does not crash.
 * hsavmm_last_message() in <hsavmm.h> returns the message of the last error. This library does not
 * support kernels, graphs, memory pools and sparse arrays: their functions return
 * hipErrorNotSupported. Copies are complete when the call returns, so streams and events never wait.
 *
 * The header is valid C99 and C++17.
 */
#ifndef HSAVMM_HIP_HIP_RUNTIME_API_H
#define HSAVMM_HIP_HIP_RUNTIME_API_H

/* HIP's header includes these headers, except for stddef.h and stdint.h, and programs rely on this. */
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __cplusplus
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <utility>
#endif

#include <hip/amd_detail/host_defines.h>
#include <hip/hip_version.h>

/* HIP's types contain anonymous unions, which C99 lacks. */
#if defined(__GNUC__)
#define HSAVMM_ANONYMOUS __extension__
#else
#define HSAVMM_ANONYMOUS
#endif

#if defined(__cplusplus) && __cplusplus >= 201703L
#define HSAVMM_NODISCARD [[nodiscard]]
#else
#define HSAVMM_NODISCARD
#endif

/* HIP's default arguments in C++. */
#ifdef __cplusplus
#define HSAVMM_DEFAULT(value) = value
#else
#define HSAVMM_DEFAULT(value)
#endif

/* A program can include this header while it hides its own functions. */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Types that all parts use ---------------------------------------------------------------- */

#include <hip/hsavmm/errors.h>

/* The number of a GPU, from 0: the GPU's index among the visible GPUs. HIP_VISIBLE_DEVICES selects the visible GPUs. If
 * this variable is unset, CUDA_VISIBLE_DEVICES selects them. If both are unset, all GPUs of the runtime are visible. An
 * empty list selects no GPU. */
typedef int hipDevice_t;
typedef void *hipDeviceptr_t;
/* These handles are numbers, not pointers. The numbers of streams and events are never reused in a process. */
typedef struct ihipCtx_t *hipCtx_t;
typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;

#define HIP_IPC_HANDLE_SIZE 64

typedef struct hipUUID_t {
  char bytes[16];
} hipUUID;

#include <hip/hsavmm/devices.h>
#include <hip/hsavmm/properties.h>
#include <hip/hsavmm/streams.h>
#include <hip/hsavmm/virtual_memory.h>
#include <hip/hsavmm/memory.h>
#include <hip/hsavmm/copies.h>
#include <hip/hsavmm/unsupported.h>

/* ---- IPC ----------------------------------------------------------------------------------- */

#define hipIpcMemLazyEnablePeerAccess 0x01

typedef struct hipIpcMemHandle_st {
  char reserved[HIP_IPC_HANDLE_SIZE];
} hipIpcMemHandle_t;

/* Returns a handle of the allocation that contains `ptr`, which must be memory from hipMalloc. For mapped memory, use
 * hipMemExportToShareableHandle(). For memory that this process has opened, pass on its handle. */
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *ptr);
/* Maps another process's memory for the current device, and for all devices that have peer access to and from the
 * current device. As in HIP, `*ptr` is the start of the whole allocation, also if the handle was created for another
 * address of the allocation: the exporter must send the offset separately. `flags` must be
 * hipIpcMemLazyEnablePeerAccess. Each open of a handle from AMD's HIP maps the memory again, so it returns another
 * address.
 *
 * Access the memory by copies: if AMD's runtime shares by dma-buf (HSA_ENABLE_IPC_MODE_LEGACY=0, the default since ROCm
 * 7.2), the CPU cannot access it, and a load or store ends the program (SIGSEGV). The simulation allows it. */
hipError_t hipIpcOpenMemHandle(void **ptr, hipIpcMemHandle_t handle, unsigned int flags);
/* Closes opened memory. Memory that was opened n times stays open until it has been closed n times. `ptr` is any
 * address in the memory. */
hipError_t hipIpcCloseMemHandle(void *ptr);

/* ---- Functions by name --------------------------------------------------------------------- */

/* The flags of hipGetProcAddress. They have no effect: this library has each function once. */
#define HIP_GET_PROC_ADDRESS_DEFAULT 0x0
#define HIP_GET_PROC_ADDRESS_LEGACY_STREAM 0x1
#define HIP_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 0x2

typedef enum hipDriverProcAddressQueryResult {
  HIP_GET_PROC_ADDRESS_SUCCESS = 0,
  HIP_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  HIP_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
} hipDriverProcAddressQueryResult;

hipError_t hipGetProcAddress(const char *symbol, void **function, int version, uint64_t flags,
                             hipDriverProcAddressQueryResult *result);

/* The flags of hipGetDriverEntryPoint. They have no effect. */
#define hipEnableDefault 0x0
#define hipEnableLegacyStream 0x1
#define hipEnablePerThreadDefaultStream 0x2

typedef enum hipDriverEntryPointQueryResult {
  hipDriverEntryPointSuccess = 0,
  hipDriverEntryPointSymbolNotFound = 1,
  hipDriverEntryPointVersionNotSufficent = 2
} hipDriverEntryPointQueryResult;

hipError_t hipGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                  hipDriverEntryPointQueryResult *result);

#ifdef __cplusplus
} /* extern "C" */

/* In C++, HIP accepts pointers of any type. */
template <class T> static inline hipError_t hipMallocAsync(T **ptr, size_t size, hipStream_t stream) {
  return hipMallocAsync(reinterpret_cast<void **>(ptr), size, stream);
}
template <class T>
static inline hipError_t hipMallocAsync(T **ptr, size_t size, hipMemPool_t pool, hipStream_t stream) {
  return hipMallocFromPoolAsync(reinterpret_cast<void **>(ptr), size, pool, stream);
}
template <class T>
static inline hipError_t hipMallocFromPoolAsync(T **ptr, size_t size, hipMemPool_t pool,
                                                hipStream_t stream) {
  return hipMallocFromPoolAsync(reinterpret_cast<void **>(ptr), size, pool, stream);
}
/* A program that needs the types of these functions, as in decltype(&hipMalloc), defines __HIP_DISABLE_CPP_FUNCTIONS__,
 * as for HIP. */
#ifndef __HIP_DISABLE_CPP_FUNCTIONS__
template <class T>
static inline hipError_t hipHostAlloc(T **ptr, size_t size,
                                      unsigned int flags = hipHostAllocDefault) {
  return hipHostAlloc(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T> static inline hipError_t hipMalloc(T **ptr, size_t size) {
  return hipMalloc(reinterpret_cast<void **>(ptr), size);
}
template <class T>
static inline hipError_t hipMallocPitch(T **ptr, size_t *pitch, size_t width, size_t height) {
  return hipMallocPitch(reinterpret_cast<void **>(ptr), pitch, width, height);
}
template <class T>
static inline hipError_t hipHostMalloc(T **ptr, size_t size,
                                       unsigned int flags = hipHostMallocDefault) {
  return hipHostMalloc(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T>
static inline hipError_t hipMallocManaged(T **ptr, size_t size,
                                          unsigned int flags = hipMemAttachGlobal) {
  return hipMallocManaged(reinterpret_cast<void **>(ptr), size, flags);
}
#endif /* __HIP_DISABLE_CPP_FUNCTIONS__ */
template <class T> static inline hipError_t hipGetSymbolAddress(void **ptr, const T &symbol) {
  return hipGetSymbolAddress(ptr, (const void *)&symbol);
}
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
