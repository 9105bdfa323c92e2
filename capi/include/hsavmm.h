/*
 * The functions that libhsavmm adds to HIP.
 *
 * Functions return HIP's error codes. HIP's own functions are in <hip/hip_runtime_api.h>.
 *
 * A runtime does not work in a child that is forked while it is open, or while a thread opens, configures or closes it.
 * In the child, every call that needs the runtime returns hipErrorNotInitialized, and so do the functions that
 * configure the library. Fork before the first call or after hsavmm_shut_down(), or start a new program. After an
 * export by dma-buf (hipIpcGetMemHandle, the default of ROCm 7.2), the runtime cannot be stopped, also not by
 * hsavmm_shut_down().
 */
#ifndef HSAVMM_H
#define HSAVMM_H

#include <hip/hip_runtime_api.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Before the first call ----------------------------------------------------------------- */
/* Once a runtime is open, these functions return hipErrorSetOnActiveProcess, unless an argument is invalid. */

/* Sets which runtime the first call opens. `path` is a library's path, "sim" or "auto". "sim" is the simulation,
 * which HSA_SIM configures. "auto" is the default: the runtime that HSA_VMM_RUNTIME names, else AMD's from the usual
 * directories. The caller must trust the library: its constructors run with the program's privileges. A program that
 * runs with more privileges than its caller (set-user-id) ignores HSA_VMM_RUNTIME, ROCM_PATH, HSA_SIM, HSA_VMM_LOG,
 * HSA_VMM_PROFILE and HSA_VMM_PAGE_TABLES. */
hipError_t hsavmm_use_runtime(const char *path);

/* Selects the simulation as the runtime, with a configuration such as "mi300x,gpus=4,era=b" (`era` is the ROCm
 * generation; hsa/sim/README.md lists all settings). Null or "" selects a configuration with two GPUs.
 * Returns hipErrorInvalidValue if the configuration is invalid. hsavmm_last_message() then returns the reason.
 * Returns hipErrorNotSupported if the library was built without the simulation. */
hipError_t hsavmm_use_simulation(const char *configuration);

/* Sets the major release of HIP, 6 or 7, whose documents the library follows. The default is the value of
 * HSA_VMM_PROFILE ("hip6", "hip7"), or 7. Profile 6 differs from profile 7 in these points:
 *
 * - A call that succeeds resets the error that hipGetLastError and hipPeekAtLastError return.
 * - hipMemAddressReserve with an invalid argument other than `ptr` and `flags` returns hipErrorOutOfMemory instead of
 *   hipErrorInvalidValue.
 * - hipMemAddressFree of a reservation with mappings returns hipErrorUnknown instead of hipErrorInvalidValue.
 * - hipMemCreate for a device that does not exist returns hipErrorInvalidValue instead of hipErrorInvalidDevice.
 * - hipMemCreate and hipMemGetAllocationGranularity accept only hipMemLocationTypeDevice and
 *   hipMemAllocationTypePinned, and hipMemGetAccess accepts only hipMemLocationTypeDevice. Other locations and types
 *   return hipErrorInvalidValue.
 * - hipPointerGetAttributes and hipFreeAsync return hipErrorInvalidValue for null.
 * - hipIpcOpenMemHandle of bytes that are not a handle returns hipErrorInvalidDevicePointer instead of
 *   hipErrorInvalidValue, unless the size in the handle is 0.
 * - hipStreamWaitEvent returns hipErrorInvalidValue for hipEventWaitExternal, and hipPointerGetAttribute returns
 *   hipErrorNotSupported for HIP_POINTER_ATTRIBUTE_CONTEXT and HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE: HIP 6
 *   has the first of them only from 6.4.2 on, and never the second.
 * - The recommended granularity is the minimum granularity, 4 KiB on AMD's runtime, instead of 2 MiB.
 *
 * Properties and attributes of devices have HIP 7's values in both profiles.
 *
 * HIP 7.2 itself behaves like profile 6 in three of these points: the error of hipMemAddressFree, the locations that
 * hipMemGetAccess accepts, and the recommended granularity. It also rejects hipMemLocationTypeHostNuma and
 * hipMemLocationTypeHostNumaCurrent, and checks the ID of hipMemLocationTypeHost, which HIP documents as ignored. */
hipError_t hsavmm_use_profile(int profile);

