// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Memory as the GPU addresses it: VRAM of all GPUs of the hive, system memory by its bus address, the
 * kernel's own address space (VMID 0), and the processes' address spaces. The module translates a process's
 * addresses with the page tables that the driver has written. A TLB keeps an entry until the driver flushes the TLB, or
 * another page needs the entry's slot.
 */
#include <linux/sched.h>
#include "gpu.h"
#include "layout.h"

#define ADDRESS_MASK 0xfffffffff000ull
#define TABLE_MASK 0xffffffffffc0ull
#define LEVELS 4

/* Translates an offset in the frame buffer, which has a segment of VRAM for each GPU. */
static void *vram_pointer(struct gpu *gpu, u64 address, u64 *remaining)
{
	for (int i = 0; i < gpu_count; i++) {
		struct gpu *other = &gpus[i];
		u64 base;

		if (!other->adev || (!xgmi && other != gpu))
			continue;
		base = other->adev->vm_manager.vram_base_offset;
		if (address >= base && address - base < other->vram_size) {
			*remaining = other->vram_size - (address - base);
			return other->vram + (address - base);
		}
	}
	return NULL;
}

/* Translates a bus address of system memory, or of a GPU's VRAM in its BAR. */
static void *bus_pointer(u64 address, u64 *remaining)
{
	*remaining = PAGE_SIZE - offset_in_page(address);
	if (pfn_valid(address >> PAGE_SHIFT))
		return phys_to_virt(address);
	for (int i = 0; i < gpu_count; i++) {
		struct gpu *gpu = &gpus[i];

		if (address >= gpu->vram_bus && address - gpu->vram_bus < gpu->vram_size)
			return gpu->vram + (address - gpu->vram_bus);
	}
	return NULL;
}

static void *pte_pointer(struct gpu *gpu, u64 pte, u64 address, u64 *remaining)
{
	if (pte & AMDGPU_PTE_SYSTEM)
		return bus_pointer(address, remaining);
	return vram_pointer(gpu, address, remaining);
}

/* Translates an address of the kernel's address space. */
void *kernel_pointer(struct gpu *gpu, u64 address, u64 *remaining)
{
	struct amdgpu_gmc *gmc = &gpu->adev->gmc;

	if (address >= gmc->gart_start && address <= gmc->gart_end) {
		u64 pte = ((u64 *)gpu->adev->gart.ptr)[(address - gmc->gart_start) >> PAGE_SHIFT];
		u64 target = (pte & ADDRESS_MASK) | offset_in_page(address);
		void *pointer;

		if (!(pte & AMDGPU_PTE_VALID))
			return NULL;
		pointer = pte_pointer(gpu, pte, target, remaining);
		*remaining = min(*remaining, PAGE_SIZE - offset_in_page(address));
		return pointer;
	}
	if (address >= gmc->fb_start && address <= gmc->fb_end)
		return vram_pointer(gpu, address - gmc->fb_start, remaining);
	return NULL;
}

/* Translates `va` with the four levels of page tables of GFX9. Returns 0, or an error if `va` is not mapped. */
int walk(struct gpu *gpu, u64 root, u64 va, struct translation *out)
{
	u64 entry = root;

	for (int level = 0; level < LEVELS; level++) {
		int shift = PAGE_SHIFT + 9 * (LEVELS - 1 - level);
		u64 remaining, slot = (entry & TABLE_MASK) + (va >> shift & 0x1ff) * sizeof(u64);
		u64 *table = pte_pointer(gpu, entry, slot, &remaining);
		bool is_pte = level == LEVELS - 1;

		if (!table)
			return -EFAULT;
		entry = READ_ONCE(*table);
		is_pte |= entry & AMDGPU_PDE_PTE;
		/* With `translate_further`, an entry of the last directory is a PTE unless its TF bit is set. */
		is_pte |= level == LEVELS - 2 && gpu->adev->gmc.translate_further &&
			  !(entry & AMDGPU_PTE_TF);
		out->pte = entry;
		if (!(entry & AMDGPU_PTE_VALID))
			return -ENOENT;
		if (is_pte) {
			out->size = 1ull << shift;
			out->address = (entry & ADDRESS_MASK & ~(out->size - 1)) | (va & (out->size - 1));
			return 0;
		}
	}
	return -ENOENT;
}

