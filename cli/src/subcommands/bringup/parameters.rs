//! The names of the parameters of HSA's functions. Reports name an argument after its parameter if the argument's C
//! expression is not a name.

use super::record::Argument;

/// The functions that the levels call, and their parameters, as HSA's headers name them. The row of
/// `amdgpu_bo_va_op_raw`, a function of libdrm, lists the arguments of `replace` in the C program.
const PARAMETERS: &[(&str, &[&str])] = &[
    ("hsa_iterate_agents", &["callback", "data"]),
    ("hsa_system_get_info", &["attribute", "value"]),
    ("hsa_agent_get_info", &["agent", "attribute", "value"]),
    ("hsa_amd_agent_iterate_memory_pools", &["agent", "callback", "data"]),
    ("hsa_amd_memory_pool_get_info", &["memory_pool", "attribute", "value"]),
    ("hsa_amd_agent_memory_pool_get_info", &["agent", "memory_pool", "attribute", "value"]),
    ("hsa_amd_vmem_address_reserve", &["va", "size", "address", "flags"]),
    ("hsa_amd_vmem_address_free", &["va", "size"]),
    ("hsa_amd_vmem_handle_create", &["pool", "size", "type", "flags", "memory_handle"]),
    ("hsa_amd_vmem_handle_release", &["memory_handle"]),
    ("hsa_amd_vmem_map", &["va", "size", "in_offset", "memory_handle", "flags"]),
    ("hsa_amd_vmem_unmap", &["va", "size"]),
    ("hsa_amd_vmem_set_access", &["va", "size", "desc", "desc_cnt"]),
    ("hsa_amd_vmem_export_shareable_handle", &["dmabuf_fd", "handle", "flags"]),
    ("hsa_amd_vmem_import_shareable_handle", &["dmabuf_fd", "handle"]),
    ("hsa_amd_memory_pool_allocate", &["memory_pool", "size", "flags", "ptr"]),
    ("hsa_amd_memory_pool_free", &["ptr"]),
    ("hsa_amd_agents_allow_access", &["num_agents", "agents", "flags", "ptr"]),
    ("hsa_amd_memory_lock", &["host_ptr", "size", "agents", "num_agent", "agent_ptr"]),
    ("hsa_amd_memory_unlock", &["host_ptr"]),
    ("hsa_amd_memory_fill", &["ptr", "value", "count"]),
    ("hsa_amd_register_system_event_handler", &["callback", "data"]),
    ("hsa_signal_create", &["initial_value", "num_consumers", "consumers", "signal"]),
    ("hsa_signal_destroy", &["signal"]),
    ("hsa_signal_load_scacquire", &["signal"]),
    ("hsa_signal_store_screlease", &["signal", "value"]),
    (
        "hsa_signal_wait_scacquire",
        &["signal", "condition", "compare_value", "timeout_hint", "wait_state_hint"],
    ),
    (
        "hsa_amd_memory_async_copy",
        &[
            "dst",
            "dst_agent",
            "src",
            "src_agent",
            "size",
            "num_dep_signals",
            "dep_signals",
            "completion_signal",
        ],
    ),
    ("amdgpu_bo_va_op_raw", &["va", "size", "offset", "permissions"]),
];

/// Returns the names of the parameters of a function. Returns an empty list if the function is not in [`PARAMETERS`].
fn parameters(call: &str) -> &'static [&'static str] {
    PARAMETERS.iter().find(|row| row.0 == call).map_or(&[], |row| row.1)
}

/// Returns the arguments of a call as names and values. A variable of the C program keeps its name. Any other
/// expression (`0`, `size / 4`, `NULL`) gets the name of the parameter.
pub fn labelled(call: &str, arguments: &[Argument]) -> Vec<Argument> {
    let names = parameters(call).iter().map(Some).chain(std::iter::repeat(None));
    let label = |(argument, parameter): (&Argument, Option<&&str>)| match parameter {
        Some(name) if !is_variable(&argument.name) => {
            Argument { name: (*name).to_owned(), value: value(argument) }
        }
        _ => argument.clone(),
    };
    arguments.iter().zip(names).map(label).collect()
}

/// Returns whether a C expression is a variable or its address: `va`, `gpu[0]`, `&memory`.
fn is_variable(expression: &str) -> bool {
    let name = expression.trim_start_matches("(void **)").trim_start_matches('&');
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_[]".contains(letter);
    name.starts_with(|letter: char| letter.is_ascii_lowercase()) && name.chars().all(is_part)
}

/// Returns the value of an argument that is no variable: the value of an expression, or the literal or constant itself.
fn value(argument: &Argument) -> String {
    let Argument { name, value } = argument;
    let is_constant = name.starts_with(|letter: char| letter.is_ascii_uppercase());
    let is_number = name.starts_with(|letter: char| letter.is_ascii_digit());
    // An initializer, such as a list of agents, and an expression, such as `size / 4`, have a value of their own.
    if is_constant || is_number { name.clone() } else { value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subcommands::bringup::interface::TABLE;

    fn labels(call: &str, arguments: &[(&str, &str)]) -> String {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|(name, value)| Argument { name: (*name).into(), value: (*value).into() })
            .collect();
        let all = labelled(call, &arguments);
        all.iter().map(Argument::to_text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn expressions_are_named_after_their_parameter() {
        let fill = [("pool_memory", "0x7f00"), ("0x5a5a0001", "number"), ("size / 4", "0x1000")];
        let text = labels("hsa_amd_memory_fill", &fill);
        assert_eq!(text, "pool_memory=0x7f00 value=0x5a5a0001 count=0x1000");
        let wait = [
            ("signal", "0x7f10"),
            ("HSA_SIGNAL_CONDITION_LT", "2"),
            ("1", "value"),
            ("UINT64_MAX", "no limit"),
            ("HSA_WAIT_STATE_BLOCKED", "0"),
        ];
        let text = labels("hsa_signal_wait_scacquire", &wait);
        let expected = "signal=0x7f10 condition=HSA_SIGNAL_CONDITION_LT compare_value=1 \
                        timeout_hint=UINT64_MAX wait_state_hint=HSA_WAIT_STATE_BLOCKED";
        assert_eq!(text, expected);
        let copy = [("(char *)host + 0x1000", "0x7f20"), ("gpu[0]", "0x55")];
        assert_eq!(labels("hsa_amd_memory_async_copy", &copy), "dst=0x7f20 gpu[0]=0x55");
        let allocate =
            [("host_pool", "0x55"), ("size", "0x1"), ("0", "flags"), ("(void **)&host", "out")];
        let text = labels("hsa_amd_memory_pool_allocate", &allocate);
        assert_eq!(text, "host_pool=0x55 size=0x1 flags=0 (void **)&host");
        assert_eq!(
            labels("fill", &[("host", "0x7f00"), ("size", "0x10")]),
            "host=0x7f00 size=0x10"
        );
    }

    #[test]
    fn every_function_with_arguments_is_listed() {
        let without_parameters = ["hsa_init", "hsa_shut_down"];
        for (call, _) in TABLE.iter().filter(|row| row.0.starts_with("hsa_")) {
            assert_eq!(parameters(call).is_empty(), without_parameters.contains(call), "{call}");
        }
    }
}
