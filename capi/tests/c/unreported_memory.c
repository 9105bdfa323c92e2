/* hipMemGetInfo on a runtime that stops reporting the amount of free memory. */
#include <hip/hip_runtime_api.h>
#include <stdio.h>

int main(void) {
  size_t free_memory, total_memory;
  int calls;
  hipError_t error = hipSuccess;
  for (calls = 0; calls < 100000 && error == hipSuccess; calls++) {
    error = hipMemGetInfo(&free_memory, &total_memory);
  }
  if (error != hipErrorNotSupported || hipMemGetInfo(NULL, &total_memory) != error) {
    fprintf(stderr, "after %d calls: %s\n", calls, hipGetErrorName(error));
    return 1;
  }
  error = hipMemGetInfo(NULL, NULL);
  if (error != hipSuccess) {
    fprintf(stderr, "without pointers: %s\n", hipGetErrorName(error));
    return 1;
  }
  puts("all checks passed");
  return 0;
}
