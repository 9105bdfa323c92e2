// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * AMD's runtime copies and fills with its own kernels if it does not use SDMA. This file recognises these kernels by
 * the form of their arguments, and performs the copy or fill in software. The instructions of a kernel never run.
 */
#include <linux/align.h>
#include "gpu.h"

/* The number of work items in a wavefront. */
#define WAVE 64
/*
 * The arguments of a copy are pairs of a source and a destination address, and the number of work items. There is a
 * pair for the start of each phase, and one for the end of the last phase. AMD's copy kernels for aligned and for
 * misaligned addresses differ in the number of pairs.
 */
#define ALIGNED_PAIRS 5
#define MISALIGNED_PAIRS 3

/* Returns the size of a copy in bytes, or 0 if these are not the arguments of a copy. */
static u64 copy_size(const u64 *arguments, int pairs)
{
	u64 source = arguments[0], target = arguments[1], size = 0;

	if (!source || !target)
		return 0;
	for (int i = 1; i < pairs; i++) {
		u64 next = arguments[2 * i] - source;

		if (arguments[2 * i] < source || arguments[2 * i + 1] - target != next || next < size)
			return 0;
		size = next;
	}
	return size;
}

static bool matches_grid(u32 items, u32 grid)
{
	return items && ALIGN((u64)items, WAVE) == ALIGN((u64)grid, WAVE);
}

int run_blit_kernel(struct access *a, u64 kernel, u64 address, u32 grid)
{
	u64 header[3], arguments[11], size;

	if (user_read(a, kernel, header, sizeof(header)) ||
	    user_read(a, address, arguments, sizeof(arguments)))
		return -EFAULT;
	/*
	 * A copy or fill kernel begins with an amd_kernel_code_t of version 1, or with a kernel descriptor without
	 * segments and with the code at offset 256.
	 */
	if ((u32)header[0] != 1 && (header[0] || header[1] || header[2] != 256))
		return 0;
	size = copy_size(arguments, ALIGNED_PAIRS);
	if (size && matches_grid(arguments[2 * ALIGNED_PAIRS], grid))
		return user_copy(a, arguments[0], arguments[1], size) ?: 1;
	size = copy_size(arguments, MISALIGNED_PAIRS);
	if (size && matches_grid(arguments[2 * MISALIGNED_PAIRS], grid))
		return user_copy(a, arguments[0], arguments[1], size) ?: 1;
	/* The arguments of a fill: start, end of the unrolled part, end, value, work items. */
	if (matches_grid(arguments[3] >> 32, grid) && arguments[0] && arguments[0] <= arguments[1] &&
	    arguments[1] <= arguments[2] && arguments[0] < arguments[2])
		return user_fill(a, arguments[0], arguments[3], arguments[2] - arguments[0]) ?: 1;
	return 0;
}
