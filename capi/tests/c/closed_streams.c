/* Closes standard error before a call that creates a file for memory, and then makes a call that fails, which writes a
 * message to the log. The memory must not get the number of standard error. Argument: the call. */
#define _GNU_SOURCE
#include <hip/hip_runtime_api.h>
#include <hsavmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 21, VALUE = 0x5a };

static void expect(int condition, int line) {
  if (condition) return;
  printf("line %d: %s\n", line, hsavmm_last_message());
  exit(1);
}
#define EXPECT(condition) expect(condition, __LINE__)
#define OK(call) EXPECT((call) == hipSuccess)

/* Checks that standard error is no memory file, also after a message in the log. */
static void expect_no_memory(void) {
  char name[64] = "";
  EXPECT(hipMalloc(NULL, 1) == hipErrorInvalidValue);
  if (readlink("/proc/self/fd/2", name, sizeof name - 1) < 0) return;
  if (strncmp(name, "/memfd:", 7) != 0) return;
  printf("standard error is %s\n", name);
  exit(1);
}

static void expect_value(const void *ptr) {
  static unsigned char bytes[SIZE];
  OK(hipMemcpy(bytes, ptr, SIZE, hipMemcpyDeviceToHost));
  for (size_t index = 0; index < SIZE; index++) EXPECT(bytes[index] == VALUE);
}

static void *filled(void) {
  void *ptr;
  OK(hipMalloc(&ptr, SIZE));
  OK(hipMemset(ptr, VALUE, SIZE));
  return ptr;
}

static void test_virtual_memory(int imports) {
  hipMemAllocationProp prop;
  hipMemGenericAllocationHandle_t handle, imported;
  int descriptor;
  memset(&prop, 0, sizeof prop);
  prop.type = hipMemAllocationTypePinned;
  prop.location.type = hipMemLocationTypeDevice;
  prop.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
  OK(hipMemCreate(&handle, SIZE, &prop, 0));
  if (!imports) close(2);
  OK(hipMemExportToShareableHandle(&descriptor, handle, hipMemHandleTypePosixFileDescriptor, 0));
  if (imports) {
    close(2);
    OK(hipMemImportFromShareableHandle(&imported, &descriptor, hipMemHandleTypePosixFileDescriptor));
  }
  expect_no_memory();
}

int main(int count, char **arguments) {
  const char *call = count > 1 ? arguments[1] : "";
  hipIpcMemHandle_t handle;
  void *ptr;
  if (strcmp(call, "allocate") == 0) {
    OK(hipInit(0));
    close(2);
    ptr = filled();
    expect_no_memory();
    expect_value(ptr);
  } else if (strcmp(call, "share") == 0) {
    ptr = filled();
    close(2);
    OK(hipIpcGetMemHandle(&handle, ptr));
    expect_no_memory();
  } else {
    test_virtual_memory(strcmp(call, "import") == 0);
  }
  puts("all checks passed");
  return 0;
}
