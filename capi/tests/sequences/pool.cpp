/* Makes the calls of a pool that grows in place (llama.cpp). Like XLA, grants the peers access to each mapping one by
 * one. */
#include "check.h"
#include <vector>

constexpr size_t POOL_SIZE = size_t(1) << 35;

int main() {
  int devices = 0;
  OK(hipGetDeviceCount(&devices));
  for (int device = 0; device < devices; ++device) {
    int has_vmm = 0;
    hipDevice_t number{};
    size_t granularity = 0;
    OK(hipSetDevice(device));
    OK(hipDeviceGet(&number, device));
    OK(hipDeviceGetAttribute(&has_vmm, hipDeviceAttributeVirtualMemoryManagementSupported, number));
    CHECK(has_vmm);
    hipMemAllocationProp prop = {};
    prop.type = hipMemAllocationTypePinned;
    prop.location.type = hipMemLocationTypeDevice;
    prop.location.id = device;
    OK(hipMemGetAllocationGranularity(&granularity, &prop, hipMemAllocationGranularityRecommended));
    hipDeviceProp_t properties;
    OK(hipGetDeviceProperties(&properties, device));
    CHECK(properties.totalGlobalMem >= granularity * 8);

    hipDeviceptr_t pool = nullptr;
    OK(hipMemAddressReserve(&pool, POOL_SIZE, 0, nullptr, 0));
    size_t size = 0;
    std::vector<std::pair<hipDeviceptr_t, size_t>> mappings;
    for (size_t step = 1; step <= 3; ++step) {
      const size_t more = step * granularity;
      hipMemGenericAllocationHandle_t handle{};
      OK(hipMemCreate(&handle, more, &prop, 0));
      hipDeviceptr_t start = static_cast<char *>(pool) + size;
      OK(hipMemMap(start, more, 0, handle, 0));
      mappings.push_back({start, more});
      /* The mapping keeps the memory allocated. */
      OK(hipMemRelease(handle));
      for (int peer = 0; peer < devices; ++peer) {
        int can_access = peer == device;
        if (!can_access) OK(hipDeviceCanAccessPeer(&can_access, peer, device));
        hipMemAccessDesc access = {};
        access.location.type = hipMemLocationTypeDevice;
        access.location.id = peer;
        access.flags = hipMemAccessFlagsProtReadWrite;
        if (can_access) OK(hipMemSetAccess(start, more, &access, 1));
      }
      size += more;
    }
    hipStream_t stream{};
    hipEvent_t event{};
    OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    OK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
    OK(hipMemsetAsync(pool, 42, size, stream));
    OK(hipEventRecord(event, stream));
    OK(hipStreamWaitEvent(nullptr, event, 0));
    unsigned char first = 0, last = 0;
    OK(hipMemcpyAsync(&first, pool, 1, hipMemcpyDeviceToHost, stream));
    OK(hipMemcpyAsync(&last, static_cast<char *>(pool) + size - 1, 1, hipMemcpyDeviceToHost, stream));
    OK(hipStreamSynchronize(stream));
    CHECK(first == 42 && last == 42);
    OK(hipEventDestroy(event));
    OK(hipStreamDestroy(stream));
    for (const auto &mapping : mappings) OK(hipMemUnmap(mapping.first, mapping.second));
    OK(hipMemAddressFree(pool, POOL_SIZE));
  }
  puts("done");
  return 0;
}