/* Sets whether the library controls GPUs' page tables: 1 or 0. The default is the value of HSA_VMM_PAGE_TABLES
 * ("on", "off"), or 0. With control, hipMemAccessFlagsProtRead and hipMemAccessFlagsProtNone are enforced for GPUs,
 * and hipMemMap accepts an offset. Calls then return only after they have taken effect on the GPUs.
 * hsavmm_enforcement() returns whether the library controls a GPU's page table. If the library cannot control it,
 * HSA_VMM_LOG=warn prints the reason. */
hipError_t hsavmm_use_page_tables(int enabled);

/* ---- State --------------------------------------------------------------------------------- */

typedef struct hsavmm_runtime_info {
  int is_simulation;
  int virtual_memory; /* whether the runtime and the driver support virtual memory management */
  unsigned int extension_major; /* the version of AMD's extension of HSA; not that of the library's file */
  unsigned int extension_minor;
  int profile; /* 6 or 7 */
  char name[236];
} hsavmm_runtime_info;

/* Returns what is known about the runtime. Opens the runtime if none is open. */
hipError_t hsavmm_runtime(hsavmm_runtime_info *info);

/* Returns the message of this thread's last failed call: the function, the argument, its value and a
 * remedy. Returns "" before the first failure, and never null. The thread's next failed call overwrites the message. */
const char *hsavmm_last_message(void);

typedef struct hsavmm_usage {
  size_t reservations; /* not freed yet */
  size_t handles;      /* referenced or mapped */
  size_t mappings;
  size_t quarantined; /* ranges that are never used again: a rollback failed, or a signal did not fire in time */
} hsavmm_usage;

/* Returns the numbers of reservations, handles, mappings and quarantined ranges. */
hipError_t hsavmm_count(hsavmm_usage *usage);

typedef struct hsavmm_quarantined {
  void *address; /* null for memory without an address */
  size_t size;
  char reason[240];
} hsavmm_quarantined;

/* Lists the quarantined ranges. `*count` is the capacity of `list` before the call, and the number of ranges after
 * the call. */
hipError_t hsavmm_quarantine(hsavmm_quarantined *list, size_t *count);

/* Checks the invariants of the library's state. Returns hipErrorUnknown if an invariant does not hold, which is a
 * defect of the library. */
hipError_t hsavmm_check(void);

/* ---- Virtual memory ------------------------------------------------------------------------ */

/* Reserves addresses at exactly `ptr`. Free them with hipMemAddressFree. */
hipError_t hsavmm_reserve_at(void *ptr, size_t size);

/* Sets `*enforced` to 1 if the agent at `location` faults when it makes an access that hipMemSetAccess has not granted.
 * Sets `*enforced` to 0 if the library only records the agent's permissions. The library only records the permissions
 * of a GPU whose page table it does not control, because AMD's driver maps all memory readable and writable. */
hipError_t hsavmm_enforcement(int *enforced, const hipMemLocation *location);

/* Revokes the access of agents, including GPUs, to a range of whole, adjacent mappings. The contents are kept. Where
 * the library controls the GPUs' page tables, other agents may use the mappings during the call. Otherwise the call
 * unmaps the mappings and maps them again, so no agent may use them during the call. */
hipError_t hsavmm_revoke(void *ptr, size_t size, const hipMemLocation *locations, size_t count);

typedef struct hsavmm_segment {
  int descriptor; /* a dma-buf, close-on-exec; the caller must close it */
  size_t offset;  /* where the segment begins in the dma-buf, in bytes */
  size_t length;  /* in bytes */
} hsavmm_segment;

/* Exports a range as dma-bufs: mapped memory of one reservation, or a part of one allocation of hipMalloc. The range
 * may begin at any byte. Adjacent mappings are one segment if they map adjacent parts of one handle. `*count` is the
 * capacity of `segments` before the call, and the number of segments after the call. If the capacity is too small, the
 * call returns hipErrorInvalidValue and opens no descriptor. A descriptor keeps the memory alive. A descriptor gives
 * access to the whole dma-buf, also outside the segment: to the other parts of the allocation, and to small
 * allocations of hipMalloc that share the dma-buf. */
hipError_t hsavmm_export_address_range(void *ptr, size_t size, hsavmm_segment *segments,
                                       size_t *count);

/* ---- Batches ------------------------------------------------------------------------------- */
/* Each function performs all operations of a list, or none. The ranges may be in several reservations
 * and in any order, and must not overlap. Where possible, the library makes one call of the runtime for
 * adjacent ranges. A list has at most 65,536 elements. Unlike hipMemSetAccess, these functions grant the host
 * access only if `desc` names the host. */

typedef struct hsavmm_mapping {
  void *ptr;
  size_t size;
  hipMemGenericAllocationHandle_t handle; /* its first `size` bytes are mapped at `ptr` */
} hsavmm_mapping;

