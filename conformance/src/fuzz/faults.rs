//! Generates fault plans.

use crate::operations::choices::Choices;
use hsa_vmm::simulation::FaultPlan;

/// The runtime's functions that a plan makes fail. The library rolls back after each failure. `hsa_signal_destroy` and
/// `hsa_amd_memory_unlock` are not listed, because the test would report their failure as a leak.
const FUNCTIONS: [&str; 14] = [
    "hsa_amd_vmem_address_reserve",
    "hsa_amd_vmem_address_reserve_align",
    "hsa_amd_vmem_address_free",
    "hsa_amd_vmem_handle_create",
    "hsa_amd_vmem_handle_release",
    "hsa_amd_vmem_map",
    "hsa_amd_vmem_unmap",
    "hsa_amd_vmem_set_access",
    "hsa_amd_vmem_export_shareable_handle",
    "hsa_amd_vmem_import_shareable_handle",
    "hsa_amd_vmem_get_alloc_properties_from_handle",
    "hsa_amd_memory_lock",
    "hsa_amd_memory_async_copy",
    "hsa_signal_create",
];

/// `HSA_STATUS_ERROR`, and `HSA_STATUS_ERROR_INVALID_ARGUMENT`, `…_INVALID_ALLOCATION`, `…_OUT_OF_RESOURCES` and
/// `…_NOT_INITIALIZED`.
const STATUSES: [u32; 5] = [0x1000, 0x1001, 0x1003, 0x1008, 0x100b];

/// Generates a plan of one to four failing calls. Each is the n-th call of a function, with n from 1 to 12: most
/// sequences are long enough to make these calls.
pub(super) fn generate(choices: &mut Choices) -> FaultPlan {
    (0..1 + choices.below(4)).fold(FaultPlan::none(), |plan, _| {
        let function = choices.one_of(FUNCTIONS);
        plan.fail(function, 1 + u64::from(choices.below(12)), choices.one_of(STATUSES))
    })
}

#[cfg(test)]
mod tests {
    use super::generate;
    use crate::operations::choices::Choices;
    use fastrand::Rng;
    use hsa_vmm::simulation::FaultPlan;

    #[test]
    fn generated_plans_can_be_parsed() {
        let mut random = Rng::with_seed(7);
        for _ in 0..200 {
            let bytes = random.u128(..).to_le_bytes();
            let plan = generate(&mut Choices::new(&bytes));
            assert_eq!(plan.to_string().parse::<FaultPlan>().as_ref(), Ok(&plan));
        }
    }
}
