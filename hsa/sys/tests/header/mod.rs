//! Parses the names that `include/hsa_abi.h` declares.

use crate::assertions::token::{Token, is_word_character, tokens};

#[derive(Debug, Default)]
pub struct Header {
    /// The names and values of all enumeration constants.
    pub constants: Vec<(String, u64)>,
    /// The names declared with `typedef`.
    pub types: Vec<String>,
    /// The names of fields, as `type.field`. Fields of an anonymous union count as fields of the struct around the
    /// union.
    pub fields: Vec<String>,
    /// The names declared with `HSA_FUNCTION`.
    pub functions: Vec<String>,
}

impl Header {
    /// Parses the header.
    pub fn read() -> Self {
        let text = without_comments(include_str!("../../include/hsa_abi.h"));
        let text: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let text = text.join("\n");
        let mut header = Self::default();
        for declaration in declarations(&tokens(&text)) {
            header.add(declaration);
        }
        header
    }

    fn add(&mut self, declaration: &[Token<'_>]) {
        match declaration {
            ["typedef", "enum", "{", body @ .., "}", name] => {
                self.types.push((*name).to_owned());
                for constant in body.split(|token| *token == ",") {
                    let [name, "=", value] = constant else {
                        panic!("a constant without a plain value: {constant:?}")
                    };
                    self.constants.push(((*name).to_owned(), number(value)));
                }
            }
            ["typedef", "struct", tag, "{", body @ .., "}", name] => {
                assert_eq!(tag.strip_suffix("_s"), name.strip_suffix("_t"), "{name}");
                self.types.push((*name).to_owned());
                let ends = body.iter().enumerate().filter(|(_, token)| **token == ";");
                for (end, _) in ends.filter(|(end, _)| body[end - 1] != "}") {
                    // The length of an array is between the name and the end.
                    let before_length = match &body[..end] {
                        [before_length @ .., "[", _, "]"] => before_length,
                        declarator => declarator,
                    };
                    let field = before_length.last().expect("a field has a name");
                    self.fields.push(format!("{name}.{field}"));
                }
            }
            // A typedef of a number type or of a callback.
            ["typedef", _, name] | ["typedef", _, "(", "*", name, ")", ..] => {
                self.types.push((*name).to_owned());
            }
            ["HSA_FUNCTION", "(", _, ",", name, ",", ..] => {
                self.functions.push((*name).to_owned());
            }
            _ => panic!("unknown kind of declaration: {declaration:?}"),
        }
    }
}

/// Splits tokens at each `;` outside of brackets.
fn declarations<'a, 't>(tokens: &'a [Token<'t>]) -> Vec<&'a [Token<'t>]> {
    let mut depth = 0;
    tokens
        .split(|token| {
            match *token {
                "{" | "(" => depth += 1,
                "}" | ")" => depth -= 1,
                _ => {}
            }
            depth == 0 && *token == ";"
        })
        .filter(|declaration| !declaration.is_empty())
        .collect()
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        code.push_str(part.split_once("*/").expect("a comment ends").1);
    }
    code
}

fn number(text: &str) -> u64 {
    assert!(text.chars().all(is_word_character), "{text}");
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.expect("a constant is a number")
}