typedef struct hsavmm_part {
  void *ptr;
  size_t size;
  size_t offset; /* where the part begins in the memory: a multiple of the granularity, in bytes */
  hipMemGenericAllocationHandle_t handle;
} hsavmm_part;

typedef struct hsavmm_range {
  void *ptr;
  size_t size;
} hsavmm_range;

/* Creates each mapping, and sets the access to all mappings. If `desc_count` is 0, no agent has access. */
hipError_t hsavmm_map_many(const hsavmm_mapping *mappings, size_t count,
                           const hipMemAccessDesc *desc, size_t desc_count);
/* Does the same as hsavmm_map_many, for parts of handles. An offset other than 0 requires hsavmm_use_page_tables(1)
 * and GPUs whose page tables can be changed. Otherwise the call returns hipErrorInvalidValue, as hipMemMap does. */
hipError_t hsavmm_map_parts(const hsavmm_part *parts, size_t count,
                            const hipMemAccessDesc *desc, size_t desc_count);
/* Sets the access to all ranges. Each range must consist of whole, adjacent mappings. */
hipError_t hsavmm_set_access_many(const hsavmm_range *ranges, size_t count,
                                  const hipMemAccessDesc *desc, size_t desc_count);
hipError_t hsavmm_unmap_many(const hsavmm_range *ranges, size_t count);

/* ---- Areas --------------------------------------------------------------------------------- */
/* An area stands for memory with properties that its flags select, as in AML (Argonne's memory library). Creating an
 * area allocates no memory. hsavmm_area_mmap() maps memory of any size. */

/* A number that is checked in every call, not a pointer. */
typedef struct hsavmm_area *hsavmm_area_t;

#define HSAVMM_AREA_DEFAULT 0x0 /* the device's memory, for the device */
#define HSAVMM_AREA_HOST 0x1    /* the host's memory */
#define HSAVMM_AREA_UNIFIED 0x2 /* one pointer for host and device; HOST and MAPPED are ignored */
#define HSAVMM_AREA_MAPPED 0x4  /* existing memory, which each hsavmm_area_mmap() call names; ignored with HOST */
#define HSAVMM_AREA_GLOBAL 0x8  /* for all devices */

/* Creates an area of a device. A negative `device` means the current device. */
hipError_t hsavmm_area_create(hsavmm_area_t *area, int device, unsigned int flags);
/* Maps memory with the properties of an area. `host` is the start of the existing memory if the area maps existing
 * memory, else null. Existing memory must not be memory of this library. The caller must not free it until it is
 * unmapped. */
hipError_t hsavmm_area_mmap(hsavmm_area_t area, void **ptr, size_t size, void *host);
/* Returns the device's address of memory that starts at `ptr`. The address can differ from `ptr` only for existing
 * memory (HSAVMM_AREA_MAPPED without HOST). */
hipError_t hsavmm_area_device_pointer(hsavmm_area_t area, void **device_ptr, void *ptr);
hipError_t hsavmm_area_munmap(hsavmm_area_t area, void *ptr);
/* Destroys an area. Returns hipErrorIllegalState if memory of the area is mapped. */
hipError_t hsavmm_area_destroy(hsavmm_area_t area);

/* ---- Deferred unmapping -------------------------------------------------------------------- */
/* A retire queue unmaps ranges when HSA signals show that no agent uses them any more. A queue is identified by a
 * number, as an area is. */
typedef struct hsavmm_retire_queue *hsavmm_retire_queue_t;

#define HSAVMM_SIGNAL_AT_MOST 0  /* completion signals, which agents decrement to 0 */
#define HSAVMM_SIGNAL_AT_LEAST 1 /* signals that count up */

typedef struct hsavmm_signal {
  unsigned long long handle; /* hsa_signal_t::handle, of the runtime that the process has loaded */
  long long value;
  int condition; /* HSAVMM_SIGNAL_AT_MOST or _AT_LEAST: compares the signal's value with `value` */
} hsavmm_signal;

#define HSAVMM_RETIRE_MAX_SIGNALS 8
#define HSAVMM_RETIRE_NO_THREAD 0x1 /* creates no thread: only poll, drain and destroy unmap */

typedef struct hsavmm_retire_report {
  size_t retired; /* mappings unmapped since the last report */
  size_t pending; /* mappings in the queue */
  size_t failed;  /* mappings that left the queue since the last report because of an error */
  void *address;  /* the first failed mapping; null if there is none */
  size_t size;    /* of that mapping */
  char reason[240]; /* the error of that mapping */
} hsavmm_retire_report;

