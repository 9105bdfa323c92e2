//! Every option of every subcommand occurs in a guide or a test.

use crate::help::subcommands;
use crate::run_command::{command, stdout};
use crate::{pages, root};
use std::fs;
use std::path::Path;

/// Options whose short form the guides use.
const SHORT_FORMS: &[(&str, &str)] = &[("--output", "-o")];

/// Returns all subcommands, such as `rocr`, and their own subcommands, such as `rocr fetch`.
pub fn all_subcommands() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for subcommand in subcommands(&[]) {
        let nested = subcommands(&[&subcommand]);
        all.extend(nested.into_iter().map(|name| vec![subcommand.clone(), name]));
        all.push(vec![subcommand]);
    }
    all
}

/// Returns the long options that a subcommand's help describes.
fn described_options(subcommand: &[String]) -> Vec<String> {
    let help = command(&[]).args(subcommand).arg("-h").output().unwrap();
    let help = stdout(&help);
    let lines = help.lines().filter(|line| line.trim_start().starts_with('-'));
    let options = lines
        .filter_map(|line| line.split([' ', ',', '[']).find(|word| word.starts_with("--")))
        .filter(|option| *option != "--help");
    options.map(str::to_owned).collect()
}

/// Splits a page at its headings.
fn sections(page: &str) -> Vec<String> {
    let mut sections = vec![String::new()];
    let mut is_code = false;
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        if line.starts_with('#') && !is_code {
            sections.push(String::new());
        }
        let section = sections.last_mut().unwrap();
        *section += line;
        section.push('\n');
    }
    sections
}

/// Returns the words of a guide's section.
fn words(text: &str) -> Vec<&str> {
    let is_separator = |letter: char| letter.is_whitespace() || "`|=,;:()'\".".contains(letter);
    text.split(is_separator).filter(|word| !word.is_empty()).collect()
}

/// Returns whether a section names a subcommand in code.
fn names_subcommand(section: &str, subcommand: &str) -> bool {
    let starts = [format!("hsa-vmm {subcommand}"), format!("`{subcommand}")];
    starts.iter().any(|start| {
        let mut rest = section.split(start.as_str()).skip(1);
        rest.any(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '-'))
    })
}

/// Returns the words in the string literals of each function and constant of a source file.
fn literals(source: &str) -> Vec<Vec<String>> {
    let mut items = vec![String::new()];
    for line in source.lines() {
        if ["fn ", "pub fn ", "const ", "pub const "].iter().any(|start| line.starts_with(start)) {
            items.push(String::new());
        }
        let item = items.last_mut().unwrap();
        *item += line;
        item.push('\n');
    }
    // A literal is the text between two quotation marks. If an item has an even number of escaped quotation marks, only
    // the text between two of these marks is omitted.
    let words = |item: &String| {
        let texts = item.split('"').skip(1).step_by(2);
        let words = texts.flat_map(|text| text.split(['=', ' ', '\n', '\\']));
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    items.iter().map(words).collect()
}

/// Adds the contents of all Rust files below a folder, other than this file, to `found`.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("options.rs") {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_option_is_used_by_a_guide_or_a_test() {
    let sections: Vec<String> = pages().iter().flat_map(|(_, page)| sections(page)).collect();
    let mut tests = Vec::new();
    sources(&root().join("cli/tests"), &mut tests);
    let tests: Vec<Vec<String>> = tests.iter().flat_map(|source| literals(source)).collect();
    let (mut unused, mut checked) = (Vec::new(), 0);
    for subcommand in all_subcommands() {
        let name = subcommand.join(" ");
        for option in described_options(&subcommand) {
            let short = SHORT_FORMS.iter().find(|(long, _)| *long == option);
            let is_option = |word: &str| word == option || short.is_some_and(|it| it.1 == word);
            let in_guide = sections.iter().any(|section| {
                names_subcommand(section, &name) && words(section).into_iter().any(is_option)
            });
            let in_test = tests.iter().any(|words| {
                subcommand.iter().all(|part| words.contains(part))
                    && words.iter().any(|word| is_option(word))
            });
            if !in_guide && !in_test {
                unused.push(format!("{name} {option}"));
            }
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(
        unused.is_empty(),
        "no guide and no test uses these options; remove them, or use them: {unused:#?}"
    );
}

#[test]
fn uses_of_options_are_recognized() {
    let page =
        "# A\n`hsa-vmm map --until 3`\n```sh\n# --trace 1\n```\n## B\n`mapped`, `--format`\n";
    let sections = sections(page);
    assert_eq!(sections.len(), 3, "the comment in the code is no heading: {sections:?}");
    assert!(names_subcommand(&sections[1], "map") && words(&sections[1]).contains(&"--trace"));
    assert!(!names_subcommand(&sections[2], "map") && words(&sections[2]).contains(&"--format"));
    let source = "fn a() {\n run(&[\"map\", \"--until=3\"]);\n}\nfn b() {\n run(\"--trace\");\n}\n";
    let expected = [vec![], vec!["map", "--until", "3"], vec!["--trace"]];
    assert_eq!(literals(source), expected);
}
