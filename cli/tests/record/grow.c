/* A HIP program whose memory grows and shrinks in one reservation. The program exports its first allocation, and
 * imports the exported descriptor. The argument is the path of HIP's library. The program prints the result of each
 * call of HIP. */
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>
#include <stdio.h>
#include <unistd.h>

enum { STEPS = 5 };
static int failures;

static void check(hipError_t error, const char *call) {
  printf("%s: %d\n", call, (int)error);
  failures += error != hipSuccess;
}

#define CALL(function, ...) check(((__typeof__(&function))dlsym(hip, #function))(__VA_ARGS__), #function)

int main(int argc, char **argv) {
  void *hip = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW), *start = NULL;
  if (!hip) return fprintf(stderr, "%s\n", dlerror()), 2;
  hipMemAllocationProp prop = {0};
  hipMemGenericAllocationHandle_t memory[STEPS], again, imported;
  hipMemAccessDesc access = {0};
  size_t size = 0;
  int descriptor = -1;
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  prop.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
  access.location = prop.location;
  access.flags = hipMemAccessFlagsProtReadWrite;
  CALL(hipInit, 0);
  CALL(hipMemGetAllocationGranularity, &size, &prop, hipMemAllocationGranularityRecommended);
  CALL(hipMemAddressReserve, &start, size * STEPS, size, NULL, 0);
  for (int i = 0; i < STEPS; i++) {
    char *at = (char *)start + size * i;
    CALL(hipMemCreate, &memory[i], size, &prop, 0);
    CALL(hipMemMap, at, size, 0, memory[i], 0);
    CALL(hipMemSetAccess, at, size, &access, 1);
  }
  CALL(hipMemRetainAllocationHandle, &again, start);
  CALL(hipMemExportToShareableHandle, &descriptor, again, hipMemHandleTypePosixFileDescriptor, 0);
  /* HIP before 7.1 takes a pointer to the descriptor. */
  CALL(hipMemImportFromShareableHandle, &imported, &descriptor,
       hipMemHandleTypePosixFileDescriptor);
  close(descriptor);
  CALL(hipMemRelease, imported);
  CALL(hipMemRelease, again);
  for (int i = STEPS; i-- > 0;) {
    CALL(hipMemUnmap, (char *)start + size * i, size);
    CALL(hipMemRelease, memory[i]);
  }
  CALL(hipMemAddressFree, start, size * STEPS);
  return failures != 0;
}
