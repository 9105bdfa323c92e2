//! The environment in which the tested runtime runs, and the advice that depends on the environment.

use super::gpu_fault::GpuFault;
use super::supervisor::LevelRun;
use crate::planned_faults::is_driver_emulated;
use crate::program::{in_same_environment, quoted, with_tool};
use hsa_vmm_conformance::{FaultTarget, PlannedFault};
use std::path::Path;
use std::time::Duration;

/// The variable with which AMD's runtime hides GPUs.
const HIDING: &str = "ROCR_VISIBLE_DEVICES";
/// A folder in debugfs that only the virtual machine of `hsa-vmm vm` has.
const SOFTWARE_GPUS: &str = "/sys/kernel/debug/hsa_vmm";

/// The environment in which the tested runtime runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// No driver: the runtime is simulated.
    Simulation,
    /// AMD's runtime on the emulated driver.
    EmulatedDriver,
    /// AMD's runtime and AMD's driver in the virtual machine of `hsa-vmm vm`.
    VirtualMachine,
    /// AMD's runtime and AMD's driver on this machine.
    Real,
}

impl Environment {
    pub fn of(run: &LevelRun) -> Self {
        match run.runtime {
            Some(None) => Self::Simulation,
            _ if is_driver_emulated() => Self::EmulatedDriver,
            _ if Path::new(SOFTWARE_GPUS).exists() => Self::VirtualMachine,
            _ => Self::Real,
        }
    }

    /// Returns whether the kernel's driver takes part.
    pub fn uses_kernel(self) -> bool {
        matches!(self, Self::VirtualMachine | Self::Real)
    }

    /// Says how to get a runtime.
    pub fn advise_runtime(self) -> String {
        let start = match self {
            Self::EmulatedDriver => "emulate",
            Self::VirtualMachine => "vm",
            Self::Simulation | Self::Real => {
                return "install ROCm's runtime (hsa-rocr, libhsa-runtime64-1), or name the library: --runtime \
                        FILE; `hsa-vmm rocr fetch` downloads three releases without installing them"
                    .to_owned();
            }
        };
        let host = if self == Self::VirtualMachine { "on the host, " } else { "" };
        format!(
            "{host}choose a release of AMD's runtime: hsa-vmm {start} --rocr 7.2.4 -- hsa-vmm bringup; \
             `hsa-vmm rocr fetch` downloads three releases without installing them"
        )
    }

    /// Says that `ROCR_VISIBLE_DEVICES` can hide all GPUs, if it is set.
    pub fn advise_hidden_gpus(self) -> Option<String> {
        let value = std::env::var_os(HIDING).filter(|_| self != Self::Simulation)?;
        let value = quoted(&[value.to_string_lossy().into_owned()]);
        Some(format!(
            "{HIDING}={value} is set, and hides all GPUs that it does not name: unset it, or name a GPU"
        ))
    }

    /// Says how to find where a level hangs. `command` repeats the level, after the earlier levels, which have taken the
    /// time `earlier`.
    pub fn advise_hang(self, command: &str, earlier: Duration) -> String {
        let debugger = "extend the time limit (--time-limit 1h) and find where the level hangs: \
                        gdb -p PID -batch -ex 'thread apply all bt'";
        match self {
            Self::Simulation | Self::EmulatedDriver => debugger.to_owned(),
            Self::VirtualMachine => {
                let (outer, inner) = command.rsplit_once(" -- ").unwrap_or(("hsa-vmm vm", command));
                let stacks = "cat /proc/[0-9]*/task/*/stack";
                // A virtual machine can need twice the time in another run. The level begins before the end of the
                // sleep, and its time limit is longer than the sleep, so it still runs then.
                let sleep = 60 + 2 * earlier.as_secs();
                let limit = sleep + 60;
                format!(
                    "find where the level hangs: {outer} -- sh -c \"{inner} --time-limit {limit}s & sleep {sleep}; \
                     {stacks}\"; a wait for a signal (kfd_wait_on_events) hangs if the GPU has not finished its work, or if its \
                     interrupt is missing"
                )
            }
            Self::Real => format!(
                "{debugger}, or /proc/PID/task/*/stack (as root); check /proc/interrupts for a missing interrupt"
            ),
        }
    }

