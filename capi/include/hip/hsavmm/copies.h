/*
 * Copies and fills. Included by hip_runtime_api.h.
 */
#ifndef HSAVMM_HIP_COPIES_H
#define HSAVMM_HIP_COPIES_H

typedef enum hipMemcpyKind {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
  hipMemcpyDeviceToDeviceNoCU = 1024
} hipMemcpyKind;

/* Copies are complete when the call returns. Mapped memory is copied by an agent that has access to the memory.
 * If there is no such agent, the call fails. `kind` must match the pointers, or be hipMemcpyDefault. For 0 bytes,
 * hipMemcpy, hipMemcpyHtoD, hipMemcpyDtoH, hipMemcpyDtoD and the functions hipMemset* succeed without checking their
 * arguments. hipMemcpy2D still checks the kind, and hipMemcpyPeer the devices. */
hipError_t hipMemcpy(void *destination, const void *source, size_t size, hipMemcpyKind kind);
hipError_t hipMemcpyHtoD(hipDeviceptr_t destination, const void *source, size_t size);
hipError_t hipMemcpyDtoH(void *destination, hipDeviceptr_t source, size_t size);
hipError_t hipMemcpyDtoD(hipDeviceptr_t destination, hipDeviceptr_t source, size_t size);
hipError_t hipMemcpyPeer(void *destination, int destination_device, const void *source,
                         int source_device, size_t size);
/* Copies `height` rows of `width` bytes. Each row starts `…_pitch` bytes after the previous row. The whole range from
 * the first row to the last must be accessible, also between the rows. Unless the rows are contiguous, the library
 * copies each row separately, so copying many short rows is slow. */
hipError_t hipMemcpy2D(void *destination, size_t destination_pitch, const void *source,
                       size_t source_pitch, size_t width, size_t height, hipMemcpyKind kind);
hipError_t hipMemset(void *destination, int value, size_t size);
hipError_t hipMemsetD8(hipDeviceptr_t destination, unsigned char value, size_t count);
hipError_t hipMemsetD16(hipDeviceptr_t destination, unsigned short value, size_t count);
hipError_t hipMemsetD32(hipDeviceptr_t destination, int value, size_t count);

/* Do the same as the functions without `Async` or `WithStream`, and also check the stream. hipMemcpyAsync checks the
 * kind also for 0 bytes. */
hipError_t hipMemcpyAsync(void *destination, const void *source, size_t size, hipMemcpyKind kind,
                          hipStream_t stream HSAVMM_DEFAULT(NULL));
hipError_t hipMemcpyWithStream(void *destination, const void *source, size_t size,
                               hipMemcpyKind kind, hipStream_t stream);
hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t destination, const void *source, size_t size,
                              hipStream_t stream);
hipError_t hipMemcpyDtoHAsync(void *destination, hipDeviceptr_t source, size_t size,
                              hipStream_t stream);
hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t destination, hipDeviceptr_t source, size_t size,
                              hipStream_t stream);
hipError_t hipMemcpyPeerAsync(void *destination, int destination_device, const void *source,
                              int source_device, size_t size,
                              hipStream_t stream HSAVMM_DEFAULT(NULL));
hipError_t hipMemcpy2DAsync(void *destination, size_t destination_pitch, const void *source,
                            size_t source_pitch, size_t width, size_t height, hipMemcpyKind kind,
                            hipStream_t stream HSAVMM_DEFAULT(NULL));
hipError_t hipMemsetAsync(void *destination, int value, size_t size,
                          hipStream_t stream HSAVMM_DEFAULT(NULL));
hipError_t hipMemsetD8Async(hipDeviceptr_t destination, unsigned char value, size_t count,
                            hipStream_t stream HSAVMM_DEFAULT(NULL));
hipError_t hipMemsetD16Async(hipDeviceptr_t destination, unsigned short value, size_t count,
                             hipStream_t stream HSAVMM_DEFAULT(NULL));
hipError_t hipMemsetD32Async(hipDeviceptr_t destination, int value, size_t count,
                             hipStream_t stream HSAVMM_DEFAULT(NULL));

#endif
