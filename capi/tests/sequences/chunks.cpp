/* Makes the calls of an allocator that releases its memory while a server sleeps (vLLM, torch_memory_saver). The
 * allocator saves the contents on the host, and later maps new memory, in chunks, at the same address. */
#include "check.h"
#include <algorithm>
#include <vector>

constexpr size_t CHUNK = 4 << 20;

struct Allocation {
  hipDeviceptr_t address = nullptr;
  size_t size = 0;
  std::vector<size_t> sizes;
  std::vector<hipMemGenericAllocationHandle_t> handles;
};

static void ensure_context(int device) {
  hipCtx_t context = nullptr;
  OK(hipCtxGetCurrent(&context));
  if (context == nullptr) {
    OK(hipDevicePrimaryCtxRetain(&context, device));
    OK(hipCtxSetCurrent(context));
  }
}

static hipMemAllocationProp properties_of(int device) {
  hipMemAllocationProp prop{};
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  prop.location.id = device;
  prop.allocFlags.compressionType = 0x0;
  return prop;
}

static void wake(Allocation &allocation, int device) {
  ensure_context(device);
  const hipMemAllocationProp prop = properties_of(device);
  for (size_t index = 0; index < allocation.sizes.size(); ++index)
    OK(hipMemCreate(&allocation.handles[index], allocation.sizes[index], &prop, 0));
  size_t offset = 0;
  for (size_t index = 0; index < allocation.sizes.size(); ++index) {
    OK(hipMemMap(static_cast<char *>(allocation.address) + offset, allocation.sizes[index], 0,
                 allocation.handles[index], 0));
    offset += allocation.sizes[index];
  }
  hipMemAccessDesc desc{};
  desc.location.type = hipMemLocationTypeDevice;
  desc.location.id = device;
  desc.flags = hipMemAccessFlagsProtReadWrite;
  OK(hipMemSetAccess(allocation.address, allocation.size, &desc, 1));
}

static void sleep(const Allocation &allocation) {
  size_t offset = 0;
  for (size_t size : allocation.sizes) {
    OK(hipMemUnmap(static_cast<char *>(allocation.address) + offset, size));
    offset += size;
  }
  for (auto handle : allocation.handles) OK(hipMemRelease(handle));
}

int main() {
  int device = -1;
  OK(hipGetDevice(&device));
  const hipMemAllocationProp prop = properties_of(device);
  size_t granularity = 0;
  OK(hipMemGetAllocationGranularity(&granularity, &prop, hipMemAllocationGranularityMinimum));
  Allocation allocation;
  allocation.size = (10 * (1 << 20) + granularity) / granularity * granularity;
  OK(hipMemAddressReserve(&allocation.address, allocation.size, granularity, nullptr, 0));
  for (size_t remaining = allocation.size; remaining > 0; remaining -= allocation.sizes.back())
    allocation.sizes.push_back(std::min(remaining, CHUNK));
  allocation.handles.resize(allocation.sizes.size());
  wake(allocation, device);

  std::vector<unsigned char> bytes(allocation.size);
  for (size_t index = 0; index < bytes.size(); ++index) bytes[index] = static_cast<unsigned char>(index % 251);
  OK(hipMemcpy(allocation.address, bytes.data(), bytes.size(), hipMemcpyHostToDevice));
  void *backup = nullptr;
  size_t free_awake = 0, free_asleep = 0, total = 0;
  OK(hipHostMalloc(&backup, allocation.size));
  OK(hipMemGetInfo(&free_awake, &total));
  OK(hipMemcpy(backup, allocation.address, allocation.size, hipMemcpyDeviceToHost));
  OK(hipDeviceSynchronize());
  sleep(allocation);
  OK(hipMemGetInfo(&free_asleep, &total));
  CHECK(free_asleep >= free_awake + allocation.size);
  wake(allocation, device);
  OK(hipMemcpy(allocation.address, backup, allocation.size, hipMemcpyHostToDevice));
  std::fill(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  OK(hipMemcpy(bytes.data(), allocation.address, bytes.size(), hipMemcpyDeviceToHost));
  for (size_t index = 0; index < bytes.size(); ++index) CHECK(bytes[index] == index % 251);
  OK(hipFreeHost(backup));
  sleep(allocation);
  OK(hipMemAddressFree(allocation.address, allocation.size));
  puts("done");
  return 0;
}
