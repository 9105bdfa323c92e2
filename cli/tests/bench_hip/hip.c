/* A substitute for libamdhip64 with the functions that `hsa-vmm bench --hip` uses. The functions check their
 * arguments, and return hipErrorInvalidValue for calls that HIP would reject. They also count live objects and
 * imports. At exit, the library writes two kinds of numbers to the file that FAKE_HIP_LEFT names: how many objects
 * leaked, and how many imports the program made.
 *
 * -DBY_POINTER         hipMemImportFromShareableHandle takes a pointer to the file descriptor, as in HIP before 7.1
 * -DVERSION=n          the version that hipRuntimeGetVersion reports; default: 7.0 with BY_POINTER, otherwise 7.1
 * -DDEVICES=n          the number of devices
 * -DACCESS_ERROR=n     hipMemSetAccess returns n from its second call on
 * -DWITHOUT_RETAIN     omits hipMemRetainAllocationHandle */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef VERSION
#ifdef BY_POINTER
#define VERSION 70000000
#else
#define VERSION 70100000
#endif
#endif
#ifndef DEVICES
#define DEVICES 2
#endif
#define INVALID 1
#define SIZE ((size_t)2 << 20)

/* In HIP, each of these constants is 1: memory that is pinned, a location that is a device, and a handle that is a file
 * descriptor. The constant for read and write access is 3. */
typedef struct { int kind, id; } location;
typedef struct { location where; unsigned int flags; } access_descriptor;
typedef struct {
  int kind;
  unsigned int handle_types;
  location where;
  void *win32;
  unsigned char compression, rdma;
  unsigned short usage;
} properties;

static long initialised, reserved, created, mapped, imported, granted;
static uintptr_t next_address = (uintptr_t)1 << 40, next_handle = 1;

static void write_counts(void) {
  const char *name = getenv("FAKE_HIP_LEFT");
  FILE *file = name ? fopen(name, "w") : NULL;
  if (!file) return;
  fprintf(file, "reserved %ld created %ld mapped %ld imported %ld\n", reserved, created, mapped, imported);
  fclose(file);
}

int hipInit(unsigned int flags) {
  if (initialised++ == 0) atexit(write_counts);
  return flags == 0 ? 0 : INVALID;
}

int hipRuntimeGetVersion(int *version) {
  *version = VERSION;
  return 0;
}

int hipGetDeviceCount(int *count) {
  *count = DEVICES;
  return initialised ? 0 : INVALID;
}

int hipMemAddressReserve(void **to, size_t size, size_t alignment, void *hint, unsigned long long flags) {
  if (size == 0 || size % SIZE || alignment != SIZE || hint || flags) return INVALID;
  *to = (void *)next_address;
  next_address += size;
  ++reserved;
  return 0;
}

int hipMemAddressFree(void *address, size_t size) {
  --reserved;
  return address && size % SIZE == 0 ? 0 : INVALID;
}

int hipMemCreate(void **to, size_t size, const properties *requested, unsigned long long flags) {
  if (size != SIZE || flags || requested->kind != 1 || requested->where.kind != 1 || requested->where.id != 0) return INVALID;
  *to = (void *)next_handle++;
  ++created;
  return 0;
}

int hipMemRelease(void *handle) {
  --created;
  return handle ? 0 : INVALID;
}

int hipMemMap(void *address, size_t size, size_t offset, void *handle, unsigned long long flags) {
  if (!address || size != SIZE || offset || !handle || flags) return INVALID;
  ++mapped;
  return 0;
}

int hipMemUnmap(void *address, size_t size) {
  --mapped;
  return address && size == SIZE ? 0 : INVALID;
}

int hipMemSetAccess(void *address, size_t size, const access_descriptor *list, size_t count) {
#ifdef ACCESS_ERROR
  if (granted++ > 0) return ACCESS_ERROR;
#endif
  if (!address || size != SIZE || count == 0 || count > DEVICES) return INVALID;
  for (size_t at = 0; at < count; ++at)
    if (list[at].where.kind != 1 || list[at].where.id >= DEVICES || list[at].flags != 3) return INVALID;
  ++granted;
  return 0;
}

int hipMemGetAccess(unsigned long long *flags, const location *where, void *address) {
  *flags = 3;
  return where->kind == 1 && address ? 0 : INVALID;
}

#ifndef WITHOUT_RETAIN
int hipMemRetainAllocationHandle(void **to, void *address) {
  *to = (void *)next_handle;
  return address ? 0 : INVALID;
}
#endif

int hipMemGetAllocationPropertiesFromHandle(properties *to, void *handle) {
  to->kind = 1;
  return handle ? 0 : INVALID;
}

int hipMemExportToShareableHandle(void *to, void *handle, unsigned int type, unsigned long long flags) {
  if (!handle || type != 1 || flags) return INVALID;
  return (*(int *)to = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 ? 0 : INVALID;
}

int hipMemImportFromShareableHandle(void **to, void *from, unsigned int type) {
#ifdef BY_POINTER
  int number = from ? *(int *)from : -1;
#else
  int number = (int)(uintptr_t)from;
#endif
  if (type != 1 || fcntl(number, F_GETFD) < 0) return INVALID;
  *to = (void *)next_handle++;
  ++imported, ++created;
  return 0;
}
