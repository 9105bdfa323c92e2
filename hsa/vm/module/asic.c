// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The chip's registers, hubs and buses. The functions return constants instead of accessing hardware. */
#include <linux/ktime.h>
#include "gpu.h"

/* The address at which the driver places the VRAM of all GPUs of a hive. */
#define FRAME_BUFFER_BASE 0x8000000000ull
/* The length of a tick of the GPU's clock (100 MHz), in nanoseconds. */
#define NS_PER_TICK 10

bool xgmi = true;
module_param(xgmi, bool, 0444);
MODULE_PARM_DESC(xgmi, "connect all GPUs by XGMI; otherwise by PCIe");

int do_nothing(void *handle)
{
	return 0;
}

bool is_idle(void *handle)
{
	return true;
}

int set_clockgating(void *handle, enum amd_clockgating_state state)
{
	return 0;
}

int set_powergating(void *handle, enum amd_powergating_state state)
{
	return 0;
}

u64 gpu_clock(struct amdgpu_device *adev)
{
	return ktime_get_ns() / NS_PER_TICK;
}

static void ignore(struct amdgpu_device *adev)
{
}

static u32 return_zero_u32(struct amdgpu_device *adev)
{
	return 0;
}

static bool return_false(struct amdgpu_device *adev)
{
	return false;
}

static int return_zero_int(struct amdgpu_device *adev)
{
	return 0;
}

static u32 vram_mebibytes(struct amdgpu_device *adev)
{
	return gpu_of(adev)->vram_size >> 20;
}

const struct amdgpu_nbio_funcs software_nbio_funcs = {
	.get_memsize = vram_mebibytes,
	.get_rev_id = return_zero_u32,
};

static enum amdgpu_pkg_type package_type(struct amdgpu_device *adev)
{
	return AMDGPU_PKG_TYPE_OAM;
}

const struct amdgpu_smuio_funcs software_smuio_funcs = {
	.get_pkg_type = package_type,
	.is_host_gpu_xgmi_supported = return_false,
	.get_die_id = return_zero_u32,
	.get_socket_id = return_zero_u32,
};

static void flush_hdp(struct amdgpu_device *adev, struct amdgpu_ring *ring)
{
	mb();
}

const struct amdgpu_hdp_funcs software_hdp_funcs = {
	.flush_hdp = flush_hdp,
	.invalidate_hdp = flush_hdp,
	.init_registers = ignore,
};

const struct amdgpu_df_funcs software_df_funcs = { };

/* Returns the size of one GPU's part of the frame buffer. */
static u64 segment_size(struct amdgpu_device *adev)
{
	return roundup_pow_of_two(gpu_of(adev)->vram_size);
}

static u64 frame_buffer_location(struct amdgpu_device *adev)
{
	u64 size = xgmi ? segment_size(adev) * gpu_count : gpu_of(adev)->vram_size;

	adev->gmc.fb_start = FRAME_BUFFER_BASE;
	adev->gmc.fb_end = FRAME_BUFFER_BASE + size - 1;
	return FRAME_BUFFER_BASE;
}

static u64 frame_buffer_offset(struct amdgpu_device *adev)
{
	return 0;
}

static void set_fault_default(struct amdgpu_device *adev, bool value)
{
}

static void set_page_table(struct amdgpu_device *adev, u32 vmid, u64 base)
{
}

static int xgmi_info(struct amdgpu_device *adev)
{
	if (!xgmi || gpu_count < 2)
		return 0;
	adev->gmc.xgmi.num_physical_nodes = gpu_count;
	adev->gmc.xgmi.physical_node_id = gpu_of(adev)->index;
	adev->gmc.xgmi.node_segment_size = segment_size(adev);
	return 0;
}

const struct amdgpu_mmhub_funcs software_mmhub_funcs = {
	.get_fb_location = frame_buffer_location,
	.get_mc_fb_offset = frame_buffer_offset,
	.init = ignore,
	.gart_enable = return_zero_int,
	.gart_disable = ignore,
	.set_fault_enable_default = set_fault_default,
	.setup_vm_pt_regs = set_page_table,
};

const struct amdgpu_gfxhub_funcs software_gfxhub_funcs = {
	.get_fb_location = frame_buffer_location,
	.get_mc_fb_offset = frame_buffer_offset,
	.init = ignore,
	.gart_enable = return_zero_int,
	.gart_disable = ignore,
	.set_fault_enable_default = set_fault_default,
	.setup_vm_pt_regs = set_page_table,
	.get_xgmi_info = xgmi_info,
};

static bool no_bios(struct amdgpu_device *adev, u8 *bios, u32 size)
{
	return false;
}

static int read_register(struct amdgpu_device *adev, u32 se, u32 sh, u32 offset, u32 *value)
{
	*value = 0;
	return 0;
}

static void set_vga_state(struct amdgpu_device *adev, bool state)
{
}

static enum amd_reset_method reset_method(struct amdgpu_device *adev)
{
	return AMD_RESET_METHOD_NONE;
}

/* Returns the frequency of the GPU's clock, in units of 10 kHz. */
static u32 reference_clock(struct amdgpu_device *adev)
{
	return NSEC_PER_SEC / NS_PER_TICK / 10000;
}

static u64 no_replays(struct amdgpu_device *adev)
{
	return 0;
}

static void init_doorbells(struct amdgpu_device *adev)
{
	struct amdgpu_doorbell_index *index = &adev->doorbell_index;

	index->kiq = AMDGPU_VEGA20_DOORBELL_KIQ;
	index->mec_ring0 = AMDGPU_VEGA20_DOORBELL_MEC_RING0;
	index->userqueue_start = AMDGPU_VEGA20_DOORBELL_USERQUEUE_START;
	index->userqueue_end = AMDGPU_VEGA20_DOORBELL_USERQUEUE_END;
	for (int i = 0; i < 16; i++)
		index->sdma_engine[i] = 0x100 + i * 0xa;
	index->ih = AMDGPU_VEGA20_DOORBELL_IH;
	index->first_non_cp = 0x100;
	index->last_non_cp = 0x1d0;
	index->max_assignment = AMDGPU_VEGA20_DOORBELL_MAX_ASSIGNMENT << 1;
	index->sdma_doorbell_range = 20;
}

const struct amdgpu_asic_funcs software_asic_funcs = {
	.read_disabled_bios = return_false,
	.read_bios_from_rom = no_bios,
	.read_register = read_register,
	.set_vga_state = set_vga_state,
	.reset = return_zero_int,
	.reset_method = reset_method,
	.get_xclk = reference_clock,
	.get_config_memsize = vram_mebibytes,
	.need_full_reset = return_false,
	.init_doorbell_index = init_doorbells,
	.need_reset_on_init = return_false,
	.get_pcie_replay_count = no_replays,
	.supports_baco = return_zero_int,
	.pre_asic_init = ignore,
};
