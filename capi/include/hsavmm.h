/*
 * What libhsavmm has and HIP has not: the choice of a runtime, the simulation, errors in words, exact
 * addresses, access that is really taken away, and what the library keeps books of.
 *
 * Functions answer HIP's errors. HIP's own functions: <hip/hip_runtime_api.h>.
 */
#ifndef HSAVMM_H
#define HSAVMM_H

#include <hip/hip_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Before the first call ----------------------------------------------------------------- */
/* Once a runtime is open these answer hipErrorSetOnActiveProcess. */

/* The runtime to open: a library's path; "sim" for the simulation, as HSA_SIM configures it; "auto" as
 * without this call: what HSA_VMM_RUNTIME names, else AMD's from the usual places. The caller vouches
 * for a file: its constructors run with the program's rights. A program that runs with more rights than
 * its caller (set-user-id) ignores HSA_VMM_RUNTIME, ROCM_PATH, HSA_SIM and HSA_VMM_LOG. */
hipError_t hsavmm_use_runtime(const char *path);

/* The simulation, with words like "mi300x,gpus=4,era=b" (null or "": two GPUs). hipErrorInvalidValue
 * if they are not understood; hsavmm_last_message() says which. */
hipError_t hsavmm_use_simulation(const char *configuration);

/* Whose answers are given where HIP's releases differ: 6 or 7. Without it, as HSA_VMM_PROFILE says
 * ("hip6", "hip7"); 7 without that. */
hipError_t hsavmm_use_profile(int profile);

/* ---- What there is ------------------------------------------------------------------------- */

typedef struct hsavmm_runtime_info {
  int is_simulation;
  int virtual_memory; /* whether runtime and driver have it */
  unsigned int extension_major;
  unsigned int extension_minor;
  int profile; /* 6 or 7 */
  char name[236];
} hsavmm_runtime_info;

hipError_t hsavmm_runtime(hsavmm_runtime_info *info);

/* What went wrong in this thread's last call that failed: the function, the argument, what to do.
 * "" before the first. Never null; the place is the thread's, its text changes with the next failure. */
const char *hsavmm_last_message(void);

typedef struct hsavmm_usage {
  size_t reservations; /* not freed */
  size_t handles;      /* referenced or mapped */
  size_t mappings;
  size_t quarantined; /* ranges out of use because the runtime failed, and undoing failed too */
} hsavmm_usage;

hipError_t hsavmm_count(hsavmm_usage *usage);

typedef struct hsavmm_quarantined {
  void *address; /* null for memory without an address */
  size_t size;
  char reason[240];
} hsavmm_quarantined;

/* `*count` is how many `list` has room for, and becomes how many there are. */
hipError_t hsavmm_quarantine(hsavmm_quarantined *list, size_t *count);

/* Checks the library's own books; hipErrorUnknown would be a defect of it. */
hipError_t hsavmm_check(void);

/* ---- Virtual memory ------------------------------------------------------------------------ */

/* Reserves addresses at `ptr` or not at all. Freed by hipMemAddressFree. */
hipError_t hsavmm_reserve_at(void *ptr, size_t size);

/* 1 if what hipMemSetAccess forbids at a location faults; 0 if it is only remembered, as for GPUs:
 * AMD's driver maps everything readable and writable once anything was granted. */
hipError_t hsavmm_enforcement(int *enforced, const hipMemLocation *location);

/* Really takes a run of whole mappings away, from GPUs too. The others lose it for a moment, so nobody
 * may be using it. The contents stay. */
hipError_t hsavmm_revoke(void *ptr, size_t size, const hipMemLocation *locations, size_t count);

/* ---- Many at once -------------------------------------------------------------------------- */
/* All of a list or nothing of it. The ranges may be in several reservations and in any order; none may
 * share bytes with another. Neighbours go to the runtime together where it can take them so. Lists are
 * of 65,536 at most. Unlike hipMemSetAccess these give the host nothing that is not named. */

typedef struct hsavmm_mapping {
  void *ptr;
  size_t size;
  hipMemGenericAllocationHandle_t handle; /* whose first `size` bytes appear there */
} hsavmm_mapping;

typedef struct hsavmm_range {
  void *ptr;
  size_t size;
} hsavmm_range;

/* hipMemMap of each, and hipMemSetAccess of all; nobody may use them if `desc_count` is 0. */
hipError_t hsavmm_map_many(const hsavmm_mapping *mappings, size_t count,
                           const hipMemAccessDesc *desc, size_t desc_count);
/* Each is a run of whole mappings. */
hipError_t hsavmm_set_access_many(const hsavmm_range *ranges, size_t count,
                                  const hipMemAccessDesc *desc, size_t desc_count);
hipError_t hsavmm_unmap_many(const hsavmm_range *ranges, size_t count);

/* ---- Areas --------------------------------------------------------------------------------- */
/* Memory by a few flags, as AML has it. An area costs nothing; its memory may be of any size. */

/* A number that is checked wherever it is used, not a pointer to anything. */
typedef struct hsavmm_area *hsavmm_area_t;

#define HSAVMM_AREA_DEFAULT 0x0 /* the device's memory, for the device */
#define HSAVMM_AREA_HOST 0x1    /* the host's */
#define HSAVMM_AREA_UNIFIED 0x2 /* one pointer for host and device; HOST and MAPPED are ignored */
#define HSAVMM_AREA_MAPPED 0x4  /* without HOST: memory that is there already, given to each mmap */
#define HSAVMM_AREA_GLOBAL 0x8  /* for all devices */

/* `device` below 0: the current one. */
hipError_t hsavmm_area_create(hsavmm_area_t *area, int device, unsigned int flags);
/* `host` is null but for areas that map what is there: then it must stay, and be nobody else's to
 * free, until it is unmapped. */
