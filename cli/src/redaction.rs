//! Removes private data from texts: names of the user and of folders, PCI addresses, serial numbers, and output of a
//! second process.

use crate::program::OUTER_COMMAND;
use hsa_vmm_conformance::peer::LAST_OUTPUT;
use std::cmp::Reverse;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The text that replaces a removed value.
pub const REDACTED: &str = "(redacted)";

/// Removes what a second process printed last from the detail of a case: the rest of the line after [`LAST_OUTPUT`].
pub fn without_last_output(detail: &str) -> String {
    let lines = detail.split_inclusive('\n').map(|line| match line.split_once(LAST_OUTPUT) {
        Some((start, _)) => {
            let end = if line.ends_with('\n') { "\n" } else { "" };
            [start, LAST_OUTPUT, REDACTED, end].concat()
        }
        None => line.to_owned(),
    });
    lines.collect()
}

/// Returns whether a path ends before this character.
fn ends_path(letter: char) -> bool {
    letter.is_whitespace() || "'\":;,=()<>\\".contains(letter)
}

/// Replaces the home folder by `~`, and the user's name in paths by `USER`.
pub fn without_names(text: &str, home: Option<&str>, user: Option<&str>) -> String {
    let mut text = text.to_owned();
    if let Some(home) = home.map(|home| home.trim_end_matches('/')).filter(|home| home.len() > 1) {
        // In the middle of a path, the folder only has the name of the home folder.
        let begins_path =
            |before: &str| before.rsplit(ends_path).next().is_none_or(|it| !it.contains('/'));
        text = replace_complete(&text, home, "~", begins_path);
    }
    if let Some(user) = user.filter(|user| !user.is_empty() && *user != "root") {
        text = replace_complete(&text, &format!("/{user}"), "/USER", |_| true);
    }
    text
}

/// Moves a quote after the home folder to the start of the path, so that the path is complete between the quotes.
/// [`quoted`](crate::program::quoted) writes the quote after the folder.
pub fn with_home_in_quotes(text: &str, home: Option<&str>) -> String {
    let home = home.map(|home| home.trim_end_matches('/')).filter(|home| !home.is_empty());
    let Some(home) = home else { return text.to_owned() };
    // Quotes in JSON are escaped.
    ["'", "\"", "\\\""].iter().fold(text.to_owned(), |text, quote| {
        text.replace(&format!("{home}/{quote}"), &format!("{quote}{home}/"))
    })
}

/// Calls [`without_names`] with the home folder and the name of this user.
pub fn without_names_of_this_user(text: &str) -> String {
    let user = env::var("USER").or_else(|_| env::var("LOGNAME")).ok();
    without_names(text, env::var("HOME").ok().as_deref(), user.as_deref())
}

/// Replaces each occurrence of `part` at whose end a component of a path also ends, if `can_follow` accepts the text
/// before.
fn replace_complete(
    text: &str,
    part: &str,
    replacement: &str,
    can_follow: impl Fn(&str) -> bool,
) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(part) {
        let (before, after) = (&rest[..start], &rest[start + part.len()..]);
        result.push_str(before);
        let is_complete = can_follow(&text[..text.len() - after.len() - part.len()])
            && after.chars().next().is_none_or(|next| next == '/' || ends_path(next));
        result.push_str(if is_complete { replacement } else { part });
        rest = after;
    }
    result + rest
}

/// The folders that [`known_folders`] finds for this process.
pub static KNOWN_FOLDERS: LazyLock<Vec<KnownFolder>> = LazyLock::new(|| {
    let paths = [env::current_dir(), env::current_exe()];
    let paths = paths.into_iter().filter_map(Result::ok).map(PathBuf::into_os_string);
    let values = env::vars_os().map(|(_, value)| value).chain(paths);
    let outer = env::var(OUTER_COMMAND).ok().and_then(|line| shlex::split(&line));
    let outer = outer.unwrap_or_default().into_iter().map(OsString::from);
    known_folders(env::args_os().chain(outer), values)
});

