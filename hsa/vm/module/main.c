// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Software GPUs for an unmodified amdgpu.ko, in QEMU only.
 *
 * Each "ivshmem-plain" device of QEMU has a BAR of RAM. The module divides the BAR into VRAM, doorbells and
 * registers, and gives the device the identity of an MI300X. amdgpu then binds to the device. The module
 * replaces amdgpu_discovery_set_ip_blocks(), the function of amdgpu that would read the chip's discovery
 * table. The replacement adds the blocks of blocks.c. If the CPU can access only a part of the VRAM, the module
 * also replaces amdgpu_device_resize_fb_bar(): this function would try to make all VRAM accessible.
 */
#include <asm/hypervisor.h>
#include <asm/processor.h>
#include <linux/debugfs.h>
#include <linux/dmi.h>
#include <linux/ftrace.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include "gpu.h"
#include "symbols.h"

#define IVSHMEM_VENDOR 0x1af4
#define IVSHMEM_DEVICE 0x1110
#define MI300X 0x74a1
#define BAR_VRAM 0
#define BAR_DOORBELLS 2
#define BAR_REGISTERS 5
/* The device's memory ends with the doorbells and the registers. */
#define DOORBELLS_FROM_END SZ_8M
#define REGISTERS_FROM_END SZ_4M
#define DOORBELLS_SIZE SZ_4M
#define REGISTERS_SIZE SZ_1M

struct gpu gpus[MAX_GPUS];
int gpu_count;

bool tlb_keeps_entries = true;
module_param_named(tlb, tlb_keeps_entries, bool, 0644);
MODULE_PARM_DESC(tlb, "user queues use TLB entries until the driver flushes them, as hardware does");
static uint visible;
module_param(visible, uint, 0444);
MODULE_PARM_DESC(visible, "the part of the VRAM that the CPU can access, in MiB; 0: all of it");

/*
 * Returns whether `hsa-vmm vm` has started this virtual machine. Elsewhere the module must not load, because it changes
 * PCI resources.
 */
static bool is_test_machine(void)
{
	static const char *const hypervisors[] = { "TCGTCGTCGTCG", "KVMKVMKVM\0\0\0" };
	const char *line;
	bool supported = false;

	for (int i = 0; i < ARRAY_SIZE(hypervisors); i++)
		supported |= hypervisor_cpuid_base(hypervisors[i], 0) != 0;
	if (!boot_cpu_has(X86_FEATURE_HYPERVISOR) || !supported || !dmi_match(DMI_SYS_VENDOR, "QEMU"))
		return false;
	line = kernel_command_line();
	return line && strstr(line, "hsa_vmm.vm=1");
}

/* Runs in place of amdgpu_device_resize_fb_bar(): QEMU's device has no resizable BAR. */
static int keep_fb_bar(struct amdgpu_device *adev)
{
	return 0;
}

/* A function of amdgpu, and the function that runs in its place. */
struct replacement {
	const char *name;
	void *function;
	struct ftrace_ops ops;
};

static void notrace jump_to_replacement(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
					struct ftrace_regs *regs)
{
	ftrace_get_regs(regs)->ip = (unsigned long)container_of(ops, struct replacement, ops)->function;
}

#define REPLACEMENT(replaced, by)                                                                 \
	{                                                                                         \
		.name = #replaced, .function = by,                                                \
		.ops = { .func = jump_to_replacement,                                             \
			 .flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY |              \
				  FTRACE_OPS_FL_RECURSION },                                      \
	}

static struct replacement discovery = REPLACEMENT(amdgpu_discovery_set_ip_blocks, set_ip_blocks);
static struct replacement bar_resize = REPLACEMENT(amdgpu_device_resize_fb_bar, keep_fb_bar);

static int replace(struct replacement *replacement)
{
	unsigned long address = amdgpu_symbol(replacement->name);
	int error = address ? ftrace_set_filter_ip(&replacement->ops, address, 0, 0) : -ENOENT;

	if (!error)
		error = register_ftrace_function(&replacement->ops);
	if (error)
		pr_err("hsa_vmm: cannot replace %s(): %d\n", replacement->name, error);
	return error;
}

static void set_bar(struct pci_dev *pdev, int bar, const struct resource *memory, u64 start, u64 size)
{
	struct resource *resource = &pdev->resource[bar];

	resource->start = start;
	resource->end = start + size - 1;
	resource->flags = memory->flags;
	resource->name = pci_name(pdev);
	/* pci_enable_device() needs a claimed resource. */
	resource->parent = memory->parent;
}

