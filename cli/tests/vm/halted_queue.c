/*
 * A queue that hangs must stay halted when the scheduler maps the queue again. The program exits with 1 if the queue
 * then runs its packet.
 *
 * Run the program with --fault COPY#1=hang, so that the first copy hangs. The second copy creates an SDMA queue.
 * Therefore, the kernel writes a new run list. From this list, the scheduler maps all queues again.
 */
#include "gpu.h"

static hsa_agent_t cpu;

static hsa_status_t use_cpu(hsa_agent_t agent, void *data) {
  (void)data;
  uint32_t type = HSA_DEVICE_TYPE_GPU;
  hsa_agent_get_info(agent, HSA_AGENT_INFO_DEVICE, &type);
  if (type == HSA_DEVICE_TYPE_CPU) cpu = agent;
  return HSA_STATUS_SUCCESS;
}

/* Starts a copy of one page. Returns the signal that becomes 0 when the copy ends. */
static hsa_signal_t start_copy(void *to, const void *from, hsa_agent_t from_agent) {
  hsa_signal_t done;
  CALL(hsa_signal_create, 1, 0, NULL, &done);
  CALL(hsa_amd_memory_async_copy, to, gpu, from, from_agent, 4096, 0, NULL, done);
  return done;
}

int main(void) {
  start();
  CALL(hsa_iterate_agents, use_cpu, NULL);
  struct memory memory = new_memory(), other = new_memory();
  void *page = aligned_alloc(4096, 4096), *address;
  memset(page, 0, 4096);
  CALL(hsa_amd_memory_lock, page, 4096, &gpu, 1, &address);
  hsa_signal_t first = start_copy(memory.address, other.address, gpu);
  sleep_ms(500);
  if (hsa_signal_load_scacquire(first) == 0) check("--fault COPY#1=hang", -1);
  hsa_signal_t second = start_copy(other.address, address, cpu);
  for (int wait = 0; wait < 3000 && hsa_signal_load_scacquire(second) != 0; wait++) sleep_ms(10);
  if (hsa_signal_load_scacquire(second) != 0) check("the second copy", -1);
  sleep_ms(500);
  report(hsa_signal_load_scacquire(first) == 0, "the packet that had hung has run");
}
