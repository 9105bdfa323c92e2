/* hipMemGetAllocationGranularity: both granularities of all devices, and invalid calls. */
#include "memory.h"

static size_t granularity_by(hipMemAllocationGranularity_flags option, int device) {
  hipMemAllocationProp prop = properties_of(device);
  size_t granularity = 0;
  EXPECT_SUCCESS(hipMemGetAllocationGranularity(&granularity, &prop, option));
  return granularity;
}

static void hipMemGetAllocationGranularity_MinGranularity(void) {
  EXPECT_SUCCESS(hipFree(NULL));
  CHECK(granularity_by(hipMemAllocationGranularityMinimum, 0) > 0);
}

/* In HIP 6, the recommended granularity is the minimum. */
static void hipMemGetAllocationGranularity_RecommendedGranularity(void) {
  size_t least = granularity_of(0), recommended;
  EXPECT_SUCCESS(hipFree(NULL));
  recommended = granularity_by(hipMemAllocationGranularityRecommended, 0);
  CHECK(profile() == 6 ? recommended == least : recommended >= least);
  CHECK(recommended % least == 0);
}

static void hipMemGetAllocationGranularity_AllGPUs(void) {
  int device, count = device_count();
  for (device = 0; device < count; device++) {
    CHECK(granularity_by(hipMemAllocationGranularityRecommended, device) > 0);
  }
}

/* The original of this case in hip-tests passes an invalid option only on NVIDIA. */
static void hipMemGetAllocationGranularity_NegativeTests(void) {
  const hipMemAllocationGranularity_flags least = hipMemAllocationGranularityMinimum;
  const hipMemAllocationProp good = properties_of(0);
  hipMemAllocationProp prop = good;
  size_t granularity;
  EXPECT_ERROR(hipMemGetAllocationGranularity(NULL, &prop, least), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemGetAllocationGranularity(&granularity, NULL, least), hipErrorInvalidValue);
  EXPECT_ERROR(hipMemGetAllocationGranularity(&granularity, &prop,
                                              (hipMemAllocationGranularity_flags)0xff),
               hipErrorInvalidValue);
  prop.location.id = device_count();
  EXPECT_ERROR(hipMemGetAllocationGranularity(&granularity, &prop, least), hipErrorInvalidValue);
  prop.location.id = -1;
  EXPECT_ERROR(hipMemGetAllocationGranularity(&granularity, &prop, least), hipErrorInvalidValue);
  prop = good;
  prop.type = hipMemAllocationTypeInvalid;
  EXPECT_ERROR(hipMemGetAllocationGranularity(&granularity, &prop, least), hipErrorInvalidValue);
  prop = good;
  prop.location.type = hipMemLocationTypeInvalid;
  EXPECT_ERROR(hipMemGetAllocationGranularity(&granularity, &prop, least), hipErrorInvalidValue);
}

CASES(CASE(hipMemGetAllocationGranularity_MinGranularity),
      CASE(hipMemGetAllocationGranularity_RecommendedGranularity),
      CASE(hipMemGetAllocationGranularity_AllGPUs),
      CASE(hipMemGetAllocationGranularity_NegativeTests))
