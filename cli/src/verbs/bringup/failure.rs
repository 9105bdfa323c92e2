//! A level that was not reached, with all that is known of why: what a person is shown and a
//! program is given.

use super::ascent::{Ascent, Call, Cause, Outcome};
use super::interface::{Interface, is_logged, rests_on};
use super::kernel_log::KernelLog;
use super::level::Level;
use super::machine::{self, Finding};
use super::record::{Argument, status};
use serde::Serialize;

/// How many of the last lines of a log are shown; of the runtime's own, more, as what it says of a
/// GPU's fault is long.
const SHOWN: usize = 12;
const SAID: usize = 60;
/// What AMD's runtime says when a GPU has used an address that it has no page for.
const GPU_FAULT: &str = "Memory access fault";

/// What is known of a failure.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// `status`, `wrong`, `crash`, `hang` or `library`.
    pub kind: &'static str,
    /// In one sentence.
    pub what: String,
    /// The call that is to blame.
    pub call: Option<Blamed>,
    /// Calls that other threads or processes were in at the time of a crash or hang.
    pub also_in: Vec<String>,
    /// The interfaces of the kernel that the call rests on; the emulated driver's log, where there is
    /// one, tells which of them were used.
    pub rests_on: Vec<Asked>,
    /// The driver's log during the call, if the driver is emulated.
    pub driver: Option<Vec<String>>,
    /// What the runtime itself logged during the call.
    pub runtime: Vec<String>,
    /// What the kernel logged meanwhile, or why that is not known.
    pub kernel: Result<Vec<String>, String>,
    /// What was looked at on the machine.
    pub machine: Vec<Looked>,
    /// What to try, in order.
    pub try_next: Vec<String>,
    /// The calls of the level, up to the one that failed.
    pub calls: Vec<String>,
}

/// The call to blame.
#[derive(Clone, Debug, Serialize)]
pub struct Blamed {
    pub name: String,
    pub arguments: Vec<Argument>,
    /// The status, if it returned one.
    pub status: Option<String>,
    /// Whether it returned.
    pub returned: bool,
    /// Whether the other process of "shared" made it.
    pub other_process: bool,
}

/// An interface, and what the emulated driver answered.
#[derive(Clone, Debug, Serialize)]
pub struct Asked {
    #[serde(flatten)]
    pub interface: Interface,
    /// `None`: not known.
    pub answer: Option<Answer>,
}

/// What the emulated driver answered during the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    NotAsked,
    Well,
    /// An error, at least once.
    Error,
}

impl Answer {
    fn to(interface: &Interface, log: &[String]) -> Option<Self> {
        if interface.logged.is_empty() {
            return None;
        }
        let mut lines = log.iter().filter(|line| is_logged(interface, line)).peekable();
        Some(match (lines.peek().is_some(), lines.any(|line| answered_error(line))) {
            (false, _) => Self::NotAsked,
            (true, false) => Self::Well,
            (true, true) => Self::Error,
        })
    }
}

/// A finding, to be serialised.
#[derive(Clone, Debug, Serialize)]
pub struct Looked {
    pub well: bool,
    pub what: String,
}

impl Failure {
    /// Everything there is to know; the machine is looked at now.
    pub fn of(ascent: &Ascent, kernel: &mut KernelLog) -> Option<Self> {
        let Outcome::Failed(cause) = &ascent.outcome else { return None };
        let call = cause.call().map(|index| &ascent.calls[index]);
        let driver = ascent.driver.as_ref().map(|all| match call {
            Some(call) => owned(ascent.driver_during(call)),
            None => all.iter().map(|(_, line)| line.clone()).collect(),
        });
        let name = call.map_or("library", |call| call.begin.call.as_str());
        let rests_on = rests_on(name).iter().map(|interface| {
            let answer = driver.as_ref().and_then(|log| Answer::to(interface, log));
            Asked { interface: *interface, answer }
        });
        let rests_on = rests_on.collect();
        let said = call.map_or(ascent.said.as_str(), |call| ascent.said_during(call));
        // What a crash or a hang says last may come after the call.
        let said = if said.trim().is_empty() && !matches!(cause, Cause::Status(..)) {
            ascent.said.as_str()
        } else {
            said
        };
        let findings =
            if looks_at_machine(ascent) { machine::look(driver.is_some()) } else { Vec::new() };
        let kernel = kernel.lines();
        let try_next = advise(ascent, cause, call, &driver, &findings, &kernel);
        let looked = findings.into_iter().map(|Finding { well, what, .. }| Looked { well, what });
        Some(Self {
            kind: cause.kind(),
            what: cause.describe(&ascent.calls),
            call: call.map(Blamed::of),
            also_in: cause.also_in(&ascent.calls),
            rests_on,
            driver: driver.map(|lines| last(lines, SHOWN)),
            runtime: last(said.lines().map(str::to_owned).collect(), SAID),
            kernel: kernel.map(|lines| last(lines, SHOWN)),
            machine: looked.collect(),
            try_next,
            calls: ascent.listed(),
        })
    }
}

