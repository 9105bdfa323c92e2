/* A copy needs a buffer. If the buffer cannot be allocated, the copy returns an error. */
#include <hip/hip_runtime.h>
#include <hsavmm.h>
#include <stdio.h>
#include <sys/resource.h>

enum { SIZE = 4 << 20 };

int main(void) {
  struct rlimit limit, none;
  hipError_t error;
  char *memory;
  if (hipMalloc((void **)&memory, 2 * SIZE) != hipSuccess) return 1;
  if (getrlimit(RLIMIT_AS, &limit) != 0) return 1;
  none = limit;
  none.rlim_cur = 0;
  if (setrlimit(RLIMIT_AS, &none) != 0) return 1;
  error = hipMemcpy(memory, memory + SIZE, SIZE, hipMemcpyDeviceToDevice);
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 1;
  if (error != hipErrorOutOfMemory) {
    fprintf(stderr, "copy: %s, %s\n", hipGetErrorName(error), hsavmm_last_message());
    return 1;
  }
  if (hipMemcpy(memory, memory + SIZE, SIZE, hipMemcpyDeviceToDevice) != hipSuccess) return 1;
  puts("all checks passed");
  return 0;
}
