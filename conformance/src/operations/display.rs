//! Formats operations as calls: `map(reservation 0, handle 1, offset 2 granules)`.

use super::operation::{Alignment, Descriptor, Extent, Hint, Operation};
use super::selectors::{AgentSelector, Amount, Edge, HandleSelector, Region, Shift, Span, Spot};
use std::fmt::{self, Display, Formatter};

/// Formats a list without brackets, separated by commas.
fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn plural(number: u8, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut options = Vec::new();
        let mut add_if = |is_set: bool, text: String| options.extend(is_set.then_some(text));
        let head = match self {
            Self::Reserve { size, alignment, hint, flags } => {
                add_if(*alignment != Alignment::None, format!("alignment {alignment}"));
                add_if(*hint != Hint::None, format!("at {hint}"));
                add_if(*flags != 0, format!("flags {flags:#x}"));
                format!("address_reserve({size}")
            }
            Self::Free { span } => format!("address_free({span}"),
            Self::Create { size, on, uncached, handle_types, flags } => {
                add_if(*uncached, "uncached".to_owned());
                add_if(*handle_types != 0, format!("handle types {handle_types:#x}"));
                add_if(*flags != 0, format!("flags {flags:#x}"));
                format!("create({size}, {on}")
            }
            Self::Release { handle } => format!("release({handle}"),
            Self::Map { handle, span, extent, offset, flags } => {
                add_if(*extent != Extent::Span, extent.to_string());
                add_if(*offset != Amount::Granules(0), format!("offset {offset}"));
                add_if(*flags != 0, format!("flags {flags:#x}"));
                format!("map({span}, {handle}")
            }
            Self::Unmap { span } => format!("unmap({span}"),
            Self::SetAccess { span, grants } => {
                let grants = grants.iter().map(|(agent, access)| match access {
                    0 => format!("{agent}: none"),
                    1 => format!("{agent}: read"),
                    3 => format!("{agent}: read and write"),
                    other => format!("{agent}: {other:#x}"),
                });
                format!("set_access({span}, [{}]", list(grants))
            }
            Self::GetAccess { agent, spot } => format!("get_access({agent}, {spot}"),
            Self::Revoke { span, agents } => format!("revoke({span}, [{}]", list(agents)),
            Self::Retain { spot } => format!("retain_allocation_handle({spot}"),
            Self::Export { handle, handle_type, flags } => {
                add_if(*flags != 0, format!("flags {flags:#x}"));
                format!("export_to_shareable_handle({handle}, type {handle_type:#x}")
            }
            Self::Import { descriptor, handle_type } => {
                format!("import_from_shareable_handle({descriptor}, type {handle_type:#x}")
            }
            Self::Close { exported } => format!("close(exported descriptor {exported}"),
            Self::Properties { handle } => format!("allocation_properties({handle}"),
            Self::Write { spot, size, byte } => {
                format!("write({spot}, {} of {byte:#04x}", plural(*size, "byte"))
            }
            Self::Read { spot, size } => format!("read({spot}, {}", plural(*size, "byte")),
            Self::Fill { span, value } => format!("fill({span}, {value:#010x}"),
            Self::Copy { agent, to, from } => {
                format!("copy(by {agent}, to {to}, from {from}")
            }
            Self::Shutdown => "shut_down(".to_owned(),
        };
        f.write_str(&head)?;
        options.iter().try_for_each(|text| write!(f, ", {text}"))?;
        f.write_str(")")
    }
}

impl Display for Amount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granules(number) => f.write_str(&plural(*number, "granule")),
            Self::Unaligned(number) => write!(f, "{} and a byte", plural(*number, "granule")),
            Self::Huge => f.write_str("more than any machine has"),
        }
    }
}

impl Display for HandleSelector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live(index) => write!(f, "handle {index}"),
            Self::Past(0) => f.write_str("the newest handle"),
            Self::Past(index) => write!(f, "the handle {index} before the newest"),
            Self::Invented(value) => write!(f, "invalid handle {value:#x}"),
        }
    }
}

impl Display for AgentSelector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(index) => write!(f, "agent {index}"),
            Self::Gpu(index) => write!(f, "GPU {index}"),
            Self::Invented(value) => write!(f, "invalid agent {value:#x}"),
            Self::Foreign(index) => write!(f, "agent {index} of another runtime"),
        }
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)?;
        for (end, shift) in [("start", self.start), ("end", self.end)] {
            let shift = match shift {
                Shift::None => continue,
                Shift::GranuleOn => "a granule later",
                Shift::GranuleBack => "a granule earlier",
                Shift::ByteOn => "a byte later",
                Shift::ByteBack => "a byte earlier",
                Shift::Away => "moved to the other end of the range",
            };
            write!(f, ", {end} {shift}")?;
        }
        Ok(())
    }
}

