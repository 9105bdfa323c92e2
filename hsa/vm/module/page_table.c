// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The debugfs file hsa_vmm/N: the page table, on GPU N, of the process that reads the file. Each line after the first
 * describes a mapping: the driver's record and the page-table entry. The format resembles that of the emulated driver
 * (hsa-kfd).
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/seq_file.h>
#include "amdgpu_vm.h"
#include "gpu.h"
#include "symbols.h"

/* The maximum wait for the page tables of an evicted process to become valid again. */
#define RESTORE_MS 5000
#define RESTORE_STEP_MS 10

static struct amdgpu_vm *find_vm(struct amdgpu_device *adev, pid_t tgid)
{
	struct amdgpu_vm *vm;
	unsigned long pasid;

	xa_for_each(&adev->vm_manager.pasids, pasid, vm)
		if (vm->is_compute_context && vm->task_info && vm->task_info->tgid == tgid)
			return vm;
	return NULL;
}

/*
 * Waits until the current process is not evicted, but for at most RESTORE_MS. The driver evicts a process while the
 * driver moves the process's memory. The process's queues stop until a worker has rewritten the page tables, so that
 * no GPU uses outdated entries.
 */
static void wait_until_restored(void)
{
	struct kfd_process *process = amd.kfd_lookup_process_by_pid(task_tgid(current));

	if (!process)
		return;
	for (int waited = 0; waited < RESTORE_MS; waited += RESTORE_STEP_MS) {
		bool evicted = work_busy(&process->eviction_work.work) ||
			       work_busy(&process->restore_work.work);

		evicted |= process->ef &&
			   test_bit(DMA_FENCE_FLAG_ENABLE_SIGNAL_BIT, &process->ef->flags);
		if (!evicted)
			break;
		msleep(RESTORE_STEP_MS);
	}
	amd.kfd_unref_process(process);
}

static void show_mapping(struct seq_file *file, struct gpu *gpu, u64 root,
			 const struct amdgpu_bo_va_mapping *mapping)
{
	const struct amdgpu_bo *bo = mapping->bo_va ? mapping->bo_va->base.bo : NULL;
	u64 va = mapping->start << PAGE_SHIFT;
	struct translation found;

	if (walk(gpu, root, va, &found))
		return;
	seq_printf(file, "  %#018llx size %#llx buffer %016lx at %#llx %s offset %#llx %c%c%c\n", va,
		   (mapping->last - mapping->start + 1) << PAGE_SHIFT, (unsigned long)bo, found.address,
		   found.pte & AMDGPU_PTE_SYSTEM ? "system" : "vram", mapping->offset,
		   found.pte & AMDGPU_PTE_READABLE ? 'r' : '-',
		   found.pte & AMDGPU_PTE_WRITEABLE ? 'w' : '-',
		   found.pte & AMDGPU_PTE_EXECUTABLE ? 'x' : '-');
}

static int page_table_show(struct seq_file *file, void *unused)
{
	struct gpu *gpu = file->private;
	struct amdgpu_device *adev = gpu->adev;
	u32 id = adev && adev->kfd.dev ? adev->kfd.dev->nodes[0]->id : 0;
	struct amdgpu_vm *vm;
	struct rb_node *node;
	int count = 0, error;
	u64 root;

	wait_until_restored();
	vm = adev ? find_vm(adev, current->tgid) : NULL;
	if (!vm) {
		seq_printf(file, "gpu %d id %u file 0: 0 mappings\n", gpu->index, id);
		return 0;
	}
	error = dma_resv_lock_interruptible(vm->root.bo->tbo.base.resv, NULL);
	if (error)
		return error;
	for (node = rb_first_cached(&vm->va); node; node = rb_next(node))
		count++;
	seq_printf(file, "gpu %d id %u file 0: %d mappings\n", gpu->index, id, count);
	root = amd.amdgpu_bo_gpu_offset_no_check(vm->root.bo) - adev->gmc.fb_start;
	for (node = rb_first_cached(&vm->va); node; node = rb_next(node))
		show_mapping(file, gpu, root, rb_entry(node, struct amdgpu_bo_va_mapping, rb));
	dma_resv_unlock(vm->root.bo->tbo.base.resv);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(page_table);

void add_page_table_files(struct dentry *folder)
{
	for (int i = 0; i < gpu_count; i++) {
		char name[4];

		snprintf(name, sizeof(name), "%d", i);
		debugfs_create_file(name, 0444, folder, &gpus[i], &page_table_fops);
	}
}