/* Creates a queue of at most `capacity` mappings. The maximum of `capacity` is 16,777,216. The queue allocates some 620
 * bytes for each mapping of its capacity at once. After `limit` milliseconds (0: ten seconds), a mapping whose signals
 * have not fired is quarantined: it stays mapped and is never used again (hsavmm_quarantine). */
hipError_t hsavmm_retire_create(hsavmm_retire_queue_t *queue, size_t capacity, unsigned int limit,
                                unsigned int flags);
/* Submits a range of whole mappings, to be unmapped when every signal meets its condition. If `count` is 0, the range
 * is unmapped as soon as possible. Does not allocate memory, and does not wait for calls of the runtime. Afterwards,
 * the program must not unmap the range. It may release the handles at once. It may destroy the signals and free the
 * addresses only after the range was unmapped. Returns hipErrorOutOfMemory if the queue is full, and
 * hipErrorInvalidValue if the range has more mappings than the queue's capacity. After either error, nothing was
 * submitted. */
hipError_t hsavmm_retire_submit(hsavmm_retire_queue_t queue, void *ptr, size_t size,
                                const hsavmm_signal *signals, size_t count);
/* Unmaps the ranges whose signals have fired, without waiting for others. Returns hipSuccess even if mappings failed:
 * `report` describes the first of them, and hsavmm_quarantine() lists the mappings that stay mapped. */
hipError_t hsavmm_retire_poll(hsavmm_retire_queue_t queue, hsavmm_retire_report *report);
/* Waits until all mappings that were submitted before this call are unmapped or quarantined, at most `limit`
 * milliseconds. */
hipError_t hsavmm_retire_drain(hsavmm_retire_queue_t queue, unsigned int limit,
                               hsavmm_retire_report *report);
/* Destroys a queue. Waits until the queue is empty, also if another thread is in a call for this queue. Without
 * submissions during the call, it waits at most the queue's time limit. After hsavmm_shut_down(), a queue that another
 * thread still uses is emptied only when this thread's call ends: destroy the queue first if the program destroys the
 * signals. */
hipError_t hsavmm_retire_destroy(hsavmm_retire_queue_t queue);

/* ---- Buffers ------------------------------------------------------------------------------- */
/* A buffer is memory of one device. No agent has access until the program grants access. Grants and revocations also
 * apply to memory that is added later; hipMemSetAccess does not. Copies and fills accept the buffers' addresses. A
 * buffer is identified by a number, as an area is. The functions hsavmm_…_place return where a buffer is: its address
 * and its size. */

/* A buffer that grows and shrinks in place: `maximum` bytes of addresses are reserved once. */
typedef struct hsavmm_growable *hsavmm_growable_t;

hipError_t hsavmm_growable_reserve(hsavmm_growable_t *buffer, int device, size_t maximum);
/* Resizes the buffer. Added memory has undefined contents. If the call fails, nothing has changed. */
hipError_t hsavmm_growable_resize(hsavmm_growable_t buffer, size_t size);
hipError_t hsavmm_growable_grant(hsavmm_growable_t buffer, const hipMemLocation *locations,
                                 size_t count, hipMemAccessFlags flags);
hipError_t hsavmm_growable_revoke(hsavmm_growable_t buffer, const hipMemLocation *locations,
                                  size_t count);
/* Returns the address and the size. Either pointer may be null. */
hipError_t hsavmm_growable_place(hsavmm_growable_t buffer, void **ptr, size_t *size);
hipError_t hsavmm_growable_destroy(hsavmm_growable_t buffer);

/* A buffer whose pages are mapped and unmapped separately or in ranges, as a KV cache needs. */
typedef struct hsavmm_paged *hsavmm_paged_t;

/* Pages without memory read as zeros: all of them map the same page. Map memory before writing to them. A store by a
 * GPU whose permissions are not enforced changes all of these pages, and so does a store after hipMemSetAccess has
 * granted write access to one of them: use hsavmm_paged_grant(), which grants at most read access to these pages. */
#define HSAVMM_PAGED_ZERO 0x1

/* Reserves the addresses of a buffer. `page_size` is in bytes, and is rounded up to a multiple of the minimum
 * granularity. 0 selects the recommended granularity. `capacity`, in bytes, is rounded up to whole pages.
 * hsavmm_paged_place() returns the rounded sizes. */
hipError_t hsavmm_paged_reserve(hsavmm_paged_t *buffer, int device, size_t capacity,
                                size_t page_size, unsigned int flags);
