//! Extracts assertions from `src/bindings.rs`: every constant, size, alignment and offset, and every type of
//! a field or function. Each assertion is a constant expression that a C compiler can check.

pub mod c_type;
pub mod token;

use c_type::{c_name, expect, next, read_type, skip};
use core::mem::offset_of;
use token::Token;

/// The checked-in bindings, even if this test was compiled with generated bindings.
pub const BINDINGS: &str = include_str!("../../src/bindings.rs");

/// An assertion about a C header.
#[derive(Debug)]
pub struct Assertion {
    /// The name in C: a constant, a type, `type.field`, or a function.
    pub subject: String,
    /// The assertion in words, without the subject.
    pub description: String,
    /// The assertion as a C expression that must be true.
    pub condition: String,
}

/// Reads all assertions of the bindings. `function` returns, for a function's name, the C
/// type of a pointer to that function.
pub fn read_all(bindings: &str, function: impl Fn(&str) -> String) -> Vec<Assertion> {
    let tokens = token::tokens(bindings);
    let mut rest = tokens.as_slice();
    let mut assertions = Vec::new();
    while !rest.is_empty() {
        match rest {
            ["pub", "const", ..] => {
                rest = &rest[2..];
                assertions.push(constant(&mut rest));
            }
            ["pub", "type", ..] => {
                rest = &rest[2..];
                assertions.extend(alias(&mut rest, &function));
            }
            ["pub", "struct" | "union", ..] => {
                rest = &rest[2..];
                fields(&mut rest, &mut assertions);
            }
            [text, ..] if text.starts_with('"') && text.contains(" of ") => {
                let text = next(&mut rest).trim_matches('"');
                assertions.extend(layout(text, &mut rest));
            }
            _ => rest = &rest[1..],
        }
    }
    assertions
}

fn constant(rest: &mut &[Token<'_>]) -> Assertion {
    let name = next(rest);
    expect(rest, ":");
    read_type(rest);
    expect(rest, "=");
    let sign = if skip(rest, "-") { "-" } else { "" };
    let value = next(rest);
    Assertion {
        subject: name.to_owned(),
        description: format!("is {sign}{value}"),
        condition: format!("{name} == {sign}{value}"),
    }
}

fn alias(rest: &mut &[Token<'_>], function: &impl Fn(&str) -> String) -> Option<Assertion> {
    let name = next(rest);
    expect(rest, "=");
    let target = read_type(rest);
    // For a typedef of a structure, only its size and fields are asserted.
    if name == target {
        return None;
    }
    if target == "unsigned int" {
        // An enumeration. Its signedness depends on the compiler and on values that the bindings
        // omit. Only its size is part of the ABI.
        return Some(Assertion {
            subject: name.to_owned(),
            description: "is as large as an unsigned int".to_owned(),
            condition: format!("sizeof(__typeof__({name})) == sizeof({target})"),
        });
    }
    let (subject, c) = match name.strip_suffix("_fn") {
        Some(name) => (name, function(name)),
        None => (name, format!("__typeof__({name})")),
    };
    Some(Assertion {
        subject: subject.to_owned(),
        description: format!("has the type {}", without_typeof(&target)),
        condition: format!("__builtin_types_compatible_p({c}, {target})"),
    })
}

fn fields(rest: &mut &[Token<'_>], assertions: &mut Vec<Assertion>) {
    let (owner, _) = c_owner(next(rest));
    expect(rest, "{");
    while !skip(rest, "}") {
        expect(rest, "pub");
        let field = next(rest);
        expect(rest, ":");
        if field.starts_with("__bindgen_anon_") {
            // An anonymous union: its fields are asserted as fields of its owner.
            next(rest);
        } else {
            let field = c_field(field);
            let target = read_type(rest);
            assertions.push(Assertion {
                subject: format!("{owner}.{field}"),
                description: format!("has the type {}", without_typeof(&target)),
                condition: format!(
                    "__builtin_types_compatible_p(\
                     __typeof__(((__typeof__({owner}) *)0)->{field}), {target})"
                ),
            });
        }
        skip(rest, ",");
    }
}

fn layout(text: &str, rest: &mut &[Token<'_>]) -> Option<Assertion> {
    while !skip(rest, "-") {
        next(rest);
    }
    let value: usize = next(rest).trim_end_matches("usize").parse().expect("a size is a number");
    if let Some(path) = text.strip_prefix("Offset of field: ") {
        let (owner, field) = path.split_once("::").expect("a field has an owner");
        let (owner, base) = c_owner(owner);
        let field = c_field(field);
        let value = base + value;
        return Some(Assertion {
            subject: format!("{owner}.{field}"),
            description: format!("is at offset {value}"),
            condition: format!("__builtin_offsetof(__typeof__({owner}), {field}) == {value}"),
        });
    }
    let (description, name) = text.split_once(" of ").expect("`Size of TYPE`");
    if name.contains("__bindgen_ty_") {
        // C cannot query the size of an anonymous union. The assertion about the owner's size covers
        // the union.
        return None;
    }
    let name = c_name(name);
    let (description, condition) = match description {
        "Size" => (format!("has size {value}"), format!("sizeof(__typeof__({name})) == {value}")),
        "Alignment" => (
            format!("is aligned to {value}"),
            // GCC assumes alignment 1 for an unknown type, but rejects its size.
            format!("sizeof(__typeof__({name})) && _Alignof(__typeof__({name})) == {value}"),
        ),
        _ => panic!("unknown assertion: the {description} of {name}; add its C equivalent here"),
    };
    Some(Assertion { subject: name, description, condition })
}

/// Returns the C type that contains the fields of a Rust type, and the offset of the first field.
fn c_owner(owner: &str) -> (String, usize) {
    match owner {
        "hsa_amd_event_s__bindgen_ty_1" => {
            ("hsa_amd_event_t".to_owned(), offset_of!(hsa_sys::hsa_amd_event_t, __bindgen_anon_1))
        }
        _ if owner.contains("__bindgen_ty_") => {
            panic!("`{owner}` has no name in C: add its offset in its owner here")
        }
        _ => (c_name(owner), 0),
    }
}

/// Returns C's name of a field: bindgen appends an underscore to Rust keywords.
fn c_field(name: &str) -> &str {
    name.strip_suffix('_').unwrap_or(name)
}

/// Removes `__typeof__` from a C type, for messages.
fn without_typeof(c: &str) -> String {
    c.replace("__typeof__", "")
}
