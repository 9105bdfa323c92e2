// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The functions with which amdkfd programs a GPU (kfd2kgd_calls). They replace AMD's functions, which access registers.
 * Functions for registers that a software GPU does not need are empty.
 */
#include "gpu.h"
#include "layout.h"
#include "symbols.h"

static u64 join(u32 high, u32 low)
{
	return (u64)high << 32 | low;
}

static void set_sh_mem(struct amdgpu_device *adev, u32 vmid, u32 config, u32 ape1_base, u32 ape1_limit,
		       u32 bases, u32 instance)
{
}

static int set_pasid(struct amdgpu_device *adev, u32 pasid, unsigned int vmid, u32 instance)
{
	if (vmid < FIRST_RUNLIST_SPACE)
		gpu_of(adev)->spaces[vmid].pasid = pasid;
	return 0;
}

static void set_root(struct amdgpu_device *adev, u32 vmid, u64 root)
{
	if (vmid < FIRST_RUNLIST_SPACE)
		gpu_of(adev)->spaces[vmid].root = root;
}

static int init_interrupts(struct amdgpu_device *adev, u32 pipe, u32 instance)
{
	return 0;
}

static int load_compute_queue(struct amdgpu_device *adev, void *mqd, u32 pipe, u32 queue, u32 __user *wptr,
			      u32 wptr_shift, u32 wptr_mask, struct mm_struct *mm, u32 instance)
{
	struct v9_mqd *m = mqd;

	/* All XCCs get the same queue, so add the queue once. */
	if (instance)
		return 0;
	return add_queue(gpu_of(adev), (struct user_queue){
		.mqd = (u64)mqd,
		.saved_halted = &m->reserved_43,
		.space = m->cp_hqd_vmid % FIRST_RUNLIST_SPACE,
		.base = join(m->cp_hqd_pq_base_hi, m->cp_hqd_pq_base_lo) << 8,
		.size = 8ull << (m->cp_hqd_pq_control & 0x3f),
		.rptr_address = join(m->cp_hqd_pq_rptr_report_addr_hi, m->cp_hqd_pq_rptr_report_addr_lo),
		.wptr_address = join(m->cp_hqd_pq_wptr_poll_addr_hi, m->cp_hqd_pq_wptr_poll_addr_lo),
	});
}

static int load_sdma_queue(struct amdgpu_device *adev, void *mqd, u32 __user *wptr, struct mm_struct *mm)
{
	struct v9_sdma_mqd *m = mqd;

	return add_queue(gpu_of(adev), (struct user_queue){
		.mqd = (u64)mqd,
		.is_sdma = true,
		.saved_halted = &m->reserved_42,
		.space = m->sdmax_rlcx_rb_cntl >> 24 & 0xf,
		.base = join(m->sdmax_rlcx_rb_base_hi, m->sdmax_rlcx_rb_base) << 8,
		.size = 4ull << (m->sdmax_rlcx_rb_cntl >> 1 & 0x3f),
		.rptr_address = join(m->sdmax_rlcx_rb_rptr_addr_hi, m->sdmax_rlcx_rb_rptr_addr_lo),
		.wptr_address = (u64)wptr,
	});
}

static int destroy_compute_queue(struct amdgpu_device *adev, void *mqd, enum kfd_preempt_type type,
				 unsigned int timeout, u32 pipe, u32 queue, u32 instance)
{
	remove_queue(gpu_of(adev), (u64)mqd);
	return 0;
}

static int destroy_sdma_queue(struct amdgpu_device *adev, void *mqd, unsigned int timeout)
{
	remove_queue(gpu_of(adev), (u64)mqd);
	return 0;
}

