// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The SDMA engine of the kernel's ring. It executes the packets that AMD's emitters (sdma_v4_4_2) have written: copies,
 * fills, page-table writes and fences.
 */
#include <linux/delay.h>
#include "gpu.h"
#include "symbols.h"

enum {
	NOP = 0,
	COPY_LINEAR = 1,
	WRITE_LINEAR = 2,
	INDIRECT = 4,
	FENCE = 5,
	TRAP = 6,
	POLL_REGISTER = 8,
	CONST_FILL = 11,
	PTE_PDE = 12,
	SRBM_WRITE = 14,
};

/*
 * An upper bound for the size of an indirect buffer (IB), in bytes. A copy packet writes page tables if its source is
 * in the IB that contains the packet. The engine assumes this if the source is less than this limit after the start of
 * the IB.
 */
#define IB_SIZE_LIMIT 0x20000

uint pte_delay_ms;
module_param_named(pte_delay, pte_delay_ms, uint, 0644);
MODULE_PARM_DESC(pte_delay, "delay of the SDMA jobs that write page tables, in milliseconds");

struct workqueue_struct *kernel_engine_wq;
static struct amdgpu_ring_funcs ring_funcs;

/* Packets in a ring (`mask` is its size in dwords, minus one) or in an indirect buffer (`mask` is all ones). */
struct packets {
	u32 *words;
	u64 mask;
	u64 position;
	bool is_indirect;
	/* Whether the packets write page tables. */
	bool writes_tables;
	/* If `writes_tables`: the planned fault of these writes. */
	struct fault fault;
};

static u32 word(const struct packets *p, u32 n)
{
	return p->words[(p->position + n) & p->mask];
}

static u64 quad(const struct packets *p, u32 n)
{
	return word(p, n) | (u64)word(p, n + 1) << 32;
}

static void report_invalid_address(struct gpu *gpu, const char *operation, u64 address)
{
	gpu->page_faults++;
	dev_err_ratelimited(gpu->adev->dev, "hsa_vmm: kernel SDMA: %s at invalid address %#llx\n", operation,
			    address);
}

static void fill(struct gpu *gpu, u64 to, u32 value, u64 size)
{
	for (u64 part; size; size -= part, to += part) {
		void *target = kernel_pointer(gpu, to, &part);

		if (!target)
			return report_invalid_address(gpu, "fill", to);
		part = min(part, size);
		memset32(target, value, part / sizeof(u32));
		cond_resched();
	}
}

static void copy(struct gpu *gpu, u64 from, u64 to, u64 size)
{
	for (u64 part, target_part; size; size -= part, from += part, to += part) {
		void *source = kernel_pointer(gpu, from, &part);
		void *target = kernel_pointer(gpu, to, &target_part);

		if (!source || !target)
			return report_invalid_address(gpu, "copy", source ? to : from);
		part = min3(part, target_part, size);
		memcpy(target, source, part);
		cond_resched();
	}
}

static void run_fill(struct operation_data *data)
{
	fill(data->gpu, data->to, data->input, data->size);
}

static void run_copy(struct operation_data *data)
{
	copy(data->gpu, data->input, data->to, data->size);
}

/* Performs a copy or fill with its planned fault. */
static void perform_with_fault(struct fault fault, struct operation_data data,
			       void (*run)(struct operation_data *data))
{
	u64 remaining;
	u8 *byte;

	if (fault.effect == LOST)
		return;
	if (fault.effect == LATE)
		return perform_late(fault.time_us, run, data);
	if (fault.effect == HALF)
		data.size = round_down(data.size / 2, sizeof(u32));
	run(&data);
	byte = fault.effect == GARBLED ? kernel_pointer(data.gpu, data.to, &remaining) : NULL;
	if (byte)
		*byte ^= 1;
}

static void write_word(struct gpu *gpu, u64 to, u32 value)
{
	u64 remaining;
	u32 *target = kernel_pointer(gpu, to, &remaining);

	if (!target)
		return report_invalid_address(gpu, "write", to);
	WRITE_ONCE(*target, value);
}

static void write_entry(struct gpu *gpu, u64 to, u64 value)
{
	u64 remaining, *target = kernel_pointer(gpu, to, &remaining);

	if (!target)
		return report_invalid_address(gpu, "page-table write", to);
	WRITE_ONCE(*target, value);
}

/* Writes page-table entries. `input` points to an array of entries, which the function frees. */
static void write_entries(struct operation_data *data)
{
	u64 *entries = (u64 *)data->input;

	for (u64 i = 0; i < data->size / sizeof(u64); i++)
		write_entry(data->gpu, data->to + i * sizeof(u64), entries[i]);
	kvfree(entries);
}

