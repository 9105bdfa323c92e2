/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Asserts the layouts in AMD's headers that the module uses. With other layouts the module does not compile. */
#ifndef HSA_VMM_LAYOUT_H
#define HSA_VMM_LAYOUT_H

#include <linux/build_bug.h>
#include "amdgpu.h"
#include "amdgpu_vm.h"
#include "kfd_pm4_headers_ai.h"
#include "kfd_pm4_headers_aldebaran.h"
#include "v9_structs.h"

/* Page-table entries of GFX9. */
static_assert(AMDGPU_PTE_VALID == 1 << 0);
static_assert(AMDGPU_PTE_SYSTEM == 1 << 1);
static_assert(AMDGPU_PTE_EXECUTABLE == 1 << 4);
static_assert(AMDGPU_PTE_READABLE == 1 << 5);
static_assert(AMDGPU_PTE_WRITEABLE == 1 << 6);
static_assert(AMDGPU_PDE_PTE == 1ull << 54);
static_assert(AMDGPU_PTE_TF == 1ull << 56);

/* Queue descriptors: the offset of a register in dwords. */
#define DWORD(type, field) (offsetof(struct type, field) / 4)
static_assert(DWORD(v9_mqd, cp_hqd_vmid) == 131);
static_assert(DWORD(v9_mqd, cp_hqd_pq_base_lo) == 136);
static_assert(DWORD(v9_mqd, cp_hqd_pq_base_hi) == 137);
static_assert(DWORD(v9_mqd, cp_hqd_pq_rptr_report_addr_lo) == 139);
static_assert(DWORD(v9_mqd, cp_hqd_pq_wptr_poll_addr_lo) == 141);
static_assert(DWORD(v9_mqd, cp_hqd_pq_control) == 145);
static_assert(DWORD(v9_sdma_mqd, sdmax_rlcx_rb_cntl) == 0);
static_assert(DWORD(v9_sdma_mqd, sdmax_rlcx_rb_base) == 1);
static_assert(DWORD(v9_sdma_mqd, sdmax_rlcx_rb_rptr_addr_hi) == 8);
static_assert(DWORD(v9_sdma_mqd, sdmax_rlcx_rb_rptr_addr_lo) == 9);

/* Packets of the hardware scheduler. */
static_assert(DWORD(pm4_mes_map_process_aldebaran, vm_context_page_table_base_addr_lo32) == 2);
static_assert(DWORD(pm4_mes_map_queues, mqd_addr_lo) == 3);
static_assert(DWORD(pm4_mes_map_queues, wptr_addr_lo) == 5);
static_assert(sizeof(struct pm4_mes_map_queues) == 7 * 4);
static_assert(sizeof(struct pm4_mes_runlist) == 4 * 4);
static_assert(sizeof(struct pm4_mes_unmap_queues) == 6 * 4);
static_assert(sizeof(struct pm4_mes_query_status) == 7 * 4);

#endif
