
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>

/* Constants of libdrm's headers, and functions of the copy of libdrm that the runtime has loaded. */
enum { DMA_BUF = 2, REPLACE = 4, AMDGPU_VM_PAGE_READABLE = 2, ALL_PERMISSIONS = 14 };
struct imported_buffer {
  void *buffer;
  uint64_t size;
};
static int (*device_initialize)(int, uint32_t *, uint32_t *, void **);
static int (*bo_import)(void *, unsigned, uint32_t, struct imported_buffer *);
static int (*bo_va_op_raw)(void *, void *, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t);
static int (*bo_free)(void *);
static void *device;
static UNUSED struct imported_buffer imported;
static volatile int faulted;
static UNUSED char page[4096] __attribute__((aligned(4096)));

static UNUSED hsa_status_t note_fault(const hsa_amd_event_t *event, void *data) {
  (void)event;
  (void)data;
  faulted = 1;
  return HSA_STATUS_SUCCESS;
}

static UNUSED void check_libdrm(int result, const char *call) {
  if (result == 0) return;
  fprintf(stderr, "%s failed: %s\n", call, strerror(result == -1 ? errno : -result));
  exit(1);
}

static UNUSED void open_address_space(hsa_agent_t agent) {
  char path[80], line[80];
  uint32_t node, major, minor;
  int render = -1;
  CHECK(hsa_agent_get_info(agent, (hsa_agent_info_t)HSA_AMD_AGENT_INFO_DRIVER_NODE_ID, &node));
  snprintf(path, sizeof path, "/sys/class/kfd/kfd/topology/nodes/%u/properties", node);
  FILE *properties = fopen(path, "r");
  while (properties && render < 0 && fgets(line, sizeof line, properties))
    sscanf(line, "drm_render_minor %d", &render);
  snprintf(path, sizeof path, "/dev/dri/renderD%d", render);
  int file = open(path, O_RDWR | O_CLOEXEC);
  void *libdrm = dlopen("librocm_sysdeps_drm_amdgpu.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!libdrm) libdrm = dlopen("libdrm_amdgpu.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!libdrm || file < 0) {
    fprintf(stderr, "no libdrm_amdgpu, or cannot open %s\n", path);
    exit(1);
  }
  *(void **)&device_initialize = dlsym(libdrm, "amdgpu_device_initialize");
  *(void **)&bo_import = dlsym(libdrm, "amdgpu_bo_import");
  *(void **)&bo_va_op_raw = dlsym(libdrm, "amdgpu_bo_va_op_raw");
  *(void **)&bo_free = dlsym(libdrm, "amdgpu_bo_free");
  check_libdrm(device_initialize(file, &major, &minor, &device), "amdgpu_device_initialize");
}

static UNUSED void import_memory(int dmabuf) {
  check_libdrm(bo_import(device, DMA_BUF, (uint32_t)dmabuf, &imported), "amdgpu_bo_import");
}

static UNUSED void replace(void *va, size_t bytes, size_t offset, uint64_t permissions) {
  void *buffer = imported.buffer;
  int result = bo_va_op_raw(device, buffer, offset, bytes, (uintptr_t)va, permissions, REPLACE);
  check_libdrm(result, "amdgpu_bo_va_op_raw");
  bo_free(buffer);
}

static UNUSED void expect_fault(hsa_signal_t signal) {
  while (!faulted && hsa_signal_load_scacquire(signal) >= 1) usleep(1000);
  if (!faulted) {
    fprintf(stderr, "the copy did not fault\n");
    exit(1);
  }
  _exit(0);
}
