/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The software GPUs: their state, and the functions that the parts of the module share. */
#ifndef HSA_VMM_GPU_H
#define HSA_VMM_GPU_H

#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/version.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include "amdgpu.h"
#include "amdgpu_amdkfd.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0) || LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
#error "this module is written for amdgpu of Linux 6.12; other versions have other callbacks"
#endif

struct dentry;

#define MAX_GPUS 8
#define MAX_QUEUES 128
/* The first 16 address spaces belong to the VMIDs, the others to the processes in the scheduler's run list. */
#define MAX_SPACES 64
#define FIRST_RUNLIST_SPACE 16
#define TLB_ENTRIES 16384

/* The address space of a process on one GPU. On hardware, the registers of a VMID contain `pasid` and `root`. */
struct gpu_space {
	u32 pasid;
	/* The address of the root page table, with flags as in a page-directory entry. */
	u64 root;
	/* Increased by each TLB flush. The space's TLB entries of a lower generation are invalid. */
	u32 generation;
};

/* The translation of one 4 KiB page. */
struct tlb_entry {
	/* The number of the page. */
	u64 page;
	u64 pte;
	u64 address;
	u32 space;
	u32 generation;
	bool valid;
};

/* A mapped user queue. */
struct user_queue {
	/* The address of the queue's descriptor (MQD). This address identifies the queue. 0 if the slot is free. */
	u64 mqd;
	bool is_sdma;
	/* Whether the queue has stopped: it has caused a page fault, or it hangs. */
	bool halted;
	/* A copy of `halted` in the queue's descriptor, read when the queue is mapped again. A new descriptor has 0. */
	u32 *saved_halted;
	u32 space;
	/* The address and the size of the ring, in bytes. */
	u64 base;
	u64 size;
	/* The read and write pointers, in packets (AQL) or bytes (SDMA). */
	u64 rptr;
	u64 wptr;
	/* Whether `rptr` was read from `rptr_address`. */
	bool has_rptr;
	u64 rptr_address;
	u64 wptr_address;
};

/* The hardware scheduler's queue (HIQ), which the kernel fills. */
struct scheduler_queue {
	u32 *ring;
	u32 mask;
	u64 rptr;
	u32 *rptr_report;
	u64 *wptr_report;
	bool loaded;
};

struct gpu {
	struct pci_dev *pdev;
	struct amdgpu_device *adev;
	int index;

	/* All of the VRAM as the engines access it, its bus address, and its size in bytes. */
	void *vram;
	u64 vram_bus;
	u64 vram_size;

	/* The kernel's SDMA ring. */
	struct work_struct kernel_work;
	u64 kernel_rptr;

	/* Copies of AMD's function tables, in which the module has replaced functions. */
	struct amdgpu_gmc_funcs gmc_funcs;
	struct kfd2kgd_calls kfd2kgd;

	/* User queues. The mutex is held while packets of one queue run. */
	struct mutex queues_lock;
	struct user_queue queues[MAX_QUEUES];
	struct gpu_space spaces[MAX_SPACES];
	struct scheduler_queue hiq;
	struct task_struct *thread;
	struct tlb_entry *tlb;

	/* Statistics. */
	u64 flushes;
	u64 packets;
	u64 dispatches;
	u64 page_faults;
};

extern struct gpu gpus[MAX_GPUS];
extern int gpu_count;

extern bool xgmi;
extern bool tlb_keeps_entries;
extern uint pte_delay_ms;

static inline struct gpu *gpu_of(struct amdgpu_device *adev)
{
	for (int i = 0; i < gpu_count; i++)
		if (gpus[i].pdev == adev->pdev)
			return &gpus[i];
	return NULL;
}

/* memory.c: translates the GPU's addresses to kernel pointers, and accesses memory through them */

struct translation {
	u64 pte;
	u64 address;
	/* The number of bytes that the entry covers. */
	u64 size;
};

/* The accesses of a user queue to an address space, and the first page fault that they cause. */
struct access {
	struct gpu *gpu;
	u32 space;
	u64 fault_address;
	bool faulted;
	bool fault_is_write;
};

void *kernel_pointer(struct gpu *gpu, u64 mc_address, u64 *remaining);
int walk(struct gpu *gpu, u64 root, u64 va, struct translation *out);
void *user_pointer(struct access *a, u64 va, u64 *remaining, bool write);
int user_read(struct access *a, u64 va, void *to, u64 size);
int user_write(struct access *a, u64 va, const void *from, u64 size);
int user_add64(struct access *a, u64 va, s64 value);
int user_copy(struct access *a, u64 from, u64 to, u64 size);
int user_fill(struct access *a, u64 to, u32 value, u64 size);
void flush_space(struct gpu *gpu, u32 space);
void flush_pasid(struct gpu *gpu, u32 pasid);

