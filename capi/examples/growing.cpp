// A buffer that grows in place: it reserves addresses once and maps memory as needed, so that pointers
// stay valid.
//
//   c++ -std=c++17 growing.cpp $(pkg-config --cflags --libs hsavmm-rpath) && HSA_VMM_RUNTIME=sim ./a.out
#include <hip/hip_runtime.h>
#include <hsavmm.h>

#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

static void check(hipError_t error) {
  if (error != hipSuccess) {
    throw std::runtime_error(hsavmm_last_message());
  }
}

class GrowingBuffer {
public:
  GrowingBuffer(int device, size_t maximum)
      : access_{{hipMemLocationTypeDevice, device}, hipMemAccessFlagsProtReadWrite} {
    prop_.type = hipMemAllocationTypePinned;
    prop_.location = access_.location;
    check(hipMemGetAllocationGranularity(&granule_, &prop_,
                                         hipMemAllocationGranularityRecommended));
    reserved_ = (maximum + granule_ - 1) / granule_ * granule_;
    check(hipMemAddressReserve(&start_, reserved_, 0, nullptr, 0));
  }
  GrowingBuffer(const GrowingBuffer &) = delete;
  GrowingBuffer &operator=(const GrowingBuffer &) = delete;
  ~GrowingBuffer() {
    // The mappings are adjacent, so one call unmaps all of them.
    hipError_t error = mapped_ == 0 ? hipSuccess : hipMemUnmap(start_, mapped_);
    if (error == hipSuccess) {
      error = hipMemAddressFree(start_, reserved_);
    }
    if (error != hipSuccess) {
      std::fprintf(stderr, "%s\n", hsavmm_last_message());
    }
  }

  // Maps memory until at least `size` bytes are mapped.
  void grow(size_t size) {
    while (mapped_ < size) {
      hipMemGenericAllocationHandle_t handle;
      char *end = static_cast<char *>(start_) + mapped_;
      check(hipMemCreate(&handle, granule_, &prop_, 0));
      check(hipMemMap(end, granule_, 0, handle, 0));
      mapped_ += granule_;
      // The mapping keeps the memory allocated until the memory is unmapped.
      check(hipMemRelease(handle));
      check(hipMemSetAccess(end, granule_, &access_, 1));
    }
  }

  void *start() const { return start_; }
  size_t mapped() const { return mapped_; }

private:
  hipMemAccessDesc access_;
  hipMemAllocationProp prop_{};
  void *start_ = nullptr;
  size_t granule_ = 0, reserved_ = 0, mapped_ = 0;
};

int main() {
  try {
    {
      const size_t maximum = 64 << 20;
      GrowingBuffer buffer(0, maximum);
      std::vector<int> numbers(1 << 20), copied(1 << 20);
      std::iota(numbers.begin(), numbers.end(), 0);
      const size_t bytes = numbers.size() * sizeof(int);
      for (size_t round = 1; round <= 4; ++round) {
        buffer.grow(round * bytes);
        char *part = static_cast<char *>(buffer.start()) + (round - 1) * bytes;
        check(hipMemcpyHtoD(part, numbers.data(), bytes));
        // The data of the first round is still at its address.
        check(hipMemcpyDtoH(copied.data(), buffer.start(), bytes));
        std::printf("%2zu MiB at the same address: %s\n", buffer.mapped() >> 20,
                    copied == numbers ? "contents kept" : "CONTENTS LOST");
        if (copied != numbers) {
          return 1;
        }
      }
    }
    check(hsavmm_shut_down());
  } catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
