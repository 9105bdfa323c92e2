// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* Looks up functions and tables of amdgpu.ko in the kernel's symbol table. */
#include <linux/kprobes.h>
#include "symbols.h"

struct amd_symbols amd;

static unsigned long (*lookup_name)(const char *name);

/* Finds kallsyms_lookup_name() with a kprobe, because the kernel does not export this function. */
static int find_lookup(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	int error;

	if (lookup_name)
		return 0;
	error = register_kprobe(&probe);
	if (error)
		return error;
	lookup_name = (void *)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

const char *kernel_command_line(void)
{
	char **line;

	if (find_lookup())
		return NULL;
	line = (char **)lookup_name("saved_command_line");
	return line ? *line : NULL;
}

unsigned long amdgpu_symbol(const char *name)
{
	char qualified[128];

	if (find_lookup() || snprintf(qualified, sizeof(qualified), "amdgpu:%s", name) >= sizeof(qualified))
		return 0;
	return lookup_name(qualified);
}

static unsigned long required_symbol(const char *name)
{
	unsigned long address = amdgpu_symbol(name);

	if (!address)
		pr_err("hsa_vmm: this kernel's amdgpu.ko has no symbol %s\n", name);
	return address;
}

int resolve_symbols(void)
{
	int error = find_lookup();

	if (error)
		return error;
#define FUNCTION(result, name, arguments)                                                         \
	amd.name = (void *)required_symbol(#name);                                                \
	if (!amd.name)                                                                            \
		return -ENOENT;
#define TABLE(type, name) FUNCTION(type, name, )
	AMD_FUNCTIONS(FUNCTION)
	AMD_TABLES(TABLE)
#undef FUNCTION
#undef TABLE
	return 0;
}
