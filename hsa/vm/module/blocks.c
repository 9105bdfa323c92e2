// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The IP blocks of a software GPU, an MI300X (GC 9.4.3). These blocks replace those that amdgpu would find in the
 * chip's discovery table. The block of the memory controller calls AMD's own gmc_v9_0, which calls the hubs of asic.c.
 */
#include "gpu.h"
#include "amdgpu_xgmi.h"
#include "symbols.h"

#define XCCS 8
#define COMPUTE_UNITS_PER_XCC 38
/* The scratch register in which a VBIOS reports that it has initialised the chip. */
#define BIOS_SCRATCH_7 (7 * sizeof(u32))
#define ASIC_INIT_COMPLETE 0x200
/* The offset of the end of the register page in which the driver makes the HDP flush registers available. */
#define REMAPPED_PAGE_END 0x80000

static u32 read32(struct amdgpu_device *adev, u32 offset)
{
	return 0;
}

static void write32(struct amdgpu_device *adev, u32 offset, u32 value)
{
}

static u32 read32_extended(struct amdgpu_device *adev, u64 offset)
{
	return 0;
}

static void write32_extended(struct amdgpu_device *adev, u64 offset, u32 value)
{
}

static u64 read64(struct amdgpu_device *adev, u32 offset)
{
	return 0;
}

static void write64(struct amdgpu_device *adev, u32 offset, u64 value)
{
}

static int common_early_init(struct amdgpu_ip_block *block)
{
	struct amdgpu_device *adev = block->adev;

	adev->asic_funcs = &software_asic_funcs;
	adev->smc_rreg = adev->pcie_rreg = adev->pciep_rreg = read32;
	adev->smc_wreg = adev->pcie_wreg = adev->pciep_wreg = write32;
	adev->uvd_ctx_rreg = adev->didt_rreg = adev->gc_cac_rreg = adev->se_cac_rreg = read32;
	adev->uvd_ctx_wreg = adev->didt_wreg = adev->gc_cac_wreg = adev->se_cac_wreg = write32;
	adev->pcie_rreg_ext = read32_extended;
	adev->pcie_wreg_ext = write32_extended;
	adev->pcie_rreg64 = read64;
	adev->pcie_wreg64 = write64;
	adev->rev_id = 1;
	adev->external_rev_id = 0x47;
	adev->rmmio_remap.reg_offset = REMAPPED_PAGE_END - PAGE_SIZE;
	adev->rmmio_remap.bus_addr = adev->rmmio_base + adev->rmmio_remap.reg_offset;
	/* The driver sets this flag in every virtual machine, but this GPU is not passed through. */
	adev->virt.caps &= ~AMDGPU_PASSTHROUGH_MODE;
	/* With any other type the driver allocates a buffer for firmware. */
	adev->firmware.load_type = AMDGPU_FW_LOAD_DIRECT;
	writel(ASIC_INIT_COMPLETE, adev->rmmio + BIOS_SCRATCH_7);
	return 0;
}

static const struct amd_ip_funcs common_ip_funcs = {
	.name = "software_common",
	.early_init = common_early_init,
	.sw_init = do_nothing,
	.hw_init = do_nothing,
	UNUSED_IP_FUNCS,
};

static void flush_tlb(struct amdgpu_device *adev, u32 vmid, u32 hub, u32 type)
{
	if (vmid < FIRST_RUNLIST_SPACE)
		flush_space(gpu_of(adev), vmid);
}

static void flush_tlb_of_pasid(struct amdgpu_device *adev, u16 pasid, u32 type, bool all_hubs, u32 instance)
{
	flush_pasid(gpu_of(adev), pasid);
}

static u64 emit_flush(struct amdgpu_ring *ring, unsigned int vmid, u64 root)
{
	return root;
}

static void emit_pasid(struct amdgpu_ring *ring, unsigned int vmid, unsigned int pasid)
{
}

