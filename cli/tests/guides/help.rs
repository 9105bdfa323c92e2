//! Every `-h` and `--help` fits a terminal of 80 columns and describes every option.

use crate::hsa_vmm::{command, out};

/// Returns the subcommands that a help lists.
fn subcommands(of: &[&str]) -> Vec<String> {
    let help = out(&command(&[of, &["-h"]].concat()).output().unwrap());
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let subcommands = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let subcommands = subcommands.filter_map(|line| line.split_whitespace().next());
    subcommands.filter(|subcommand| *subcommand != "help").map(str::to_owned).collect()
}

#[test]
fn help_fits_80_columns() {
    let mut all: Vec<Vec<String>> = vec![vec![]];
    for subcommand in subcommands(&[]) {
        let below =
            subcommands(&[&subcommand]).into_iter().map(|below| vec![subcommand.clone(), below]);
        all.extend([vec![subcommand.clone()]].into_iter().chain(below));
    }
    assert!(all.len() > 14, "{all:?}");
    for subcommand in all {
        for flag in ["-h", "--help"] {
            let words: Vec<&str> = subcommand.iter().map(String::as_str).chain([flag]).collect();
            let help = command(&words).env("COLUMNS", "80").output().unwrap();
            assert!(help.status.success(), "{words:?}");
            let text = out(&help);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{words:?}: {line}");
            }
            // Examples have their own line breaks.
            let wide = command(&words).env("COLUMNS", "100").output().unwrap();
            let examples = out(&wide);
            for line in examples.lines().skip_while(|line| !line.ends_with("Examples:")) {
                assert!(line.chars().count() <= 80, "{words:?}: {line}");
            }
            // An option without description ends its line and is followed by an empty line.
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2).filter(|_| flag == "-h") {
                let option = pair[0].trim_start().starts_with('-');
                let bare = !pair[0].trim_start().contains("  ") && !pair[1].starts_with("        ");
                assert!(!(option && bare), "{words:?} does not describe {}", pair[0]);
            }
        }
    }
}
