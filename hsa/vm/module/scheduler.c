// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Selects and runs user queues. With sched_policy=2, amdkfd maps the queues itself. Otherwise, as on every real GPU
 * of this generation, amdkfd writes run lists into the hardware scheduler's queue (HIQ). One thread per GPU reads the
 * HIQ and runs packets of the mapped queues in turn.
 */
#include <linux/delay.h>
#include <linux/kthread.h>
#include "gpu.h"
#include "kfd_pm4_opcodes.h"
#include "layout.h"
#include "symbols.h"

/* The maximum number of packets of one queue before the next queue's turn. */
#define BURST 64
/*
 * The thread polls without sleeping until BUSY_NS after the last packet. Then it sleeps briefly between polls, until
 * RECENT_NS after the last packet. Later, it sleeps longer.
 */
#define BUSY_NS (300 * NSEC_PER_USEC)
#define RECENT_NS (2 * NSEC_PER_SEC)

static u64 join(u32 high, u32 low)
{
	return (u64)high << 32 | low;
}

/* Adds a queue. The caller holds queues_lock. */
static int add_locked(struct gpu *gpu, struct user_queue queue)
{
	for (int i = 0; i < MAX_QUEUES; i++) {
		if (gpu->queues[i].mqd)
			continue;
		queue.halted = READ_ONCE(*queue.saved_halted);
		gpu->queues[i] = queue;
		return 0;
	}
	return -ENOSPC;
}

int add_queue(struct gpu *gpu, struct user_queue queue)
{
	int error;

	mutex_lock(&gpu->queues_lock);
	error = add_locked(gpu, queue);
	mutex_unlock(&gpu->queues_lock);
	wake_up_process(gpu->thread);
	return error;
}

void remove_queue(struct gpu *gpu, u64 mqd)
{
	mutex_lock(&gpu->queues_lock);
	for (int i = 0; i < MAX_QUEUES; i++)
		if (gpu->queues[i].mqd == mqd)
			gpu->queues[i].mqd = 0;
	mutex_unlock(&gpu->queues_lock);
}

/* Returns the number of the address space of a process in the run list. Assigns a free space to a new process. */
static u32 space_of(struct gpu *gpu, u32 pasid)
{
	u32 unused = FIRST_RUNLIST_SPACE;

	for (u32 i = FIRST_RUNLIST_SPACE; i < MAX_SPACES; i++)
		if (gpu->spaces[i].pasid == pasid)
			return i;
	for (u32 i = FIRST_RUNLIST_SPACE; i < MAX_SPACES; i++) {
		bool used = false;

		for (int q = 0; q < MAX_QUEUES; q++)
			used |= gpu->queues[q].mqd && gpu->queues[q].space == i;
		if (!used) {
			unused = i;
			break;
		}
	}
	gpu->spaces[unused].pasid = pasid;
	/* Invalidates the TLB entries of the space's former process. */
	gpu->spaces[unused].generation++;
	return unused;
}

static void map_queue(struct gpu *gpu, const struct pm4_mes_map_queues *p, u32 space)
{
	bool is_compute = p->bitfields2.engine_sel == engine_sel__mes_map_queues__compute_vi &&
			  p->bitfields2.extended_engine_sel ==
				  extended_engine_sel__mes_map_queues__legacy_engine_sel;
	struct user_queue queue = { .mqd = join(p->mqd_addr_hi, p->mqd_addr_lo), .space = space,
				    .is_sdma = !is_compute };
	u64 remaining;
	void *mqd = kernel_pointer(gpu, queue.mqd, &remaining);

	queue.wptr_address = join(p->wptr_addr_hi, p->wptr_addr_lo);
	if (!mqd) {
		dev_err(gpu->adev->dev, "hsa_vmm: HIQ: no queue descriptor at %#llx\n", queue.mqd);
		return;
	}
	if (is_compute) {
		struct v9_mqd *m = mqd;

		queue.saved_halted = &m->reserved_43;
		queue.base = join(m->cp_hqd_pq_base_hi, m->cp_hqd_pq_base_lo) << 8;
		queue.size = 8ull << (m->cp_hqd_pq_control & 0x3f);
		queue.rptr_address =
			join(m->cp_hqd_pq_rptr_report_addr_hi, m->cp_hqd_pq_rptr_report_addr_lo);
	} else {
		struct v9_sdma_mqd *m = mqd;

		queue.saved_halted = &m->reserved_42;
		queue.base = join(m->sdmax_rlcx_rb_base_hi, m->sdmax_rlcx_rb_base) << 8;
		queue.size = 4ull << (m->sdmax_rlcx_rb_cntl >> 1 & 0x3f);
		queue.rptr_address = join(m->sdmax_rlcx_rb_rptr_addr_hi, m->sdmax_rlcx_rb_rptr_addr_lo);
	}
	if (add_locked(gpu, queue))
		dev_err(gpu->adev->dev, "hsa_vmm: more than %d queues are mapped\n", MAX_QUEUES);
}

