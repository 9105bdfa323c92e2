/* A substitute for AMD's header, which may not be installed. */
DECLARE(hsa_amd_agent_iterate_memory_pools);
DECLARE(hsa_amd_memory_pool_get_info);
DECLARE(hsa_amd_agent_memory_pool_get_info);
DECLARE(hsa_amd_memory_pool_allocate);
DECLARE(hsa_amd_memory_pool_free);
DECLARE(hsa_amd_agents_allow_access);
DECLARE(hsa_amd_memory_async_copy);
DECLARE(hsa_amd_vmem_address_reserve);
DECLARE(hsa_amd_vmem_address_free);
DECLARE(hsa_amd_vmem_handle_create);
DECLARE(hsa_amd_vmem_handle_release);
DECLARE(hsa_amd_vmem_map);
DECLARE(hsa_amd_vmem_unmap);
DECLARE(hsa_amd_vmem_set_access);
DECLARE(hsa_amd_vmem_export_shareable_handle);
DECLARE(hsa_amd_vmem_import_shareable_handle);
