//! Defects of AMD's runtime. `table.rs` lists them.
//!
//! Tests named `…on_the_runtime` show a defect on the runtime itself. Tests named `…through_the_library` show that the
//! library avoids or reports the defect.

#[path = "../amd_runtime/mod.rs"]
mod amd_runtime;
mod defect;
#[allow(dead_code, reason = "the tests of IPC use the rest")]
#[path = "../ipc/impostor.rs"]
mod impostor;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../process/mod.rs"]
mod process;
mod table;

mod alignment;
mod attach;
mod beyond_the_range;
#[cfg(target_arch = "x86_64")]
mod copy_by_cpu;
mod descriptors;
mod fill;
mod full_memory;
mod hidden_owner;
mod hole;
mod huge_reservation;
mod in_offset;
mod ipc_server;
mod kept_access;
mod kernel;
mod left_reserved;
mod locked;
mod mapping_limit;
mod misleading_status;
mod no_descriptor;
mod no_memory;
mod page;
mod partly_applied;
mod past_the_end;
mod reservation_contents;
mod retain_inside;
mod several_mappings;
mod shutdown;
mod small_export;
mod stale_handle;
mod unenforced_access;