/* Executes a packet that writes page-table entries: PTE_PDE, WRITE_LINEAR, or COPY_LINEAR. */
static void run_table_packet(struct gpu *gpu, const struct packets *p)
{
	u8 operation = word(p, 0) & 0xff;
	struct operation_data data = { .gpu = gpu, .to = quad(p, operation == COPY_LINEAR ? 5 : 1) };
	u64 value = quad(p, 5), *entries, remaining;

	if (operation == COPY_LINEAR)
		data.size = (u64)(word(p, 1) & 0x3fffffff) + 1;
	else if (operation == WRITE_LINEAR)
		data.size = ((word(p, 3) & 0xfffff) + 1) * sizeof(u32);
	else
		data.size = ((word(p, 9) & 0x7ffff) + 1) * sizeof(u64);
	entries = kvmalloc(data.size, GFP_KERNEL);
	if (!entries) {
		dev_err_ratelimited(gpu->adev->dev, "hsa_vmm: kernel SDMA: out of memory: page-table write to %#llx lost\n",
				    data.to);
		return;
	}
	for (u32 i = 0; i < data.size / sizeof(u64); i++) {
		u64 *source;

		switch (operation) {
		case COPY_LINEAR:
			source = kernel_pointer(gpu, quad(p, 3) + i * sizeof(u64), &remaining);
			entries[i] = source ? *source : 0;
			break;
		case WRITE_LINEAR:
			entries[i] = quad(p, 4 + 2 * i);
			break;
		default:
			entries[i] = (value + (u64)i * word(p, 7)) | quad(p, 3);
		}
	}
	data.input = (u64)entries;
	if (p->fault.effect == LATE)
		perform_late(p->fault.time_us, write_entries, data);
	else
		write_entries(&data);
}

/* Returns whether an indirect buffer writes page tables. The type of its first packet decides. */
static bool writes_page_tables(const u32 *words, u64 buffer)
{
	switch (words[0] & 0xff) {
	case PTE_PDE:
	case WRITE_LINEAR:
		return true;
	case COPY_LINEAR: /* a page-table write copies entries from the indirect buffer itself */
		return *(const u64 *)(words + 3) - buffer < IB_SIZE_LIMIT;
	default:
		return false;
	}
}

/* Returns whether a job writes the GART, through which the kernel's copies reach system memory. */
static bool writes_gart(struct gpu *gpu, const struct packets *p)
{
	const struct amdgpu_gart *gart = &gpu->adev->gart;
	u64 to = quad(p, (word(p, 0) & 0xff) == COPY_LINEAR ? 5 : 1);
	u64 table = amd.amdgpu_bo_gpu_offset_no_check(gart->bo);

	return to >= table && to - table < gart->num_gpu_pages * sizeof(u64);
}

static u32 run_packet(struct gpu *gpu, const struct packets *p);

static void run_indirect(struct gpu *gpu, u64 buffer, u32 size)
{
	u64 remaining;
	/* The driver allocates indirect buffers from a pool that is contiguous in the CPU's address space. */
	struct packets p = { .words = kernel_pointer(gpu, buffer, &remaining), .mask = ~0ull,
			     .is_indirect = true };

	if (!p.words)
		return report_invalid_address(gpu, "indirect buffer", buffer);
	if (size && writes_page_tables(p.words, buffer)) {
		p.writes_tables = true;
		/* No fault applies to writes of the GART: with an outdated GART, copies would overwrite the kernel's memory. */
		if (!writes_gart(gpu, &p))
			p.fault = next_fault(PTE_WRITE);
		if (p.fault.effect == LOST)
			return;
		if (READ_ONCE(pte_delay_ms))
			msleep(pte_delay_ms);
	}
	while (p.position < size)
		p.position += run_packet(gpu, &p);
}

/* Executes one packet and returns its length in dwords. */
static u32 run_packet(struct gpu *gpu, const struct packets *p)
{
	u32 header = word(p, 0);
	struct operation_data data;

	gpu->packets++;
	switch (header & 0xff) {
	case NOP:
		return 1 + (header >> 16 & 0x3fff);
	case COPY_LINEAR:
		data = (struct operation_data){ .gpu = gpu, .input = quad(p, 3), .to = quad(p, 5),
						.size = (u64)(word(p, 1) & 0x3fffffff) + 1 };
		if (p->writes_tables)
			run_table_packet(gpu, p);
		else
			perform_with_fault(next_fault(KERNEL_COPY), data, run_copy);
		return 7;
	case WRITE_LINEAR:
		run_table_packet(gpu, p);
		return 4 + (word(p, 3) & 0xfffff) + 1;
	case INDIRECT:
		if (!p->is_indirect)
			run_indirect(gpu, quad(p, 1), word(p, 3));
		return 6;
	case FENCE:
		write_word(gpu, quad(p, 1), word(p, 3));
		return 4;
	case TRAP: /* the ring's fences are processed after each batch */
		return 2;
	case POLL_REGISTER: /* packets run in order, so the condition holds already */
		return 6;
	case CONST_FILL:
		data = (struct operation_data){ .gpu = gpu, .input = word(p, 3), .to = quad(p, 1),
						.size = (u64)(word(p, 4) & 0x3fffffff) + 1 };
		perform_with_fault(next_fault(KERNEL_FILL), data, run_fill);
		return 5;
	case PTE_PDE:
		run_table_packet(gpu, p);
		return 10;
	case SRBM_WRITE:
		return 3;
	}
	dev_err_ratelimited(gpu->adev->dev, "hsa_vmm: kernel SDMA: unknown packet %#x\n", header);
	return 1;
}

