//! Finds GPU faults in the messages of runtime and kernel, and the call that granted access to the fault's address.

use super::level::Level;
use super::supervisor::{Call, Cause, LevelRun, Outcome};

/// The starts of the messages that AMD's runtime and its libhsakmt print when a GPU accesses an unmapped address.
const MESSAGES: [&str; 2] = ["Memory access fault by GPU", "Memory exception on virtual address"];

/// The words of AMD's runtime and of its libhsakmt for a write to a page whose page-table entry does not permit writing.
const READ_ONLY: [&str; 2] = ["Write access to a read-only page", "Writing to readonly page"];

/// The words with which amdgpu logs a fault. The address follows in this line or in one of the next two:
/// `amdgpu: [gfxhub0] no-retry page fault (src_id:0 …)`, `amdgpu:   in page starting at address 0x00007f… from …`.
const KERNEL_MESSAGE: &str = "page fault";
/// The number of lines that are searched for the address, from the line with [`KERNEL_MESSAGE`] on.
const KERNEL_LINES: usize = 3;

/// A page fault of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuFault {
    /// The address. `None` if no message names it.
    pub address: Option<u64>,
    /// Whether the runtime reports a write to a page that is mapped read-only.
    pub is_write_to_read_only_page: bool,
}

impl GpuFault {
    /// Finds a fault in the output of the runtime, or else in the lines that the kernel logged.
    pub fn find(output: &str, kernel: &[String]) -> Option<Self> {
        let address = address(output).or_else(|| address_in_kernel_log(kernel));
        let is_reported =
            output.lines().any(is_message) || kernel.iter().any(|line| is_kernel_message(line));
        let is_write_to_read_only_page = READ_ONLY.iter().any(|words| output.contains(words));
        (address.is_some() || is_reported).then_some(Self { address, is_write_to_read_only_page })
    }

    /// Returns the start of a sentence about the fault: `a GPU page fault at 0x7f2000`. The caller adds the effect.
    pub fn describe(self) -> String {
        let address = self.address.map(|address| format!(" at {address:#x}"));
        format!("a GPU page fault{}", address.unwrap_or_default())
    }
}

fn is_message(line: &str) -> bool {
    MESSAGES.iter().any(|message| line.contains(message))
}

/// Returns whether a line of the emulated driver's log reports a GPU fault: `… gpu0 fault at 0x7f2000: EFAULT`.
pub fn is_driver_line(line: &str) -> bool {
    line.contains(" fault at ")
}

fn is_kernel_message(line: &str) -> bool {
    line.contains("amdgpu") && line.contains(KERNEL_MESSAGE)
}

/// Returns the address of the first fault that the kernel logged.
fn address_in_kernel_log(lines: &[String]) -> Option<u64> {
    let first = lines.iter().position(|line| is_kernel_message(line))?;
    let mut words = lines[first..].iter().take(KERNEL_LINES).flat_map(|line| line.split(' '));
    words.find(|word| *word == "at" || *word == "address")?;
    words.find_map(parse_hex)
}

/// Returns the address at which a GPU faulted, from the runtime's message.
fn address(output: &str) -> Option<u64> {
    let line = output.lines().find(|line| is_message(line))?;
    line.split(" address ").find_map(parse_hex)
}

/// Parses the hexadecimal number at the start of a text.
pub fn parse_hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(digits.len());
    u64::from_str_radix(&digits[..end], 16).ok()
}

/// Returns the index of the last call that granted access to an address. Prefers the calls of `process`, because
/// several processes of a level can use the same address.
pub fn granted_by(calls: &[Call], address: u64, process: u8) -> Option<usize> {
    let contains = |(start, size)| (start..start + size).contains(&address);
    let has_granted = |call: &Call| granted_range(call).is_some_and(contains);
    let by_process = |call: &Call| call.begin.id.process == process && has_granted(call);
    calls.iter().rposition(by_process).or_else(|| calls.iter().rposition(has_granted))
}

/// Returns the start and the size of the range to which a call granted access. For host memory, the size is 1, because
/// the call names only the start.
pub fn granted_range(call: &Call) -> Option<(u64, u64)> {
    let value_of = |matches: &dyn Fn(&str) -> bool| {
        let mut arguments = call.begin.arguments.iter();
        arguments.find(|argument| matches(&argument.name)).and_then(|found| parse_hex(&found.value))
    };
    match call.begin.call.as_str() {
        "hsa_amd_vmem_set_access" => {
            value_of(&|name| name.starts_with("va")).zip(value_of(&|name| name == "size"))
        }
        "hsa_amd_agents_allow_access" => value_of(&|name| name == "host").zip(Some(1)),
        _ => None,
    }
}

