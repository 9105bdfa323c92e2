/*
 * Two processes share one allocation. Afterwards, each of them can get access to allocations of the other process that
 * were never shared.
 *
 * amdkfd deletes a GEM handle when an import is freed, and deletes the same handle again when the shared memory itself
 * is freed (amdgpu_amdkfd_gpuvm_free_memory_of_gpu; see shared_gem_handle.c). The table of these handles belongs to the
 * GPU (adev->kfd.client), not to a process, so an import by another process has the same handle as the memory.
 *
 * Here, the reader frees its import first, and allocates memory A, which gets the free handle number. Then the owner
 * frees the shared memory, which deletes the handle of A. The owner allocates memory B, which gets the same number.
 * When the reader maps A, kfd_mem_export_dmabuf looks up the number, and exports B, the memory of the owner.
 */
#include "gpu.h"
#include <sys/socket.h>

enum { HANDLES = 32, SECRET = 0x5e };

/* The processes take turns. Each waits for a byte from the other. The owner sends a descriptor with its first byte. */
static void give_turn(int socket, int descriptor) {
  struct iovec byte = {.iov_base = "", .iov_len = 1};
  char control[CMSG_SPACE(sizeof(int))] = {0};
  struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  if (sendmsg(socket, &message, 0) != 1) _exit(2);
}

static int wait_for_turn(int socket) {
  char data, control[CMSG_SPACE(sizeof(int))];
  struct iovec byte = {.iov_base = &data, .iov_len = 1};
  struct msghdr message = {
      .msg_iov = &byte, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
  if (recvmsg(socket, &message, 0) != 1) _exit(2);
  int descriptor = -1;
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (header) memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

/* Starts the runtime and makes a first copy, so that the runtime allocates the memory that all copies need. Returns a
 * page of the host, and stores the page's address for the GPU in `gpu_page`. */
static char *start_runtime_and_copy_once(void **gpu_page) {
  start();
  char *page = aligned_alloc(4096, 4096);
  memset(page, 0, 4096);
  CALL(hsa_amd_memory_lock, page, 4096, NULL, 0, gpu_page);
  struct memory memory = new_memory();
  flush();
  if (!copy(memory.address, *gpu_page)) fail("the first copy faulted or took more than five seconds");
  return page;
}

/* Imports the shared memory and releases it. Then maps memory of this process, and reports whether it is the owner's
 * memory. */
static void run_reader(int socket) {
  char *address;
  void *gpu_page;
  hsa_amd_vmem_alloc_handle_t imported, handles[HANDLES];
  int secrets = 0, unmappable = 0;
  char *page = start_runtime_and_copy_once(&gpu_page);
  hsa_amd_memory_access_desc_t access = {HSA_ACCESS_PERMISSION_RW, gpu};
  give_turn(socket, -1);
  int descriptor = wait_for_turn(socket);
  CALL(hsa_amd_vmem_import_shareable_handle, descriptor, &imported);
  close(descriptor);
  CALL(hsa_amd_vmem_handle_release, imported);
  for (int i = 0; i < HANDLES; i++)
    CALL(hsa_amd_vmem_handle_create, pool, SIZE, MEMORY_TYPE_PINNED, 0, &handles[i]);
  give_turn(socket, -1);
  wait_for_turn(socket);
  for (int i = 0; i < HANDLES; i++) {
    CALL(hsa_amd_vmem_address_reserve, (void **)&address, SIZE, 0, 0);
    if (hsa_amd_vmem_map(address, SIZE, 0, handles[i], 0) != HSA_STATUS_SUCCESS) {
      unmappable++;
      continue;
    }
    CALL(hsa_amd_vmem_set_access, address, SIZE, &access, 1);
    flush();
    memset(page, 0, 4096);
    if (!copy(gpu_page, address)) fail("a copy from the reader's own memory faulted or took more than five seconds");
    secrets += page[0] == SECRET && !memcmp(page, page + 1, 4095);
  }
  report(secrets + unmappable > 0, secrets > 0 ? "a process has read memory of another process"
                                   : "another process freed shared memory, and now this process cannot map its own memory");
}

/* Shares memory and releases it. Then creates other memory, which contains the secret. */
static void run_owner(int socket) {
  void *gpu_page;
  hsa_amd_vmem_alloc_handle_t shared;
  int descriptor;
  char *page = start_runtime_and_copy_once(&gpu_page);
  wait_for_turn(socket);
  CALL(hsa_amd_vmem_handle_create, pool, SIZE, MEMORY_TYPE_PINNED, 0, &shared);
  CALL(hsa_amd_vmem_export_shareable_handle, &descriptor, shared, 0);
  give_turn(socket, descriptor);
  close(descriptor);
  wait_for_turn(socket);
  CALL(hsa_amd_vmem_handle_release, shared);
  struct memory secret = new_memory();
  flush();
  memset(page, SECRET, 4096);
  if (!copy(secret.address, gpu_page)) fail("the copy of the secret faulted or took more than five seconds");
  give_turn(socket, -1);
  /* The memory stays allocated until the reader has ended. */
  wait_for_turn(socket);
}

int main(void) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) check("socketpair", -1);
  int is_reader = fork() != 0;
  close(sockets[is_reader]);
  if (is_reader) run_reader(sockets[0]);
  run_owner(sockets[1]);
}
