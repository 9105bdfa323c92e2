/*
 * Reserves, maps, accesses, unmaps and frees virtual memory with HIP's functions. HIP need not be installed:
 *
 *   cc cycle.c $(pkg-config --cflags --libs hsavmm-rpath) && HSA_VMM_RUNTIME=sim ./a.out
 */
#include <hip/hip_runtime_api.h>
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Exits if a call has failed. */
static void check(hipError_t error, const char *call) {
  if (error != hipSuccess) {
    fprintf(stderr, "%s\n  in %s\n", hsavmm_last_message(), call);
    exit(1);
  }
}

#define CHECK(call) check(call, #call)

int main(void) {
  hsavmm_runtime_info runtime;
  CHECK(hsavmm_runtime(&runtime));
  int devices;
  CHECK(hipGetDeviceCount(&devices));
  printf("%s, %d GPU%s\n", runtime.name, devices, devices == 1 ? "" : "s");

  /* Describe memory of the first GPU. */
  hipMemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  prop.location.id = 0;
  size_t granule;
  CHECK(hipMemGetAllocationGranularity(&granule, &prop, hipMemAllocationGranularityRecommended));
  printf("granule: %zu bytes\n", granule);

  /* Reserve addresses for four granules, and map one granule of memory at the first and the third. */
  void *start;
  hipMemGenericAllocationHandle_t handle;
  CHECK(hipMemAddressReserve(&start, 4 * granule, 0, NULL, 0));
  CHECK(hipMemCreate(&handle, granule, &prop, 0));
  char *third = (char *)start + 2 * granule;
  CHECK(hipMemMap(start, granule, 0, handle, 0));
  CHECK(hipMemMap(third, granule, 0, handle, 0));

  /* Grant the GPU access to both mappings. */
  hipMemAccessDesc desc;
  desc.location = prop.location;
  desc.flags = hipMemAccessFlagsProtReadWrite;
  CHECK(hipMemSetAccess(start, granule, &desc, 1));
  CHECK(hipMemSetAccess(third, granule, &desc, 1));

  /* Both mappings are the same memory. */
  const char written[] = "written at the first";
  char read[sizeof written];
  CHECK(hipMemcpyHtoD(start, written, sizeof written));
  CHECK(hipMemcpyDtoH(read, third, sizeof read));
  printf("read at the third: \"%s\"\n", read);

  /* HIP crashes if a call unmaps a part of a mapping. This library returns an error with a message. */
  if (hipMemUnmap(start, granule / 2) != hipSuccess) {
    printf("rejected: %s\n", hsavmm_last_message());
  }

  CHECK(hipMemUnmap(start, granule));
  CHECK(hipMemUnmap(third, granule));
  CHECK(hipMemRelease(handle));
  CHECK(hipMemAddressFree(start, 4 * granule));
  CHECK(hsavmm_shut_down());
  return 0;
}