static int gmc_early_init(struct amdgpu_ip_block *block)
{
	struct amdgpu_device *adev = block->adev;
	struct gpu *gpu = gpu_of(adev);
	int error;

	/* set_ip_blocks() has set this flag, so that the driver does not look for a VBIOS. */
	adev->flags &= ~AMD_IS_APU;
	error = amd.gmc_v9_0_ip_funcs->early_init(block);
	if (error)
		return error;
	gpu->gmc_funcs = *adev->gmc.gmc_funcs;
	gpu->gmc_funcs.flush_gpu_tlb = flush_tlb;
	gpu->gmc_funcs.flush_gpu_tlb_pasid = flush_tlb_of_pasid;
	gpu->gmc_funcs.emit_flush_gpu_tlb = emit_flush;
	gpu->gmc_funcs.emit_pasid_mapping = emit_pasid;
	adev->gmc.gmc_funcs = &gpu->gmc_funcs;
	adev->gmc.xgmi.supported = xgmi;
	adev->mmhub.funcs = &software_mmhub_funcs;
	adev->gfxhub.funcs = &software_gfxhub_funcs;
	adev->hdp.funcs = &software_hdp_funcs;
	adev->mmhub.ras = NULL;
	adev->hdp.ras = NULL;
	adev->gmc.xgmi.ras = NULL;
	adev->umc.ras = NULL;
	return 0;
}

static int gmc_sw_init(void *handle)
{
	return amd.gmc_v9_0_ip_funcs->sw_init(handle);
}

static int gmc_hw_init(void *handle)
{
	struct amdgpu_device *adev = handle;

	/* TLB flushes are calls of gmc_funcs, not packets of the kernel interface queue (KIQ). */
	adev->gmc.flush_pasid_uses_kiq = false;
	if (!adev->gart.bo)
		return -EINVAL;
	amd.amdgpu_gtt_mgr_recover(&adev->mman.gtt_mgr);
	/* The PSP would report that every GPU of the hive is one hop away. */
	for (int i = 0; i < MAX_GPUS; i++) {
		adev->psp.xgmi_context.top_info.nodes[i].num_hops = 1;
		adev->psp.xgmi_context.top_info.nodes[i].num_links = 1;
	}
	return 0;
}

static int gmc_late_init(void *handle)
{
	return amd.amdgpu_gmc_allocate_vm_inv_eng(handle);
}

static const struct amd_ip_funcs gmc_ip_funcs = {
	.name = "software_gmc",
	.early_init = gmc_early_init,
	.sw_init = gmc_sw_init,
	.hw_init = gmc_hw_init,
	.late_init = gmc_late_init,
	UNUSED_IP_FUNCS,
};

/* With HSA_AMD_SVM, amdkfd looks for page faults in the interrupt rings. The rings are always empty. */
static u32 write_pointer_of_empty_ring(struct amdgpu_device *adev, struct amdgpu_ih_ring *ih)
{
	return ih->rptr;
}

static const struct amdgpu_ih_funcs ih_funcs = { .get_wptr = write_pointer_of_empty_ring };

static int ih_sw_init(void *handle)
{
	struct amdgpu_device *adev = handle;

	adev->irq.ih_funcs = &ih_funcs;
	return 0;
}

static const struct amd_ip_funcs ih_ip_funcs = {
	.name = "software_ih",
	.sw_init = ih_sw_init,
	.hw_init = do_nothing,
	UNUSED_IP_FUNCS,
};

static void select_se_sh(struct amdgpu_device *adev, u32 se, u32 sh, u32 instance, int xcc)
{
}

static void select_queue(struct amdgpu_device *adev, u32 me, u32 pipe, u32 queue, u32 vmid, u32 xcc)
{
}

static const struct amdgpu_gfx_funcs gfx_funcs = {
	.get_gpu_clock_counter = gpu_clock,
	.select_se_sh = select_se_sh,
	.select_me_pipe_q = select_queue,
};