impl Display for Region {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mappings = |number: u8, first: u8| match number {
            1 => format!("mapping {first}"),
            _ => format!("{number} mappings from mapping {first} on"),
        };
        match self {
            Self::Adjacent(first, number) => f.write_str(&mappings(*number, *first)),
            Self::Writable(first, number) => write!(f, "writable {}", mappings(*number, *first)),
            Self::Mappings(first, number) => {
                write!(f, "{}, holes included", mappings(*number, *first))
            }
            Self::Granules(reservation, first, number) => {
                let granules = plural(*number, "granule");
                write!(f, "{granules} of reservation {reservation} from granule {first} on")
            }
            Self::Gap(reservation, number) => {
                let granules = plural(*number, "granule");
                write!(
                    f,
                    "first hole of at least {granules}, searched from reservation {reservation} on"
                )
            }
            Self::Reservation(index) => write!(f, "reservation {index}"),
            Self::Freed(index) => write!(f, "freed reservation {index}"),
            Self::Anything(address, size) => write!(f, "{size:#x} bytes at {address:#x}"),
        }
    }
}

impl Display for Spot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.edge {
            Edge::First => write!(f, "first byte of {}", self.span),
            Edge::Middle => write!(f, "middle of {}", self.span),
            Edge::BeforeEnd(number) => {
                write!(f, "{} before the end of {}", plural(number, "byte"), self.span)
            }
            Edge::End => write!(f, "end of {}", self.span),
        }
    }
}

impl Display for Alignment {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::PowerOfTwo(power) => write!(f, "2^{power}"),
            Self::Wrong => f.write_str("not a power of two"),
        }
    }
}

impl Display for Hint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("any address"),
            Self::Behind(index) => write!(f, "the end of reservation {index}"),
            Self::Inside(index) => write!(f, "the middle of reservation {index}"),
            Self::Freed(index) => write!(f, "freed reservation {index}"),
            Self::Unaligned(index) => write!(f, "unaligned address {index}"),
        }
    }
}

impl Display for Extent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "the whole handle",
            Self::Span => "as much as the range",
            Self::TooMuch => "a granule more than the handle has",
        })
    }
}

impl Display for Descriptor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exported(index) => write!(f, "exported descriptor {index}"),
            Self::Null => f.write_str("/dev/null"),
            Self::Socket => f.write_str("a socket"),
            Self::File => f.write_str("a file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::ObjectCounts;
    use fastrand::Rng;

    fn span(region: Region) -> Span {
        Span { region, start: Shift::None, end: Shift::None }
    }

    #[test]
    fn operations_are_formatted_as_calls() {
        let reservation = span(Region::Reservation(0));
        let map = Operation::Map {
            handle: HandleSelector::Live(1),
            span: Span { end: Shift::ByteBack, ..reservation },
            extent: Extent::Span,
            offset: Amount::Granules(2),
            flags: 0,
        };
        let expected = "map(reservation 0, end a byte earlier, handle 1, offset 2 granules)";
        assert_eq!(map.to_string(), expected);
        let grants = vec![(AgentSelector::Gpu(0), 3), (AgentSelector::Invented(9), 7)];
        let access = Operation::SetAccess { span: span(Region::Adjacent(1, 2)), grants };
        let expected = "set_access(2 mappings from mapping 1 on, [GPU 0: read and write, \
                     invalid agent 0x9: 0x7])";
        assert_eq!(access.to_string(), expected);
        let spot = Spot { span: span(Region::Adjacent(0, 1)), edge: Edge::BeforeEnd(1) };
        let read = Operation::Read { spot, size: 1 };
        assert_eq!(read.to_string(), "read(1 byte before the end of mapping 0, 1 byte)");
        assert_eq!(Operation::Shutdown.to_string(), "shut_down()");
    }

    #[test]
    fn generated_operations_contain_no_debug_output() {
        let mut random = Rng::with_seed(11);
        for _ in 0..2000 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(64).collect();
            let operation = Operation::from_bytes(&bytes, ObjectCounts::default());
            let text = operation.to_string();
            let debug = [" {", "} ", "Granules(", "Live(", "Run("];
            assert!(!debug.iter().any(|part| text.contains(part)), "{text}");
            assert!(text.ends_with(')'), "{text}");
        }
    }
}
