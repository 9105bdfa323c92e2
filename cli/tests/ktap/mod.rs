//! A parser of KTAP, version 1, written from the kernel's Documentation/dev-tools/ktap.rst. The parser requires what
//! the specification only recommends ("should").

#![allow(dead_code, reason = "each test program uses only some of the items")]

use std::collections::BTreeMap;

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    pub ok: bool,
    /// The directive and its explanation, for example `SKIP no second GPU`. Empty if the result has no directive.
    pub directive: String,
    /// The results of nested tests, by name.
    pub nested: Results,
}

/// Results by name.
pub type Results = BTreeMap<String, Test>;

/// The directives of the specification.
const DIRECTIVES: [&str; 5] = ["SKIP", "TODO", "XFAIL", "TIMEOUT", "ERROR"];

/// Parses a complete document.
pub fn parse(text: &str) -> Result<Results, String> {
    if !text.ends_with('\n') {
        return Err("the last line is incomplete".to_owned());
    }
    let lines: Vec<_> = text.lines().collect();
    let mut position = 0;
    let results = parse_block(&lines, &mut position, 0)?;
    // Diagnostic lines can follow the last result.
    match lines[position..].iter().find(|line| !line.starts_with("# ")) {
        None => Ok(results),
        Some(line) => Err(format!("a line after the last result: {line}")),
    }
}

/// Parses a document with at most one level of subtests. Returns the results of the top level and of the
/// subtests.
pub fn parse_subtests(text: &str) -> (Results, Results) {
    let top = parse(text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    let inner = top.values().flat_map(|test| test.nested.clone()).collect();
    (top, inner)
}

/// Parses a version line, a plan, and as many results as the plan announces. The indentation of these lines is two
/// spaces for each level.
fn parse_block(lines: &[&str], position: &mut usize, level: usize) -> Result<Results, String> {
    let indent = "  ".repeat(level);
    let mut next = |what: &str| {
        let line = lines.get(*position).ok_or(format!("the document ends before {what}"))?;
        *position += 1;
        Ok::<_, String>((*line, line.strip_prefix(indent.as_str())))
    };
    match next("the version")? {
        (_, Some("KTAP version 1")) => {}
        (line, _) => return Err(format!("not a version: {line}")),
    }
    // Diagnostic lines can precede the plan. The kernel writes `# Subtest: name` there.
    let plan = loop {
        match next("the plan")? {
            (_, Some(diagnostic)) if is_diagnostic(diagnostic) => {}
            (line, rest) => {
                let number = rest.and_then(|rest| rest.strip_prefix("1..")?.parse::<usize>().ok());
                break number.ok_or(format!("not a plan: {line}"))?;
            }
        }
    };
    let mut results = Results::new();
    let mut nested = Results::new();
    while results.len() < plan {
        let line = lines.get(*position).ok_or("the document ends before the last result")?;
        if line.strip_prefix(indent.as_str()).is_some_and(|rest| rest == "  KTAP version 1") {
            if !nested.is_empty() {
                return Err(format!("two blocks without a result between them: {line}"));
            }
            nested = parse_block(lines, position, level + 1)?;
            continue;
        }
        *position += 1;
        let rest =
            line.strip_prefix(indent.as_str()).ok_or(format!("wrong indentation: {line}"))?;
        if is_diagnostic(rest) {
            continue;
        }
        let (number, name, mut test) = parse_result(rest).ok_or(format!("not a result: {line}"))?;
        if number != results.len() + 1 {
            return Err(format!("the number is not consecutive: {line}"));
        }
        test.nested = std::mem::take(&mut nested);
        let has_nested_failure = test.nested.values().any(|it| !it.ok && it.directive.is_empty());
        if has_nested_failure && test.ok {
            return Err(format!("passed, although a nested test has failed: {line}"));
        }
        if results.insert(name, test).is_some() {
            return Err(format!("the name occurs twice: {line}"));
        }
    }
    Ok(results)
}

fn is_diagnostic(line: &str) -> bool {
    line == "#" || line.starts_with("# ")
}

/// Parses `ok 1 name # SKIP why`.
fn parse_result(line: &str) -> Option<(usize, String, Test)> {
    let (ok, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok ")?),
    };
    let (number, rest) = rest.split_once(' ')?;
    let (name, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
    let is_name = !name.trim().is_empty() && !name.contains('#');
    let is_directive = directive.is_empty()
        || DIRECTIVES.contains(&directive.split(' ').next().unwrap_or_default());
    // SKIP and XFAIL are not failures.
    let is_consistent = ok || !["SKIP", "XFAIL"].iter().any(|it| directive.starts_with(it));
    if number.starts_with('0') || !is_name || !is_directive || !is_consistent {
        return None;
    }
    let test = Test { ok, directive: directive.to_owned(), nested: Results::new() };
    Some((number.parse().ok()?, name.to_owned(), test))
}

#[test]
fn parser_follows_the_specification() {
    let example = "KTAP version 1\n1..3\n  KTAP version 1\n  # Subtest: first\n  1..2\n  ok 1 a\n  # note\n  \
                   not ok 2 b # TODO later\nok 1 first\nok 2 second # SKIP no GPU\n# why\nnot ok 3 third\n";
    let results = parse(example).unwrap();
    assert_eq!(results.len(), 3);
    assert_eq!(results["first"].nested["b"].directive, "TODO later");
    assert!(!results["third"].ok && results["second"].ok);
    for (from, to, message) in [
        ("KTAP version 1\n1..3", "1..3", "not a version"),
        ("1..3", "1..4", "ends before"),
        ("1..3", "1..2", "after the last result"),
        ("1..3\n", "", "not a plan"),
        ("  1..2", "  1..3", "wrong indentation"),
        ("  ok 1 a", "  ok 2 a", "not consecutive"),
        ("  ok 1 a", "ok 1 a", "wrong indentation"),
        ("ok 2 second", "ok 2 first", "occurs twice"),
        ("ok 2 second", "ok 2 a#b", "not a result"),
        ("# SKIP no GPU", "# MAYBE", "not a result"),
        ("ok 2 second # SKIP", "not ok 2 second # SKIP", "not a result"),
        ("not ok 2 b # TODO later", "not ok 2 b", "a nested test has failed"),
        ("third\n", "third", "incomplete"),
    ] {
        let error = parse(&example.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(message), "{from} -> {to}: {error}");
    }
}
