/* Cases of IPC that hip-tests lacks. */
#include "../hip_tests/memory.h"
#include "../hip_tests/process.h"

static const unsigned int lazy_peer_access = hipIpcMemLazyEnablePeerAccess;

/* Two handles of the parent's memory: one of its start, and one of its second page. */
struct offer {
  hipIpcMemHandle_t start, second_page;
};

/* Checks that no memory is open at the address: queries, copies and closing fail. */
static void expect_closed(void *ptr) {
  static int values[N];
  hipPointerAttribute_t attributes;
  EXPECT_SUCCESS(hipPointerGetAttributes(&attributes, ptr));
  CHECK(attributes.type == hipMemoryTypeUnregistered);
  CHECK(hipMemcpyHtoD(ptr, values, BYTES) != hipSuccess);
  EXPECT_ERROR(hipIpcCloseMemHandle(ptr), hipErrorInvalidValue);
}

static void close_inside(const struct offer *offer) {
  void *first, *second, *inside;
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, offer->start, lazy_peer_access));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, 16)));
  expect_closed(first);
  /* Memory that was opened twice must be closed twice. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, offer->start, lazy_peer_access));
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&second, offer->start, lazy_peer_access));
  CHECK(first == second);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, BYTES - 1)));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(first, 1)));
  expect_closed(first);
  /* If two opened ranges contain the address, the one with the higher start is closed. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&first, offer->start, lazy_peer_access));
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&inside, offer->second_page, lazy_peer_access));
  CHECK(inside == at(first, 4096));
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(inside, 8)));
  expect_numbers(first, 1);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(at(inside, 8)));
  expect_closed(first);
  /* Addresses before the opened memory are not open. */
  EXPECT_SUCCESS(hipIpcOpenMemHandle(&inside, offer->second_page, lazy_peer_access));
  EXPECT_ERROR(hipIpcCloseMemHandle(at(inside, (size_t)-8)), hipErrorInvalidValue);
  EXPECT_SUCCESS(hipIpcCloseMemHandle(inside));
}

static void close_accepts_interior_address(void) {
  struct channel channel = channel_open();
  struct offer offer;
  pid_t child = fork();
  void *ptr;
  int end;
  CHECK(child >= 0);
  end = keep_end(&channel, child == 0);
  if (child == 0) {
    receive_bytes(end, &offer, sizeof offer);
    close_inside(&offer);
    end_child(end);
  }
  EXPECT_SUCCESS(hipMalloc(&ptr, BYTES));
  write_numbers(ptr, 1);
  EXPECT_SUCCESS(hipIpcGetMemHandle(&offer.start, ptr));
  EXPECT_SUCCESS(hipIpcGetMemHandle(&offer.second_page, at(ptr, 4096)));
  send_bytes(end, &offer, sizeof offer);
  wait_for(child, end);
  expect_numbers(ptr, 1);
  EXPECT_SUCCESS(hipFree(ptr));
}

CASES(CASE(close_accepts_interior_address))
