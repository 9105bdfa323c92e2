/*
 * Streams, events and contexts that programs use with memory. Included by hip_runtime_api.h.
 *
 * Every operation of this library is complete when the call returns. A stream therefore never waits,
 * and an event is complete as soon as it is recorded.
 */
#ifndef HSAVMM_HIP_STREAMS_H
#define HSAVMM_HIP_STREAMS_H

/* ---- Streams ------------------------------------------------------------------------------- */

#define hipStreamDefault 0x00
#define hipStreamNonBlocking 0x01
#define hipStreamLegacy ((hipStream_t)1)
#define hipStreamPerThread ((hipStream_t)2)

typedef enum hipStreamCaptureMode {
  hipStreamCaptureModeGlobal = 0,
  hipStreamCaptureModeThreadLocal = 1,
  hipStreamCaptureModeRelaxed = 2
} hipStreamCaptureMode;

typedef enum hipStreamCaptureStatus {
  hipStreamCaptureStatusNone = 0,
  hipStreamCaptureStatusActive = 1,
  hipStreamCaptureStatusInvalidated = 2
} hipStreamCaptureStatus;

hipError_t hipStreamCreate(hipStream_t *stream);
hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned int flags);
/* Stores the priority, limited to the range of hipDeviceGetStreamPriorityRange(). The priority has no effect: no call
 * waits for another. */
hipError_t hipStreamCreateWithPriority(hipStream_t *stream, unsigned int flags, int priority);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
/* Never returns hipErrorNotReady, as every call is complete when it returns. The same holds for hipEventQuery. */
hipError_t hipStreamQuery(hipStream_t stream);
/* Returns hipErrorInvalidValue for the null stream, as in HIP. */
hipError_t hipStreamGetFlags(hipStream_t stream, unsigned int *flags);
hipError_t hipStreamGetPriority(hipStream_t stream, int *priority);
hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t *device);
/* Returns hipErrorInvalidHandle for hipEventWaitExternal, because no stream captures. In profile 6, returns
 * hipErrorInvalidValue. */
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event,
                              unsigned int flags HSAVMM_DEFAULT(0));
/* Sets `*least` to 1 and `*greatest` to -1, as in HIP. Either pointer may be null. */
hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest);
/* Always sets `*status` to hipStreamCaptureStatusNone. */
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *status);
/* Exchanges the mode of this thread with `*mode`. The mode has no effect, because captures are not supported. */
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode);

/* ---- Events -------------------------------------------------------------------------------- */

#define hipEventDefault 0x0
#define hipEventBlockingSync 0x1
#define hipEventDisableTiming 0x2
#define hipEventInterprocess 0x4
#define hipEventDisableSystemFence 0x20000000
#define hipEventReleaseToDevice 0x40000000
#define hipEventReleaseToSystem 0x80000000
#define hipEventWaitDefault 0x0
#define hipEventWaitExternal 0x1

hipError_t hipEventCreate(hipEvent_t *event);
/* Returns hipErrorNotSupported for hipEventInterprocess with hipEventDisableTiming. For hipEventInterprocess alone,
 * returns hipErrorInvalidValue, as HIP does. */
hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned int flags);
hipError_t hipEventDestroy(hipEvent_t event);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream HSAVMM_DEFAULT(NULL));
hipError_t hipEventQuery(hipEvent_t event);
hipError_t hipEventSynchronize(hipEvent_t event);
/* Returns the milliseconds between the calls that recorded the two events. The events must be of one device. */
hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop);

/* ---- Contexts: each device has one --------------------------------------------------------- */

#define hipDeviceScheduleAuto 0x0
#define hipDeviceScheduleSpin 0x1
#define hipDeviceScheduleYield 0x2
#define hipDeviceScheduleBlockingSync 0x4
#define hipDeviceScheduleMask 0x7
#define hipDeviceMapHost 0x8
#define hipDeviceLmemResizeToMax 0x10

hipError_t hipDevicePrimaryCtxRetain(hipCtx_t *context, hipDevice_t device);
hipError_t hipDevicePrimaryCtxRelease(hipDevice_t device);
/* Returns the context of the current device. */
hipError_t hipCtxGetCurrent(hipCtx_t *context);
/* Makes the context's device the current device. For null, does nothing. */
hipError_t hipCtxSetCurrent(hipCtx_t context);
hipError_t hipCtxGetDevice(hipDevice_t *device);
hipError_t hipCtxSynchronize(void);
/* Stores `flags & hipDeviceScheduleMask` for the current device. No call of this library waits, so the flags have no
 * effect. */
hipError_t hipSetDeviceFlags(unsigned int flags);
/* Returns the stored flags of the current device, initially hipDeviceScheduleSpin. */
hipError_t hipGetDeviceFlags(unsigned int *flags);
/* Destroys the current device's streams and events, and resets its flags. Frees the device's memory from hipMalloc and,
 * if it is the only device, memory of the host (hipHostMalloc, hipMallocManaged). Does not free reservations, mappings
 * and handles. hsavmm_shut_down() frees them. */
hipError_t hipDeviceReset(void);

#endif