/// A folder that [`without_folders`] cannot find in a text.
#[derive(Debug)]
pub struct KnownFolder {
    is_absolute: bool,
    /// The forms in which a text can contain the folder, each with its replacement.
    written: Vec<(String, String)>,
}

/// Returns the folders that [`without_folders`] cannot find in a text: folders whose paths contain a character that
/// [`ends_path`] accepts, and the folders of relative paths. The longest folders are first. `values` can be lists of
/// paths, which such characters separate, so a folder with such a character in `values` must exist.
pub fn known_folders(
    arguments: impl Iterator<Item = OsString>,
    values: impl Iterator<Item = OsString>,
) -> Vec<KnownFolder> {
    let mut folders = Vec::new();
    let arguments = arguments.map(|word| (word, true));
    for (word, is_argument) in arguments.chain(values.map(|word| (word, false))) {
        let word = word.to_string_lossy();
        // A word can contain several paths: `--runtime=PATH`, `PATH:PATH`, or a quoted command.
        let parts = word.split([':', '=', '\'', '"']).map(|part| (part, is_argument));
        for part in parts.clone().map(|(part, _)| part).filter(|part| !part.starts_with('/')) {
            let path = Path::new(part);
            let parents = path.ancestors().skip(usize::from(!path.is_dir()));
            let parents = parents.map(|folder| folder.to_string_lossy().into_owned());
            // Keep folders of digits: `2/5` can be a value of `--shard`.
            let is_number = |folder: &String| folder.bytes().all(|it| it.is_ascii_digit());
            folders.extend(parents.filter(|folder| !is_number(folder)));
        }
        // These characters can also be in the name of a folder.
        let value = word.split_once('=').map(|(_, value)| (value, word.starts_with('-')));
        let whole = [(&*word, true)].into_iter().chain(value);
        let whole = whole.map(|(part, is_path)| (part, is_argument && is_path));
        let lists = [&[':'][..], &[':', '='], &[':', ' ']];
        let listed = lists.into_iter().flat_map(|separators| word.split(separators));
        for (part, can_be_missing) in parts.chain(whole).chain(listed.map(|part| (part, false))) {
            folders.extend(unrecognizable_folders(Path::new(part), can_be_missing));
        }
    }
    folders.sort_by_key(|folder| Reverse(folder.len()));
    folders.dedup();
    let known = |folder: String| KnownFolder {
        is_absolute: folder.starts_with('/'),
        written: written_forms(&folder),
    };
    folders.into_iter().map(known).collect()
}

/// Returns those folders of `path` whose paths contain a character that [`ends_path`] accepts. If `can_be_missing`, the
/// folders of an absolute path need not exist.
fn unrecognizable_folders(path: &Path, can_be_missing: bool) -> Vec<String> {
    let mut folders = Vec::new();
    for path in [Some(path.to_owned()), path.canonicalize().ok()].into_iter().flatten() {
        let is_folder = |folder: &&Path| {
            can_be_missing && path.is_absolute() && *folder != path || folder.is_dir()
        };
        let unrecognizable = |folder: &Path| {
            let text = folder.to_str().filter(|text| text.contains(ends_path))?;
            Some(text.trim_end_matches('/').to_owned())
        };
        folders.extend(path.ancestors().filter(is_folder).filter_map(unrecognizable));
    }
    folders
}

/// Returns how a text can contain the beginning of a path in this folder, each with the replacement: unchanged, quoted
/// for a shell, and escaped as in JSON.
fn written_forms(folder: &str) -> Vec<(String, String)> {
    let start = format!("{folder}/");
    let escaped = |text: &str| {
        let text = serde_json::Value::from(text).to_string();
        text[1..text.len() - 1].to_owned()
    };
    let mut forms = Vec::new();
    // A word with both kinds of quotes consists of several quoted parts. The last part continues after the folder.
    if let Ok(quoted) = shlex::try_quote(&start)
        && let Some((first, last)) = quoted.chars().next().zip(quoted.chars().next_back())
        && [first, last].iter().all(|quote| matches!(quote, '\'' | '"'))
    {
        let ends = if first == last { String::new() } else { format!("{first}{last}") };
        forms.push((quoted[1..quoted.len() - 1].to_owned(), ends + "/"));
    }
    forms.push((escaped(&start), "/".to_owned()));
    forms.push((start, "/".to_owned()));
    // A shell's words can be in JSON.
    let in_json = forms.iter().map(|(form, replacement)| (escaped(form), escaped(replacement)));
    let mut forms: Vec<_> = in_json.chain(forms.clone()).collect();
    forms.dedup();
    forms
}

