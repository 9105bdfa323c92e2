//! An owned value whose mapping was unmapped by address does not act on the mapping that replaces it.

use crate::amd_runtime::on_each;
use crate::machine::Library;
use crate::successor;

#[test]
fn owned_values_never_act_on_successors() {
    on_each("successors::owned_values_never_act_on_successors", |fixture| {
        let library = Library::load(fixture.runtime());
        successor::check_mapping(&library);
        successor::check_growable_buffer(&library);
        successor::check_ring_buffer(&library);
        successor::check_pausable_buffer(&library);
        successor::check_paged_buffer(&library);
        successor::check_area_memory(&library);
        successor::check_reservation(&library);
    });
}
