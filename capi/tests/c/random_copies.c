/*
 * random_copies SEED SECONDS: makes random copies and fills between memory of all kinds, many of them with an invalid
 * argument, and compares the contents of all memory with a model. A difference ends the program with status 1. The
 * same seed repeats the same calls.
 */
#include <hsavmm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICE_0, DEVICE_1, MAPPED, PINNED, MANAGED, REGISTERED, PROGRAM, MEMORIES };

/* What `kind` of a copy may declare a memory as. */
enum { AS_DEVICE = 1, AS_HOST = 2 };

static struct memory {
  char *start;
  size_t size;
  int declared;
  unsigned char *expected; /* the model: the bytes that the memory must contain */
} memories[MEMORIES];

static size_t calls, rejected;
static unsigned long long state; /* of the random number generator */
static unsigned char *buffer;

/* Returns a random number below a limit (xorshift). */
static size_t below(size_t limit) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (size_t)(state >> 33) % limit;
}

/* Returns 1 with a probability of 1 in `times`. */
static int once_in(unsigned times) { return below(times) == 0; }

static void fail(const char *what, int memory) {
  printf("call %zu: %s (memory %d); last message: %s\n", calls, what, memory, hsavmm_last_message());
  exit(1);
}

#define OK(call) ((call) == hipSuccess ? (void)0 : fail(#call, -1))

/* Compares a memory with the model. The CPU reads pinned memory directly, so that two paths are compared. */
static void check_contents(int index) {
  struct memory *memory = &memories[index];
  const char *bytes = memory->start;
  if (index < PINNED) {
    OK(hipMemcpyDtoH(buffer, memory->start, memory->size));
    bytes = (const char *)buffer;
  }
  if (memcmp(bytes, memory->expected, memory->size)) fail("the contents differ from the model", index);
}

/* Counts a call and checks whether it succeeded as expected. Returns whether it succeeded. */
static int check_result(hipError_t error, int is_valid, int memory) {
  calls++, rejected += !is_valid;
  if (is_valid && error != hipSuccess) fail(hipGetErrorName(error), memory);
  if (!is_valid && error == hipSuccess) fail("an invalid call succeeded", memory);
  return is_valid;
}

/* A range, or rows, in a memory. */
struct rows {
  int memory;
  size_t offset, pitch, width, height;
};

/* Returns the number of bytes from the start of the first row to the end of the last. */
static size_t extent(const struct rows *rows) {
  return rows->width && rows->height ? rows->pitch * (rows->height - 1) + rows->width : 0;
}

static int fits(const struct rows *rows) {
  const size_t size = memories[rows->memory].size;
  return rows->offset <= size && extent(rows) <= size - rows->offset;
}

/* Chooses rows that lie in a memory, or cross its end by some bytes. Memory of the program must contain all of its
 * rows, because the library cannot check them. */
static struct rows some_rows(size_t width, size_t height) {
  struct rows rows;
  rows.width = width;
  rows.height = height;
  for (;;) {
    const struct memory *memory;
    rows.memory = (int)below(MEMORIES);
    memory = &memories[rows.memory];
    rows.pitch = width + (once_in(2) ? 0 : below(300));
    /* Starts close to the end, so that the last row crosses the end in some cases. */
    rows.offset = below(memory->size);
    if (extent(&rows) <= memory->size && once_in(2)) rows.offset = memory->size - extent(&rows) + below(3);
    if (fits(&rows)) return rows;
    if (rows.memory != PROGRAM && rows.offset < memory->size) return rows;
  }
}

/* Copies rows of the model. The source is complete before the first byte is written. */
static void copy_model(const struct rows *to, const struct rows *from) {
  size_t row;
  for (row = 0; row < from->height; row++) {
    memcpy(buffer + row * from->width, memories[from->memory].expected + from->offset + row * from->pitch, from->width);
  }
  for (row = 0; row < to->height; row++) {
    memcpy(memories[to->memory].expected + to->offset + row * to->pitch, buffer + row * to->width, to->width);
  }
}

