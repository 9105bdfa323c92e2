/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Functions and tables that amdgpu.ko does not export. */
#ifndef HSA_VMM_SYMBOLS_H
#define HSA_VMM_SYMBOLS_H

#include "amdgpu.h"
#include "kfd_events.h"
#include "kfd_priv.h"

/* X(type of the result, name, arguments) */
#define AMD_FUNCTIONS(X)                                                                          \
	X(int, amdgpu_device_ip_block_add,                                                        \
	  (struct amdgpu_device *, const struct amdgpu_ip_block_version *))                       \
	X(int, aldebaran_reg_base_init, (struct amdgpu_device *))                                 \
	X(int, amdgpu_ring_init, (struct amdgpu_device *, struct amdgpu_ring *, unsigned int,     \
				  struct amdgpu_irq_src *, unsigned int, unsigned int, atomic_t *)) \
	X(bool, amdgpu_fence_process, (struct amdgpu_ring *))                                     \
	X(void, amdgpu_gtt_mgr_recover, (struct amdgpu_gtt_mgr *))                                \
	X(int, amdgpu_gmc_allocate_vm_inv_eng, (struct amdgpu_device *))                          \
	X(u64, amdgpu_bo_gpu_offset_no_check, (struct amdgpu_bo *))                               \
	X(struct kfd_process *, kfd_lookup_process_by_pid, (struct pid *))                        \
	X(void, kfd_unref_process, (struct kfd_process *))                                        \
	X(void, kfd_signal_event_interrupt, (u32, uint32_t, uint32_t))                            \
	X(void, kfd_signal_vm_fault_event, (struct kfd_node *, u32, struct kfd_vm_fault_info *,   \
					    struct kfd_hsa_memory_exception_data *))

#define AMD_TABLES(X)                                                                             \
	X(struct amd_ip_funcs, gmc_v9_0_ip_funcs)                                                 \
	X(struct amdgpu_ring_funcs, sdma_v4_4_2_ring_funcs)                                       \
	X(struct amdgpu_buffer_funcs, sdma_v4_4_2_buffer_funcs)                                   \
	X(struct amdgpu_vm_pte_funcs, sdma_v4_4_2_vm_pte_funcs)

struct amd_symbols {
#define FUNCTION(result, name, arguments) result (*name) arguments;
#define TABLE(type, name) const type *name;
	AMD_FUNCTIONS(FUNCTION)
	AMD_TABLES(TABLE)
#undef FUNCTION
#undef TABLE
};

extern struct amd_symbols amd;

/* Resolves all symbols. If a symbol is missing, logs its name and returns -ENOENT. */
int resolve_symbols(void);
/* Returns the address of a symbol of amdgpu.ko, or 0. */
unsigned long amdgpu_symbol(const char *name);
/* Returns the kernel's command line, or NULL. */
const char *kernel_command_line(void);

#endif