    /// Says how to get a backtrace of a crash. `program` is the file of `--program`. A simulation does not crash by
    /// itself. gdb's command `sharedlibrary` reads the symbols of libraries that the loader of a fetched release has
    /// loaded.
    pub fn advise_backtrace(self, program: Option<&Path>) -> Option<String> {
        let (file, debugger) = match self {
            Self::Simulation => return None,
            Self::EmulatedDriver => ("repeat.c", "gdb -ex run -ex sharedlibrary -ex bt ./repeat"),
            Self::Real => ("repeat.c", "gdb -ex run -ex bt ./repeat"),
            // Only files in FOLDER remain after the virtual machine ends. Programs in the machine cannot read input.
            Self::VirtualMachine => (
                "FOLDER/repeat.c (and vm --results FOLDER)",
                "gdb -batch -ex run -ex sharedlibrary -ex bt FOLDER/repeat",
            ),
        };
        if let Some(program) = program {
            // The first lines of the program build `repeat` in the folder of the program.
            let folder = program.parent().filter(|folder| !folder.as_os_str().is_empty());
            let built = folder.unwrap_or(Path::new(".")).join("repeat");
            let (options, _) = debugger.rsplit_once(' ')?;
            return Some(format!(
                "get a backtrace: build {} as its first lines say, and run {}",
                program.display(),
                in_same_environment(&format!(
                    "{options} {}",
                    quoted(&[built.display().to_string()])
                ))
            ));
        }
        Some(format!(
            "get a backtrace: write a C program with --program {file}, build it as its first lines say, and run \
             {}",
            in_same_environment(debugger)
        ))
    }

    /// Says how to see the calls of AMD's driver. `command` repeats the level.
    pub fn advise_trace(self, command: &str) -> Option<String> {
        match self {
            Self::Simulation | Self::EmulatedDriver => None,
            Self::VirtualMachine if std::env::var_os("HSA_KFD_LOG").is_some() => {
                Some("read the calls of the driver in the file of vm --log".to_owned())
            }
            Self::VirtualMachine => {
                let command = command.replacen(" vm ", " vm --log calls.log ", 1);
                Some(format!("log the calls of the driver: {command}"))
            }
            Self::Real => {
                let command = with_tool("strace -f -e trace=openat,ioctl,mmap", command);
                Some(format!("trace the system calls: {command}"))
            }
        }
    }