/* Starts the hardware scheduler's queue (HIQ). Packets of this queue then map all other queues. */
static int load_scheduler_queue(struct amdgpu_device *adev, void *mqd, u32 pipe, u32 queue, u32 doorbell,
				u32 instance)
{
	const struct v9_mqd *m = mqd;
	struct gpu *gpu = gpu_of(adev);
	struct scheduler_queue hiq = { };
	u64 remaining;

	/* One scheduler serves all XCCs. */
	if (instance)
		return 0;
	hiq.ring = kernel_pointer(gpu, join(m->cp_hqd_pq_base_hi, m->cp_hqd_pq_base_lo) << 8, &remaining);
	hiq.mask = (2u << (m->cp_hqd_pq_control & 0x3f)) - 1;
	hiq.rptr_report = kernel_pointer(gpu, join(m->cp_hqd_pq_rptr_report_addr_hi,
						   m->cp_hqd_pq_rptr_report_addr_lo), &remaining);
	hiq.wptr_report = kernel_pointer(gpu, join(m->cp_hqd_pq_wptr_poll_addr_hi,
						   m->cp_hqd_pq_wptr_poll_addr_lo), &remaining);
	if (!hiq.ring || !hiq.rptr_report || !hiq.wptr_report)
		return -EFAULT;
	hiq.loaded = true;
	mutex_lock(&gpu->queues_lock);
	gpu->hiq = hiq;
	mutex_unlock(&gpu->queues_lock);
	wake_up_process(gpu->thread);
	return 0;
}

static bool is_compute_occupied(struct amdgpu_device *adev, u64 queue_address, u32 pipe, u32 queue,
				u32 instance)
{
	return false;
}

static bool is_sdma_occupied(struct amdgpu_device *adev, void *mqd)
{
	return false;
}

static int control_waves(struct amdgpu_device *adev, u32 gfx_index, u32 command, u32 instance)
{
	return 0;
}

static bool get_pasid(struct amdgpu_device *adev, u8 vmid, u16 *pasid)
{
	return false;
}

static void get_occupancy(struct amdgpu_device *adev, struct kfd_cu_occupancy *occupancy, int *waves,
			  u32 instance)
{
	*waves = 0;
}

static void set_trap_handler(struct amdgpu_device *adev, u32 vmid, u64 tba, u64 tma, u32 instance)
{
}

static u32 set_debug_trap(struct amdgpu_device *adev, bool restore, u32 vmid)
{
	return 0;
}

static void get_wait_times(struct amdgpu_device *adev, u32 *wait_times, u32 instance)
{
	*wait_times = 0;
}

void replace_kfd2kgd(struct gpu *gpu)
{
	struct kfd_dev *kfd = gpu->adev->kfd.dev;
	struct kfd2kgd_calls *calls = &gpu->kfd2kgd;

	*calls = *kfd->kfd2kgd;
	calls->program_sh_mem_settings = set_sh_mem;
	calls->set_pasid_vmid_mapping = set_pasid;
	calls->set_vm_context_page_table_base = set_root;
	calls->init_interrupts = init_interrupts;
	calls->hqd_load = load_compute_queue;
	calls->hqd_sdma_load = load_sdma_queue;
	calls->hqd_destroy = destroy_compute_queue;
	calls->hqd_sdma_destroy = destroy_sdma_queue;
	calls->hiq_mqd_load = load_scheduler_queue;
	calls->hqd_is_occupied = is_compute_occupied;
	calls->hqd_sdma_is_occupied = is_sdma_occupied;
	calls->wave_control_execute = control_waves;
	calls->get_atc_vmid_pasid_mapping_info = get_pasid;
	calls->get_cu_occupancy = get_occupancy;
	calls->program_trap_handler_settings = set_trap_handler;
	calls->enable_debug_trap = set_debug_trap;
	calls->disable_debug_trap = set_debug_trap;
	calls->get_iq_wait_times = get_wait_times;
	/* AMD's versions of these functions read registers. */
	calls->hqd_dump = NULL;
	calls->hqd_sdma_dump = NULL;
	kfd->kfd2kgd = calls;
}