impl LevelRun {
    /// Attributes a crash or a hang to the call that granted a GPU access to the address at which the GPU faulted. Does
    /// the same if another process of the level ended during a call.
    pub fn attribute_gpu_fault(&mut self) {
        let has_ended_early = |call: &Call| call.begin.id.process != 0 && call.end.is_none();
        let in_flight = match &self.outcome {
            Outcome::Failed(Cause::Crash(calls, _) | Cause::Hang(calls, _)) => calls.clone(),
            Outcome::Failed(Cause::Wrong(Some(index), _))
                if has_ended_early(&self.calls[*index]) =>
            {
                vec![*index]
            }
            _ => return,
        };
        let Some(address) = self.gpu_fault().and_then(|fault| fault.address) else { return };
        // Only the end of the first process counts as a crash.
        let is_crash = matches!(self.outcome, Outcome::Failed(Cause::Crash(..)));
        let first = in_flight.first().filter(|_| !is_crash);
        let process = first.map_or(0, |index| self.calls[*index].begin.id.process);
        if let Some(call) = granted_by(&self.calls, address, process) {
            let cause = Cause::GpuFault(call, address, in_flight);
            self.outcome = Outcome::Failed(cause);
        }
    }

    /// Returns the GPU fault that happened during the level. The level "permission" provokes a fault, which is not
    /// returned. The runtime also reports errors of an engine as faults, which are not returned either.
    pub fn gpu_fault(&self) -> Option<GpuFault> {
        let fault = GpuFault::find(&self.output, self.kernel_lines());
        fault.filter(|_| self.level != Level::Permission && self.engine_error().is_none())
    }

    /// Returns whether the emulated driver or the kernel logged a GPU fault during the level.
    pub fn has_logged_fault(&self) -> bool {
        self.driver.iter().flatten().any(|(_, line)| is_driver_line(line))
            || self.kernel_lines().iter().any(|line| is_kernel_message(line))
    }

    /// Makes a level fail if the runtime reported a GPU fault although the level passed. The runtime can report the
    /// fault while the process exits. Does nothing for the level "permission", which provokes a fault.
    pub fn fail_on_gpu_fault(&mut self) {
        if self.outcome != Outcome::Reached || self.level == Level::Permission {
            return;
        }
        // `fail_on_driver_errors` reports errors of an engine.
        if self.engine_error().is_some() {
            return;
        }
        // The kernel's log can contain faults of other processes.
        let Some(fault) = GpuFault::find(&self.output, &[]) else { return };
        let call = fault.address.and_then(|address| granted_by(&self.calls, address, 0));
        let cause = match (call, fault.address) {
            (Some(call), Some(address)) => Cause::GpuFault(call, address, Vec::new()),
            _ => {
                let last = self.calls.len().checked_sub(1);
                Cause::Wrong(last, "all calls of the level succeeded".to_owned())
            }
        };
        self.outcome = Outcome::Failed(cause);
    }
}

#[cfg(test)]
mod tests {
    use super::super::advice::{Setup, advise};
    use super::super::record::Argument;
    use super::*;
    use hsa_vmm_conformance::worker::End;

    fn call(name: &str, arguments: &[(&str, &str)]) -> Call {
        let argument =
            |pair: &(&str, &str)| Argument { name: pair.0.to_owned(), value: pair.1.to_owned() };
        let mut call = Call::with_name(name);
        call.begin.arguments = arguments.iter().map(argument).collect();
        call
    }

