/*
 * random_calls SEED SECONDS: makes random calls, many of them with an invalid argument, and compares the results
 * with a model. Checks the library's state after each call, and for leaks at the end. A difference ends
 * the program with status 1. The same seed repeats the same calls.
 */
#define _GNU_SOURCE
#include <hsavmm.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RESERVATIONS = 12, GRANULES = 8, HANDLES = 12, BLOCKS = 6, DESCRIPTORS = 6, EITHER = -1 };

/* The memory mapped at a granule of a reservation, and whether a mapping starts there. */
struct slot {
  hipMemGenericAllocationHandle_t handle;
  int is_start;
};

/* A reservation. After it was freed, `count` is 0. */
static struct reservation {
  char *start;
  size_t count; /* granules */
  struct slot slots[GRANULES];
} reservations[RESERVATIONS];

static struct {
  hipMemGenericAllocationHandle_t value;
  size_t count; /* granules */
  int references;
} handles[HANDLES];

static void *blocks[BLOCKS]; /* memory from hipMalloc, or null */
static int descriptors[DESCRIPTORS], devices;
static size_t granule, calls, rejected;
static unsigned long long state; /* of the random number generator */
static char *bytes;

/* Returns a random number below a limit (xorshift). */
static unsigned below(unsigned limit) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)(state >> 33) % limit;
}

/* Returns 1 with a probability of 1 in `times`. */
static int once_in(unsigned times) { return below(times) == 0; }

static void fail(const char *what, hipError_t error) {
  printf("call %zu: %s: %s; %s\n", calls, what, hipGetErrorName(error), hsavmm_last_message());
  exit(1);
}

static int check_result(const char *call, hipError_t error, int expected) {
  calls++, rejected += error != hipSuccess;
  if (error == hipErrorUnknown) fail(call, error);
  if (expected != EITHER && expected != (error == hipSuccess)) fail(call, error);
  if (hsavmm_check() != hipSuccess) fail("hsavmm_check", hipErrorUnknown);
  return error == hipSuccess;
}

/* Makes a call, and ends the program if the result is not the expected one: 1 (success), 0 (failure) or EITHER. */
#define TRY(call, expected) check_result(#call, call, expected)

/* ---- The model ----------------------------------------------------------------------------- */

static struct reservation *reservation_at(char *at) {
  struct reservation *reservation;
  for (reservation = reservations; reservation < reservations + RESERVATIONS; reservation++) {
    if (at >= reservation->start && at < reservation->start + reservation->count * granule) return reservation;
  }
  return NULL;
}

static struct slot *slot_at(char *at) {
  struct reservation *reservation = reservation_at(at);
  return reservation ? &reservation->slots[(size_t)(at - reservation->start) / granule] : NULL;
}

static hipMemGenericAllocationHandle_t mapped_at(char *at) {
  struct slot *slot = slot_at(at);
  return slot ? slot->handle : NULL;
}

/* Returns whether an address is not inside a mapping: a mapping starts here, or nothing is mapped here. */
static int is_edge(char *at) {
  struct slot *slot = slot_at(at);
  return !slot || !slot->handle || slot->is_start;
}

/* Returns whether a range lies in one reservation, and consists of whole mappings (`mapped` is 1) or is completely
 * unmapped (`mapped` is 0). */
static int is_uniform(char *at, size_t size, int mapped) {
  struct reservation *reservation = reservation_at(at);
  size_t done;
  if (!reservation || (size_t)at % granule || size == 0 || size % granule) return 0;
  if (size > reservation->count * granule - (size_t)(at - reservation->start)) return 0;
  for (done = 0; done < size; done += granule) {
    if ((mapped_at(at + done) != NULL) != mapped) return 0;
  }
  return !mapped || (is_edge(at) && is_edge(at + size));
}

