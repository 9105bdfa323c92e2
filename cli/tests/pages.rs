//! Manual pages and shell completions contain all subcommands and options of the help.

#[path = "hsa_vmm/mod.rs"]
mod run_command;

use run_command::{command, run, stderr, stdout};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const SHELLS: [&str; 5] = ["bash", "zsh", "fish", "elvish", "powershell"];

/// Returns the first words of the lines below a heading of a help text.
fn entries_below(help: &str, heading: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with(' '));
    lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}

/// Returns every subcommand, such as `rocr run`, with its long options.
fn subcommands() -> BTreeMap<Vec<String>, Vec<String>> {
    let mut subcommands = BTreeMap::new();
    let mut pending: Vec<Vec<String>> = vec![Vec::new()];
    while let Some(words) = pending.pop() {
        let help = stdout(&command(&[]).args(&words).arg("-h").output().unwrap());
        let options = help
            .lines()
            .filter(|line| line.trim_start().starts_with('-'))
            .filter_map(|line| line.split([' ', ',', '[']).find(|word| word.starts_with("--")))
            .map(str::to_owned)
            .collect();
        for subcommand in
            entries_below(&help, "Commands:").into_iter().filter(|subcommand| subcommand != "help")
        {
            pending.push([words.clone(), vec![subcommand]].concat());
        }
        subcommands.insert(words, options);
    }
    subcommands
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Environment variables of docs/README.md that only C programs use. If a row of the table has several variables, only
/// the first is listed here.
const ONLY_FOR_C: [&str; 3] = ["HSA_VMM_PAGE_TABLES", "HIP_VISIBLE_DEVICES", "HIP_HIDDEN_FREE_MEM"];

/// Returns the first environment variable of each row of docs/README.md's table, except those of [`ONLY_FOR_C`].
fn documented_variables() -> Vec<String> {
    let text = include_str!("../../docs/README.md");
    let table = text.split("## Environment variables").nth(1).unwrap();
    let names = table.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0));
    let names: Vec<_> =
        names.filter(|name| !ONLY_FOR_C.contains(name)).map(str::to_owned).collect();
    assert!(names.len() > 8, "{names:?}");
    names
}

#[test]
fn man_pages_cover_all_subcommands_and_options() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let output = run(&["man", pages.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let subcommands = subcommands();
    assert!(subcommands.len() > 8, "{subcommands:?}");
    for (words, options) in &subcommands {
        let name = [vec!["hsa-vmm".to_owned()], words.clone()].concat().join("-");
        let page = read(&pages, &format!("{name}.1")).replace("\\-", "-");
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
        assert!(page.contains(".SH \"EXIT STATUS\"\n.TP\n"), "{name}");
        let variables = page.split(".SH \"ENVIRONMENT\"").nth(1).expect(&name);
        for variable in documented_variables() {
            assert!(variables.contains(&format!("fB{variable}\\fR\n")), "{name}: {variable}");
        }
        for option in options {
            assert!(page.contains(option), "{name}: {option}");
        }
    }
    assert!(read(&pages, "hsa-vmm-rocr-run.1").contains("The program was not found."));
    assert_eq!(fs::read_dir(&pages).unwrap().count(), subcommands.len());
    let first = run(&["man"]);
    assert_eq!(stdout(&first), read(&pages, "hsa-vmm.1"));
}

#[test]
fn completions_cover_all_subcommands_and_options() {
    let subcommands = subcommands();
    for shell in SHELLS {
        let output = run(&["completions", shell]);
        assert!(output.status.success(), "{}", stderr(&output));
        let script = stdout(&output);
        for (words, options) in &subcommands {
            assert!(words.iter().all(|word| script.contains(word)), "{shell}: {words:?}");
            for option in options {
                // The script for fish contains `-l gpus` instead of `--gpus`.
                let long = format!("-l {}", option.trim_start_matches('-'));
                let is_listed =
                    script.contains(option) || (shell == "fish" && script.contains(&long));
                assert!(is_listed, "{shell}: {words:?} {option}");
            }
        }
    }
}

#[test]
fn bash_accepts_completion_script() {
    let script = r#"eval "$($HSA_VMM completions bash)"
        function=$(complete -p hsa-vmm | grep -o -- "-F [^ ]*" | cut -c4-)
        COMP_WORDS=(hsa-vmm inf); COMP_CWORD=1; $function hsa-vmm inf hsa-vmm; echo "${COMPREPLY[@]}""#;
    let output = std::process::Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .env("HSA_VMM", run_command::HSA_VMM)
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "info\n", "{}", stderr(&output));
}

#[test]
fn man_names_invalid_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let folder = file.path().join("man1");
    let output = run(&["man", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("man1"), "{}", stderr(&output));
    assert_eq!(run(&["completions", "tcsh"]).status.code(), Some(2));
}
