//! Every `-h` and `--help` fits a terminal of 80 columns, and says something of every option.

use crate::hsa_vmm::{command, out};

/// The verbs that a help lists.
fn verbs(of: &[&str]) -> Vec<String> {
    let help = out(&command(&[of, &["-h"]].concat()).output().unwrap());
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let verbs = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let verbs = verbs.filter_map(|line| line.split_whitespace().next());
    verbs.filter(|verb| *verb != "help").map(str::to_owned).collect()
}

#[test]
fn every_help_fits_80_columns() {
    let mut all: Vec<Vec<String>> = vec![vec![]];
    for verb in verbs(&[]) {
        let below = verbs(&[&verb]).into_iter().map(|below| vec![verb.clone(), below]);
        all.extend([vec![verb.clone()]].into_iter().chain(below));
    }
    assert!(all.len() > 14, "{all:?}");
    for verb in all {
        for flag in ["-h", "--help"] {
            let words: Vec<&str> = verb.iter().map(String::as_str).chain([flag]).collect();
            let help = command(&words).env("COLUMNS", "80").output().unwrap();
            assert!(help.status.success(), "{words:?}");
            let text = out(&help);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{words:?}: {line}");
            }
            // What has its own lines is not broken again.
            let wide = command(&words).env("COLUMNS", "100").output().unwrap();
            let examples = out(&wide);
            for line in examples.lines().skip_while(|line| !line.ends_with("Examples:")) {
                assert!(line.chars().count() <= 80, "{words:?}: {line}");
            }
            // An option with nothing behind it ends its line, and an empty one follows.
            let lines: Vec<&str> = text.lines().collect();
            for pair in lines.windows(2).filter(|_| flag == "-h") {
                let option = pair[0].trim_start().starts_with('-');
                let bare = !pair[0].trim_start().contains("  ") && !pair[1].starts_with("        ");
                assert!(!(option && bare), "{words:?} says nothing of {}", pair[0]);
            }
        }
    }
}