/* Turns a device of QEMU into a GPU. */
static int init_gpu(struct gpu *gpu, struct pci_dev *pdev)
{
	/* QEMU's device has its memory in the BAR that becomes the doorbells. */
	const struct resource memory = pdev->resource[BAR_DOORBELLS];
	u64 size = resource_size(&memory), cpu_visible;

	if (size < SZ_64M)
		return -EINVAL;
	gpu->pdev = pdev;
	gpu->vram_bus = memory.start;
	gpu->vram_size = size - DOORBELLS_FROM_END;
	gpu->vram = (void __force *)ioremap_wc(gpu->vram_bus, gpu->vram_size);
	gpu->tlb = kvcalloc(TLB_ENTRIES, sizeof(*gpu->tlb), GFP_KERNEL);
	if (!gpu->vram || !gpu->tlb)
		return -ENOMEM;
	INIT_WORK(&gpu->kernel_work, run_kernel_ring);
	mutex_init(&gpu->queues_lock);

	cpu_visible = visible ? min_t(u64, gpu->vram_size, (u64)visible << 20) : gpu->vram_size;
	set_bar(pdev, BAR_VRAM, &memory, memory.start, cpu_visible);
	set_bar(pdev, BAR_DOORBELLS, &memory, memory.start + size - DOORBELLS_FROM_END, DOORBELLS_SIZE);
	set_bar(pdev, BAR_REGISTERS, &memory, memory.start + size - REGISTERS_FROM_END, REGISTERS_SIZE);
	pdev->vendor = PCI_VENDOR_ID_ATI;
	pdev->device = MI300X;
	pdev->class = PCI_CLASS_ACCELERATOR_PROCESSING << 8;
	pdev->subsystem_vendor = PCI_VENDOR_ID_ATI;
	pdev->subsystem_device = MI300X;
	gpu->thread = kthread_run(run_queues, gpu, "hsa_vmm-%d", gpu->index);
	return PTR_ERR_OR_ZERO(gpu->thread);
}

static int __init hsa_vmm_init(void)
{
	struct pci_dev *pdev = NULL;
	struct dentry *folder;
	int error;

	if (!is_test_machine()) {
		pr_err("hsa_vmm: cannot load: this is not a virtual machine that `hsa-vmm vm` has started\n");
		return -EPERM;
	}
	error = resolve_symbols();
	if (error)
		return error;
	init_kernel_ring_funcs();
	kernel_engine_wq = alloc_workqueue("hsa_vmm", WQ_UNBOUND | WQ_HIGHPRI | WQ_MEM_RECLAIM, 0);
	if (!kernel_engine_wq)
		return -ENOMEM;
	error = replace(&discovery);
	if (!error && visible) {
		error = replace(&bar_resize);
		if (error)
			unregister_ftrace_function(&discovery.ops);
	}
	if (error) {
		destroy_workqueue(kernel_engine_wq);
		return error;
	}
	while (gpu_count < MAX_GPUS && (pdev = pci_get_device(IVSHMEM_VENDOR, IVSHMEM_DEVICE, pdev))) {
		struct gpu *gpu = &gpus[gpu_count];

		gpu->index = gpu_count;
		error = init_gpu(gpu, pci_dev_get(pdev));
		/* Despite an error, the module must stay loaded: threads and amdgpu already run its functions. */
		if (error)
			dev_err(&pdev->dev, "hsa_vmm: cannot make this device a GPU: %d\n", error);
		else
			gpu_count++;
	}
	folder = debugfs_create_dir("hsa_vmm", NULL);
	add_page_table_files(folder);
	add_instruments(folder);
	add_fault_file(folder);
	for (int i = 0; i < gpu_count; i++)
		if (device_attach(&gpus[i].pdev->dev) != 1)
			dev_err(&gpus[i].pdev->dev, "hsa_vmm: amdgpu does not bind to this device\n");
	return 0;
}
module_init(hsa_vmm_init);

/* The module has no exit function, so that it cannot be unloaded: amdgpu uses its functions. */
MODULE_DESCRIPTION("Software GPUs for an unmodified amdgpu driver, in QEMU");
MODULE_LICENSE("Dual MIT/GPL");