static struct amdgpu_ring *kernel_ring(struct amdgpu_device *adev)
{
	return &adev->sdma.instance[0].ring;
}

static u64 get_wptr(struct amdgpu_ring *ring)
{
	return READ_ONCE(*(u64 *)ring->wptr_cpu_addr) >> 2;
}

static void set_wptr(struct amdgpu_ring *ring)
{
	WRITE_ONCE(*(u64 *)ring->wptr_cpu_addr, ring->wptr << 2);
	queue_work(kernel_engine_wq, &gpu_of(ring->adev)->kernel_work);
}

void run_kernel_ring(struct work_struct *work)
{
	struct gpu *gpu = container_of(work, struct gpu, kernel_work);
	struct amdgpu_ring *ring = kernel_ring(gpu->adev);
	u64 end;

	while (gpu->kernel_rptr != (end = get_wptr(ring))) {
		struct packets p = { .words = (u32 *)ring->ring, .mask = ring->buf_mask };

		while (gpu->kernel_rptr < end) {
			p.position = gpu->kernel_rptr;
			gpu->kernel_rptr += run_packet(gpu, &p);
		}
		WRITE_ONCE(*(u64 *)ring->rptr_cpu_addr, gpu->kernel_rptr << 2);
		amd.amdgpu_fence_process(ring);
	}
}

static int test_ring(struct amdgpu_ring *ring)
{
	return 0;
}

static int test_ib(struct amdgpu_ring *ring, long timeout)
{
	return 0;
}

void init_kernel_ring_funcs(void)
{
	ring_funcs = *amd.sdma_v4_4_2_ring_funcs;
	ring_funcs.get_wptr = get_wptr;
	ring_funcs.set_wptr = set_wptr;
	ring_funcs.test_ring = test_ring;
	ring_funcs.test_ib = test_ib;
	/* AMD's function reads a register of the NBIO block. */
	ring_funcs.emit_hdp_flush = NULL;
}

static uint engines = 2;
module_param(engines, uint, 0444);
MODULE_PARM_DESC(engines, "SDMA engines of each GPU (1 or 2)");

static int early_init(struct amdgpu_ip_block *block)
{
	struct amdgpu_device *adev = block->adev;

	adev->sdma.num_instances = clamp(engines, 1u, 2u);
	adev->sdma.num_inst_per_aid = adev->sdma.num_instances;
	adev->sdma.sdma_mask = (1u << adev->sdma.num_instances) - 1;
	adev->mman.buffer_funcs = amd.sdma_v4_4_2_buffer_funcs;
	adev->mman.buffer_funcs_ring = kernel_ring(adev);
	adev->vm_manager.vm_pte_funcs = amd.sdma_v4_4_2_vm_pte_funcs;
	adev->vm_manager.vm_pte_scheds[0] = &kernel_ring(adev)->sched;
	adev->vm_manager.vm_pte_num_scheds = 1;
	return 0;
}

static int sw_init(void *handle)
{
	struct amdgpu_device *adev = handle;
	struct amdgpu_ring *ring = kernel_ring(adev);

	ring->funcs = &ring_funcs;
	ring->use_doorbell = false;
	ring->vm_hub = AMDGPU_MMHUB0(0);
	strscpy(ring->name, "software-sdma", sizeof(ring->name));
	return amd.amdgpu_ring_init(adev, ring, 1024, &adev->sdma.trap_irq, AMDGPU_SDMA_IRQ_INSTANCE0,
				    AMDGPU_RING_PRIO_DEFAULT, NULL);
}

static int hw_init(void *handle)
{
	struct amdgpu_device *adev = handle;

	kernel_ring(adev)->sched.ready = true;
	return 0;
}

const struct amd_ip_funcs kernel_engine_ip_funcs = {
	.name = "software_sdma",
	.early_init = early_init,
	.sw_init = sw_init,
	.hw_init = hw_init,
	UNUSED_IP_FUNCS,
};