/* kernel_engine.c: the SDMA engine of the kernel's own ring */
extern const struct amd_ip_funcs kernel_engine_ip_funcs;
void run_kernel_ring(struct work_struct *work);
void init_kernel_ring_funcs(void);
extern struct workqueue_struct *kernel_engine_wq;

/* asic.c and blocks.c: the functions and properties of the chip's IP blocks */
extern const struct amdgpu_asic_funcs software_asic_funcs;
extern const struct amdgpu_nbio_funcs software_nbio_funcs;
extern const struct amdgpu_smuio_funcs software_smuio_funcs;
extern const struct amdgpu_hdp_funcs software_hdp_funcs;
extern const struct amdgpu_df_funcs software_df_funcs;
extern const struct amdgpu_mmhub_funcs software_mmhub_funcs;
extern const struct amdgpu_gfxhub_funcs software_gfxhub_funcs;
int do_nothing(void *handle);
bool is_idle(void *handle);
int set_clockgating(void *handle, enum amd_clockgating_state state);
int set_powergating(void *handle, enum amd_powergating_state state);
int set_ip_blocks(struct amdgpu_device *adev);

#define UNUSED_IP_FUNCS                                                                           \
	.sw_fini = do_nothing, .hw_fini = do_nothing, .suspend = do_nothing, .resume = do_nothing, \
	.is_idle = is_idle, .wait_for_idle = do_nothing, .soft_reset = do_nothing,                \
	.set_clockgating_state = set_clockgating, .set_powergating_state = set_powergating

/* compute.c: the functions with which amdkfd programs a GPU */
void replace_kfd2kgd(struct gpu *gpu);

/* scheduler.c: selects the user queues, and runs them in a thread */
int run_queues(void *gpu);
int add_queue(struct gpu *gpu, struct user_queue queue);
void remove_queue(struct gpu *gpu, u64 mqd);
void run_scheduler_queue(struct gpu *gpu);

/*
 * packets.c: these functions execute one packet of a user queue. They return 1 if the packet is complete, 0 if the
 * packet must wait, -ECANCELED if the queue hangs, and another negative number after a page fault or for an invalid
 * packet.
 */
int run_aql_packet(struct access *a, struct user_queue *queue);
int run_sdma_packet(struct access *a, struct user_queue *queue);
u64 gpu_clock(struct amdgpu_device *adev);

/*
 * blit.c: performs the operation of a copy or fill kernel of AMD's runtime. Returns 1 if the operation is complete, 0
 * for any other kernel, -ECANCELED if the queue hangs, and another negative number after a page fault.
 */
int run_blit_kernel(struct access *a, u64 kernel, u64 arguments, u32 grid);

/* faults.c: planned faults of the engines */

/* Operations that a plan can name. */
enum operation {
	/* Copies and fills by packets of user queues. */
	COPY,
	FILL,
	/* Copies and fills by the kernel's SDMA engine. */
	KERNEL_COPY,
	KERNEL_FILL,
	/* A job of the kernel's SDMA engine that writes page tables. */
	PTE_WRITE,
	TLB_FLUSH,
	/* An interrupt that signals an event to amdkfd. */
	INTERRUPT,
	OPERATIONS,
};

enum effect { NO_EFFECT, LOST, LATE, GARBLED, HALF, HANG };

struct fault {
	enum effect effect;
	/* The delay of a LATE operation. In a rule without an effect, the length of the sleep. */
	u32 time_us;
};

/* The arguments of an operation, which a planned fault can make late. */
struct operation_data {
	struct gpu *gpu;
	u32 space;
	u32 pasid;
	/* The source of a copy, the value of a fill, or a pointer to page-table entries. */
	u64 input;
	/* The destination, or the number of an event. */
	u64 to;
	/* The size in bytes. For an event, the number of valid bits of the event's number. */
	u64 size;
};

/* Counts an operation, sleeps for its planned delay, and returns its planned fault. */
struct fault next_fault(enum operation operation);
/* Calls `run` in a worker after `time_us`. */
void perform_late(u32 time_us, void (*run)(struct operation_data *data), struct operation_data data);
void add_fault_file(struct dentry *folder);

/* page_table.c and instruments.c: the files in debugfs */
void add_page_table_files(struct dentry *folder);
void add_instruments(struct dentry *folder);

#endif