/* Returns the TLB entry of a page, after a page-table walk if needed, or NULL if the page is not mapped. */
static struct tlb_entry *look_up(struct gpu *gpu, u32 space, u64 va)
{
	struct gpu_space *owner = &gpu->spaces[space];
	u64 page = va >> PAGE_SHIFT;
	struct tlb_entry *entry = &gpu->tlb[(page ^ page >> 9 ^ page >> 18 ^ space) % TLB_ENTRIES];
	u32 generation = READ_ONCE(owner->generation);
	struct translation found = { };

	if (entry->valid && entry->page == page && entry->space == space &&
	    entry->generation == generation && READ_ONCE(tlb_keeps_entries))
		return entry;
	entry->valid = !walk(gpu, owner->root, va & PAGE_MASK, &found);
	entry->page = page;
	entry->space = space;
	entry->generation = generation;
	entry->pte = found.pte;
	entry->address = found.address;
	return entry->valid ? entry : NULL;
}

/* Translates an address of a process. The returned pointer is valid for `*remaining` bytes. */
void *user_pointer(struct access *a, u64 va, u64 *remaining, bool write)
{
	struct tlb_entry *entry = look_up(a->gpu, a->space, va);
	u64 required = write ? AMDGPU_PTE_WRITEABLE : AMDGPU_PTE_READABLE;
	void *pointer = NULL;

	if (entry && entry->pte & required) {
		pointer = pte_pointer(a->gpu, entry->pte, entry->address | offset_in_page(va), remaining);
		*remaining = min(*remaining, PAGE_SIZE - offset_in_page(va));
	}
	if (!pointer && !a->faulted) {
		a->faulted = true;
		a->fault_address = va;
		a->fault_is_write = write;
	}
	return pointer;
}

static void invalidate(struct gpu *gpu, u32 space)
{
	gpu->flushes++;
	WRITE_ONCE(gpu->spaces[space].generation, gpu->spaces[space].generation + 1);
}

static void invalidate_space(struct operation_data *data)
{
	invalidate(data->gpu, data->space);
}

static void invalidate_pasid(struct operation_data *data)
{
	for (int i = 0; i < MAX_SPACES; i++)
		if (data->gpu->spaces[i].pasid == data->pasid)
			invalidate(data->gpu, i);
}

static void flush(void (*run)(struct operation_data *data), struct operation_data data)
{
	struct fault fault = next_fault(TLB_FLUSH);

	if (fault.effect == LATE)
		perform_late(fault.time_us, run, data);
	else if (fault.effect != LOST)
		run(&data);
}

void flush_space(struct gpu *gpu, u32 space)
{
	flush(invalidate_space, (struct operation_data){ .gpu = gpu, .space = space });
}

void flush_pasid(struct gpu *gpu, u32 pasid)
{
	flush(invalidate_pasid, (struct operation_data){ .gpu = gpu, .pasid = pasid });
}

int user_read(struct access *a, u64 va, void *to, u64 size)
{
	for (u64 part; size; size -= part, va += part, to += part) {
		void *from = user_pointer(a, va, &part, false);

		if (!from)
			return -EFAULT;
		part = min(part, size);
		memcpy(to, from, part);
	}
	return 0;
}

int user_write(struct access *a, u64 va, const void *from, u64 size)
{
	for (u64 part; size; size -= part, va += part, from += part) {
		void *to = user_pointer(a, va, &part, true);

		if (!to)
			return -EFAULT;
		part = min(part, size);
		/* Another processor may read the value, so write the value with one store. */
		if (part == sizeof(u64) && IS_ALIGNED(va, sizeof(u64)))
			WRITE_ONCE(*(u64 *)to, *(const u64 *)from);
		else if (part == sizeof(u32) && IS_ALIGNED(va, sizeof(u32)))
			WRITE_ONCE(*(u32 *)to, *(const u32 *)from);
		else
			memcpy(to, from, part);
	}
	return 0;
}

