/* Prints the number of devices, and the PCI address of each. */
#include <hip/hip_runtime_api.h>
#include <hsavmm.h>
#include <stdio.h>

int main(void) {
  int count = -1;
  hipError_t error = hipGetDeviceCount(&count);
  printf("%s %d:", hipGetErrorName(error), count);
  for (int device = 0; device < count; ++device) {
    char bus[32];
    if (hipDeviceGetPCIBusId(bus, sizeof bus, device) == hipSuccess) printf(" %s", bus);
  }
  puts("");
  if (error != hipSuccess) fprintf(stderr, "%s\n", hsavmm_last_message());
  return 0;
}
