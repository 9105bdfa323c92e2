//! Traces in the kernel's log: warnings and errors that the kernel logs with its registers and its call stack.

/// The words with which the first line of a trace begins.
const STARTS: [&str; 6] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops: ",
    "general protection fault",
    "Unable to handle kernel ",
];

fn is_start(line: &str) -> bool {
    let line = line.strip_prefix("watchdog: ").unwrap_or(line);
    STARTS.iter().any(|start| line.starts_with(start))
}

/// Returns the function of amdgpu in a line of a trace: `amdgpu_vm_bo_map` for
/// ` amdgpu_vm_bo_map+0x1c/0x30 [amdgpu]`. Some kernels print a build ID after `amdgpu`. Ignores frames that the kernel
/// found on the stack but does not trust, which begin with `?`.
fn function_of_amdgpu(line: &str) -> Option<&str> {
    if line.trim_start().starts_with("? ") {
        return None;
    }
    let (before, after) = line.split_once(" [amdgpu")?;
    if !after.starts_with([']', ' ']) {
        return None;
    }
    let (name, _) = before.split(' ').next_back()?.split_once("+0x")?;
    // For example `RIP: 0010:amdgpu_vm_bo_map+0x1c/0x30`.
    Some(name.rsplit(':').next().unwrap_or(name))
}

/// Returns the number of lines of a trace, from its first line on. Returns 1 if the trace has no end. A trace can have
/// several first lines, such as `BUG: …` and `Oops: …`.
fn trace_length(lines: &[String]) -> usize {
    let mut length = 1;
    for (index, line) in lines.iter().enumerate().skip(1) {
        if line.contains("---[ end trace") {
            return index + 1;
        }
        // The last trace had no other end than that of its stack.
        if is_start(line) && length > 1 {
            break;
        }
        if line.contains("</TASK>") {
            length = index + 1;
        }
    }
    length
}

/// Returns the innermost function of amdgpu in the first trace that has one.
fn function_in_traces(lines: &[String]) -> Option<&str> {
    let mut start = 0;
    while start < lines.len() {
        let rest = &lines[start..];
        let length = if is_start(&rest[0]) { trace_length(rest) } else { 1 };
        let function = rest[..length].iter().find_map(|line| function_of_amdgpu(line));
        if is_start(&rest[0]) && function.is_some() {
            return function;
        }
        start += length;
    }
    None
}

/// Returns whether a [shortened](shorten) log, which lacks the ends of traces, contains a trace with a function of
/// amdgpu.
pub fn is_about_amdgpu(lines: &[String]) -> bool {
    let mut from_trace_on = lines.iter().skip_while(|line| !is_start(line));
    from_trace_on.any(|line| function_of_amdgpu(line).is_some())
}

/// Suspects the innermost function of amdgpu in a trace. Quotes no line of the log, because `--redact` removes the log.
pub fn advise(lines: &[String]) -> Option<String> {
    let function = function_in_traces(lines)?;
    Some(format!(
        "the kernel logged a trace of {function}: suspect {function} first, if the trace is not that of another process"
    ))
}

