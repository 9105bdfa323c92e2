//! Converts a Rust type of the bindings to C.
//!
//! Every part is wrapped in `__typeof__`. C's declarators can then be written from left to right. A
//! missing name is then an undeclared identifier, and not a syntax error that affects the following
//! lines.

use super::token::Token;

/// Removes one Rust type from the start of `tokens`, and returns the C type.
pub fn read_type(tokens: &mut &[Token<'_>]) -> String {
    if skip(tokens, "*") {
        let constant = if skip(tokens, "const") { "const " } else { "" };
        skip(tokens, "mut");
        let target = read_type(tokens);
        return format!("{constant}__typeof__({target}) *");
    }
    if skip(tokens, "[") {
        let element = read_type(tokens);
        expect(tokens, ";");
        let length = next(tokens).trim_end_matches("usize");
        expect(tokens, "]");
        return format!("__typeof__({element})[{length}]");
    }
    if skip(tokens, "unsafe") {
        return function(tokens);
    }
    skip(tokens, "::");
    let mut name = next(tokens);
    while skip(tokens, "::") {
        name = next(tokens);
    }
    if name == "Option" {
        expect(tokens, "<");
        let inner = read_type(tokens);
        skip(tokens, ",");
        expect(tokens, ">");
        return inner;
    }
    c_name(name)
}

fn function(tokens: &mut &[Token<'_>]) -> String {
    for token in ["extern", "\"C\"", "fn", "("] {
        expect(tokens, token);
    }
    let mut parameters = Vec::new();
    while !skip(tokens, ")") {
        next(tokens);
        expect(tokens, ":");
        parameters.push(format!("__typeof__({})", read_type(tokens)));
        skip(tokens, ",");
    }
    if parameters.is_empty() {
        parameters.push("void".to_owned());
    }
    let result = if skip(tokens, "->") { read_type(tokens) } else { "void".to_owned() };
    format!("__typeof__({result}) (*)({})", parameters.join(", "))
}

/// Returns C's name of a type.
pub fn c_name(name: &str) -> String {
    let c = match name {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "bool" => "_Bool",
        "usize" => "size_t",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        _ if name.starts_with("hsa_") => {
            // Bindgen uses the struct tag (`…_s`). Both headers also define the typedef (`…_t`).
            return name
                .strip_suffix("_s")
                .map_or_else(|| name.to_owned(), |stem| format!("{stem}_t"));
        }
        _ => panic!("unknown type `{name}` in the bindings: add its C equivalent here"),
    };
    c.to_owned()
}

/// Removes and returns the first token.
pub fn next<'a>(tokens: &mut &[Token<'a>]) -> Token<'a> {
    let (first, rest) = tokens.split_first().expect("the bindings end inside an item");
    *tokens = rest;
    first
}

/// Removes the first token if it is `token`. Returns whether it was `token`.
pub fn skip(tokens: &mut &[Token<'_>], token: &str) -> bool {
    let matches = tokens.first() == Some(&token);
    if matches {
        *tokens = &tokens[1..];
    }
    matches
}

/// Removes the first token, which must be `token`.
pub fn expect(tokens: &mut &[Token<'_>], token: &str) {
    let found = next(tokens);
    assert_eq!(found, token, "bindgen's output has an unexpected form");
}