int user_add64(struct access *a, u64 va, s64 value)
{
	u64 remaining;
	atomic64_t *counter = user_pointer(a, va, &remaining, true);

	if (!counter || !IS_ALIGNED(va, sizeof(u64)))
		return -EFAULT;
	atomic64_add(value, counter);
	return 0;
}

static int copy(struct access *a, u64 from, u64 to, u64 size)
{
	for (u64 part, target_part; size; size -= part, from += part, to += part) {
		void *source = user_pointer(a, from, &part, false);
		void *target = source ? user_pointer(a, to, &target_part, true) : NULL;

		if (!target)
			return -EFAULT;
		part = min3(part, target_part, size);
		memcpy(target, source, part);
		cond_resched();
	}
	return 0;
}

static int fill(struct access *a, u64 to, u32 value, u64 size)
{
	for (u64 part; size >= sizeof(u32); size -= part, to += part) {
		void *target = user_pointer(a, to, &part, true);

		if (!target)
			return -EFAULT;
		part = round_down(min(part, size), sizeof(u32));
		/* The address is not aligned to the size of the value. */
		if (!part)
			return -EFAULT;
		memset32(target, value, part / sizeof(u32));
		cond_resched();
	}
	return 0;
}

/* Performs a late copy or fill, if the address space still belongs to the process that requested the operation. */
static void run_if_same_process(struct operation_data *data,
				int (*run)(struct access *a, struct operation_data *data))
{
	struct access a = { .gpu = data->gpu, .space = data->space };

	mutex_lock(&data->gpu->queues_lock);
	if (data->gpu->spaces[data->space].pasid == data->pasid)
		run(&a, data);
	mutex_unlock(&data->gpu->queues_lock);
}

static int copy_data(struct access *a, struct operation_data *data)
{
	return copy(a, data->input, data->to, data->size);
}

/* `input` is the value of the fill. */
static int fill_data(struct access *a, struct operation_data *data)
{
	return fill(a, data->to, data->input, data->size);
}

static void run_late_copy(struct operation_data *data)
{
	run_if_same_process(data, copy_data);
}

static void run_late_fill(struct operation_data *data)
{
	run_if_same_process(data, fill_data);
}

static int flip_bit(struct access *a, u64 address)
{
	u8 byte;

	if (user_read(a, address, &byte, sizeof(byte)))
		return -EFAULT;
	byte ^= 1;
	return user_write(a, address, &byte, sizeof(byte));
}

/* Performs a copy or fill with its planned fault. */
static int perform_with_fault(struct access *a, struct fault fault, struct operation_data data,
			      int (*run)(struct access *a, struct operation_data *data),
			      void (*run_late)(struct operation_data *data))
{
	switch (fault.effect) {
	case LOST:
		return 0;
	case HANG:
		return -ECANCELED;
	case LATE:
		perform_late(fault.time_us, run_late, data);
		return 0;
	case HALF:
		data.size = round_down(data.size / 2, sizeof(u32));
		return run(a, &data);
	case GARBLED:
		return run(a, &data) ?: flip_bit(a, data.to);
	default:
		return run(a, &data);
	}
}

int user_copy(struct access *a, u64 from, u64 to, u64 size)
{
	struct operation_data data = { .gpu = a->gpu, .space = a->space, .input = from, .to = to, .size = size,
				       .pasid = a->gpu->spaces[a->space].pasid };

	return perform_with_fault(a, next_fault(COPY), data, copy_data, run_late_copy);
}

int user_fill(struct access *a, u64 to, u32 value, u64 size)
{
	struct operation_data data = { .gpu = a->gpu, .space = a->space, .input = value, .to = to, .size = size,
				       .pasid = a->gpu->spaces[a->space].pasid };

	return perform_with_fault(a, next_fault(FILL), data, fill_data, run_late_fill);
}
