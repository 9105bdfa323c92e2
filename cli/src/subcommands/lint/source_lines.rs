//! Finds the lines of the source for the frames of call stacks, with the program `addr2line` of GNU binutils or LLVM.

use hsa_vmm_conformance::hsa_trace::lint::Finding;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

/// Appends the function and the line of the source to each frame whose file has debug information. Does nothing
/// without `addr2line`.
pub fn add_source_lines(findings: &mut [Finding]) {
    let mut offsets: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for frame in findings.iter().flat_map(|finding| &finding.stack) {
        if let Some((file, offset, _)) = split_frame(frame) {
            offsets.entry(file.to_owned()).or_default().insert(offset.to_owned());
        }
    }
    let lines: BTreeMap<_, _> = offsets
        .iter()
        .filter(|(file, _)| Path::new(file).is_absolute() && Path::new(file).is_file())
        .map(|(file, offsets)| (file.clone(), look_up(file, offsets).unwrap_or_default()))
        .collect();
    for frame in findings.iter_mut().flat_map(|finding| &mut finding.stack) {
        let Some((file, offset, function)) = split_frame(frame) else { continue };
        let Some((name, line)) = lines.get(file).and_then(|lines| lines.get(offset)) else {
            continue;
        };
        let name = if function.is_empty() { format!(" {name}") } else { String::new() };
        *frame = format!("{frame}{name} at {line}");
    }
}

/// Splits `FILE+0xOFFSET FUNCTION`.
fn split_frame(frame: &str) -> Option<(&str, &str, &str)> {
    let (file, rest) = frame.rsplit_once("+0x")?;
    let (offset, function) = rest.split_once(' ').unwrap_or((rest, ""));
    offset.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some((file, offset, function))
}

/// Returns the function and the line of each offset in a file. Leaves out offsets without debug information.
fn look_up(file: &str, offsets: &BTreeSet<String>) -> Option<BTreeMap<String, (String, String)>> {
    let output = Command::new("addr2line")
        .args(["-C", "-f", "-e", file])
        .args(offsets)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let mut found = BTreeMap::new();
    for offset in offsets {
        let (function, line) = (lines.next()?, lines.next()?);
        // binutils appends ` (discriminator N)`.
        let line = line.split(" (").next().unwrap_or(line);
        if !line.starts_with("??") && !line.ends_with(":?") && !line.ends_with(":0") {
            found.insert(offset.clone(), (function.to_owned(), line.to_owned()));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::split_frame;

    #[test]
    fn split_frame_returns_file_offset_and_function() {
        assert_eq!(split_frame("/a+b/c+0x1f main"), Some(("/a+b/c", "1f", "main")));
        assert_eq!(split_frame("/lib/x.so+0x10"), Some(("/lib/x.so", "10", "")));
        assert_eq!(split_frame("0x7f00"), None);
        assert_eq!(split_frame("/a+0xzz f"), None);
    }
}
