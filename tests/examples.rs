//! The examples run to their end.

#[path = "../examples/agents.rs"]
mod agents;
#[path = "../examples/aliases.rs"]
mod aliases;
#[path = "../examples/cycle.rs"]
mod cycle;

#[test]
fn agents_shows_what_is_there() {
    agents::main().unwrap();
}

#[test]
fn aliases_draws_one_memory_at_many_addresses() {
    aliases::main().unwrap();
}

#[test]
fn cycle_goes_from_reservation_to_reuse() {
    cycle::main().unwrap();
}

/// This one starts itself again, which only a program of its own can do.
#[test]
fn ipc_shows_both_sides_data() {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    let ran = cargo.args(["run", "--quiet", "--example", "ipc"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("read \"from the first\""), "{said}");
    assert!(said.contains("reads \"from the second\""), "{said}");
}