/// Removes these folders from the paths of files in them. Removes a relative folder only where a path begins.
pub fn without_known_folders(text: &str, folders: &[KnownFolder]) -> String {
    let mut text = text.to_owned();
    for folder in folders {
        for (form, replacement) in &folder.written {
            if text.contains(form) {
                text = without_form(&text, form, replacement, folder.is_absolute);
            }
        }
    }
    text
}

/// Replaces `form`, but unless `is_absolute` only where a path begins.
fn without_form(text: &str, form: &str, replacement: &str, is_absolute: bool) -> String {
    let mut parts = text.split(form);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let begins_path = result.chars().next_back().is_none_or(ends_path);
        result.push_str(if is_absolute || begins_path { replacement } else { form });
        result.push_str(part);
    }
    result
}

/// Reduces absolute paths, and paths below the home folder, to their last component. Keeps paths below
/// `/dev`, `/proc` and `/sys`.
pub fn without_folders(text: &str) -> String {
    let mut result = String::new();
    for part in text.split_inclusive(ends_path) {
        let end = part.chars().next_back().filter(|last| ends_path(*last));
        let path = end.map_or(part, |end| &part[..part.len() - end.len_utf8()]);
        // In an address such as `https://a/b`, `//a/b` follows the colon.
        let is_path = path.starts_with('/') && !path.starts_with("//") || path.starts_with("~/");
        let is_kernel_file =
            ["/dev", "/proc", "/sys"].iter().any(|folder| Path::new(path).starts_with(folder));
        match path.rsplit_once('/') {
            Some((_, name)) if is_path && !is_kernel_file => result.push_str(name),
            _ => result.push_str(path),
        }
        result.extend(end);
    }
    result
}

/// Replaces serial numbers of GPUs, such as `GPU-5ca1ab1e00000000` in `ROCR_VISIBLE_DEVICES`, by [`REDACTED`].
pub fn without_serial_numbers(text: &str) -> String {
    const PREFIX: &str = "GPU-";
    /// Shorter numbers are indexes, as in the file name `gpu-0.json`.
    const MIN_DIGITS: usize = 4;
    let (mut result, mut copied) = (String::new(), 0);
    // AMD's runtime ignores the case of the letters.
    for (start, _) in text.to_ascii_uppercase().match_indices(PREFIX) {
        let number = &text[start + PREFIX.len()..];
        let number = number.split(|letter: char| !letter.is_alphanumeric()).next();
        let is_hex = |number: &&str| number.chars().all(|digit| digit.is_ascii_hexdigit());
        let number = number.filter(|it| it.len() >= MIN_DIGITS).filter(is_hex);
        let before = text[..start].chars().next_back();
        let begins_word = before.is_none_or(|it| !it.is_alphanumeric() && it != '-' && it != '_');
        if let Some(number) = number.filter(|_| begins_word) {
            result.push_str(&text[copied..start]);
            result.push_str(REDACTED);
            copied = start + PREFIX.len() + number.len();
        }
    }
    result + &text[copied..]
}

/// Replaces PCI addresses such as `0000:03:00.0` by [`REDACTED`].
pub fn without_pci_addresses(text: &str) -> String {
    let mut result = String::new();
    let is_in_word = |letter: char| letter.is_ascii_hexdigit() || letter == ':' || letter == '.';
    let mut rest = text;
    while let Some(start) = rest.find(is_in_word) {
        let (before, after) = rest.split_at(start);
        let (word, after) = after.split_at(after.find(|it| !is_in_word(it)).unwrap_or(after.len()));
        result.push_str(before);
        result.push_str(&replace_pci_address(word));
        rest = after;
    }
    result + rest
}

