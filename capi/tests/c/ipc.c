/* Cases of IPC that hip-tests lacks. */
#include "../hip_tests/memory.h"
#include "../hip_tests/process.h"

static const unsigned int lazy_peer_access = hipIpcMemLazyEnablePeerAccess;

/* Two handles of the parent's memory: one of its start, and one of its second page. */
struct shared_handles {
  hipIpcMemHandle_t start, second_page;
};

/* Checks that no memory is open at the address: a query says "unregistered"; copies and closing fail. */
static void expect_closed(void *ptr) {
  static int values[N];
  hipPointerAttribute_t attributes;
  EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, ptr));
  CHECK(attributes.type == hipMemoryTypeUnregistered);
  CHECK(hipMemcpyHtoD(ptr, values, BYTES) != hipSuccess);
  EXPECT_ERROR(hipIpcCloseMemHandle(ptr), hipErrorInvalidValue);
}

static void close_at_interior_addresses(const struct shared_handles *handles) {
  void *first, *second, *inside;
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handles->start, lazy_peer_access));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, 16)));
  expect_closed(first);
  /* Memory that was opened twice must be closed twice. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handles->start, lazy_peer_access));
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&second, handles->start, lazy_peer_access));
  CHECK(first == second);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, BYTES - 1)));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, 1)));
  expect_closed(first);
  /* If two opened ranges contain the address, the call closes the range with the higher start. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, handles->start, lazy_peer_access));
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&inside, handles->second_page, lazy_peer_access));
  CHECK(inside == at(first, 4096));
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(inside, 8)));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(inside, 8)));
  expect_closed(first);
  /* Addresses before the opened memory are not open. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&inside, handles->second_page, lazy_peer_access));
  EXPECT_ERROR(hipIpcCloseMemHandle(at(inside, (size_t)-8)), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(inside));
}

static void close_accepts_interior_address(void) {
  struct channel channel = channel_open();
  struct shared_handles handles;
  pid_t child = fork();
  void *ptr;
  int end;
  CHECK(child >= 0);
  end = keep_end(&channel, child == 0);
  if (child == 0) {
    receive_bytes(end, &handles, sizeof handles);
    close_at_interior_addresses(&handles);
    end_child(end);
  }
  EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
  write_numbers(ptr, 1);
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handles.start, ptr));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&handles.second_page, at(ptr, 4096)));
  send_bytes(end, &handles, sizeof handles);
  wait_for(child, end);
  expect_numbers(ptr, 1);
  EXPECT_SUCCESS(hipFree(ptr));
}

CASES(CASE(close_accepts_interior_address))