/* Returns whether `kind` may declare the destination and the source as it does. */
static int is_kind_allowed(hipMemcpyKind kind, int to, int from) {
  const int to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  const int from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  if (kind == hipMemcpyDefault) return 1;
  return (memories[to].declared & (to_device ? AS_DEVICE : AS_HOST)) != 0 &&
         (memories[from].declared & (from_device ? AS_DEVICE : AS_HOST)) != 0;
}

static void copy(void) {
  const size_t height = once_in(2) ? 1 : below(40), width = once_in(8) ? 0 : 1 + below(once_in(4) ? 20000 : 700);
  struct rows to = some_rows(width, height), from = some_rows(width, height);
  const hipMemcpyKind kind = once_in(2) ? hipMemcpyDefault : (hipMemcpyKind)below(4);
  char *destination, *source;
  hipError_t error;
  int is_valid;
  /* If rows overlap and their pitches differ, the order of the copy determines the result. */
  if (to.memory == from.memory && height > 1) to.pitch = from.pitch;
  if (to.memory == PROGRAM && !fits(&to)) return;
  is_valid = (width == 0 || height == 0) || (fits(&to) && fits(&from) && is_kind_allowed(kind, to.memory, from.memory));
  destination = memories[to.memory].start + to.offset;
  source = memories[from.memory].start + from.offset;
  if (height != 1) {
    if (width && height && once_in(16)) to.pitch = width - 1, is_valid = 0;
    error = once_in(2) ? hipMemcpy2D(destination, to.pitch, source, from.pitch, width, height, kind)
                       : hipMemcpy2DAsync(destination, to.pitch, source, from.pitch, width, height, kind, NULL);
  } else if (kind == hipMemcpyDeviceToDevice) {
    error = once_in(2) ? hipMemcpyDtoD(destination, source, width) : hipMemcpyPeer(destination, 0, source, 1, width);
  } else {
    error = once_in(2) ? hipMemcpy(destination, source, width, kind)
                       : hipMemcpyAsync(destination, source, width, kind, NULL);
  }
  if (check_result(error, is_valid, to.memory) && width) copy_model(&to, &from);
}

static void fill(void) {
  const size_t element = (size_t)1 << below(3), count = below(once_in(4) ? 9000 : 300);
  struct rows to = some_rows(count * element, 1);
  const int value = (int)below(1u << 31);
  char *destination = memories[to.memory].start + to.offset;
  const int is_valid = count == 0 || (fits(&to) && to.memory != PROGRAM);
  hipError_t error;
  size_t done;
  if (element == 1) {
    error = once_in(2) ? hipMemset(destination, value, count) : hipMemsetAsync(destination, value, count, NULL);
  } else if (element == 2) {
    error = hipMemsetD16(destination, (unsigned short)value, count);
  } else {
    error = hipMemsetD32(destination, value, count);
  }
  if (!check_result(error, is_valid, to.memory)) return;
  /* The processors of this library are little-endian: the low bytes of the value are its first. */
  for (done = 0; done < count; done++) {
    memcpy(memories[to.memory].expected + to.offset + done * element, &value, element);
  }
}

static hipMemGenericAllocationHandle_t handles[2];

/* Maps memory of both devices in one reservation. Each mapping is one granule. */
static void map(size_t granule) {
  hipMemAllocationProp prop;
  hipMemAccessDesc access[2];
  void *start;
  int device;
  memset(&prop, 0, sizeof prop);
  memset(access, 0, sizeof access);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = access[0].location.type = access[1].location.type = hipMemLocationTypeDevice;
  access[1].location.id = 1;
  access[0].flags = access[1].flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemAddressReserve(&start, 3 * granule, 0, NULL, 0));
  for (device = 0; device < 2; device++) {
    char *at = (char *)start + (size_t)device * granule;
    prop.location.id = device;
    OK(hipMemCreate(&handles[device], granule, &prop, 0));
    OK(hipMemMap(at, granule, 0, handles[device], 0));
    /* Only the owner has access to the second mapping. */
    OK(hipMemSetAccess(at, granule, &access[device], 2 - (size_t)device));
  }
  memories[MAPPED].start = (char *)start;
  memories[MAPPED].size = 2 * granule;
}

