//! The call path in ARCHITECTURE.md: every function must be in the file that the page names.

use crate::root;
use std::fs;

#[test]
fn call_path_names_existing_functions() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let call_path = page.split("<!-- walk -->\n```text\n").nth(1).expect("a call path");
    let call_path = call_path.split("```").next().unwrap();
    let mut steps = 0;
    for line in call_path.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let file = words.iter().position(|word| word.ends_with(".rs")).expect(line);
        let name = words[file - 1].rsplit("::").next().unwrap();
        let source = fs::read_to_string(root().join(words[file]));
        let source = source.unwrap_or_else(|error| panic!("{line}: {error}"));
        let declarations = [format!("fn {name}("), format!("fn {name}<")];
        assert!(
            declarations.iter().any(|it| source.contains(it)),
            "{line}: the file has no such function"
        );
        steps += 1;
    }
    assert!(steps > 25, "{steps}");
}
