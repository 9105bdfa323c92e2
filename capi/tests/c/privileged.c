/* Prints whether the process has more privileges than its caller, and the result of opening the
 * runtime. */
#include <hsavmm.h>
#include <stdio.h>
#include <sys/auxv.h>

int main(int argc, char **argv) {
  int devices = 0;
  hipError_t error = argc > 1 ? hsavmm_use_runtime(argv[1]) : hipSuccess;
  if (error == hipSuccess) error = hipGetDeviceCount(&devices);
  printf("privileged %lu: %s, %d devices\n", getauxval(AT_SECURE), hipGetErrorName(error), devices);
  if (error != hipSuccess) fprintf(stderr, "last message: %s\n", hsavmm_last_message());
  return 0;
}
