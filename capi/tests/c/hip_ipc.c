/* Exports memory, or opens memory of another process, with the library of HIP that the first argument names: AMD's
 * or this one. The processor accesses the memory of AMD's HIP, because the emulated GPU runs no kernels. */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The handle is created for an address inside the allocation. */
enum { SIZE = 4 << 20, OFFSET = 4096 };
static const char exported[] = "written by the exporter", answer[] = "written by the importer";

static void *library;

static void check(int is_true, const char *what) {
  if (!is_true) {
    printf("FAILED %s\n", what);
    exit(1);
  }
}

/* Sets a pointer to a function of the library. */
static void load(const char *name, void *function) {
  void *found = dlsym(library, name);
  check(found != NULL, name);
  memcpy(function, &found, sizeof found);
}

static void expect_success(hipError_t code, const char *call) {
  if (code != hipSuccess) {
    printf("FAILED %s returned %d\n", call, (int)code);
    exit(1);
  }
}

/* Copies memory of a device by the library's own call or, for AMD's HIP, by the processor. */
static void copy(void *to, const void *from, size_t size, hipMemcpyKind kind, int is_amds) {
  hipError_t (*hip_memcpy)(void *, const void *, size_t, hipMemcpyKind);
  if (is_amds) {
    memcpy(to, from, size);
    return;
  }
  load("hipMemcpy", &hip_memcpy);
  expect_success(hip_memcpy(to, from, size, kind), "hipMemcpy");
}

static void export_memory(int is_amds) {
  hipError_t (*hip_malloc)(void **, size_t);
  hipError_t (*get_handle)(hipIpcMemHandle_t *, void *);
  hipIpcMemHandle_t handle;
  char found[sizeof answer], line[8];
  size_t index;
  void *ptr;
  load("hipMalloc", &hip_malloc);
  load("hipIpcGetMemHandle", &get_handle);
  expect_success(hip_malloc(&ptr, SIZE), "hipMalloc");
  copy(ptr, exported, sizeof exported, hipMemcpyHostToDevice, is_amds);
  /* HIP does not write all bytes of the handle. */
  memset(&handle, 0xc3, sizeof handle);
  expect_success(get_handle(&handle, (char *)ptr + OFFSET), "hipIpcGetMemHandle");
  for (index = 0; index < sizeof handle; ++index) {
    printf("%02x", (unsigned)((unsigned char *)&handle)[index]);
  }
  printf("\n");
  fflush(stdout);
  /* The importer has ended. */
  check(fgets(line, sizeof line, stdin) != NULL, "fgets");
  copy(found, ptr, sizeof found, hipMemcpyDeviceToHost, is_amds);
  printf("%.*s\n", (int)sizeof found - 1, found);
  /* At exit, HIP stops the runtime. After an export, the runtime of ROCm 7.2 sometimes crashes then: see
   * docs/defects.md. */
  if (is_amds) {
    fflush(stdout);
    _exit(0);
  }
}

static void open_memory(int is_amds, const char *hex) {
  hipError_t (*open_handle)(void **, hipIpcMemHandle_t, unsigned int);
  hipError_t (*close_handle)(void *);
  hipError_t (*get_range)(void **, size_t *, void *);
  hipIpcMemHandle_t handle;
  char found[sizeof exported];
  size_t index, size = 0;
  void *ptr, *start = NULL;
  load("hipIpcOpenMemHandle", &open_handle);
  load("hipIpcCloseMemHandle", &close_handle);
  load("hipMemGetAddressRange", &get_range);
  for (index = 0; index < sizeof handle; ++index) {
    unsigned int byte;
    check(sscanf(hex + 2 * index, "%2x", &byte) == 1, "the handle's digits");
    ((unsigned char *)&handle)[index] = (unsigned char)byte;
  }
  expect_success(open_handle(&ptr, handle, hipIpcMemLazyEnablePeerAccess), "hipIpcOpenMemHandle");
  /* Opening ignores for which address the handle was created. */
  expect_success(get_range(&start, &size, ptr), "hipMemGetAddressRange");
  check(start == ptr && size == SIZE, "the whole allocation is open");
  /* The processor cannot access memory that AMD's HIP 7 has opened. */
  if (!is_amds) {
    copy(found, ptr, sizeof found, hipMemcpyDeviceToHost, is_amds);
    check(memcmp(found, exported, sizeof found) == 0, "the exporter's bytes");
    copy(ptr, answer, sizeof answer, hipMemcpyHostToDevice, is_amds);
  }
  expect_success(close_handle(ptr), "hipIpcCloseMemHandle");
}

int main(int count, char **words) {
  hipError_t (*set_device)(int);
  int is_amds;
  alarm(120);
  check(count >= 3, "arguments: LIBRARY DEVICE [HANDLE]");
  library = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
  check(library != NULL, words[1]);
  is_amds = strstr(words[1], "libamdhip64") != NULL;
  load("hipSetDevice", &set_device);
  expect_success(set_device(atoi(words[2])), "hipSetDevice");
  if (count == 3) {
    export_memory(is_amds);
  } else {
    open_memory(is_amds, words[3]);
  }
  return 0;
}
