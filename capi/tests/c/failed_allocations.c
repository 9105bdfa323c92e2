/* Expects that every allocation that the configuration makes fail returns hipErrorOutOfMemory, and that at least one
 * fails. With an argument, opens files until no descriptor is left. */
#include <fcntl.h>
#include <hsavmm.h>
#include <stdio.h>
#include <sys/resource.h>

static int failed;

static int expect_out_of_memory(const char *call, hipError_t error, void *result) {
  if (error == hipSuccess) return 1;
  failed++;
  if (error == hipErrorOutOfMemory && result == NULL) return 1;
  fprintf(stderr, "%s: %p, %s\n", call, result, hsavmm_last_message());
  return 0;
}

int main(int count, char **arguments) {
  (void)arguments;
  if (hipInit(0) != hipSuccess) return 1;
  if (count > 1) {
    const struct rlimit limit = {64, 64};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    while (open("/dev/null", O_RDONLY) >= 0) {}
  }
  void *memory = &failed;
  hipError_t error = hipMalloc(&memory, 4096);
  if (!expect_out_of_memory("hipMalloc", error, memory)) return 1;
  memory = &failed;
  error = hipHostMalloc(&memory, 4096, 0);
  if (!expect_out_of_memory("hipHostMalloc", error, memory)) return 1;
  memory = &failed;
  error = hipMallocManaged(&memory, 4096, hipMemAttachGlobal);
  if (!expect_out_of_memory("hipMallocManaged", error, memory)) return 1;
  memory = &failed;
  error = hipMemAddressReserve(&memory, 2 << 20, 0, NULL, 0);
  if (!expect_out_of_memory("hipMemAddressReserve", error, memory)) return 1;
  hipMemGenericAllocationHandle_t handle = NULL;
  hipMemAllocationProp prop = {hipMemAllocationTypePinned, {hipMemHandleTypeNone},
                               {hipMemLocationTypeDevice, 0}, NULL, {0, 0, 0}};
  error = hipMemCreate(&handle, 2 << 20, &prop, 0);
  if (!expect_out_of_memory("hipMemCreate", error, handle)) return 1;
  puts(failed > 0 ? "all checks passed" : "no allocation failed");
  return 0;
}
