//! A reservation stays whole, whoever maps memory meanwhile.

use crate::amd_runtime::on_each;
use crate::machine::Library;
use crate::stranger::besiege;

#[test]
fn strangers_are_never_let_in() {
    on_each("besieged::strangers_are_never_let_in", |ground| {
        besiege(&Library::load(ground.runtime()), &ground.release().to_string());
    });
}