    #[test]
    fn fault_is_found_in_the_kernel_log() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let found = |text: &str| GpuFault::find("", &lines(text));
        let real = "amdgpu: amdgpu: Failed to map peer:0000:00:02.0\n\
                    amdgpu 0000:03:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32769)\n\
                    amdgpu 0000:03:00.0: amdgpu:  for process a pid 7 thread a pid 7)\n\
                    amdgpu 0000:03:00.0: amdgpu:   in page starting at address 0x00007f1000000000 from IH client 0x1b";
        assert_eq!(found(real).unwrap().address, Some(0x7f10_0000_0000));
        let software =
            "amdgpu 0000:00:01.0: amdgpu: hsa_vmm: page fault: pasid 52, read at 0x7fde649a1010";
        assert_eq!(found(software).unwrap().describe(), "a GPU page fault at 0x7fde649a1010");
        assert_eq!(found("amdgpu: page fault").unwrap().describe(), "a GPU page fault");
        assert_eq!(found("a.out[7]: page fault at 0x7f1000"), None);
    }

    #[test]
    fn write_to_read_only_page_is_recognised() {
        let start =
            "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f1000. Reason: ";
        for (reason, expected) in [
            ("Write access to a read-only page.", true),
            ("Page not present or supervisor privilege.", false),
        ] {
            let fault = GpuFault::find(&format!("{start}{reason}"), &[]).unwrap();
            assert_eq!(fault.is_write_to_read_only_page, expected, "{reason}");
        }
    }

    #[test]
    fn fault_is_attributed_to_the_grant_of_its_address() {
        let text =
            "Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f1000. Reason: x";
        assert_eq!(address(text), Some(0x7f_1000));
        assert_eq!(address("on address 0x7f1000"), None);
        let early = "Memory exception on virtual address 0x7f2000, node id 1 : page not present";
        assert_eq!(address(early), Some(0x7f_2000));
        let grant = "hsa_amd_vmem_set_access";
        let mut calls = [
            call(grant, &[("va", "0x7f1000"), ("size", "0x2000")]),
            call(grant, &[("va2", "0x7f1000"), ("size", "0x1000")]),
            call("hsa_amd_agents_allow_access", &[("1", "agents"), ("host", "0x800000")]),
        ];
        assert_eq!(granted_by(&calls, 0x7f_1000, 0), Some(1), "the last grant counts");
        assert_eq!(granted_by(&calls, 0x7f_2000, 0), Some(0));
        assert_eq!(granted_by(&calls, 0x7f_3000, 0), None);
        assert_eq!(granted_range(&calls[1]), Some((0x7f_1000, 0x1000)));
        assert_eq!(granted_by(&calls, 0x80_0000, 0), Some(2));
        calls[1].begin.id.process = 1;
        for (process, expected) in [(0, 0), (1, 1), (2, 1)] {
            assert_eq!(granted_by(&calls, 0x7f_1000, process), Some(expected), "{process}");
        }
    }

    /// This machine's kernel takes no part in a simulation, so its log is about another program.
    #[test]
    fn kernel_log_is_ignored_without_the_kernels_driver() {
        let mut run = LevelRun::passed(Level::Data, vec![call("compare", &[])]);
        run.kernel = Ok(vec!["amdgpu: page fault at 0x7f2000".to_owned()]);
        assert!(run.gpu_fault().is_some() && run.has_logged_fault());
        run.runtime = Some(None);
        assert!(run.gpu_fault().is_none() && !run.has_logged_fault());
        // Simulated memory is no mapping of a device.
        let (command, earlier) = ("hsa-vmm bringup", std::time::Duration::ZERO);
        let setup = Setup { command, earlier, config: None, planned_faults: &[], program: None };
        for signal in [7, 11] {
            let cause = Cause::Crash(vec![0], End::Signal(signal));
            let advice = advise(&run, &cause, run.calls.first(), &None, &[], setup).concat();
            assert!(!advice.contains("drm_gem_mmap"), "{advice}");
        }
    }

    #[test]
    fn reported_fault_fails_a_level_that_passed() {
        let mut run = LevelRun::passed(Level::Data, vec![call("hsa_shut_down", &[])]);
        run.output = "Memory exception on virtual address 0x7f2000, node id 1".to_owned();
        run.fail_on_gpu_fault();
        let Outcome::Failed(cause) = &run.outcome else { panic!("{run:?}") };
        let text = "a GPU page fault at 0x7f2000: all calls of the level succeeded";
        assert_eq!(run.describe(cause), text);
        let (command, earlier) = ("hsa-vmm bringup", std::time::Duration::ZERO);
        let setup = Setup { command, earlier, config: None, planned_faults: &[], program: None };
        let advice = advise(&run, cause, run.calls.last(), &None, &[], setup);
        assert!(advice[0].contains("suspect kfd_ioctl_destroy_queue first"), "{advice:?}");
        // The address can belong to memory to which an earlier call has granted access.
        run.calls.insert(0, call("hsa_amd_agents_allow_access", &[("host", "0x7f2000")]));
        let cause = Cause::GpuFault(0, 0x7f_2000, vec![1]);
        let advice = advise(&run, &cause, run.calls.first(), &None, &[], setup);
        assert!(advice[0].contains("suspect kfd_ioctl_destroy_queue first"), "{advice:?}");
        // The runtime of another process was stopping, and the process ended early.
        run.calls[1].begin.id.process = 1;
        let ended = "one of the other processes: SIGABRT".to_owned();
        run.outcome = Outcome::Failed(Cause::Wrong(Some(1), ended));
        run.attribute_gpu_fault();
        let cause = Cause::GpuFault(0, 0x7f_2000, vec![1]);
        assert_eq!(run.outcome, Outcome::Failed(cause.clone()));
        let advice = advise(&run, &cause, run.calls.first(), &None, &[], setup);
        assert!(advice[0].contains("suspect kfd_ioctl_destroy_queue first"), "{advice:?}");
        // Other processes can cause the faults in the kernel's log.
        run.outcome = Outcome::Reached;
        run.output.clear();
        run.kernel = Ok(vec!["amdgpu: page fault at 0x7f2000".to_owned()]);
        run.fail_on_gpu_fault();
        assert_eq!(run.outcome, Outcome::Reached);
    }
}
