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
 * without this call: what HSA_VMM_RUNTIME names, else AMD's from the usual places. */
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

/* ---- The end ------------------------------------------------------------------------------- */

/* Gives everything back and stops the runtime, as soon as calls under way have ended. Whatever was
 * reserved, mapped or allocated is gone; the next call opens a runtime anew. */
hipError_t hsavmm_shut_down(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
