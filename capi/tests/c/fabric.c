/* Exports and imports fabric handles (hipMemFabricHandle_t). The first argument is "yes" if the
 * runtime supports fabric handles. */
#define _GNU_SOURCE
#include <hip/hip_runtime_api.h>
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(int line, const char *what) {
  fprintf(stderr, "line %d: %s\n  last message: %s\n", line, what, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define OK(call) EXPECT((call) == hipSuccess)

static const hipMemAllocationHandleType fabric = hipMemHandleTypeFabric;

int main(int argc, char **argv) {
  int has_fabric = argc > 1 && !strcmp(argv[1], "yes"), reported = -1;
  hipMemAllocationProp prop = {0}, found = {0};
  hipMemGenericAllocationHandle_t handle, imported;
  hipMemFabricHandle_t exported, none = {{0}};
  hipMemAccessDesc access = {{hipMemLocationTypeDevice, 0}, hipMemAccessFlagsProtReadWrite};
  size_t size = 0;
  void *first = NULL, *second = NULL;
  char bytes[8] = "fabric", copied[8] = "";

  EXPECT(sizeof(hipMemFabricHandle_t) == 64);
  OK(hipDeviceGetAttribute(&reported, hipDeviceAttributeHandleTypeFabricSupported, 0));
  EXPECT(reported == has_fabric);
  prop.type = hipMemAllocationTypePinned;
  prop.requestedHandleType = fabric;
  prop.location.type = hipMemLocationTypeDevice;
  OK(hipMemGetAllocationGranularity(&size, &prop, hipMemAllocationGranularityMinimum));
  if (!has_fabric) {
    EXPECT(hipMemCreate(&handle, size, &prop, 0) == hipErrorNotSupported);
    EXPECT(strstr(hsavmm_last_message(), "fabric"));
    EXPECT(hipMemImportFromShareableHandle(&imported, &none, fabric) == hipErrorNotSupported);
    EXPECT(strstr(hsavmm_last_message(), "fabric"));
    puts("all checks passed");
    return 0;
  }
  OK(hipMemCreate(&handle, size, &prop, 0));
  OK(hipMemExportToShareableHandle(&exported, handle, fabric, 0));
  EXPECT(hipMemExportToShareableHandle(NULL, handle, fabric, 0) == hipErrorInvalidValue);
  EXPECT(hipMemExportToShareableHandle(&exported, handle, fabric, 1) == hipErrorInvalidValue);
  OK(hipMemImportFromShareableHandle(&imported, &exported, fabric));
  OK(hipMemGetAllocationPropertiesFromHandle(&found, imported));
  EXPECT(found.requestedHandleTypes == fabric);

  OK(hipMemAddressReserve(&first, size, 0, NULL, 0));
  OK(hipMemAddressReserve(&second, size, 0, NULL, 0));
  OK(hipMemMap(first, size, 0, handle, 0));
  OK(hipMemMap(second, size, 0, imported, 0));
  OK(hipMemSetAccess(first, size, &access, 1));
  OK(hipMemSetAccess(second, size, &access, 1));
  OK(hipMemcpy(first, bytes, sizeof bytes, hipMemcpyHostToDevice));
  OK(hipMemcpy(copied, second, sizeof copied, hipMemcpyDeviceToHost));
  EXPECT(!strcmp(copied, "fabric"));
  OK(hipMemUnmap(first, size));
  OK(hipMemUnmap(second, size));
  OK(hipMemAddressFree(first, size));
  OK(hipMemAddressFree(second, size));
  OK(hipMemRelease(imported));

  /* Invalid handles: without a size, of unknown memory, and at unreadable addresses. */
  EXPECT(hipMemImportFromShareableHandle(&imported, &none, fabric) == hipErrorInvalidValue);
  EXPECT(strstr(hsavmm_last_message(), "size"));
  exported.data[8] ^= 1;
  EXPECT(hipMemImportFromShareableHandle(&imported, &exported, fabric) == hipErrorInvalidValue);
  EXPECT(hipMemImportFromShareableHandle(&imported, NULL, fabric) == hipErrorInvalidValue);
  EXPECT(hipMemImportFromShareableHandle(&imported, (void *)8, fabric) == hipErrorInvalidValue);
  OK(hipMemRelease(handle));
  OK(hsavmm_check());
  puts("all checks passed");
  return 0;
}
