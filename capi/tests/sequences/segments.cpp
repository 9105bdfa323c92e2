/* Makes the calls of a caching allocator with expandable segments (PyTorch). A segment reserves an
 * address range larger than the device's memory, maps memory in parts, and grants peers access
 * later. It unmaps parts when the stream is idle. Another process copies the parts' descriptors
 * with pidfd_getfd(). */
#include "check.h"
#include <cstring>
#include <optional>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

constexpr size_t PART_SIZE = 2 << 20;

class Segment {
public:
  Segment(int device, hipStream_t stream) : device_(device), stream_(stream) {
    hipDeviceProp_t prop{};
    OK(hipGetDeviceProperties(&prop, device));
    size_ = (prop.totalGlobalMem + prop.totalGlobalMem / 8) / PART_SIZE * PART_SIZE;
    OK(hipMemAddressReserve(&start_, size_, 0, nullptr, 0));
  }

  char *at(size_t index) const { return static_cast<char *>(start_) + index * PART_SIZE; }

  void grow(size_t count) {
    const size_t first = handles_.size();
    for (size_t index = 0; index < count; ++index) {
      hipMemAllocationProp prop{};
      prop.type = hipMemAllocationTypePinned;
      prop.requestedHandleTypes = hipMemHandleTypePosixFileDescriptor;
      prop.location.type = hipMemLocationTypeDevice;
      prop.location.id = device_;
      hipMemGenericAllocationHandle_t handle{};
      OK(hipMemCreate(&handle, PART_SIZE, &prop, 0));
      handles_.emplace_back(handle);
    }
    map(first);
  }

  void import(const std::vector<int> &descriptors) {
    for (int descriptor : descriptors) {
      hipMemGenericAllocationHandle_t handle{};
      OK(hipMemImportFromShareableHandle(&handle,
                                         reinterpret_cast<void *>(static_cast<uintptr_t>(descriptor)),
                                         hipMemHandleTypePosixFileDescriptor));
      CHECK(close(descriptor) == 0);
      handles_.emplace_back(handle);
    }
    map(0);
  }

  std::vector<int> share() const {
    std::vector<int> descriptors;
    for (const auto &handle : handles_) {
      int descriptor = -1;
      OK(hipMemExportToShareableHandle(&descriptor, *handle, hipMemHandleTypePosixFileDescriptor, 0));
      descriptors.push_back(descriptor);
    }
    return descriptors;
  }

  void add_peer(int device) { grant_access(device, 0, handles_.size()); }

  void unmap(size_t first, size_t last) {
    OK(hipStreamSynchronize(stream_));
    for (size_t index = first; index < last; ++index) {
      OK(hipMemUnmap(at(index), PART_SIZE));
      OK(hipMemRelease(*handles_[index]));
      handles_[index].reset();
    }
  }

  ~Segment() {
    for (size_t index = 0; index < handles_.size(); ++index)
      if (handles_[index]) unmap(index, index + 1);
    OK(hipMemAddressFree(start_, size_));
  }

private:
  void map(size_t first) {
    for (size_t index = first; index < handles_.size(); ++index)
      OK(hipMemMap(at(index), PART_SIZE, 0, *handles_[index], 0));
    grant_access(device_, first, handles_.size());
  }

  void grant_access(int device, size_t first, size_t last) {
    hipMemAccessDesc desc{};
    desc.location.type = hipMemLocationTypeDevice;
    desc.location.id = device;
    desc.flags = hipMemAccessFlagsProtReadWrite;
    OK(hipMemSetAccess(at(first), (last - first) * PART_SIZE, &desc, 1));
  }

  int device_;
  hipStream_t stream_;
  void *start_ = nullptr;
  size_t size_ = 0;
  std::vector<std::optional<hipMemGenericAllocationHandle_t>> handles_;
};

/* Copies the parent's descriptors, and reads the memory that the parent wrote. */
static void run_child(int input, int output) {
  pid_t parent = 0;
  int descriptors[3] = {};
  CHECK(read(input, &parent, sizeof parent) == sizeof parent);
  CHECK(read(input, descriptors, sizeof descriptors) == sizeof descriptors);
  const long process = syscall(SYS_pidfd_open, parent, 0);
  CHECK(process >= 0);
  std::vector<int> copies;
  for (int descriptor : descriptors) {
    const long copy = syscall(SYS_pidfd_getfd, process, descriptor, 0);
    CHECK(copy >= 0);
    copies.push_back(static_cast<int>(copy));
  }
  hipStream_t stream{};
  OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  {
    Segment segment(0, stream);
    segment.import(copies);
    for (int index = 0; index < 3; ++index) {
      int value = 0;
      OK(hipMemcpy(&value, segment.at(index), sizeof value, hipMemcpyDeviceToHost));
      CHECK(value == 100 + index);
    }
  }
  OK(hipStreamDestroy(stream));
  CHECK(write(output, "", 1) == 1);
}

int main() {
  int to_child[2], to_parent[2];
  CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
  const pid_t child_pid = fork();
  CHECK(child_pid >= 0);
  if (child_pid == 0) {
    /* Closes the parent's ends of the pipes: then the child's read returns if the parent fails. */
    CHECK(close(to_child[1]) == 0 && close(to_parent[0]) == 0);
    run_child(to_child[0], to_parent[1]);
    return 0;
  }
  CHECK(close(to_parent[1]) == 0);
  /* Without this call, some systems forbid a child to copy its parent's descriptors. */
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  int devices = 0;
  hipStream_t stream{};
  OK(hipGetDeviceCount(&devices));
  OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  {
    Segment segment(0, stream);
    segment.grow(2);
    segment.grow(1);
    for (int peer = 1; peer < devices; ++peer) {
      int can = 0;
      OK(hipDeviceCanAccessPeer(&can, peer, 0));
      if (can) segment.add_peer(peer);
    }
    for (int index = 0; index < 3; ++index) {
      const int value = 100 + index;
      OK(hipMemcpyAsync(segment.at(index), &value, sizeof value, hipMemcpyHostToDevice, stream));
    }
    const std::vector<int> shared = segment.share();
    const pid_t self = getpid();
    const ssize_t size = static_cast<ssize_t>(shared.size() * sizeof(int));
    CHECK(write(to_child[1], &self, sizeof self) == sizeof self);
    CHECK(write(to_child[1], shared.data(), static_cast<size_t>(size)) == size);
    char done = 0;
    CHECK(read(to_parent[0], &done, 1) == 1);
    for (int descriptor : shared) CHECK(close(descriptor) == 0);
    /* Leaves a hole in the middle. The destructor frees all addresses, including the hole. */
    segment.unmap(1, 2);
  }
  OK(hipStreamDestroy(stream));
  int status = -1;
  CHECK(waitpid(child_pid, &status, 0) == child_pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  puts("done");
  return 0;
}