static void record_mapping(char *at, size_t size, hipMemGenericAllocationHandle_t handle) {
  size_t done;
  for (done = 0; done < size; done += granule) {
    slot_at(at + done)->handle = handle;
    slot_at(at + done)->is_start = done == 0;
  }
}

/* Returns an address of a current or former reservation, or an invalid address. */
static char *some_address(void) {
  struct reservation *reservation = &reservations[below(RESERVATIONS)];
  if (once_in(16)) return once_in(2) ? NULL : (char *)(size_t)state;
  return reservation->start + (once_in(2) ? 0 : below(GRANULES) * granule) + once_in(16);
}

/* Returns a size in bytes: mostly whole granules, often the mapped size at an address, sometimes an invalid size. */
static size_t some_size(char *at) {
  size_t size = granule;
  if (once_in(16)) return (size_t)state >> below(64);
  if (once_in(2)) return (1 + below(GRANULES / 2)) * granule;
  while (mapped_at(at + size) && !is_edge(at + size)) size += granule;
  return size;
}

/* ---- Calls --------------------------------------------------------------------------------- */

static void reserve(struct reservation *reservation) {
  size_t size = some_size(NULL), flags = once_in(16);
  size_t alignment = once_in(16) ? 3 : once_in(2) ? (size_t)1 << below(24) : 0;
  int is_valid = size > 0 && size % granule == 0 && alignment != 3 && flags == 0, is_reserved;
  void *ptr = reservation->start;
  if (reservation->count > 0) return;
  if (size > GRANULES * granule) size |= 1, is_valid = 0;
  is_reserved = once_in(4)
                ? TRY(hsavmm_reserve_at(ptr, size), EITHER)
                : TRY(hipMemAddressReserve(&ptr, size, alignment, some_address(), flags), is_valid);
  if (!is_reserved) return;
  memset(reservation, 0, sizeof *reservation);
  reservation->start = (char *)ptr;
  reservation->count = size / granule;
}

static void free_addresses(char *at, size_t size) {
  struct reservation *reservation = reservation_at(at);
  int is_whole = reservation && at == reservation->start && size == reservation->count * granule;
  if (TRY(hipMemAddressFree(at, size), is_whole && is_uniform(at, size, 0))) reservation->count = 0;
}

/* Releases every reference to the handle at an index, checks that one more release fails, and stores another handle
 * (NULL: none). */
static void replace_handle(unsigned index, hipMemGenericAllocationHandle_t value, size_t count) {
  while (handles[index].references > 0) {
    TRY(hipMemRelease(handles[index].value), 1);
    handles[index].references--;
  }
  if (handles[index].value) TRY(hipMemRelease(handles[index].value), 0);
  handles[index].value = value;
  handles[index].count = count;
  handles[index].references = value != NULL;
}

static void create(void) {
  hipMemAllocationProp prop;
  hipMemGenericAllocationHandle_t value;
  size_t size = some_size(NULL), flags = once_in(16);
  int is_valid = size > 0 && size % granule == 0 && flags == 0;
  if (size > GRANULES * granule) size |= 1, is_valid = 0;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
  prop.location.type = once_in(16) ? hipMemLocationTypeInvalid : hipMemLocationTypeDevice;
  prop.location.id = (int)below((unsigned)devices + 1) - once_in(16);
  is_valid &= prop.location.type == hipMemLocationTypeDevice;
  is_valid &= prop.location.id >= 0 && prop.location.id < devices;
  TRY(hipMemCreate(NULL, size, &prop, flags), 0);
  if (TRY(hipMemCreate(&value, size, &prop, flags), is_valid)) {
    replace_handle(below(HANDLES), value, size / granule);
  }
}

static void map(char *at, unsigned index) {
  size_t size = some_size(NULL), offset = once_in(16) * granule, flags = once_in(16);
  hipMemGenericAllocationHandle_t value = handles[index].value;
  int fits = handles[index].references > 0 && size / granule <= handles[index].count;
  int is_valid = is_uniform(at, size, 0) && fits && offset == 0 && flags == 0;
  if (TRY(hipMemMap(at, size, offset, value, flags), is_valid)) record_mapping(at, size, value);
}

