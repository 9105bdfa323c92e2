/* Makes the calls of a library that connects the processes of a node (RCCL, rocSHMEM, Open MPI). A
 * process sends an IPC handle of fine-grained memory, and an offset, through a pipe. Both processes
 * copy in streams. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

constexpr size_t SIZE = 1 << 20, OFFSET = 4096;

struct Message {
  hipIpcMemHandle_t handle;
  size_t offset;
};

/* Opens the parent's memory, adds one to each number at the offset, and closes the memory. */
static void run_child(int input, int output) {
  Message message;
  static int numbers[256];
  char *peer = nullptr;
  hipStream_t stream{};
  CHECK(read(input, &message, sizeof message) == sizeof message);
  OK(hipSetDevice(0));
  OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  OK(hipIpcOpenMemHandle(reinterpret_cast<void **>(&peer), message.handle,
                         hipIpcMemLazyEnablePeerAccess));
  OK(hipMemcpyAsync(numbers, peer + message.offset, sizeof numbers, hipMemcpyDeviceToHost, stream));
  OK(hipStreamSynchronize(stream));
  for (int &number : numbers) ++number;
  OK(hipMemcpyAsync(peer + message.offset, numbers, sizeof numbers, hipMemcpyHostToDevice, stream));
  OK(hipStreamSynchronize(stream));
  OK(hipIpcCloseMemHandle(peer));
  OK(hipStreamDestroy(stream));
  CHECK(write(output, "", 1) == 1);
}

int main() {
  int to_child[2], to_parent[2], status = -1;
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
  char *memory = nullptr, done = 0;
  static int numbers[256];
  Message message;
  hipEvent_t event{};
  hipStream_t stream{};
  hipStreamCaptureMode mode = hipStreamCaptureModeRelaxed;
  OK(hipThreadExchangeStreamCaptureMode(&mode));
  OK(hipExtMallocWithFlags(reinterpret_cast<void **>(&memory), SIZE, hipDeviceMallocFinegrained));
  OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  OK(hipMemsetAsync(memory, 0, SIZE, stream));
  OK(hipStreamSynchronize(stream));
  OK(hipStreamDestroy(stream));
  OK(hipThreadExchangeStreamCaptureMode(&mode));
  for (int index = 0; index < 256; ++index) numbers[index] = index;
  OK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
  OK(hipMemcpyAsync(memory + OFFSET, numbers, sizeof numbers, hipMemcpyHostToDevice));
  OK(hipEventRecord(event, nullptr));
  CHECK(hipEventQuery(event) == hipSuccess);
  hipDeviceptr_t base = nullptr;
  size_t size = 0;
  OK(hipMemGetAddressRange(&base, &size, memory + OFFSET));
  CHECK(base == memory && size == SIZE);
  OK(hipIpcGetMemHandle(&message.handle, base));
  message.offset = OFFSET;
  CHECK(write(to_child[1], &message, sizeof message) == sizeof message);
  CHECK(read(to_parent[0], &done, 1) == 1);
  OK(hipMemcpy(numbers, memory + OFFSET, sizeof numbers, hipMemcpyDeviceToHost));
  for (int index = 0; index < 256; ++index) CHECK(numbers[index] == index + 1);
  OK(hipEventDestroy(event));
  OK(hipFree(memory));
  CHECK(waitpid(child_pid, &status, 0) == child_pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  puts("done");
  return 0;
}
