//! Writes recorded calls as a C program.

use super::steps::{Action, AddressRef, AgentRef, MemoryRef, Plan, PoolRef};
use super::{AgentKind, Recording};
use hsa_vmm::hsa_sys::{C_HEADER, Core, Vmem};
use std::fmt::Write;

const HEAD: &str = include_str!("head.c");
/// The maximum number of calls in a function of the program. Compilers are slow with long functions.
const CALLS_PER_FUNCTION: usize = 500;

/// Returns the source of a program that makes the calls, compares each status with the recorded status, and exits
/// with 1 if any differs. The program needs no headers of ROCm, only `libhsa-runtime64.so.1`.
#[must_use]
pub fn source(recording: &Recording, plan: &Plan) -> String {
    let names = Core::SYMBOLS.iter().chain(Vmem::SYMBOLS).map(|symbol| symbol.name);
    let functions = names.map(|name| format!("extern __typeof__(*({name}_fn)0) {name};\n"));
    let declarations = C_HEADER.to_owned() + "\n" + &functions.collect::<String>();
    // The name is in a comment. A name with `*/` would end the comment. After Unicode's direction marks, editors would
    // display the code in another order.
    let is_direction_mark = |it: char| matches!(it, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let program = recording.header.program.chars();
    let name: String = program.filter(|&it| !it.is_control() && !is_direction_mark(it)).collect();
    let mut text = HEAD
        .replacen("DECLARATIONS", &declarations, 1)
        // C has no empty arrays.
        .replacen("[BLOCKS]", &format!("[{}]", plan.block_count.max(1)), 1)
        .replacen("[MEMORIES]", &format!("[{}]", plan.handle_count.max(1)), 1)
        .replacen("[DESCRIPTORS]", &format!("[{}]", plan.descriptor_count.max(1)), 1)
        // Insert the recorded name last, so that the other replacements do not change a part of the name.
        .replacen("PROGRAM", &name.replace("*/", "* /"), 1);
    let parts = plan.steps.chunks(CALLS_PER_FUNCTION);
    let count = parts.len();
    for (number, part) in parts.enumerate() {
        let _ = writeln!(text, "\nstatic void part_{number}(void) {{");
        for step in part {
            let _ = match &step.action {
                Ok(action) => {
                    writeln!(
                        text,
                        "  CALL({}, {:#x}, {});",
                        step.line,
                        step.status,
                        call_expression(action)
                    )
                }
                Err(skipped) => {
                    writeln!(text, "  /* line {}: {}: {skipped} */", step.line, step.name)
                }
            };
        }
        text.push_str("}\n");
    }
    text.push_str("\nint main(void) {\n  if (hsa_init() != HSA_STATUS_SUCCESS) return 3;\n");
    text.push_str("  hsa_iterate_agents(add_agent, NONE);\n");
    for number in 0..count {
        let _ = writeln!(text, "  part_{number}();");
    }
    text.push_str(
        "  printf(\"%d of %d calls agreed\\n\", agreed, calls);\n  fflush(NULL);\n  /* Does not call hsa_shut_down, \
         which crashes if a mapping is left. */\n  _exit(agreed != calls);\n}\n",
    );
    text
}

fn address_expression(address: AddressRef) -> String {
    match address {
        AddressRef::Block { block, offset: 0 } => format!("block[{block}]"),
        AddressRef::Block { block, offset } => format!("(char *)block[{block}] + {offset:#x}"),
        AddressRef::Fixed(0) => "NONE".to_owned(),
        AddressRef::Fixed(address) => format!("(void *){address:#x}"),
    }
}

fn memory_expression(memory: MemoryRef) -> String {
    match memory {
        MemoryRef::Numbered(number) => format!("memory[{number}]"),
        MemoryRef::Fixed(handle) => format!("invalid_memory({handle:#x})"),
    }
}

fn agent_expression(agent: AgentRef) -> String {
    match agent {
        AgentRef::Numbered { kind: AgentKind::Gpu, number } => format!("gpu({number})"),
        AgentRef::Numbered { number, .. } => format!("cpu({number})"),
        AgentRef::Invalid => "invalid_agent".to_owned(),
    }
}

fn pool_expression(pool: PoolRef) -> String {
    match pool {
        PoolRef::Numbered { agent: agent_ref, number } => {
            format!("pool({}, {number})", agent_expression(agent_ref))
        }
        PoolRef::Invalid => "invalid_pool".to_owned(),
    }
}

/// Returns the C expression for the address that receives a result: an element of an array, or the variable for results
/// of failed calls.
fn result_expression(array: &str, number: Option<usize>) -> String {
    number.map_or(format!("&no_{array}"), |number| format!("&{array}[{number}]"))
}

fn call_expression(action: &Action) -> String {
    match action {
        Action::Reserve { block, size, hint, alignment, flags } => {
            let into = result_expression("block", *block);
            match alignment {
                None => format!(
                    "hsa_amd_vmem_address_reserve({into}, {size:#x}, {hint:#x}, {flags:#x})"
                ),
                Some(alignment) => format!(
                    "hsa_amd_vmem_address_reserve_align({into}, {size:#x}, {hint:#x}, {alignment:#x}, {flags:#x})"
                ),
            }
        }
        Action::Free { at, size } => {
            format!("hsa_amd_vmem_address_free({}, {size:#x})", address_expression(*at))
        }
        Action::Create { memory, pool: pool_ref, size, kind, flags } => format!(
            "hsa_amd_vmem_handle_create({}, {size:#x}, {kind}, {flags:#x}, {})",
            pool_expression(*pool_ref),
            result_expression("memory", *memory)
        ),
        Action::Release { memory: handle } => {
            format!("hsa_amd_vmem_handle_release({})", memory_expression(*handle))
        }
        Action::Map { at, size, offset, memory: handle, flags } => format!(
            "hsa_amd_vmem_map({}, {size:#x}, {offset:#x}, {}, {flags:#x})",
            address_expression(*at),
            memory_expression(*handle)
        ),
        Action::Unmap { at, size } => {
            format!("hsa_amd_vmem_unmap({}, {size:#x})", address_expression(*at))
        }
        Action::SetAccess { at, size, access } => {
            let list = access.iter();
            let list = list.map(|(agent_ref, permissions)| {
                format!("access_of({}, {permissions})", agent_expression(*agent_ref))
            });
            let list = if access.is_empty() {
                "NONE".to_owned()
            } else {
                let list: Vec<_> = list.collect();
                format!("(hsa_amd_memory_access_desc_t[]){{{}}}", list.join(", "))
            };
            format!("set_access({}, {size:#x}, {}, {list})", address_expression(*at), access.len())
        }
        Action::GetAccess { at, agent: agent_ref, .. } => {
            format!(
                "hsa_amd_vmem_get_access({}, &permission, {})",
                address_expression(*at),
                agent_expression(*agent_ref)
            )
        }
        Action::Export { descriptor, memory: handle, flags } => format!(
            "hsa_amd_vmem_export_shareable_handle({}, {}, {flags:#x})",
            result_expression("descriptor", *descriptor),
            memory_expression(*handle)
        ),
        Action::Import { memory, descriptor } => format!(
            "hsa_amd_vmem_import_shareable_handle(descriptor[{descriptor}], {})",
            result_expression("memory", *memory)
        ),
        Action::Retain { memory, at } => {
            let into = result_expression("memory", *memory);
            format!("hsa_amd_vmem_retain_alloc_handle({into}, {})", address_expression(*at))
        }
        Action::Properties { memory: handle } => format!(
            "hsa_amd_vmem_get_alloc_properties_from_handle({}, &pool_of_memory, &type_of_memory)",
            memory_expression(*handle)
        ),
        Action::Allocate { block, pool: pool_ref, size, flags } => format!(
            "hsa_amd_memory_pool_allocate({}, {size:#x}, {flags:#x}, {})",
            pool_expression(*pool_ref),
            result_expression("block", *block)
        ),
        Action::FreeMemory { at } => {
            format!("hsa_amd_memory_pool_free({})", address_expression(*at))
        }
        Action::AllowAccess { at, agents } => {
            let list: Vec<_> =
                agents.iter().map(|agent_ref| agent_expression(*agent_ref)).collect();
            let list = if list.is_empty() {
                "NONE".to_owned()
            } else {
                format!("(hsa_agent_t[]){{{}}}", list.join(", "))
            };
            format!(
                "hsa_amd_agents_allow_access({}, {list}, NONE, {})",
                agents.len(),
                address_expression(*at)
            )
        }
        Action::IpcCreate { at, size } => {
            format!("hsa_amd_ipc_memory_create({}, {size:#x}, &ipc)", address_expression(*at))
        }
    }
}