static void unmap_queues(struct gpu *gpu, const struct pm4_mes_unmap_queues *p)
{
	bool only_pasid = p->bitfields2.queue_sel ==
			  queue_sel__mes_unmap_queues__perform_request_on_pasid_queues;

	for (int i = 0; i < MAX_QUEUES; i++) {
		struct user_queue *queue = &gpu->queues[i];

		if (!only_pasid || gpu->spaces[queue->space].pasid == p->bitfields3a.pasid)
			queue->mqd = 0;
	}
}

static void map_run_list(struct gpu *gpu, u64 list, u32 size)
{
	u32 space = 0;

	while (size) {
		u64 remaining;
		const u32 *p = kernel_pointer(gpu, list, &remaining);
		u32 length = p ? (p[0] >> 16 & 0x3fff) + 2 : 0;
		u64 address;

		if (!length || length > size) {
			dev_err(gpu->adev->dev, "hsa_vmm: HIQ: invalid run list at %#llx\n", list);
			return;
		}
		switch (p[0] >> 8 & 0xff) {
		case IT_MAP_PROCESS:
			/* Both forms of the packet have the PASID and the root at the same offsets. */
			space = space_of(gpu, p[1] & 0xffff);
			WRITE_ONCE(gpu->spaces[space].root, join(p[3], p[2]));
			break;
		case IT_MAP_QUEUES:
			map_queue(gpu, (const void *)p, space);
			break;
		case IT_RUN_LIST: /* at the end of an oversubscribed list: on hardware, restarts the list */
			return;
		case IT_INDIRECT_BUFFER:
			address = join(p[2], p[1]);
			size = p[3] & 0xfffff;
			list = address;
			continue;
		default:
			break;
		}
		size -= length;
		list += length * sizeof(u32);
	}
}

/* Executes one packet of the HIQ. Packets do not wrap: the kernel fills the ring's end with NOPs. */
static void run_scheduler_packet(struct gpu *gpu, const u32 *p)
{
	const struct pm4_mes_runlist *list = (const void *)p;
	const struct pm4_mes_query_status *query = (const void *)p;
	u64 remaining, *fence;

	switch (p[0] >> 8 & 0xff) {
	case IT_RUN_LIST:
		for (int i = 0; i < MAX_QUEUES; i++)
			gpu->queues[i].mqd = 0;
		map_run_list(gpu, join(list->ib_base_hi, list->ordinal2), list->bitfields4.ib_size);
		break;
	case IT_UNMAP_QUEUES:
		unmap_queues(gpu, (const void *)p);
		break;
	case IT_QUERY_STATUS:
		fence = kernel_pointer(gpu, join(query->addr_hi, query->addr_lo), &remaining);
		if (fence)
			WRITE_ONCE(*fence, join(query->data_hi, query->data_lo));
		break;
	case IT_NOP:
	case IT_SET_RESOURCES:
	case IT_WRITE_DATA:
		break;
	default:
		dev_err_ratelimited(gpu->adev->dev, "hsa_vmm: HIQ: unknown packet %#x\n", p[0]);
	}
}