static void allocate(void) {
  static const size_t sizes[MEMORIES] = {70001, 4096, 0, 12345, 8191, 20000, 65536};
  static const int declared[MEMORIES] = {AS_DEVICE, AS_DEVICE, AS_DEVICE, 3, 3, 3, AS_HOST};
  hipMemAllocationProp prop;
  size_t granule, largest = 0;
  int index;
  void *ptr;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  OK(hipMemGetAllocationGranularity(&granule, &prop, hipMemAllocationGranularityMinimum));
  for (index = 0; index < MEMORIES; index++) {
    memories[index].size = sizes[index];
    memories[index].declared = declared[index];
    if (index == DEVICE_1) OK(hipSetDevice(1));
    if (index <= DEVICE_1) OK(hipMalloc(&ptr, sizes[index]));
    else if (index == PINNED) OK(hipHostMalloc(&ptr, sizes[index], 0));
    else if (index == MANAGED) OK(hipMallocManaged(&ptr, sizes[index], hipMemAttachGlobal));
    else ptr = malloc(sizes[index] + 1);
    if (index == REGISTERED) OK(hipHostRegister(ptr, sizes[index], 0));
    memories[index].start = (char *)ptr;
    if (index == MAPPED) free(ptr), map(granule);
    if (memories[index].size > largest) largest = memories[index].size;
  }
  OK(hipSetDevice(0));
  buffer = (unsigned char *)calloc(1, largest + 1);
  for (index = 0; index < MEMORIES; index++) {
    struct memory *memory = &memories[index];
    size_t done;
    memory->expected = (unsigned char *)malloc(memory->size);
    if (!buffer || !memory->expected) exit(2);
    for (done = 0; done < memory->size; done++) memory->expected[done] = (unsigned char)below(256);
    memcpy(buffer, memory->expected, memory->size);
    OK(hipMemcpy(memory->start, buffer, memory->size, hipMemcpyDefault));
  }
}

static void free_all(void) {
  const size_t granule = memories[MAPPED].size / 2;
  int index;
  OK(hipFree(memories[DEVICE_0].start));
  OK(hipFree(memories[DEVICE_1].start));
  OK(hipHostFree(memories[PINNED].start));
  OK(hipFree(memories[MANAGED].start));
  OK(hipHostUnregister(memories[REGISTERED].start));
  OK(hipMemUnmap(memories[MAPPED].start, 2 * granule));
  OK(hipMemAddressFree(memories[MAPPED].start, 3 * granule));
  OK(hipMemRelease(handles[0]));
  OK(hipMemRelease(handles[1]));
  free(memories[REGISTERED].start);
  free(memories[PROGRAM].start);
  for (index = 0; index < MEMORIES; index++) free(memories[index].expected);
  free(buffer);
}

int main(int count, char **arguments) {
  time_t end;
  if (count != 3) return 2;
  state = strtoull(arguments[1], NULL, 10) * 2654435761u + 1;
  allocate();
  end = time(NULL) + atoi(arguments[2]);
  while (calls < 2000 || time(NULL) < end) {
    int index;
    if (once_in(3)) fill();
    else copy();
    /* A call that writes where it must not is found here: all memory is compared, not only the destination. */
    if (once_in(16)) {
      for (index = 0; index < MEMORIES; index++) check_contents(index);
    }
  }
  free_all();
  OK(hsavmm_shut_down());
  printf("ok: seed %s, %zu calls, %zu rejected\n", arguments[1], calls, rejected);
  return 0;
}
