//! What `src/bindings.rs` says of C: every constant, size, alignment, offset, type of a field and
//! type of a function, each as one constant expression that a C compiler can judge.

pub mod c_type;
pub mod token;

use c_type::{expect, named, next, read, skip};
use core::mem::offset_of;
use token::Token;

/// The bindings as they are checked in, whichever ones this test was compiled with.
pub const BINDINGS: &str = include_str!("../../src/bindings.rs");

/// One statement about C.
#[derive(Debug)]
pub struct Claim {
    /// The name in C: a constant, a type, `type.field`, or a function.
    pub subject: String,
    /// What is said of it.
    pub what: String,
    /// The same as a C expression that is to be true.
    pub condition: String,
}

/// Reads all claims from the text of the bindings. `function` makes, of a function's name, the C
/// expression for the type of a pointer to it.
pub fn read_all(bindings: &str, function: impl Fn(&str) -> String) -> Vec<Claim> {
    let tokens = token::tokens(bindings);
    let mut rest = tokens.as_slice();
    let mut claims = Vec::new();
    while !rest.is_empty() {
        match rest {
            ["pub", "const", ..] => {
                rest = &rest[2..];
                claims.push(constant(&mut rest));
            }
            ["pub", "type", ..] => {
                rest = &rest[2..];
                claims.extend(alias(&mut rest, &function));
            }
            ["pub", "struct" | "union", ..] => {
                rest = &rest[2..];
                fields(&mut rest, &mut claims);
            }
            [text, ..] if text.starts_with('"') && text.contains(" of ") => {
                let text = next(&mut rest).trim_matches('"');
                claims.extend(layout(text, &mut rest));
            }
            _ => rest = &rest[1..],
        }
    }
    claims
}

fn constant(rest: &mut &[Token<'_>]) -> Claim {
    let name = next(rest);
    expect(rest, ":");
    read(rest);
    expect(rest, "=");
    let sign = if skip(rest, "-") { "-" } else { "" };
    let value = next(rest);
    Claim {
        subject: name.to_owned(),
        what: format!("is {sign}{value}"),
        condition: format!("{name} == {sign}{value}"),
    }
}

fn alias(rest: &mut &[Token<'_>], function: &impl Fn(&str) -> String) -> Option<Claim> {
    let name = next(rest);
    expect(rest, "=");
    let target = read(rest);
    // A typedef of a structure says nothing that its size and fields do not.
    if name == target {
        return None;
    }
    if target == "unsigned int" {
        // An enumeration. Whether it has a sign is up to the compiler and to values that the
        // bindings leave out; only its size is part of the ABI.
        return Some(Claim {
            subject: name.to_owned(),
            what: "is as large as an unsigned int".to_owned(),
            condition: format!("sizeof(__typeof__({name})) == sizeof({target})"),
        });
    }
    let (subject, c) = match name.strip_suffix("_fn") {
        Some(name) => (name, function(name)),
        None => (name, format!("__typeof__({name})")),
    };
    Some(Claim {
        subject: subject.to_owned(),
        what: format!("has the type {}", plain(&target)),
        condition: format!("__builtin_types_compatible_p({c}, {target})"),
    })
}

fn fields(rest: &mut &[Token<'_>], claims: &mut Vec<Claim>) {
    let (owner, _) = place(next(rest));
    expect(rest, "{");
    while !skip(rest, "}") {
        expect(rest, "pub");
        let field = next(rest);
        expect(rest, ":");
        if field.starts_with("__bindgen_anon_") {
            // It has no name in C; its members are claimed as members of its owner.
            next(rest);
        } else {
            let field = c_field(field);
            let target = read(rest);
            claims.push(Claim {
                subject: format!("{owner}.{field}"),
                what: format!("has the type {}", plain(&target)),
                condition: format!(
                    "__builtin_types_compatible_p(\
                     __typeof__(((__typeof__({owner}) *)0)->{field}), {target})"
                ),
            });
        }
        skip(rest, ",");
    }
}

fn layout(text: &str, rest: &mut &[Token<'_>]) -> Option<Claim> {
    while !skip(rest, "-") {
        next(rest);
    }
    let value: usize = next(rest).trim_end_matches("usize").parse().expect("a size is a number");
    if let Some(path) = text.strip_prefix("Offset of field: ") {
        let (owner, field) = path.split_once("::").expect("a field has an owner");
        let (owner, base) = place(owner);
        let field = c_field(field);
        let value = base + value;
        return Some(Claim {
            subject: format!("{owner}.{field}"),
            what: format!("is at offset {value}"),
            condition: format!("__builtin_offsetof(__typeof__({owner}), {field}) == {value}"),
        });
    }
    let (what, name) = text.split_once(" of ").expect("a size is one of something");
    if name.contains("__bindgen_ty_") {
        // C cannot ask an anonymous union for its size; its owner's depends on it.
        return None;
    }
    let name = named(name);
    let (what, condition) = match what {
        "Size" => (format!("has size {value}"), format!("sizeof(__typeof__({name})) == {value}")),
        "Alignment" => (
            format!("is aligned to {value}"),
            // GCC takes the alignment of a type that is not there for 1, but not its size.
            format!("sizeof(__typeof__({name})) && _Alignof(__typeof__({name})) == {value}"),
        ),
        _ => panic!("bindgen checks the {what} of {name}: say here how C does"),
    };
    Some(Claim { subject: name, what, condition })
}

/// The C type that has the fields of a Rust type, and where in it they start.
fn place(owner: &str) -> (String, usize) {
    match owner {
        "hsa_amd_event_s__bindgen_ty_1" => {
            ("hsa_amd_event_t".to_owned(), offset_of!(hsa_sys::hsa_amd_event_t, __bindgen_anon_1))
        }
        _ if owner.contains("__bindgen_ty_") => {
            panic!("`{owner}` has no name in C: say here where in its owner it is")
        }
        _ => (named(owner), 0),
    }
}

/// C's name of a field: bindgen puts a line under the end of what is a keyword in Rust.
fn c_field(name: &str) -> &str {
    name.strip_suffix('_').unwrap_or(name)
}

/// A C type without what only the compiler needs, for people.
fn plain(c: &str) -> String {
    c.replace("__typeof__", "")
}