static void unmap(char *at, size_t size) {
  if (TRY(hipMemUnmap(at, size), is_uniform(at, size, 1))) record_mapping(at, size, NULL);
}

static void set_access(char *at, size_t size) {
  static const int flags[] = {0, 1, 3, 3, 2, -1};
  unsigned choice = below(6);
  unsigned long long access;
  hipMemAccessDesc desc;
  desc.location.type = once_in(4) ? hipMemLocationTypeHost : hipMemLocationTypeDevice;
  desc.location.id = (int)below((unsigned)devices);
  desc.flags = (hipMemAccessFlags)flags[choice];
  TRY(hipMemSetAccess(at, size, &desc, 1), choice < 4 && is_uniform(at, size, 1));
  TRY(hipMemGetAccess(&access, &desc.location, at), EITHER);
  if (once_in(4)) TRY(hsavmm_revoke(at, size, &desc.location, 1), EITHER);
}

/* Each copy starts in a reservation, because the library cannot check other addresses. */
static void copy(const struct reservation *reservation) {
  char *at;
  size_t size = (1 + below(2)) * granule - below(9);
  int expected;
  if (reservation->count == 0) return;
  at = reservation->start + below((unsigned)reservation->count) * granule;
  expected = mapped_at(at) && mapped_at(at + size - 1) ? EITHER : 0;
  TRY(hipMemcpyHtoD(at, bytes, size), expected);
  TRY(hipMemcpyDtoH(bytes, at, size), expected);
  TRY(hipMemset(at, 7, size), expected);
}

static void query(char *at, unsigned index) {
  hipMemGenericAllocationHandle_t value = NULL;
  hipPointerAttribute_t attributes;
  hipMemAllocationProp prop;
  void *base;
  size_t size;
  TRY(hipMemGetAllocationPropertiesFromHandle(&prop, handles[index].value),
      handles[index].references > 0);
  TRY(hipPointerGetAttributes(&attributes, at), mapped_at(at) ? 1 : EITHER);
  TRY(hipMemGetAddressRange(&base, &size, at), mapped_at(at) ? 1 : EITHER);
  if (!TRY(hipMemRetainAllocationHandle(&value, at), mapped_at(at) != NULL)) return;
  if (value != mapped_at(at)) fail("hipMemRetainAllocationHandle returned another handle", hipSuccess);
  for (index = 0; index < HANDLES && handles[index].value != value; index++) continue;
  if (index < HANDLES) handles[index].references++;
  else TRY(hipMemRelease(value), 1);
}

static void share(unsigned index, int *descriptor) {
  const hipMemAllocationHandleType posix = hipMemHandleTypePosixFileDescriptor;
  hipMemGenericAllocationHandle_t value;
  if (*descriptor >= 0) close(*descriptor);
  TRY(hipMemImportFromShareableHandle(&value, (void *)(size_t)*descriptor, posix), 0);
  *descriptor = -1;
  TRY(hipMemExportToShareableHandle(descriptor, handles[index].value, posix, 1), 0);
  if (!TRY(hipMemExportToShareableHandle(descriptor, handles[index].value, posix, 0),
           handles[index].references > 0)) {
    return;
  }
  TRY(hipMemImportFromShareableHandle(&value, (void *)(size_t)*descriptor, posix), 1);
  replace_handle(below(HANDLES), value, handles[index].count);
}

/* Allocates a block with hipMalloc. If the block is allocated already, checks the block's IPC handle and frees the
 * block. */