    /// Says how to read the kernel's log if this program cannot read it.
    pub fn advise_kernel_log(self) -> Option<&'static str> {
        match self {
            // The simulation and the emulated driver write nothing to the kernel's log.
            Self::Simulation | Self::EmulatedDriver => None,
            Self::VirtualMachine => Some("write the kernel's log to a file: vm --dmesg FILE"),
            Self::Real => Some("read the kernel log as root: dmesg | grep -i -e kfd -e amdgpu"),
        }
    }

    /// Says what to suspect in a simulation: the planned faults that happened, or else the configuration. The default
    /// configuration reaches every level. `config` is the configuration of the run, whatever its runtime is.
    pub fn advise_configuration(
        self,
        config: Option<&str>,
        planned: &[PlannedFault],
    ) -> Option<String> {
        if self != Self::Simulation {
            return None;
        }
        let happened: Vec<_> = planned
            .iter()
            .filter(|fault| fault.by == FaultTarget::Runtime && fault.happened != Some(false))
            .map(|fault| fault.rule.as_str())
            .collect();
        Some(match (&happened[..], config) {
            ([], None) => "this is a simulation with the default configuration, which reaches every level: report \
                           this failure as a defect of hsa-vmm"
                .to_owned(),
            ([], Some(config)) => format!(
                "this is a simulation with the configuration {config} (--sim, HSA_SIM, --gpus), and no planned fault \
                 has happened: remove one word after the other to find the word that makes the level fail; without \
                 a configuration, a simulation reaches every level (hsa/sim/README.md lists all words)"
            ),
            (faults, _) => {
                let (plural, have) = if faults.len() == 1 { ("", "has") } else { ("s", "have") };
                format!(
                    "this is a simulation, in which the planned fault{plural} {} {have} happened: the failure above is an \
                     effect of the fault{plural}, not a defect of a driver or GPU; to run the level without the \
                     fault{plural}, remove faults=… from --sim or HSA_SIM",
                    faults.join(", ")
                )
            }
        })
    }

    /// Says what to suspect after a GPU page fault. A TLB contains no entry of an address that was never mapped, so the
    /// page table is the first suspect. `is_used_again` tells whether the address was mapped and unmapped before.
    pub fn advise_gpu_fault(self, fault: GpuFault, is_used_again: bool) -> String {
        if fault.is_write_to_read_only_page {
            return format!(
                "the GPU found a page-table entry for the address, but the entry does not permit writing: first \
                 suspect the permissions that AMDGPU_GEM_VA or MAP_MEMORY_TO_GPU received \
                 (AMDGPU_VM_PAGE_WRITEABLE), and those that the kernel wrote into the entry \
                 (AMDGPU_PTE_WRITEABLE){}",
                self.check_page_table()
            );
        }
        let earlier_mapping = if is_used_again {
            "The address was mapped before: the unmap of the earlier mapping can also have taken effect late, and \
             removed the new entry, or the TLB was not flushed after it"
        } else {
            "A missing flush of the TLB can be the cause only if the address was used before"
        };
        format!(
            "the GPU found no page-table entry for the address, or no permission in it: first suspect that the entry \
             is missing, or was written only after AMDGPU_GEM_VA or MAP_MEMORY_TO_GPU had returned (the fence of the \
             page-table update){}. {earlier_mapping}{}",
            self.check_page_table(),
            self.distinguish_tlb()
        )
    }

    /// Says what to suspect if a GPU uses an old page-table entry after an operation, such as `the unmap`.
    pub fn advise_old_entry(self, operation: &str) -> String {
        format!(
            "the GPU used an old page-table entry: suspect that the TLB was not flushed after {operation}, that an \
             entry was not written, or that it was written only after AMDGPU_GEM_VA had returned{}",
            self.distinguish_tlb()
        )
    }

    /// Says what to suspect if a GPU reads the right memory only some time after an entry was replaced.
    pub fn advise_late_entry(self) -> String {
        format!(
            "a second copy, half a second later, has read the right data. So the entry was written late, or the GPU \
             used the old entry until it left the TLB: suspect the wait for the fence of the page-table update first, then \
             the flush of the TLB after the operation REPLACE{}",
            self.distinguish_tlb()
        )
    }

    /// Says what to suspect if a GPU reads the wrong memory also some time after an entry was replaced.
    pub fn advise_wrong_entry(self) -> String {
        format!(
            "a second copy, half a second later, has read wrong data, too, so the entry is probably not late: suspect that \
             the operation REPLACE has written no entry, or one for other memory (its offset), or that the TLB was not \
             flushed after it{}",
            self.distinguish_tlb()
        )
    }

    /// Says what to suspect if a GPU accesses new memory only some time after its mapping, at an address that was mapped
    /// before.
    pub fn advise_old_entry_of_earlier_mapping(self) -> String {
        format!(
            "other memory was mapped at this address before: suspect that the TLB was not flushed after the earlier \
             unmap (AMDGPU_VA_OP_UNMAP), so that the GPU still accessed the earlier memory, or that the entry of the \
             new mapping was written only after AMDGPU_GEM_VA had returned (the fence of the page-table update){}",
            self.distinguish_tlb()
        )
    }

    /// Says how to find out whether the TLB or the page table is the cause.
    fn distinguish_tlb(self) -> &'static str {
        match self {
            Self::Simulation | Self::EmulatedDriver => "",
            Self::VirtualMachine if has_no_tlb() => {
                ". But this machine has no TLB (hsa_vmm.tlb=0), so the TLB is not the cause. To find out whether the \
                 entry is late, repeat the run with page tables written by the CPU, never late (vm --parameter \
                 amdgpu.vm_update_mode=3)"
            }
            Self::VirtualMachine => {
                ". To find out, repeat the run without a TLB (vm --parameter hsa_vmm.tlb=0), and with page tables \
                 written by the CPU, never late (vm --parameter amdgpu.vm_update_mode=3)"
            }
            Self::Real => {
                ". To find out, load amdgpu with vm_update_mode=3: the CPU then writes the page tables, never late"
            }
        }
    }

    /// Says how to see the page table after a GPU fault, which ends the process. Only the emulated driver writes the page
    /// tables of such a process.
    fn check_page_table(self) -> &'static str {
        match self {
            Self::EmulatedDriver => "; check the page table (emulate --page-tables FILE)",
            Self::Simulation | Self::VirtualMachine | Self::Real => "",
        }
    }

    /// Names the option or the file that shows the contents of the GPUs' page tables.
    pub fn page_tables(self) -> &'static str {
        match self {
            Self::EmulatedDriver => "emulate --page-tables FILE",
            Self::VirtualMachine => "vm --page-tables FILE",
            Self::Simulation | Self::Real => "/sys/kernel/debug/dri/*/amdgpu_vm_info",
        }
    }
}