fn owned(lines: Vec<&str>) -> Vec<String> {
    lines.into_iter().map(str::to_owned).collect()
}

/// The last of many lines, and how many there were.
fn last(mut lines: Vec<String>, shown: usize) -> Vec<String> {
    if lines.len() > shown {
        let left_out = lines.len() - shown;
        lines.drain(..left_out);
        lines.insert(0, format!("… ({left_out} lines before)"));
    }
    lines
}

/// `… = ENOMEM (1.0 us)`, and not `… -> ok (1.0 us)` or `field=0x1`.
pub fn answered_error(line: &str) -> bool {
    line.contains(" = E") || line.contains(" = errno ")
}

/// Files and permissions are what the first levels fail by; what comes later has them already.
fn looks_at_machine(ascent: &Ascent) -> bool {
    ascent.level <= Level::Pools && matches!(ascent.runtime, Some(Some(_)))
}

impl Blamed {
    fn of(call: &Call) -> Self {
        let end = call.end.as_ref();
        let answered = |name: &str| {
            let mut all = end.iter().flat_map(|end| &end.answered);
            all.find(|answer| name.ends_with(&format!("&{}", answer.name)))
        };
        let filled = |argument: &Argument| match answered(&argument.name) {
            Some(answer) => answer.clone(),
            None => argument.clone(),
        };
        Self {
            name: call.begin.call.clone(),
            arguments: call.begin.arguments.iter().map(filled).collect(),
            status: end.and_then(|end| end.status).map(status),
            returned: end.is_some(),
            other_process: call.begin.number.0 != 0,
        }
    }
}

