/* Repeats the level "LEVEL" of hsa-vmm bringup, with HSA only. The program needs no headers of ROCm. To build:
 *
 *   cc -g -o repeat repeat.c -L/opt/rocm/lib -l:libhsa-runtime64.so.1 -lpthread \
 *     -Wl,--allow-shlib-undefined
 *
 * The last option is needed if the runtime was built for a newer C library than this machine's. Run the program as
 * bringup was run: with LD_LIBRARY_PATH=/opt/rocm/lib, or inside of `hsa-vmm emulate --rocr VERSION --`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <signal.h>
#include <unistd.h>

DECLARATIONS
#define UNUSED __attribute__((unused))
#define CHECK(...) check(__VA_ARGS__, #__VA_ARGS__)
/* A wait can return before the condition holds. */
#define WAIT(...)                     \
  do {                                \
    hsa_signal_value_t value;         \
    do {                              \
      value = __VA_ARGS__;            \
    } while (value >= 1);             \
    check_copy(value, #__VA_ARGS__);  \
  } while (0)

static UNUSED hsa_agent_t cpu, gpu[64];
static UNUSED int cpus, gpus;
static UNUSED hsa_amd_memory_pool_t pool, host_pool;
static UNUSED size_t size;

static UNUSED void check(hsa_status_t status, const char *call) {
  const char *text = "";
  if (status == HSA_STATUS_SUCCESS || status == HSA_STATUS_INFO_BREAK) return;
  hsa_status_string(status, &text);
  fprintf(stderr, "%s\n  returned %#x %s\n", call, (unsigned)status, text);
  exit(1);
}

static UNUSED void check_copy(hsa_signal_value_t value, const char *call) {
  if (value == 0) return;
  fprintf(stderr, "%s\n  returned %lld, not 0: the copy failed\n", call, (long long)value);
  exit(1);
}

static UNUSED hsa_status_t add_agent(hsa_agent_t agent, void *data) {
  hsa_device_type_t type;
  (void)data;
  CHECK(hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type));
  if (type == HSA_DEVICE_TYPE_CPU && cpus++ == 0) cpu = agent;
  if (type == HSA_DEVICE_TYPE_GPU && gpus < 64) gpu[gpus++] = agent;
  return HSA_STATUS_SUCCESS;
}

/* Selects the first pool that allows allocation. For a GPU's pool, sets `size` to a
 * multiple of the pool's granule. */
static UNUSED hsa_status_t select_pool(hsa_amd_memory_pool_t found, void *into) {
  hsa_amd_segment_t segment;
  bool allowed = false;
  size_t bytes;
  CHECK(hsa_amd_memory_pool_get_info(found, HSA_AMD_MEMORY_POOL_INFO_SEGMENT, &segment));
  if (segment != HSA_AMD_SEGMENT_GLOBAL) return HSA_STATUS_SUCCESS;
  CHECK(hsa_amd_memory_pool_get_info(found, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED,
                                     &allowed));
  CHECK(hsa_amd_memory_pool_get_info(found, HSA_AMD_MEMORY_POOL_INFO_SIZE, &bytes));
  if (!allowed) return HSA_STATUS_SUCCESS;
  *(hsa_amd_memory_pool_t *)into = found;
  if (into == (void *)&pool) {
    CHECK(hsa_amd_memory_pool_get_info(found, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE,
                                       &size));
    size *= GRANULES;
  }
  return HSA_STATUS_INFO_BREAK;
}

static UNUSED void fill(void *at, size_t bytes, uint32_t first) {
  for (size_t i = 0; i < bytes / 4; i++) ((volatile uint32_t *)at)[i] = first + (uint32_t)i;
}

/* Exits unless the memory contains `first`, `first + step`, `first + 2 * step` and so on. */
static UNUSED void compare(void *at, size_t bytes, uint32_t first, uint32_t step) {
  for (size_t i = 0; i < bytes / 4; i++) {
    uint32_t found = ((volatile uint32_t *)at)[i];
    uint32_t expected = first + step * (uint32_t)i;
    if (found == expected) continue;
    fprintf(stderr, "at offset %#zx: expected %#x, found %#x\n", i * 4, expected, found);
    exit(1);
  }
}

static UNUSED void print_available(hsa_agent_t agent) {
  uint64_t available = 0;
  CHECK(hsa_agent_get_info(agent, (hsa_agent_info_t)HSA_AMD_AGENT_INFO_MEMORY_AVAIL, &available));
  printf("%llu bytes are available\n", (unsigned long long)available);
}

static UNUSED void print_descriptors(void) {
  int count = 0;
  for (int number = 0; number < 4096; number++) count += fcntl(number, F_GETFD) >= 0;
  printf("%d descriptors are open\n", count);
}

/* Forks a second process, which calls `other`. Must be called before the runtime starts. Returns a socket to the second
 * process. */
static UNUSED int start_process(void (*other)(int)) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) exit(1);
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pair[0]);
    other(pair[1]);
    exit(0);
  }
  close(pair[1]);
  return pair[0];
}

static UNUSED void send_descriptor(int socket, int descriptor) {
  char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec bytes = {&byte, 1};
  struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space,
                           .msg_controllen = sizeof space};
  struct cmsghdr *control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(control), &descriptor, sizeof(int));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) exit(1);
}

static UNUSED int receive_descriptor(int socket) {
  int descriptor = -1;
  char byte, space[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec bytes = {&byte, 1};
  struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = space,
                           .msg_controllen = sizeof space};
  if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) exit(1);
  memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
  return descriptor;
}

static UNUSED void wait_for(int socket) {
  char byte;
  if (read(socket, &byte, 1) < 0) exit(1);
}