/// Returns at most `limit` lines, besides lines with the number of omitted lines. Of a trace, keeps the first line and
/// the functions of amdgpu, and omits registers and other functions. Keeps the last ones of the other lines.
pub fn shorten(lines: Vec<String>, limit: usize) -> Vec<String> {
    if lines.len() <= limit {
        return lines;
    }
    let mut is_kept = vec![false; lines.len()];
    let mut is_in_trace = vec![false; lines.len()];
    let mut kept = 0;
    let mut end_of_trace = 0;
    for (index, line) in lines.iter().enumerate() {
        if index >= end_of_trace && is_start(line) {
            end_of_trace = index + trace_length(&lines[index..]);
        }
        is_in_trace[index] = index < end_of_trace;
        let is_important = is_start(line) || function_of_amdgpu(line).is_some();
        if is_in_trace[index] && is_important && kept < limit {
            is_kept[index] = true;
            kept += 1;
        }
    }
    for index in (0..lines.len()).rev().filter(|index| !is_in_trace[*index]).take(limit - kept) {
        is_kept[index] = true;
    }
    let mut shown = Vec::new();
    let mut omitted = 0;
    for (line, is_kept) in lines.into_iter().zip(is_kept) {
        if !is_kept {
            omitted += 1;
            continue;
        }
        if omitted > 0 {
            shown.push(format!("… ({omitted} other lines)"));
            omitted = 0;
        }
        shown.push(line);
    }
    if omitted > 0 {
        shown.push(format!("… ({omitted} other lines)"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the virtual machine, with the function `amdgpu_amdkfd_gpuvm_export_dmabuf` stubbed.
    const TRACE: &str = "\
amdgpu 0000:00:01.0: amdgpu: Failed to map peer:0000:00:02.0 mem_domain:2
------------[ cut here ]------------
WARNING: CPU: 1 PID: 271 at drivers/dma-buf/dma-buf.c:769 dma_buf_put+0x1c/0x30
Modules linked in: hsa_vmm(OE) amdgpu crc16
RIP: 0010:dma_buf_put+0x1c/0x30
RSP: 0018:ffa00000018d3ac0 EFLAGS: 00000246
RAX: 00000000ffffffea RBX: ffa00000018d3b30 RCX: 0000000000000000
Call Trace:
 <TASK>
 ? __pfx_kfd_ioctl_export_dmabuf+0x10/0x10 [amdgpu]
 kfd_ioctl_export_dmabuf+0xd9/0x100 [amdgpu]
 kfd_ioctl+0x347/0x570 [amdgpu]
 __x64_sys_ioctl+0x94/0xc0
RIP: 0033:0x7f084237425f
 </TASK>
---[ end trace 0000000000000000 ]---
eth0: link down";

    fn lines() -> Vec<String> {
        TRACE.lines().map(str::to_owned).collect()
    }

    #[test]
    fn trace_names_the_function_of_amdgpu() {
        let advice = advise(&lines()).unwrap();
        let start = "the kernel logged a trace of kfd_ioctl_export_dmabuf: suspect kfd_ioctl_export_dmabuf first";
        assert!(advice.starts_with(start), "{advice}");
        let rip = "RIP: 0010:amdgpu_vm_bo_map+0x1c/0x30 [amdgpu]";
        assert_eq!(function_of_amdgpu(rip), Some("amdgpu_vm_bo_map"));
        let with_build_id = " amdgpu_vm_bo_map+0x1c/0x30 [amdgpu 0123abcd]";
        assert_eq!(function_of_amdgpu(with_build_id), Some("amdgpu_vm_bo_map"));
        let other = ["WARNING: a", "eth0+0x1c/0x30 [e1000]", "---[ end trace 0 ]---"];
        let other: Vec<_> = other.map(str::to_owned).to_vec();
        assert_eq!(advise(&other), None);
        assert!(!is_about_amdgpu(&other));
        // The trace of another driver comes first.
        let both = [other, lines()].concat();
        assert_eq!(function_in_traces(&both), Some("kfd_ioctl_export_dmabuf"));
    }

    #[test]
    fn traces_end_at_their_last_lines() {
        let to_lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let lockup = to_lines(
            "watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [hsa-vmm:271]\n<TASK>\n\
             amdgpu_vm_bo_map+0x1c/0x30 [amdgpu]\n</TASK>\neth0: link down",
        );
        assert_eq!(trace_length(&lockup), 4);
        assert_eq!(function_in_traces(&lockup), Some("amdgpu_vm_bo_map"));
        // The first trace ends before the second begins.
        assert_eq!(trace_length(&[lockup, lines()].concat()), 4);
        let oops = to_lines("BUG: a\nOops: b\n<TASK>\n</TASK>\nc\n---[ end trace 0 ]---\nd");
        assert_eq!(trace_length(&oops), 6);
    }

    #[test]
    fn shortened_log_keeps_the_head_of_a_trace() {
        let expected = "\
… (2 other lines)
WARNING: CPU: 1 PID: 271 at drivers/dma-buf/dma-buf.c:769 dma_buf_put+0x1c/0x30
… (7 other lines)
 kfd_ioctl_export_dmabuf+0xd9/0x100 [amdgpu]
 kfd_ioctl+0x347/0x570 [amdgpu]
… (4 other lines)
eth0: link down";
        assert_eq!(shorten(lines(), 4).join("\n"), expected);
        assert!(is_about_amdgpu(&shorten(lines(), 4)));
        assert_eq!(shorten(lines(), 17), lines());
        let numbers: Vec<_> = (0..5).map(|number| number.to_string()).collect();
        assert_eq!(shorten(numbers, 2), ["… (3 other lines)", "3", "4"]);
    }
}
