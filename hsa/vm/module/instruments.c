// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Files in the folder hsa_vmm of debugfs. Writing the name of a function of amdgpu.ko to the file stub makes the
 * function return 0 without any effect. This shows whether the tests would detect a defect of the function. The file
 * coverage contains the functions of amdgpu.ko that ran, and how often each was called. The file statistics contains
 * counters of the software GPUs.
 */
#include <linux/debugfs.h>
#include <linux/ftrace.h>
#include <linux/seq_file.h>
#include <linux/sort.h>
#include <linux/uaccess.h>
#include "gpu.h"
#include "symbols.h"

/* amdgpu.ko has some 20,000 functions. */
#define MAX_FUNCTIONS 65536

static int stub(void)
{
	return 0;
}

static void notrace jump_to_stub(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
				 struct ftrace_regs *regs)
{
	ftrace_get_regs(regs)->ip = (unsigned long)stub;
}

static struct ftrace_ops stub_ops = {
	.func = jump_to_stub,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RECURSION,
};

/* Restores the stubbed function, if any, and stubs the named function. An empty name only restores. */
static ssize_t stub_write(struct file *file, const char __user *text, size_t size, loff_t *offset)
{
	static DEFINE_MUTEX(lock);
	static bool active;
	unsigned long address;
	char *buffer, *name;
	int error = 0;

	buffer = memdup_user_nul(text, min_t(size_t, size, KSYM_NAME_LEN));
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	name = strim(buffer);
	mutex_lock(&lock);
	if (active) {
		unregister_ftrace_function(&stub_ops);
		ftrace_set_filter(&stub_ops, NULL, 0, 1);
		active = false;
	}
	if (*name) {
		address = amdgpu_symbol(name);
		error = address ? ftrace_set_filter_ip(&stub_ops, address, 0, 1) : -ENOENT;
		if (!error)
			error = register_ftrace_function(&stub_ops);
		active = !error;
		pr_info("hsa_vmm: stub of %s: %d\n", name, error);
	}
	mutex_unlock(&lock);
	kfree(buffer);
	return error ?: size;
}

static const struct file_operations stub_fops = { .owner = THIS_MODULE, .write = stub_write };

struct counter {
	unsigned long address;
	atomic_t calls;
};

static struct counter *counters;
static u32 counter_count;

static void notrace count_call(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
			       struct ftrace_regs *regs)
{
	u32 low = 0, high = counter_count;

	while (low < high) {
		u32 middle = (low + high) / 2;

		if (counters[middle].address == ip) {
			atomic_inc(&counters[middle].calls);
			return;
		}
		if (counters[middle].address < ip)
			low = middle + 1;
		else
			high = middle;
	}
}

static struct ftrace_ops coverage_ops = { .func = count_call };

static int by_address(const void *a, const void *b)
{
	const struct counter *left = a, *right = b;

	return left->address < right->address ? -1 : left->address > right->address;
}

static int start_counting(void)
{
	unsigned long *addresses;
	int error;

	if (!counter_count)
		return -EINVAL;
	addresses = kvcalloc(counter_count, sizeof(*addresses), GFP_KERNEL);
	if (!addresses)
		return -ENOMEM;
	sort(counters, counter_count, sizeof(*counters), by_address, NULL);
	for (u32 i = 0; i < counter_count; i++)
		addresses[i] = counters[i].address;
	error = ftrace_set_filter_ips(&coverage_ops, addresses, counter_count, 0, 1) ?:
		register_ftrace_function(&coverage_ops);
	kvfree(addresses);
	return error;
}

/* Accepts hexadecimal addresses, one per line, in any number of writes. "start" starts the counting. */
static ssize_t coverage_write(struct file *file, const char __user *text, size_t size, loff_t *offset)
{
	static DEFINE_MUTEX(lock);
	static bool active;
	char *buffer, *rest, *line;
	int error = 0;

	buffer = memdup_user_nul(text, size);
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	rest = buffer;
	mutex_lock(&lock);
	if (active)
		error = -EBUSY;
	if (!error && !counters) {
		counters = kvcalloc(MAX_FUNCTIONS, sizeof(*counters), GFP_KERNEL);
		error = counters ? 0 : -ENOMEM;
	}
	while (!error && (line = strsep(&rest, "\n"))) {
		unsigned long address;

		if (!strcmp(line, "start")) {
			error = start_counting();
			active = !error;
			break;
		}
		if (!*line)
			continue;
		error = counter_count < MAX_FUNCTIONS ? kstrtoul(line, 16, &address) : -ENOSPC;
		if (!error)
			counters[counter_count++].address = address;
	}
	mutex_unlock(&lock);
	kfree(buffer);
	return error ?: size;
}

static int coverage_show(struct seq_file *file, void *unused)
{
	for (u32 i = 0; i < counter_count; i++)
		if (atomic_read(&counters[i].calls))
			seq_printf(file, "%ps %u\n", (void *)counters[i].address,
				   atomic_read(&counters[i].calls));
	return 0;
}

static int coverage_open(struct inode *inode, struct file *file)
{
	return single_open(file, coverage_show, NULL);
}

static const struct file_operations coverage_fops = {
	.owner = THIS_MODULE,
	.open = coverage_open,
	.read = seq_read,
	.write = coverage_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static int statistics_show(struct seq_file *file, void *unused)
{
	for (int i = 0; i < gpu_count; i++)
		seq_printf(file,
			   "gpu %d: %llu packets, %llu dispatches, %llu page faults, %llu TLB flushes\n", i,
			   gpus[i].packets, gpus[i].dispatches, gpus[i].page_faults, gpus[i].flushes);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(statistics);

void add_instruments(struct dentry *folder)
{
	debugfs_create_file("stub", 0200, folder, NULL, &stub_fops);
	debugfs_create_file("coverage", 0600, folder, NULL, &coverage_fops);
	debugfs_create_file("statistics", 0444, folder, NULL, &statistics_fops);
}
