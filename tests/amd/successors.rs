//! Owned values whose mappings were replaced by another owner's.

use crate::amd_runtime::on_each;
use crate::machine::Library;
use crate::successor;

#[test]
fn owned_values_never_act_on_successors() {
    on_each("successors::owned_values_never_act_on_successors", |fixture| {
        let library = Library::load(fixture.runtime());
        successor::of_mapping(&library);
        successor::of_growable_buffer(&library);
        successor::of_ring_buffer(&library);
        successor::of_pausable_buffer(&library);
        successor::of_paged_buffer(&library);
        successor::of_area_memory(&library);
        successor::of_reservation(&library);
    });
}