hipError_t hsavmm_paged_map(hsavmm_paged_t buffer, size_t first, size_t count);
hipError_t hsavmm_paged_unmap(hsavmm_paged_t buffer, size_t first, size_t count);
/* Submits mapped pages to a retire queue: all pages of the range, or none. A kernel may still read the pages.
 * Afterwards, the program cannot use the pages until the queue has unmapped them. Then the program can map them
 * again. Returns hipErrorNotSupported for a buffer with HSAVMM_PAGED_ZERO, and otherwise the errors of
 * hsavmm_retire_submit. */
hipError_t hsavmm_paged_retire(hsavmm_paged_t buffer, size_t first, size_t count,
                               hsavmm_retire_queue_t queue, const hsavmm_signal *signals,
                               size_t signal_count);
/* Maps the memory of `count` pages a second time, at unmapped pages of `destination`, which may be `buffer`. Each
 * page has the access of its own buffer. The memory is released when the last page that maps it is unmapped. */
hipError_t hsavmm_paged_share_pages(hsavmm_paged_t buffer, size_t first, size_t count,
                                    hsavmm_paged_t destination, size_t destination_first);
/* Returns the number of mappings of the memory of the page with the number `page`: pages in all buffers, including
 * retiring pages, and mappings that the program has made by address. The number is 1 if the memory is not shared, 0 if
 * the page is not in use. */
hipError_t hsavmm_paged_page_users(hsavmm_paged_t buffer, size_t page, size_t *users);
hipError_t hsavmm_paged_grant(hsavmm_paged_t buffer, const hipMemLocation *locations, size_t count,
                              hipMemAccessFlags flags);
hipError_t hsavmm_paged_revoke(hsavmm_paged_t buffer, const hipMemLocation *locations, size_t count);
/* Returns the address, the size of a page and the number of pages. Each pointer to a result may be null. */
hipError_t hsavmm_paged_place(hsavmm_paged_t buffer, void **ptr, size_t *page_size, size_t *count);
hipError_t hsavmm_paged_destroy(hsavmm_paged_t buffer);

/* A buffer that can release its memory while it keeps its addresses. */
typedef struct hsavmm_pausable *hsavmm_pausable_t;

hipError_t hsavmm_pausable_create(hsavmm_pausable_t *buffer, int device, size_t size);
/* Releases the memory. If `save` is not 0, saves the contents in the host's memory. */
hipError_t hsavmm_pausable_pause(hsavmm_pausable_t buffer, int save);
hipError_t hsavmm_pausable_resume(hsavmm_pausable_t buffer);
/* If the buffer is paused, grants and revocations take effect when the buffer resumes. */
hipError_t hsavmm_pausable_grant(hsavmm_pausable_t buffer, const hipMemLocation *locations,
                                 size_t count, hipMemAccessFlags flags);
hipError_t hsavmm_pausable_revoke(hsavmm_pausable_t buffer, const hipMemLocation *locations,
                                  size_t count);
hipError_t hsavmm_pausable_place(hsavmm_pausable_t buffer, void **ptr, size_t *size);
hipError_t hsavmm_pausable_destroy(hsavmm_pausable_t buffer);

/* A ring buffer, whose memory is mapped `times` times in a row. hsavmm_ring_place() returns the size of the memory, not
 * of the whole range of addresses. */
typedef struct hsavmm_ring *hsavmm_ring_t;

/* Creates a ring buffer. `size` is in bytes, and is rounded up to whole granules. */
hipError_t hsavmm_ring_map(hsavmm_ring_t *buffer, int device, size_t size, size_t times);
hipError_t hsavmm_ring_grant(hsavmm_ring_t buffer, const hipMemLocation *locations, size_t count,
                             hipMemAccessFlags flags);
hipError_t hsavmm_ring_revoke(hsavmm_ring_t buffer, const hipMemLocation *locations, size_t count);
hipError_t hsavmm_ring_place(hsavmm_ring_t buffer, void **ptr, size_t *size);
hipError_t hsavmm_ring_destroy(hsavmm_ring_t buffer);

/* ---- Shut-down ----------------------------------------------------------------------------- */

/* Frees everything that was reserved, mapped or allocated, and stops the runtime. Does not wait for calls that other
 * threads are making: if there are such calls, the last of them frees and stops when it ends. The next call
 * opens a runtime again. If hipIpcGetMemHandle has exported a dma-buf, AMD's
 * runtime up to 7.2 is not stopped, because stopping it can crash the process (docs/defects.md,
 * ipc_server_outlives_stop). */
hipError_t hsavmm_shut_down(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