impl Cause {
    fn kind(&self) -> &'static str {
        match self {
            Self::NoLibrary(_) => "library",
            Self::Status(..) => "status",
            Self::Wrong(..) => "wrong",
            Self::Crash(..) => "crash",
            Self::Hang(..) => "hang",
        }
    }

    /// In one sentence.
    pub fn describe(&self, calls: &[Call]) -> String {
        let place = |flying: &[usize]| match (flying.first(), calls.last()) {
            (Some(&index), _) => format!("in {}", calls[index].begin.call),
            (None, Some(call)) => format!("after {} had returned", call.begin.call),
            (None, None) => "before the first call".to_owned(),
        };
        match self {
            Self::NoLibrary(tried) => tried.clone(),
            Self::Status(index, value) => {
                format!("{} answered {}", calls[*index].begin.call, status(*value))
            }
            Self::Wrong(_, what) => what.clone(),
            Self::Crash(flying, end) => format!("{end} {}", place(flying)),
            Self::Hang(flying, limit) => format!("hangs {} (after {limit:?})", place(flying)),
        }
    }

    fn also_in(&self, calls: &[Call]) -> Vec<String> {
        match self {
            Self::Crash(flying, _) | Self::Hang(flying, _) => {
                flying.iter().skip(1).map(|index| calls[*index].line()).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Call {
    /// `hsa_amd_vmem_map(va=0x7f…, size=0x1000, …) -> HSA_STATUS_SUCCESS (0x0)`.
    pub fn line(&self) -> String {
        let list: Vec<_> = self.begin.arguments.iter().map(Argument::shown).collect();
        let mut line = format!("{}({})", self.begin.call, list.join(", "));
        match &self.end {
            None => line.push_str(" -> does not return"),
            Some(end) => {
                let answered = end.answered.iter().map(Argument::shown);
                let short = |value| {
                    let name = status(value);
                    let name = name.strip_prefix("HSA_STATUS_").unwrap_or(&name);
                    name.split(' ').next().unwrap_or_default().to_owned()
                };
                let all: Vec<_> = end.status.map(short).into_iter().chain(answered).collect();
                if !all.is_empty() {
                    line.push_str(" -> ");
                    line.push_str(&all.join(", "));
                }
            }
        }
        line
    }
}

impl Argument {
    /// As `name=value`; a literal as it is.
    fn shown(&self) -> String {
        let is_literal = self.name.parse::<i64>().is_ok() || self.name == "NULL";
        match (self.value.as_str(), is_literal) {
            ("out" | "callback", _) => self.name.clone(),
            (value, true) => format!("{value}={}", self.name),
            (value, false) if self.name.starts_with('(') => value.to_owned(),
            (value, false) => format!("{}={value}", self.name),
        }
    }
}

impl Ascent {
    /// The place of the call that failed.
    pub fn failed_call(&self) -> Option<usize> {
        match &self.outcome {
            Outcome::Failed(cause) => cause.call(),
            _ => None,
        }
    }

    /// The calls up to the one that failed, without what only asks agents and pools what they are;
    /// of several threads, those of the one that failed in its last round.
    fn listed(&self) -> Vec<String> {
        let until = self.failed_call().map_or(self.calls.len(), |index| index + 1);
        let blamed = self.failed_call().map_or(0, |index| self.calls[index].begin.thread);
        let own = |call: &&Call| call.begin.thread == 0 || call.begin.thread == blamed;
        let asks = |call: &Call| call.begin.c.is_none() && call.end.is_some();
        let calls: Vec<_> = self.calls[..until]
            .iter()
            .filter(own)
            .filter(|call| !asks(call) || self.failed_call().is_none())
            .collect();
        let reserves = |call: &&Call| call.begin.call == "hsa_amd_vmem_address_reserve";
        let last_round = calls.iter().rposition(reserves).filter(|_| blamed > 0);
        let alone = |call: &&Call| call.begin.thread == 0;
        let before = calls.iter().take_while(|call| alone(call)).count();
        let (start, rest) = calls.split_at(before);
        let rest = &rest[last_round.map_or(0, |at| at.saturating_sub(before))..];
        let line = |call: &&Call| {
            let who = if call.begin.number.0 == 0 { "" } else { "other process: " };
            format!("{who}{}", call.line())
        };
        start.iter().chain(rest).map(line).collect()
    }
}

fn advise(
    ascent: &Ascent,
    cause: &Cause,
    call: Option<&Call>,
    driver: &Option<Vec<String>>,
    findings: &[Finding],
    kernel: &Result<Vec<String>, String>,
) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    let simulated = ascent.runtime == Some(None);
    if let Cause::NoLibrary(_) = cause {
        advice.push(
            "install ROCm's runtime (hsa-rocr, libhsa-runtime64-1), or name the library: --runtime \
             FILE; `hsa-vmm rocr fetch` gets three releases without installing them"
                .to_owned(),
        );
        advice.push("see what a whole ladder looks like: hsa-vmm bringup --runtime sim".to_owned());
        return advice;
    }
    advice.extend(findings.iter().filter_map(|finding| {
        let todo = finding.advice.as_ref()?;
        Some(format!("{}: {todo}", finding.what))
    }));
    let errors: Vec<_> = driver.iter().flatten().filter(|line| answered_error(line)).collect();
    if let Some(line) = errors.last() {
        let words: Vec<_> = line.split(' ').skip(2).take(2).collect();
        let error = line.split(" = ").nth(1).and_then(|rest| rest.split(' ').next());
        advice.push(format!(
            "the driver answered {} to {}: find where the function named above returns that",
            error.unwrap_or("an error"),
            words.join(" "),
        ));
    }
    match cause {
        Cause::Hang(..) => {
            if driver.is_some() {
                let what = "the driver's log has a call when it returns: the one it hangs in is none \
                            of those that are marked as answered";
                advice.push(what.to_owned());
            }
            advice.push(
                "let it hang longer (--time-limit 1h), and look where: /proc/PID/task/*/stack (as root), \
                 gdb -p PID -batch -ex 'thread apply all bt'; an interrupt that never comes is \
                 missing in /proc/interrupts, too"
                    .to_owned(),
            );
        }
        Cause::Crash(..) if ascent.said.contains(GPU_FAULT) => advice.push(
            "the GPU has no page where it was sent: see what its page table has \
             (/sys/kernel/debug/dri/*/amdgpu_vm_info), and whether GEM_VA reached it and the TLB was \
             flushed"
                .to_owned(),
        ),
        Cause::Crash(..) => advice.push(
            "a backtrace: --program repeat.c, build it as its first lines say, gdb -ex run -ex bt \
             ./repeat"
                .to_owned(),
        ),
        Cause::Wrong(Some(_), _) if call.is_some_and(|call| call.begin.call == "compare") => {
            advice.push(
                "what arrives is not what was sent: page tables (amdgpu_vm_info in \
                 /sys/kernel/debug/dri/*), a flush of caches or HDP that is missing, or another \
                 mapping; HSA_ENABLE_SDMA=0 copies by kernels instead of DMA"
                    .to_owned(),
            );
        }
        Cause::Wrong(Some(_), _)
            if call.is_some_and(|call| call.begin.call == "hsa_system_get_info") =>
        {
            advice.push(
                "virtual memory needs amdkfd's interface 1.15 or later (AMDKFD_IOC_GET_VERSION), \
                 dma-bufs, and amdgpu_device_get_fd of libdrm_amdgpu 2.4.109 or later"
                    .to_owned(),
            );
        }
        _ => {}
    }
    if driver.is_none() && !simulated {
        advice.push(format!(
            "see what the kernel is asked and answers: strace -f -e trace=openat,ioctl,mmap hsa-vmm \
             bringup --until {}",
            ascent.level.name()
        ));
    }
    if let (Err(_), false) = (kernel, simulated) {
        advice.push("read the kernel log as root: dmesg | grep -i -e kfd -e amdgpu".to_owned());
    }
    if simulated {
        advice.push("it is a simulation: look at its description (--sim, HSA_SIM)".to_owned());
    }
    advice
}
