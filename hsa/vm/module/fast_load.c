// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Makes the kernel load amdgpu.ko faster. `init` unloads this module as soon as the other modules are loaded.
 *
 * While the kernel loads a module, ftrace calls kallsyms_lookup() for each traceable function, to reject the
 * functions that the linker has discarded. Each call searches all symbols of the module. For amdgpu.ko, these
 * searches take six seconds on an emulated processor. This module replaces kallsyms_lookup(), so that ftrace
 * accepts each function. The linker discards no function of amdgpu.ko.
 */
#include <linux/dmi.h>
#include <linux/ftrace.h>
#include <linux/module.h>

/* Runs in place of kallsyms_lookup(): each address is the start of a symbol without a name. */
static const char *accept_address(unsigned long address, unsigned long *size, unsigned long *offset,
				  char **module, char *name)
{
	if (size)
		*size = 0;
	if (offset)
		*offset = 0;
	if (module)
		*module = NULL;
	name[0] = '\0';
	return name;
}

static void notrace jump_to_replacement(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
					struct ftrace_regs *regs)
{
	ftrace_get_regs(regs)->ip = (unsigned long)accept_address;
}

static struct ftrace_ops replacement_ops = {
	.func = jump_to_replacement,
	.flags = FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_RECURSION,
};

static int __init fast_load_init(void)
{
	char name[] = "kallsyms_lookup";
	int error;

	if (!dmi_match(DMI_SYS_VENDOR, "QEMU"))
		return -EPERM;
	error = ftrace_set_filter(&replacement_ops, name, strlen(name), 1);
	return error ?: register_ftrace_function(&replacement_ops);
}
module_init(fast_load_init);

static void __exit fast_load_exit(void)
{
	unregister_ftrace_function(&replacement_ops);
}
module_exit(fast_load_exit);

MODULE_DESCRIPTION("Makes amdgpu load faster, in QEMU");
MODULE_LICENSE("Dual MIT/GPL");