/* Executes the packets of the HIQ. The caller holds queues_lock. */
void run_scheduler_queue(struct gpu *gpu)
{
	struct scheduler_queue *hiq = &gpu->hiq;
	u64 wptr;

	if (!hiq->loaded)
		return;
	wptr = READ_ONCE(*hiq->wptr_report);
	while (hiq->rptr < wptr) {
		const u32 *p = &hiq->ring[hiq->rptr & hiq->mask];
		u32 count = p[0] >> 16 & 0x3fff;

		run_scheduler_packet(gpu, p);
		/* A NOP with the largest count has no body. */
		hiq->rptr += count == 0x3fff ? 1 : count + 2;
	}
	WRITE_ONCE(*hiq->rptr_report, hiq->rptr & hiq->mask);
}

static void signal_page_fault(struct gpu *gpu, const struct access *a)
{
	struct kfd_node *node = gpu->adev->kfd.dev->nodes[0];
	u32 pasid = gpu->spaces[a->space].pasid;
	struct kfd_vm_fault_info info = {
		.page_addr = a->fault_address >> PAGE_SHIFT,
		.vmid = a->space,
		.prot_valid = true,
		.prot_read = !a->fault_is_write,
		.prot_write = a->fault_is_write,
	};
	struct kfd_hsa_memory_exception_data data = {
		.va = a->fault_address & PAGE_MASK,
		.gpu_id = node->id,
		.failure.NotPresent = 1,
		.failure.ReadOnly = a->fault_is_write,
	};

	gpu->page_faults++;
	dev_err_ratelimited(gpu->adev->dev, "hsa_vmm: page fault: pasid %u, %s at %#llx\n", pasid,
			    a->fault_is_write ? "write" : "read", a->fault_address);
	amd.kfd_signal_vm_fault_event(node, pasid, &info, &data);
}

/* Runs packets of one queue. Returns their number. The caller holds queues_lock. */
static int run_queue(struct gpu *gpu, struct user_queue *queue)
{
	struct access a = { .gpu = gpu, .space = queue->space };
	int done = 0, status = 0;

	/* A queue that is mapped again continues at the read pointer in memory. */
	if (!queue->has_rptr)
		status = user_read(&a, queue->rptr_address, &queue->rptr, sizeof(queue->rptr));
	queue->has_rptr = !status;
	status = status ?: user_read(&a, queue->wptr_address, &queue->wptr, sizeof(queue->wptr));
	while (!status && done < BURST && queue->rptr < queue->wptr) {
		u64 before = queue->rptr;

		status = queue->is_sdma ? run_sdma_packet(&a, queue) : run_aql_packet(&a, queue);
		if (queue->rptr != before)
			user_write(&a, queue->rptr_address, &queue->rptr, sizeof(queue->rptr));
		if (!status)
			break;
		if (status > 0) {
			status = 0;
			done++;
		}
	}
	if (status < 0) {
		queue->halted = true;
		WRITE_ONCE(*queue->saved_halted, true);
		if (status != -ECANCELED)
			signal_page_fault(gpu, &a);
	}
	return done;
}

int run_queues(void *argument)
{
	struct gpu *gpu = argument;
	u64 last = 0;

	while (!kthread_should_stop()) {
		int done = 0;

		for (int i = 0; i < MAX_QUEUES; i++) {
			struct user_queue *queue = &gpu->queues[i];

			/* amdkfd waits until the packets of the HIQ are executed, so read the HIQ before each queue. */
			if (i && !READ_ONCE(queue->mqd))
				continue;
			mutex_lock(&gpu->queues_lock);
			run_scheduler_queue(gpu);
			if (queue->mqd && !queue->halted)
				done += run_queue(gpu, queue);
			mutex_unlock(&gpu->queues_lock);
		}
		if (done)
			last = ktime_get_ns();
		if (done || ktime_get_ns() - last < BUSY_NS)
			cond_resched();
		else if (ktime_get_ns() - last < RECENT_NS)
			usleep_range(40, 80);
		else
			usleep_range(500, 1000);
	}
	return 0;
}
