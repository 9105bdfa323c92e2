/* A runtime whose misbehaviour a test controls: one CPU, one GPU, and the quirks of ROCm 6.4.
 * A handle is the descriptor of a memory file (memfd). Unless hostile_writable is set, exported
 * descriptors are read-only: the library cannot map the memory for the CPU, so this runtime maps
 * it. Granting a GPU access has no effect. */
#define _GNU_SOURCE
#include "hsa_abi.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SUCCESS 0
#define ERROR 0x1000
#define INVALID_ARGUMENT 0x1001
#define CPU 1
#define GPU 2
#define POOL 3
/* The byte in foreign pages. mod.rs defines the same value. */
#define FOREIGN_BYTE 0x77

/* The minor version of AMD's extension, and the build. Without a build, the library identifies this
 * runtime as unknown, or as AMD's second runtime. */
#ifdef ROCDDI
#define EXTENSION 33
#define BUILD ""
#endif
#ifndef EXTENSION
#define EXTENSION 7
#endif
#ifndef INIT
#define INIT SUCCESS
#endif
#ifndef BUILD
#define BUILD "1.15.0-hostile"
#endif

/* Variables that a test sets and reads. */
int hostile_meet;             /* the number of concurrent calls of map for which each call of map waits */
int hostile_met;              /* the number of calls of map that did not time out while they waited */
int hostile_foreign_mappings; /* the number of further holes in which this runtime creates a foreign mapping */
int hostile_unmap_fails_at;   /* this unmap, counted from 1, fails */
int hostile_unmap_half_done;  /* whether the failing unmap revokes the CPU's access before it fails */
int hostile_unmap_keeps_cpu;  /* whether this runtime lists the CPU after the failing unmap, as 7.2 does */
int hostile_map_fails_at;     /* this map, counted from 1, first unmaps the addresses, and fails */
int hostile_init = INIT;      /* the status that hsa_init returns */
int hostile_started;          /* the number of starts minus the number of stops */
int hostile_delay_us;           /* the microseconds that an export or a change of access takes */
int hostile_release_delay_us;  /* the microseconds that a release takes */
int hostile_access_changes;   /* the number of successful changes of access */
int hostile_races;            /* the number of creates and releases that overlapped an export */
int hostile_gpu_first;        /* whether the list of agents begins with the GPU */
int hostile_writable;         /* whether exported descriptors can be written, so that the CPU can map them */
int hostile_access_fails_at;  /* this change of access, counted from 1, fails */
uintptr_t hostile_foreign_address; /* the address of the last foreign mapping */
int hostile_foreign_inaccessible; /* whether foreign mappings forbid all access */
int hostile_access_makes_hole; /* whether the failing change of access first unmaps the addresses */
int hostile_exhausts_descriptors; /* the number of further unmaps that use up all file descriptors */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int waiting, maps, unmaps, changes;
static atomic_int exporting;
static struct { void *start; size_t size; int file; int cpu; } mappings[64];

/* Creates a foreign mapping of one page in an address-space hole. */
static void create_foreign_mapping(void *address) {
  if (hostile_foreign_mappings <= 0) return;
  hostile_foreign_mappings--;
  void *page = mmap(address, 4096, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (page != address) return;
  memset(page, FOREIGN_BYTE, 4096);
  hostile_foreign_address = (uintptr_t)page;
  if (hostile_foreign_inaccessible) mprotect(page, 4096, PROT_NONE);
}

/* Opens files until no file descriptor is free, as another thread could. */
static void exhaust_descriptors(void) {
  if (hostile_exhausts_descriptors <= 0) return;
  hostile_exhausts_descriptors--;
  while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {}
}

hsa_status_t hsa_status_string(hsa_status_t status, const char **text) {
  (void)status;
  *text = "a status";
  return SUCCESS;
}

hsa_status_t hsa_init(void) {
  if (hostile_init) return hostile_init;
  hostile_started++;
  return SUCCESS;
}

hsa_status_t hsa_shut_down(void) {
  hostile_started--;
  return SUCCESS;
}

hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *value) {
  if (!hostile_started) return HSA_STATUS_ERROR_NOT_INITIALIZED;
  switch ((int)attribute) {
  case HSA_SYSTEM_INFO_VERSION_MAJOR:
  case HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR: *(uint16_t *)value = 1; return SUCCESS;
  case HSA_SYSTEM_INFO_VERSION_MINOR: *(uint16_t *)value = 1; return SUCCESS;
  case HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR: *(uint16_t *)value = EXTENSION; return SUCCESS;
  case HSA_AMD_SYSTEM_INFO_BUILD_VERSION:
    if (!*BUILD) return INVALID_ARGUMENT;
    *(const char **)value = BUILD;
    return SUCCESS;
  case HSA_AMD_SYSTEM_INFO_VIRTUAL_MEM_API_SUPPORTED:
  case HSA_AMD_SYSTEM_INFO_DMABUF_SUPPORTED: *(bool *)value = true; return SUCCESS;
  default: return INVALID_ARGUMENT;
  }
}

hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data) {
  hsa_status_t status = callback((hsa_agent_t){hostile_gpu_first ? GPU : CPU}, data);
  return status ? status : callback((hsa_agent_t){hostile_gpu_first ? CPU : GPU}, data);
}

hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *value) {
  switch ((int)attribute) {
  case HSA_AGENT_INFO_DEVICE: *(uint32_t *)value = agent.handle == GPU; return SUCCESS;
  case HSA_AGENT_INFO_NAME: strcpy(value, agent.handle == GPU ? "gfx000" : "a CPU"); return SUCCESS;
  default: return INVALID_ARGUMENT;
  }
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(
    hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *), void *data) {
  return agent.handle == GPU ? callback((hsa_amd_memory_pool_t){POOL}, data) : SUCCESS;
}

hsa_status_t hsa_amd_memory_pool_get_info(
    hsa_amd_memory_pool_t pool, hsa_amd_memory_pool_info_t attribute, void *value) {
  (void)pool;
  /* The location is missing, as in older runtimes, which have no attribute for it. */
  switch ((int)attribute) {
  case HSA_AMD_MEMORY_POOL_INFO_SEGMENT: *(uint32_t *)value = HSA_AMD_SEGMENT_GLOBAL; return SUCCESS;
  case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS: *(uint32_t *)value = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED; return SUCCESS;
  case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED: *(bool *)value = true; return SUCCESS;
  case HSA_AMD_MEMORY_POOL_INFO_SIZE: *(size_t *)value = 1 << 30; return SUCCESS;
  case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE: *(size_t *)value = 4096; return SUCCESS;
  default: return INVALID_ARGUMENT;
  }
}

hsa_status_t hsa_amd_agent_memory_pool_get_info(
    hsa_agent_t agent, hsa_amd_memory_pool_t pool, hsa_amd_agent_memory_pool_info_t attribute,
    void *value) {
  (void)agent, (void)pool;
  if (attribute == HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS)
    *(uint32_t *)value = HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT;
  else if (attribute == HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS) *(uint32_t *)value = 0;
  return SUCCESS;
}

hsa_status_t hsa_amd_vmem_address_reserve_align(
    void **address, size_t size, uint64_t hint, uint64_t alignment, uint64_t flags) {
  (void)alignment, (void)flags;
  *address = mmap((void *)hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return *address == MAP_FAILED ? ERROR : SUCCESS;
}

hsa_status_t hsa_amd_vmem_address_reserve(
    void **address, size_t size, uint64_t hint, uint64_t flags) {
  return hsa_amd_vmem_address_reserve_align(address, size, hint, 0, flags);
}

hsa_status_t hsa_amd_vmem_address_free(void *address, size_t size) {
  return munmap(address, size) ? ERROR : SUCCESS;
}

hsa_status_t hsa_amd_vmem_handle_create(
    hsa_amd_memory_pool_t pool, size_t size, hsa_amd_memory_type_t type, uint64_t flags,
    hsa_amd_vmem_alloc_handle_t *handle) {
  (void)pool, (void)type, (void)flags;
  hostile_races += exporting;
  int file = memfd_create("hostile", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, size)) return ERROR;
  handle->handle = file;
  return SUCCESS;
}

hsa_status_t hsa_amd_vmem_handle_release(hsa_amd_vmem_alloc_handle_t handle) {
  hostile_races += exporting;
  if (hostile_release_delay_us) usleep(hostile_release_delay_us);
  return close(handle.handle) ? ERROR : SUCCESS;
}

