// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Planned faults of the engines, in the language of hsa/faults. Writing a plan, such as
 * "COPY=garbled;TLB_FLUSH#3-5=late:5000us", to the file hsa_vmm/faults in debugfs starts the plan. The file contains
 * each rule and how often the rule was applied. `hsa-vmm vm --fault` checks the plan, and converts its times to
 * microseconds.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include "gpu.h"

#define MAX_RULES 32
#define MAX_PLAN 4096

struct rule {
	char text[96];
	/* An operation, or OPERATIONS for all of them. */
	enum operation operation;
	u64 first;
	u64 last;
	/* If `fault.effect` is NO_EFFECT, the rule only delays the operation, by `fault.time_us`. */
	struct fault fault;
	/* The number of operations that match the rule's name, and of those to which the rule was applied. */
	atomic64_t seen;
	atomic64_t applied;
};

static const char *const operation_names[OPERATIONS + 1] = {
	[COPY] = "COPY", [FILL] = "FILL", [KERNEL_COPY] = "KERNEL_COPY", [KERNEL_FILL] = "KERNEL_FILL",
	[PTE_WRITE] = "PTE_WRITE", [TLB_FLUSH] = "TLB_FLUSH", [INTERRUPT] = "INTERRUPT",
	[OPERATIONS] = "*",
};

static const char *const effect_names[] = {
	[LOST] = "lost", [LATE] = "late", [GARBLED] = "garbled", [HALF] = "half", [HANG] = "hang",
};

static struct rule rules[MAX_RULES];
static u32 rule_count;

struct fault next_fault(enum operation operation)
{
	struct fault found = { };
	u64 delay_us = 0;

	for (u32 i = 0; i < smp_load_acquire(&rule_count); i++) {
		struct rule *rule = &rules[i];
		u64 number;

		if (rule->operation != operation && rule->operation != OPERATIONS)
			continue;
		number = atomic64_inc_return(&rule->seen);
		if (number < rule->first || number > rule->last)
			continue;
		if (rule->fault.effect == NO_EFFECT)
			delay_us += rule->fault.time_us;
		else if (found.effect == NO_EFFECT)
			found = rule->fault;
		else
			continue;
		atomic64_inc(&rule->applied);
	}
	if (delay_us)
		fsleep(delay_us);
	return found;
}

/* Parses "late:5000us", "garbled" or "5000us". */
static int parse_effect(char *text, struct fault *fault)
{
	char *name = strsep(&text, ":"), *time = text ?: name;
	size_t length = strlen(time);
	int effect = match_string(effect_names + 1, ARRAY_SIZE(effect_names) - 1, name);

	fault->effect = effect < 0 ? NO_EFFECT : effect + 1;
	if (fault->effect != NO_EFFECT && !text)
		return 0;
	if (length < 3 || strcmp(time + length - 2, "us"))
		return -EINVAL;
	time[length - 2] = '\0';
	return kstrtou32(time, 10, &fault->time_us);
}

/* Parses "3", "3-5" or "3-". */
static int parse_numbers(char *text, struct rule *rule)
{
	char *first = strsep(&text, "-");
	int error = kstrtou64(first, 10, &rule->first);

	rule->last = text ? U64_MAX : rule->first;
	return error ?: text && *text ? kstrtou64(text, 10, &rule->last) : 0;
}

static int parse_rule(char *text, struct rule *rule)
{
	char *name, *numbers;
	int operation;

	*rule = (struct rule){ .first = 1, .last = U64_MAX };
	if (strscpy(rule->text, text, sizeof(rule->text)) < 0)
		return -EINVAL;
	numbers = strsep(&text, "=");
	name = strsep(&numbers, "#");
	operation = match_string(operation_names, ARRAY_SIZE(operation_names), name);
	if (operation < 0 || !text)
		return -EINVAL;
	rule->operation = operation;
	return (numbers ? parse_numbers(numbers, rule) : 0) ?: parse_effect(text, &rule->fault);
}

static ssize_t faults_write(struct file *file, const char __user *text, size_t size, loff_t *offset)
{
	static DEFINE_MUTEX(lock);
	char *buffer, *rest, *rule;
	u32 count = 0;
	int error = 0;

	if (size > MAX_PLAN)
		return -E2BIG;
	buffer = memdup_user_nul(text, size);
	if (IS_ERR(buffer))
		return PTR_ERR(buffer);
	mutex_lock(&lock);
	smp_store_release(&rule_count, 0);
	rest = strim(buffer);
	while (!error && (rule = strsep(&rest, ";"))) {
		if (*rule)
			error = count < MAX_RULES ? parse_rule(rule, &rules[count++]) : -E2BIG;
	}
	if (!error)
		smp_store_release(&rule_count, count);
	mutex_unlock(&lock);
	kfree(buffer);
	return error ?: size;
}

static int faults_show(struct seq_file *file, void *unused)
{
	for (u32 i = 0; i < smp_load_acquire(&rule_count); i++)
		seq_printf(file, "%s %llu\n", rules[i].text, (u64)atomic64_read(&rules[i].applied));
	return 0;
}

static int faults_open(struct inode *inode, struct file *file)
{
	return single_open(file, faults_show, NULL);
}

static const struct file_operations faults_fops = {
	.owner = THIS_MODULE,
	.open = faults_open,
	.read = seq_read,
	.write = faults_write,
	.llseek = seq_lseek,
	.release = single_release,
};

void add_fault_file(struct dentry *folder)
{
	debugfs_create_file("faults", 0600, folder, NULL, &faults_fops);
}

/* An operation that is performed after it was reported as done. */
struct late_operation {
	struct delayed_work work;
	struct operation_data data;
	void (*run)(struct operation_data *data);
};

static void run_late(struct work_struct *work)
{
	struct late_operation *late = container_of(to_delayed_work(work), struct late_operation, work);

	late->run(&late->data);
	kfree(late);
}

void perform_late(u32 time_us, void (*run)(struct operation_data *data), struct operation_data data)
{
	struct late_operation *late = kmalloc(sizeof(*late), GFP_KERNEL);

	if (!late)
		return;
	late->data = data;
	late->run = run;
	INIT_DELAYED_WORK(&late->work, run_late);
	schedule_delayed_work(&late->work, usecs_to_jiffies(time_us));
}
