/* Passes values to hipMemImportFromShareableHandle(): a descriptor as a number, a pointer to a descriptor, and invalid
 * values. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <hip/hip_runtime_api.h>
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)

static hipError_t import(void *value, hipMemGenericAllocationHandle_t *handle) {
  return hipMemImportFromShareableHandle(handle, value, hipMemHandleTypePosixFileDescriptor);
}

int main(void) {
  hipMemAllocationProp prop = {0};
  hipMemGenericAllocationHandle_t handle, by_number, by_pointer;
  size_t size = 0;
  int descriptor = -1, negative = -1, closed, pipe_ends[2];
  prop.type = hipMemAllocationTypePinned;
  prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
  prop.location.type = hipMemLocationTypeDevice;
  OK(hipMemGetAllocationGranularity(&size, &prop, hipMemAllocationGranularityRecommended));
  OK(hipMemCreate(&handle, size, &prop, 0));
  OK(hipMemExportToShareableHandle(&descriptor, handle, hipMemHandleTypePosixFileDescriptor, 0));
  OK(import((void *)(uintptr_t)descriptor, &by_number));
  OK(import(&descriptor, &by_pointer));
  OK(hipMemRelease(by_number));
  OK(hipMemRelease(by_pointer));

  /* A descriptor from 65536 on can also be an address. */
  struct rlimit limit;
  EXPECT(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max > 70000) {
    int large;
    limit.rlim_cur = limit.rlim_max;
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    large = fcntl(descriptor, F_DUPFD_CLOEXEC, 70000);
    EXPECT(large >= 70000);
    OK(import((void *)(uintptr_t)large, &by_number));
    OK(hipMemRelease(by_number));
    EXPECT(close(large) == 0);
  }

  closed = dup(descriptor);
  EXPECT(closed >= 0 && close(closed) == 0);
  EXPECT(pipe(pipe_ends) == 0);
  EXPECT(import((void *)(uintptr_t)closed, &by_number) == hipErrorInvalidValue);
  EXPECT(import(&closed, &by_pointer) == hipErrorInvalidValue);
  EXPECT(import((void *)(uintptr_t)pipe_ends[0], &by_number) != hipSuccess);
  EXPECT(import(pipe_ends, &by_pointer) != hipSuccess);
  EXPECT(import(&negative, &by_pointer) == hipErrorInvalidValue);
  EXPECT(import((void *)(uintptr_t)-1, &by_number) == hipErrorInvalidValue);
  EXPECT(import((void *)(uintptr_t)70000, &by_number) == hipErrorInvalidValue);
  /* Pointers to an unmapped page, to the last two bytes before it, and to a page without access. */
  long page = sysconf(_SC_PAGESIZE);
  char *pages = mmap(NULL, (size_t)page * 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(pages != MAP_FAILED && munmap(pages + page, (size_t)page) == 0);
  EXPECT(import(pages + page, &by_pointer) == hipErrorInvalidValue);
  EXPECT(import(pages + page - 2, &by_pointer) == hipErrorInvalidValue);
  EXPECT(mprotect(pages, (size_t)page, PROT_NONE) == 0);
  EXPECT(import(pages, &by_pointer) == hipErrorInvalidValue);

  EXPECT(close(descriptor) == 0);
  OK(hipMemRelease(handle));
  OK(hsavmm_check());
  puts("all checks passed");
  return 0;
}