hsa_status_t hsa_amd_vmem_map(
    void *address, size_t size, size_t offset, hsa_amd_vmem_alloc_handle_t handle, uint64_t flags) {
  (void)offset, (void)flags;
  hsa_status_t status = ERROR;
  pthread_mutex_lock(&lock);
  if (hostile_meet) {
    /* Waits until hostile_meet calls have arrived, but at most ten seconds. */
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    waiting++;
    pthread_cond_broadcast(&changed);
    while (waiting < hostile_meet && !pthread_cond_timedwait(&changed, &lock, &end)) {}
    hostile_met += waiting >= hostile_meet;
  }
  if (++maps == hostile_map_fails_at) {
    /* In a real runtime, a failed mmap with MAP_FIXED can leave a hole. */
    munmap(address, size);
    create_foreign_mapping(address);
    pthread_mutex_unlock(&lock);
    return ERROR;
  }
  for (int i = 0; i < 64; i++) {
    if (mappings[i].start) continue;
    mappings[i].start = address, mappings[i].size = size;
    mappings[i].file = handle.handle, mappings[i].cpu = 0;
    status = SUCCESS;
    break;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

hsa_status_t hsa_amd_vmem_unmap(void *address, size_t size) {
  hsa_status_t status = ERROR;
  pthread_mutex_lock(&lock);
  if (++unmaps == hostile_unmap_fails_at) {
    for (int i = 0; i < 64 && hostile_unmap_half_done; i++) {
      if (mappings[i].start != address || !mappings[i].cpu) continue;
      munmap(address, size);
      create_foreign_mapping(address);
      mappings[i].cpu = hostile_unmap_keeps_cpu;
    }
    pthread_mutex_unlock(&lock);
    return ERROR;
  }
  for (int i = 0; i < 64; i++) {
    if (mappings[i].start != address || mappings[i].size != size) continue;
    if (mappings[i].cpu) {
      munmap(address, size);
      create_foreign_mapping(address);
    }
    mappings[i].start = 0;
    status = SUCCESS;
  }
  exhaust_descriptors();
  pthread_mutex_unlock(&lock);
  return status;
}

hsa_status_t hsa_amd_vmem_set_access(
    void *address, size_t size, const hsa_amd_memory_access_desc_t *access, size_t count) {
  hsa_status_t status = ERROR;
  pthread_mutex_lock(&lock);
  if (hostile_delay_us) usleep(hostile_delay_us);
  if (++changes == hostile_access_fails_at) {
    /* In a real runtime, a failed mmap with MAP_FIXED can leave a hole. */
    if (hostile_access_makes_hole) {
      munmap(address, size);
      create_foreign_mapping(address);
    }
    pthread_mutex_unlock(&lock);
    return ERROR;
  }
  for (int i = 0; i < 64; i++) {
    char *start = mappings[i].start;
    if (!start || start < (char *)address || start >= (char *)address + size) continue;
    status = SUCCESS;
    for (size_t j = 0; j < count; j++) {
      if (access[j].agent_handle.handle != CPU) continue;
      /* Like AMD's runtime 6.4, revokes access before it grants changed access. */
      if (mappings[i].cpu) {
        munmap(start, mappings[i].size);
        create_foreign_mapping(start);
      }
      mappings[i].cpu = 1;
      mmap(start, mappings[i].size, (int)access[j].permissions, MAP_SHARED | MAP_FIXED,
           mappings[i].file, 0);
    }
  }
  hostile_access_changes += status == SUCCESS;
  pthread_mutex_unlock(&lock);
  return status;
}

hsa_status_t hsa_amd_vmem_get_access(
    void *address, hsa_access_permission_t *permissions, hsa_agent_t agent) {
  (void)address, (void)permissions, (void)agent;
  return ERROR;
}

hsa_status_t hsa_amd_vmem_export_shareable_handle(
    int *descriptor, hsa_amd_vmem_alloc_handle_t handle, uint64_t flags) {
  (void)flags;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", (int)handle.handle);
  exporting++;
  if (hostile_delay_us) usleep(hostile_delay_us);
  *descriptor = open(path, hostile_writable ? O_RDWR : O_RDONLY);
  exporting--;
  return *descriptor < 0 ? ERROR : SUCCESS;
}

hsa_status_t hsa_amd_vmem_import_shareable_handle(
    int descriptor, hsa_amd_vmem_alloc_handle_t *handle) {
  handle->handle = dup(descriptor);
  return SUCCESS;
}

hsa_status_t hsa_amd_vmem_retain_alloc_handle(hsa_amd_vmem_alloc_handle_t *handle, void *address) {
  (void)handle, (void)address;
  return ERROR;
}

hsa_status_t hsa_amd_vmem_get_alloc_properties_from_handle(
    hsa_amd_vmem_alloc_handle_t handle, hsa_amd_memory_pool_t *pool, hsa_amd_memory_type_t *type) {
  (void)handle;
  pool->handle = POOL, *type = 0;
  return SUCCESS;
}

#if EXTENSION >= 9
hsa_status_t hsa_amd_portable_export_dmabuf_v2(
    const void *address, size_t size, int *dmabuf, uint64_t *offset, uint64_t flags) {
  (void)address, (void)size, (void)dmabuf, (void)offset, (void)flags;
  return ERROR;
}
#endif

#ifdef ROCDDI
/* AMD's second runtime exports its loader extension, and reports no build. */
hsa_status_t hsa_ven_amd_loader_query_host_address(const void *device, const void **host) {
  (void)device, (void)host;
  return ERROR;
}

hsa_status_t hsa_amd_vmem_export_fabric_handle(
    hsa_fabric_handle_t *fabric, hsa_amd_vmem_alloc_handle_t handle, uint64_t flags) {
  (void)fabric, (void)handle, (void)flags;
  return HSA_STATUS_ERROR_NOT_SUPPORTED;
}

hsa_status_t hsa_amd_vmem_import_fabric_handle(
    hsa_fabric_handle_t fabric, hsa_amd_vmem_alloc_handle_t *handle) {
  (void)fabric, (void)handle;
  return HSA_STATUS_ERROR_NOT_SUPPORTED;
}
#endif