static void allocate_or_free(void **block) {
  hipIpcMemHandle_t handle;
  void *opened;
  if (*block == NULL) {
    TRY(hipMalloc(block, 1 + below(1 << 16)), 1);
    return;
  }
  TRY(hipIpcGetMemHandle(&handle, *block), 1);
  TRY(hipIpcOpenMemHandle(&opened, handle, hipIpcMemLazyEnablePeerAccess), 0);
  handle.reserved[below(HIP_IPC_HANDLE_SIZE)] ^= (char)(1 << below(8));
  TRY(hipIpcOpenMemHandle(&opened, handle, hipIpcMemLazyEnablePeerAccess), 0);
  TRY(hipIpcCloseMemHandle(*block), 0);
  TRY(hipFree(*block), 1);
  TRY(hipFree(*block), 0);
  *block = NULL;
}

static void random_call(void) {
  char *at = some_address();
  struct reservation *reservation = &reservations[below(RESERVATIONS)];
  switch (below(10)) {
  case 0: reserve(reservation); break;
  case 1: free_addresses(once_in(4) ? at : reservation->start, reservation->count * granule); break;
  case 2: create(); break;
  case 3:
  case 4: map(at, below(HANDLES)); break;
  case 5: unmap(at, some_size(at)); break;
  case 6: set_access(at, some_size(at)); break;
  case 7: query(at, below(HANDLES)); break;
  case 8: once_in(8) ? share(below(HANDLES), &descriptors[below(DESCRIPTORS)]) : copy(reservation); break;
  default: if (once_in(8)) allocate_or_free(&blocks[below(BLOCKS)]);
  }
}

/* ---- Clean-up ------------------------------------------------------------------------------ */

static int count_open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder) fail("/proc/self/fd", hipErrorOperatingSystem);
  while (readdir(folder) != NULL) count++;
  closedir(folder);
  return count;
}

/* Releases everything. Returns the number of open descriptors. */
static int clean_up(void) {
  hsavmm_usage usage;
  unsigned index;
  size_t done;
  for (index = 0; index < RESERVATIONS; index++) {
    struct reservation *reservation = &reservations[index];
    for (done = 0; done < reservation->count * granule; done += granule) {
      size_t size = granule;
      if (!mapped_at(reservation->start + done)) continue;
      while (!is_edge(reservation->start + done + size)) size += granule;
      unmap(reservation->start + done, size);
    }
    free_addresses(reservation->start, reservation->count * granule);
  }
  for (index = 0; index < HANDLES; index++) replace_handle(index, NULL, 0);
  for (index = 0; index < BLOCKS; index++) {
    if (blocks[index]) allocate_or_free(&blocks[index]);
  }
  for (index = 0; index < DESCRIPTORS; index++) {
    if (descriptors[index] >= 0) close(descriptors[index]);
    descriptors[index] = -1;
  }
  TRY(hsavmm_count(&usage), 1);
  if (usage.reservations || usage.handles || usage.mappings || usage.quarantined) {
    fail("objects are leaked", hipErrorUnknown);
  }
  return count_open_descriptors();
}

int main(int count, char **arguments) {
  hipMemAllocationProp prop;
  int before, after;
  time_t end;
  if (count != 3) return 2;
  state = strtoull(arguments[1], NULL, 10) * 2654435761u + 1;
  memset(&prop, 0, sizeof prop);
  memset(descriptors, 0xff, sizeof descriptors);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  TRY(hipGetDeviceCount(&devices), 1);
  TRY(hipMemGetAllocationGranularity(&granule, &prop, hipMemAllocationGranularityMinimum), 1);
  bytes = (char *)calloc(2, granule);
  if (!bytes) return 2;
  /* During these calls, the runtime opens the descriptors that it keeps. */
  while (calls < 2000) random_call();
  before = clean_up();
  end = time(NULL) + atoi(arguments[2]);
  while (time(NULL) < end) random_call();
  after = clean_up();
  if (after != before) fail("descriptors are leaked", hipErrorUnknown);
  free(bytes);
  TRY(hsavmm_shut_down(), 1);
  printf("ok: seed %s, %zu calls, %zu rejected\n", arguments[1], calls, rejected);
  return 0;
}