hipError_t hsavmm_area_mmap(hsavmm_area_t area, void **ptr, size_t size, void *host);
/* What the device calls memory that begins at `ptr`; the same, but for mapped host memory. */
hipError_t hsavmm_area_device_pointer(hsavmm_area_t area, void **device_ptr, void *ptr);
hipError_t hsavmm_area_munmap(hsavmm_area_t area, void *ptr);
/* hipErrorIllegalState while some of its memory is mapped. */
hipError_t hsavmm_area_destroy(hsavmm_area_t area);

/* ---- Buffers ------------------------------------------------------------------------------- */
/* All are memory of one device; nobody may use them before they are granted, and whom they are revoked
 * from may not any more, now and later. hipMemcpy and the like work on their addresses. Numbers, too. */

/* Grows and shrinks in place: `maximum` bytes of addresses are reserved once. */
typedef struct hsavmm_growable *hsavmm_growable_t;

hipError_t hsavmm_growable_reserve(hsavmm_growable_t *buffer, int device, size_t maximum);
/* All or nothing; what growth adds holds anything. */
hipError_t hsavmm_growable_resize(hsavmm_growable_t buffer, size_t size);
/* Also of what will be added. */
hipError_t hsavmm_growable_grant(hsavmm_growable_t buffer, const hipMemLocation *locations,
                                 size_t count, hipMemAccessFlags flags);
hipError_t hsavmm_growable_revoke(hsavmm_growable_t buffer, const hipMemLocation *locations,
                                  size_t count);
/* Either result may be left out. */
hipError_t hsavmm_growable_place(hsavmm_growable_t buffer, void **ptr, size_t *size);
hipError_t hsavmm_growable_destroy(hsavmm_growable_t buffer);

/* Pages that get memory and lose it, one by one or in runs, as a KV cache needs. */
typedef struct hsavmm_paged *hsavmm_paged_t;

#define HSAVMM_PAGED_ZERO 0x1 /* pages without memory read as zeros */

/* `page` in bytes, 0: the recommended granularity. */
hipError_t hsavmm_paged_reserve(hsavmm_paged_t *buffer, int device, size_t capacity, size_t page,
                                unsigned int flags);
hipError_t hsavmm_paged_map(hsavmm_paged_t buffer, size_t first, size_t count);
hipError_t hsavmm_paged_unmap(hsavmm_paged_t buffer, size_t first, size_t count);
/* Maps the memory of pages also at pages of `destination` (or of `buffer`) that are not mapped. Both
 * are the same memory; access is that of each buffer. The memory is released with its last page. */
hipError_t hsavmm_paged_share_pages(hsavmm_paged_t buffer, size_t first, size_t count,
                                    hsavmm_paged_t destination, size_t destination_first);
/* The number of pages, of all buffers, with the memory of this page: 1 if it is not shared, 0 if it is
 * not mapped. */
hipError_t hsavmm_paged_page_users(hsavmm_paged_t buffer, size_t page, size_t *users);
hipError_t hsavmm_paged_grant(hsavmm_paged_t buffer, const hipMemLocation *locations, size_t count,
                              hipMemAccessFlags flags);
hipError_t hsavmm_paged_revoke(hsavmm_paged_t buffer, const hipMemLocation *locations, size_t count);
/* Any result may be left out. */
hipError_t hsavmm_paged_place(hsavmm_paged_t buffer, void **ptr, size_t *page, size_t *count);
hipError_t hsavmm_paged_destroy(hsavmm_paged_t buffer);

/* Gives its memory back while its addresses stay. */
typedef struct hsavmm_pausable *hsavmm_pausable_t;

hipError_t hsavmm_pausable_create(hsavmm_pausable_t *buffer, int device, size_t size);
/* `save`: whether the contents are kept, in the host's memory. */
hipError_t hsavmm_pausable_pause(hsavmm_pausable_t buffer, int save);
hipError_t hsavmm_pausable_resume(hsavmm_pausable_t buffer);
hipError_t hsavmm_pausable_grant(hsavmm_pausable_t buffer, const hipMemLocation *locations,
                                 size_t count, hipMemAccessFlags flags);
/* Also of a paused one: then these do not have it when it resumes. */
hipError_t hsavmm_pausable_revoke(hsavmm_pausable_t buffer, const hipMemLocation *locations,
                                  size_t count);
hipError_t hsavmm_pausable_place(hsavmm_pausable_t buffer, void **ptr, size_t *size);
hipError_t hsavmm_pausable_destroy(hsavmm_pausable_t buffer);

/* Its end is followed by its beginning: the same memory, `times` times in a row. */
typedef struct hsavmm_ring *hsavmm_ring_t;

/* `size` is rounded up to the granule. */
hipError_t hsavmm_ring_map(hsavmm_ring_t *buffer, int device, size_t size, size_t times);
hipError_t hsavmm_ring_grant(hsavmm_ring_t buffer, const hipMemLocation *locations, size_t count,
                             hipMemAccessFlags flags);
hipError_t hsavmm_ring_revoke(hsavmm_ring_t buffer, const hipMemLocation *locations, size_t count);
hipError_t hsavmm_ring_place(hsavmm_ring_t buffer, void **ptr, size_t *size);
hipError_t hsavmm_ring_destroy(hsavmm_ring_t buffer);

/* ---- The end ------------------------------------------------------------------------------- */

/* Gives everything back and stops the runtime, as soon as calls under way have ended. Whatever was
 * reserved, mapped or allocated is gone; the next call opens a runtime anew. After an export by
 * hipIpcGetMemHandle, AMD's runtime until 7.2 goes on below, where it shares by dma-buf: it might not
 * survive its own stop (docs/defects.md). */
hipError_t hsavmm_shut_down(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
