//! Random operations of eight threads on AMD's runtime have a serial order.

use crate::amd_runtime::on_each;
use crate::machine::Library;
use crate::serial::stress::stress;

#[test]
fn eight_threads_have_a_serial_order() {
    on_each("serial_order::eight_threads_have_a_serial_order", |fixture| {
        let library = Library::load(fixture.runtime());
        stress(&fixture.release().to_string(), &library, 1);
    });
}
