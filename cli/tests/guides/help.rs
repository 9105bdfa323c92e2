//! The output of every `-h` and `--help` fits a terminal of 80 columns. `-h` describes every option that it lists.

use crate::options::all_subcommands;
use crate::run_command::{command, stdout};

/// Returns the subcommands that the help of a command lists.
pub fn subcommands(parent: &[&str]) -> Vec<String> {
    let help = stdout(&command(&[parent, &["-h"]].concat()).output().unwrap());
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let subcommands = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let subcommands = subcommands.filter_map(|line| line.split_whitespace().next());
    subcommands.filter(|subcommand| *subcommand != "help").map(str::to_owned).collect()
}

#[test]
fn help_fits_80_columns() {
    let mut all = all_subcommands();
    all.push(Vec::new());
    assert!(all.len() > 14, "{all:?}");
    for subcommand in all {
        for flag in ["-h", "--help"] {
            let arguments: Vec<&str> =
                subcommand.iter().map(String::as_str).chain([flag]).collect();
            let help = command(&arguments).env("COLUMNS", "80").output().unwrap();
            assert!(help.status.success(), "{arguments:?}");
            let text = stdout(&help);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{arguments:?}: {line}");
            }
            // Examples are not wrapped, so they must fit 80 columns in a wider terminal, too.
            let wide = command(&arguments).env("COLUMNS", "100").output().unwrap();
            let examples = stdout(&wide);
            for line in examples.lines().skip_while(|line| !line.ends_with("Examples:")) {
                assert!(line.chars().count() <= 80, "{arguments:?}: {line}");
            }
            // An option is described if text follows on its line, or on an indented next line.
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2).filter(|_| flag == "-h") {
                let is_option = pair[0].trim_start().starts_with('-');
                let is_described =
                    pair[0].trim_start().contains("  ") || pair[1].starts_with("        ");
                assert!(!is_option || is_described, "{arguments:?} does not describe {}", pair[0]);
            }
        }
    }
}
