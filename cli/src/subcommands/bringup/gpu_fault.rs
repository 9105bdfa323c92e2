//! Finds the address of a GPU fault in the runtime's message, and the call that granted access to the address.

use super::supervisor::Call;

/// The start of the message that AMD's runtime prints when a GPU accesses an unmapped address.
const MESSAGE: &str = "Memory access fault by GPU";

/// Returns the address at which a GPU faulted.
pub fn address(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| line.contains(MESSAGE))?;
    parse_hex(line.split(" on address ").nth(1)?)
}

/// Parses the hexadecimal number at the start of a text.
fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(digits.len());
    u64::from_str_radix(&digits[..end], 16).ok()
}

/// Returns the index of the last call that granted access to an address.
pub fn granted_by(calls: &[Call], address: u64) -> Option<usize> {
    let contains = |(start, size)| (start..start + size).contains(&address);
    calls.iter().rposition(|call| granted_range(call).is_some_and(contains))
}

/// Returns the start and the size of the range to which a call granted access. For host memory, the size is 1, because
/// the call names only the start.
pub fn granted_range(call: &Call) -> Option<(u64, u64)> {
    let value_of = |matches: &dyn Fn(&str) -> bool| {
        let mut arguments = call.begin.arguments.iter();
        arguments.find(|argument| matches(&argument.name)).and_then(|found| parse_hex(&found.value))
    };
    match call.begin.call.as_str() {
        "hsa_amd_vmem_set_access" => {
            value_of(&|name| name.starts_with("va")).zip(value_of(&|name| name == "size"))
        }
        "hsa_amd_agents_allow_access" => value_of(&|name| name == "host").zip(Some(1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Argument, Begin, CallId, Logs};
    use super::*;

    fn call(name: &str, arguments: &[(&str, &str)]) -> Call {
        let argument =
            |pair: &(&str, &str)| Argument { name: pair.0.to_owned(), value: pair.1.to_owned() };
        let begin = Begin {
            id: CallId { process: 0, number: 0 },
            thread: 0,
            task: String::new(),
            call: name.to_owned(),
            arguments: arguments.iter().map(argument).collect(),
            c_statement: None,
            logs: Logs::default(),
        };
        Call { begin, end: None }
    }

    #[test]
    fn fault_is_attributed_to_the_grant_of_its_address() {
        let text =
            "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f1000. Reason: x";
        assert_eq!(address(text), Some(0x7f_1000));
        assert_eq!(address("on address 0x7f1000"), None);
        let grant = "hsa_amd_vmem_set_access";
        let calls = [
            call(grant, &[("va", "0x7f1000"), ("size", "0x2000")]),
            call(grant, &[("va2", "0x7f1000"), ("size", "0x1000")]),
            call("hsa_amd_agents_allow_access", &[("1", "agents"), ("host", "0x800000")]),
        ];
        assert_eq!(granted_by(&calls, 0x7f_1000), Some(1), "the last grant counts");
        assert_eq!(granted_by(&calls, 0x7f_2000), Some(0));
        assert_eq!(granted_by(&calls, 0x7f_3000), None);
        assert_eq!(granted_range(&calls[1]), Some((0x7f_1000, 0x1000)));
        assert_eq!(granted_by(&calls, 0x80_0000), Some(2));
    }
}