/// Returns whether the GPUs of this virtual machine have no TLB.
fn has_no_tlb() -> bool {
    std::fs::read_to_string("/sys/module/hsa_vmm/parameters/tlb").is_ok_and(|tlb| tlb.trim() == "N")
}

impl LevelRun {
    /// Says how to find where a process waits that does not end after SIGKILL.
    pub fn advise_unkillable(&self) -> Option<String> {
        self.unkillable_process.map(|process| {
            format!(
                "process {process} does not end after SIGKILL, because it waits in the kernel. Find where: \
                 cat /proc/{process}/task/*/stack"
            )
        })
    }

    /// Returns the lines that the kernel logged during the level. Without the kernel's driver, the lines are about
    /// other programs, and are omitted.
    pub fn kernel_lines(&self) -> &[String] {
        let lines = self.kernel.as_deref().unwrap_or_default();
        if Environment::of(self).uses_kernel() { lines } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::Environment::{EmulatedDriver, Real, Simulation, VirtualMachine};
    use hsa_vmm_conformance::{FaultTarget, PlannedFault};
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn simulation_suspects_faults_that_happened() {
        let plan = |rule: &str, happened| PlannedFault {
            by: FaultTarget::Runtime,
            rule: rule.to_owned(),
            happened: Some(happened),
            count: None,
        };
        let planned = [plan("hsa_init#9=lost", false), plan("hsa_amd_vmem_map=lost", true)];
        let config = Some("vmem=off,faults=hsa_init#9=lost");
        for (config, planned, expected) in [
            (config, &planned[..], "the planned fault hsa_amd_vmem_map=lost has happened"),
            (config, &planned[..1], "the configuration vmem=off,faults=hsa_init#9=lost (--sim"),
            (None, &[], "report this failure"),
        ] {
            let advice = Simulation.advise_configuration(config, planned).unwrap();
            assert!(advice.contains(expected), "{advice}");
            assert_eq!(Real.advise_configuration(config, planned), None);
        }
    }

    #[test]
    fn commands_run_in_the_environment_of_the_failure() {
        let vm = "hsa-vmm vm --gpus 2 --rocr 7.2.4 -- hsa-vmm bringup --until gpu";
        let host = "hsa-vmm bringup --until gpu";
        for (environment, command, expected) in [
            (Simulation, host, None),
            (EmulatedDriver, host, None),
            (
                VirtualMachine,
                vm,
                Some(
                    "hsa-vmm vm --log calls.log --gpus 2 --rocr 7.2.4 -- hsa-vmm bringup --until gpu",
                ),
            ),
            (Real, host, Some("strace -f -e trace=openat,ioctl,mmap hsa-vmm bringup --until gpu")),
        ] {
            let advice = environment.advise_trace(command);
            assert_eq!(advice.as_deref().and_then(|text| text.split(": ").nth(1)), expected);
        }
        let hang = VirtualMachine.advise_hang(vm, Duration::from_millis(81_500));
        let start = "hsa-vmm vm --gpus 2 --rocr 7.2.4 -- sh -c \"hsa-vmm bringup --until gpu \
                     --time-limit 282s & sleep 222; cat /proc/";
        assert!(hang.contains(start), "{hang}");
        for environment in [Simulation, EmulatedDriver] {
            let hang = environment.advise_hang(host, Duration::ZERO);
            assert!(!hang.contains("/proc"), "{hang}");
            assert_eq!(environment.advise_kernel_log(), None);
        }
        assert_eq!(Simulation.advise_backtrace(None), None);
        assert!(VirtualMachine.advise_backtrace(None).unwrap().contains("--results FOLDER"));
        for (program, built) in [("again.c", "./repeat"), ("/a/again.c", "/a/repeat")] {
            let backtrace = Real.advise_backtrace(Some(Path::new(program))).unwrap();
            assert!(backtrace.starts_with(&format!("get a backtrace: build {program} as")));
            assert!(backtrace.ends_with(&format!(" -ex bt {built}")), "{backtrace}");
        }
        assert!(VirtualMachine.advise_runtime().contains("hsa-vmm vm --rocr"));
        assert!(EmulatedDriver.advise_runtime().contains("hsa-vmm emulate --rocr"));
    }
}