/// Replaces the PCI address in a word of hexadecimal digits, colons and dots, if the word contains one. In the kernel's
/// log, an address can follow a colon: `peer:0000:02:00.0`.
fn replace_pci_address(word: &str) -> String {
    let fields: Vec<_> = word.split(':').collect();
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.chars().all(|digit| digit.is_ascii_hexdigit())
    };
    let is_slot = |text: &str| {
        let (device, function) = text.split_once('.').unwrap_or_default();
        is_hex(device, 2) && function.starts_with(|digit: char| digit.is_digit(8))
    };
    let is_address = |fields: &[&str]| match fields {
        // Domains of Intel's Volume Management Device have more than four digits.
        [domain, bus, slot] => {
            is_hex(domain, domain.len().max(4)) && is_hex(bus, 2) && is_slot(slot)
        }
        _ => false,
    };
    let Some(first) = fields.windows(3).position(is_address) else { return word.to_owned() };
    // The function is a single digit, so the slot has four characters. Keep the characters after the slot.
    let after_slot = &fields[first + 2]["00.0".len()..];
    let address = format!("{REDACTED}{after_slot}");
    [&fields[..first], &[&address], &fields[first + 3..]].concat().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, iter};

    #[test]
    fn redact_removes_the_last_output_of_a_process() {
        let text = "the second process: SIGABRT; its last output: /a: secret; b\nnext line";
        let expected = "the second process: SIGABRT; its last output: (redacted)\nnext line";
        assert_eq!(without_last_output(text), expected);
        assert_eq!(without_last_output(expected), expected);
    }

    #[test]
    fn names_of_user_and_home_are_replaced_in_paths() {
        for (text, expected) in [
            ("LD_PRELOAD=/home/anna/a.so:/home/anna", "LD_PRELOAD=~/a.so:~"),
            ("/home/annabel/a /scratch/anna/b", "/home/annabel/a /scratch/USER/b"),
            ("'/data/anna' anna", "'/data/USER' anna"),
            ("-o/home/anna/r a\\n/home/anna/b", "-o~/r a\\n~/b"),
        ] {
            assert_eq!(without_names(text, Some("/home/anna/"), Some("anna")), expected);
        }
        assert_eq!(without_names("/root/a /", Some("/root"), Some("root")), "~/a /");
        assert_eq!(without_names("/a", Some("/"), None), "/a");
        let text = "/build/root/usr/x.so /root/root/a";
        assert_eq!(without_names(text, Some("/root"), None), "/build/root/usr/x.so ~/root/a");
    }

    #[test]
    fn redact_removes_folders_below_the_home_folder() {
        let text = "/home/anna/'my bin/hsa-vmm' -o /home/anna/\"O'B/x\" /home/anna/\\\"a b/c\\\"";
        let quoted = with_home_in_quotes(text, Some("/home/anna/"));
        let expected =
            "'/home/anna/my bin/hsa-vmm' -o \"/home/anna/O'B/x\" \\\"/home/anna/a b/c\\\"";
        assert_eq!(quoted, expected);
        assert_eq!(with_home_in_quotes("/'a'", Some("/")), "/'a'");
    }

    #[test]
    fn redact_removes_folders_with_spaces() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("sub dir/a rt/lib");
        fs::create_dir_all(&folder).unwrap();
        let file = format!("{}/x y.so", folder.display());
        let words = [format!("--runtime={file}"), format!("LIST=/lib:{file}")];
        let folders = known_folders(iter::empty(), words.into_iter().map(OsString::from));
        let text = format!("hsa-vmm '--runtime={file}' -o {file}, {file}: {file}");
        let cleaned = without_folders(&without_known_folders(&text, &folders));
        assert_eq!(cleaned, "hsa-vmm '--runtime=x y.so' -o x y.so, x y.so: x y.so");
        // Folders of arguments need not exist. White space can separate the paths in a variable.
        let argument = OsString::from("--runtime=/no such/secret dir/x.so");
        let folders = known_folders([argument].into_iter(), ["/a/x.so /b/y.so".into()].into_iter());
        let text = "--runtime '/no such/secret dir/x.so' LIST=/a/x.so /b/y.so";
        let cleaned = without_folders(&without_known_folders(text, &folders));
        assert_eq!(cleaned, "--runtime 'x.so' LIST=x.so y.so");
    }

    #[test]
    fn redact_removes_folders_with_separators() {
        let temporary = tempfile::tempdir().unwrap();
        let names =
            ["a;b", "foo(bar", "O'Brien", "v=2", "x:y", "k,l", "q\"r", "b\\s", "c<d", "m'n \"$"];
        for name in names {
            let folder = temporary.path().join(name).join("deep");
            fs::create_dir_all(&folder).unwrap();
            let file = format!("{}/o.json", folder.display());
            let missing = format!("/nowhere/{name}/deep/x.so");
            let words = ["-o".to_owned(), file.clone(), format!("--runtime={missing}")];
            let lists = [format!("{}:/lib", folder.display())];
            let [words, lists] = [&words[..], &lists].map(|it| it.iter().map(OsString::from));
            let folders = known_folders(words, lists);
            let quoted = shlex::try_join([file.as_str(), &missing]).unwrap();
            for text in [format!("{file}: {missing}"), format!("{file:?}"), quoted] {
                for text in [serde_json::Value::from(text.as_str()).to_string(), text] {
                    let cleaned = without_folders(&without_known_folders(&text, &folders));
                    assert!(!cleaned.contains('/'), "{name}: {text}: {cleaned}");
                    let is_clean = |part| !cleaned.replace("x.so", "").contains(part);
                    assert!(is_clean("deep") && is_clean(&name[..1]), "{name}: {text}: {cleaned}");
                }
            }
        }
    }

    #[test]
    fn redact_removes_relative_folders() {
        let words = [
            "../a b/hsa-vmm",
            "--runtime=rt/lib/x.so",
            "LIST=/lib:src",
            "2/5",
            "2/merge",
            "data/x",
        ];
        let folders = known_folders(words.into_iter().map(OsString::from), iter::empty());
        let text = "'../a b/hsa-vmm' -o rt/lib/x.so:rt/y.so:src/z.so --shard 2/5 /rt/a mydata/x";
        let cleaned = without_folders(&without_known_folders(text, &folders));
        assert_eq!(cleaned, "'hsa-vmm' -o x.so:y.so:z.so --shard 2/5 a mydata/x");
    }

    #[test]
    fn redact_removes_folders() {
        let text = "hsa-vmm emulate --log '/var/log/kfd' -- ~/bin/hsa-vmm --runtime=/opt/x.so:/b/c";
        let expected = "hsa-vmm emulate --log 'kfd' -- hsa-vmm --runtime=x.so:c";
        assert_eq!(without_folders(text), expected);
        for text in ["open /dev/kfd, 1/2", "the host's /sys", "see https://example.org/a/b"] {
            assert_eq!(without_folders(text), text);
        }
    }

    #[test]
    fn redact_removes_pci_addresses() {
        for (text, expected) in [
            (
                "amdgpu 0000:00:01.0: map peer:0000:00:02.0 x",
                "amdgpu (redacted): map peer:(redacted) x",
            ),
            ("0000:c3:00.0 (amdgpu)", "(redacted) (amdgpu)"),
            ("10000:e1:00.0", "(redacted)"),
        ] {
            assert_eq!(without_pci_addresses(text), expected);
        }
        for text in ["at 12:34:56.7 in 0x7f00:12", "1.17", "a.b:c.rs:10:2", "Größe: 3 MiB"] {
            assert_eq!(without_pci_addresses(text), text);
        }
    }

    #[test]
    fn redact_removes_serial_numbers_in_variables() {
        let text =
            "ROCR_VISIBLE_DEVICES=GPU-5ca1ab1e00000000,gpu-5CA1,0 multi-GPU-acce gpu-0.json GPU-";
        let expected =
            "ROCR_VISIBLE_DEVICES=(redacted),(redacted),0 multi-GPU-acce gpu-0.json GPU-";
        assert_eq!(without_serial_numbers(text), expected);
    }
}
