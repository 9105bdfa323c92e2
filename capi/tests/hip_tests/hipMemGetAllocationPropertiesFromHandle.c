/* hipMemGetAllocationPropertiesFromHandle: returns the properties that hipMemCreate got. */
#include "memory.h"

static void hipMemGetAllocationPropertiesFromHandle_functional(void) {
  int device, count = device_count();
  for (device = 0; device < count; device++) {
    hipMemAllocationProp prop = properties_of(device), found;
    hipMemGenericAllocationHandle_t handle = create(device, rounded_size(device, BYTES));
    memset(&found, 0xff, sizeof found);
    EXPECT_SUCCESS(hipMemGetAllocationPropertiesFromHandle(&found, handle));
    CHECK(found.type == prop.type);
    CHECK(found.location.type == prop.location.type);
    CHECK(found.location.id == prop.location.id);
    CHECK(found.requestedHandleType == prop.requestedHandleType);
    EXPECT_SUCCESS(hipMemRelease(handle));
  }
}

static void hipMemGetAllocationPropertiesFromHandle_Negative(void) {
  hipMemGenericAllocationHandle_t handle = create(0, rounded_size(0, BYTES));
  hipMemAllocationProp found;
  EXPECT_ERROR(hipMemGetAllocationPropertiesFromHandle(NULL, handle), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemGetAllocationPropertiesFromHandle(&found, NULL), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipMemRelease(handle));
}

CASES(CASE(hipMemGetAllocationPropertiesFromHandle_functional),
      CASE(hipMemGetAllocationPropertiesFromHandle_Negative))