static int gfx_early_init(struct amdgpu_ip_block *block)
{
	struct amdgpu_device *adev = block->adev;
	struct amdgpu_gfx *gfx = &adev->gfx;
	struct amdgpu_cu_info *units = &gfx->cu_info;

	gfx->funcs = &gfx_funcs;
	gfx->xcc_mask = (1 << XCCS) - 1;
	gfx->num_xcc_per_xcp = XCCS;
	gfx->mec.num_mec = 1;
	gfx->mec.num_pipe_per_mec = 4;
	gfx->mec.num_queue_per_pipe = 8;
	gfx->mec_fw_version = gfx->mec2_fw_version = 200;
	gfx->config.max_shader_engines = 4;
	gfx->config.max_sh_per_se = 1;
	gfx->config.max_cu_per_sh = 10;
	gfx->config.max_tile_pipes = 8;
	gfx->config.max_backends_per_se = 4;
	gfx->config.max_gprs = 256;
	gfx->config.max_hw_contexts = 8;
	gfx->config.max_texture_channel_caches = 16;
	/* AMD's runtime requires that a GPU has caches. */
	gfx->config.gc_tcp_size_per_cu = 32;
	gfx->config.gc_l1_instruction_cache_size_per_sqc = 64;
	gfx->config.gc_l1_data_cache_size_per_sqc = 16;
	gfx->config.gc_num_cu_per_sqc = 2;
	gfx->config.gc_tcc_size = 4096;
	adev->gmc.mall_size = 256ull << 20;
	/* amdkfd reserves these resources when it uses the hardware scheduler. */
	adev->gds.gws_size = 64;
	adev->gds.oa_size = 16;
	units->number = COMPUTE_UNITS_PER_XCC * XCCS;
	units->simd_per_cu = 4;
	units->max_waves_per_simd = 8;
	units->wave_front_size = 64;
	units->max_scratch_slots_per_cu = 32;
	units->lds_size = 64;
	/* Shader engines of ten, ten, nine and nine compute units. */
	for (int xcc = 0; xcc < XCCS; xcc++)
		for (int engine = 0; engine < 4; engine++)
			units->bitmap[xcc][engine][0] = engine < 2 ? 0x3ff : 0x1ff;
	return 0;
}

static int gfx_sw_init(void *handle)
{
	struct amdgpu_device *adev = handle;

	if (!adev->kfd.dev) {
		dev_err(adev->dev, "hsa_vmm: amdkfd does not accept this GPU\n");
		return -ENODEV;
	}
	replace_kfd2kgd(gpu_of(adev));
	return 0;
}

static const struct amd_ip_funcs gfx_ip_funcs = {
	.name = "software_gfx",
	.early_init = gfx_early_init,
	.sw_init = gfx_sw_init,
	.hw_init = do_nothing,
	UNUSED_IP_FUNCS,
};

static const struct amdgpu_ip_block_version blocks[] = {
	{ AMD_IP_BLOCK_TYPE_COMMON, 9, 0, 0, &common_ip_funcs },
	{ AMD_IP_BLOCK_TYPE_GMC, 9, 0, 0, &gmc_ip_funcs },
	{ AMD_IP_BLOCK_TYPE_IH, 4, 4, 2, &ih_ip_funcs },
	{ AMD_IP_BLOCK_TYPE_GFX, 9, 4, 3, &gfx_ip_funcs },
	{ AMD_IP_BLOCK_TYPE_SDMA, 4, 4, 2, &kernel_engine_ip_funcs },
};

/* Runs in place of amdgpu_discovery_set_ip_blocks(). */
int set_ip_blocks(struct amdgpu_device *adev)
{
	struct gpu *gpu = gpu_of(adev);

	if (!gpu)
		return -ENODEV;
	gpu->adev = adev;
	/* Any valid register offsets suffice, because the driver's register accesses reach RAM. */
	amd.aldebaran_reg_base_init(adev);
	adev->ip_versions[GC_HWIP][0] = IP_VERSION(9, 4, 3);
	adev->ip_versions[SDMA0_HWIP][0] = IP_VERSION(4, 4, 2);
	adev->family = AMDGPU_FAMILY_AI;
	adev->nbio.funcs = &software_nbio_funcs;
	adev->smuio.funcs = &software_smuio_funcs;
	adev->df.funcs = &software_df_funcs;
	adev->hdp.funcs = &software_hdp_funcs;
	/* The mask and the flag together mean that the chip has no VBIOS. gmc_early_init() clears the flag. */
	adev->aid_mask = 1;
	adev->flags |= AMD_IS_APU;
	for (int i = 0; i < ARRAY_SIZE(blocks); i++) {
		int error = amd.amdgpu_device_ip_block_add(adev, &blocks[i]);

		if (error)
			return error;
	}
	return 0;
}
