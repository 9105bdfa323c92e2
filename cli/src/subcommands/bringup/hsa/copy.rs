//! Copies by a GPU, and their completion signals.

use super::stuck_copy::Copy;
use super::{Address, Agent, Hsa, Named, Result, hex, output};
use core::ffi::c_void;
use core::ptr::null;
use hsa_sys as sys;

/// The function with which a GPU copies memory.
pub const COPY: &str = "hsa_amd_memory_async_copy";
/// The engines with which a GPU copies.
pub const SDMA: &str = "SDMA";
pub const SHADER: &str = "blit shader";
/// The function with which a GPU fills memory.
pub const FILL: &str = "hsa_amd_memory_fill";

impl Hsa<'_> {
    /// Names the GPU and the engine that copy: `gpu[0] (SDMA)`. In the level's other processes, also names the
    /// process: `gpu[0] (SDMA) of process 2`.
    pub fn describe_copier(&self, gpu: &Agent) -> String {
        let engine = self.recorder.copy_engine();
        let engine = engine.or_else(|| match std::env::var("HSA_ENABLE_SDMA").as_deref() {
            Ok("0") => Some(SHADER),
            Ok("1") => Some(SDMA),
            _ => None,
        });
        let engine = engine.unwrap_or("SDMA or a blit shader");
        format!("{} ({engine}){}", gpu.c_expression, self.recorder.process_suffix())
    }

    /// Creates a signal with the value 1.
    pub fn create_signal(&self) -> Result<Named<sys::hsa_signal_t>> {
        let mut signal = sys::hsa_signal_t { handle: 0 };
        let arguments = [
            ("1", "value".to_owned()),
            ("0", "consumers".into()),
            ("NULL", "0".into()),
            ("&signal", "out".into()),
        ];
        self.call_optional(
            self.table.core.hsa_signal_create,
            "hsa_signal_create",
            &arguments,
            true,
            |create| {
                // SAFETY: no consumers are named; `signal` is writable.
                let status = unsafe { create(1, 0, null(), &mut signal) };
                (status, output("signal", hex(signal.handle)))
            },
        )?;
        Ok(Named::new("signal", signal))
    }

    pub fn destroy_signal(&self, signal: &Named<sys::hsa_signal_t>) -> Result<()> {
        let arguments = [(signal.c_expression.as_str(), hex(signal.value.handle))];
        self.call_optional(
            self.table.core.hsa_signal_destroy,
            "hsa_signal_destroy",
            &arguments,
            true,
            |destroy| {
                // SAFETY: the runtime created the signal, and nothing waits for the signal.
                (unsafe { destroy(signal.value) }, vec![])
            },
        )
    }

    /// Has a GPU begin to copy memory.
    fn begin_copy(
        &self,
        to: &Address,
        from: &Address,
        size: &Named<usize>,
        gpu: &Agent,
        signal: &Named<sys::hsa_signal_t>,
    ) -> Result<()> {
        let core = &self.table.core;
        let store = core.hsa_signal_store_screlease;
        let arguments =
            [(signal.c_expression.as_str(), hex(signal.value.handle)), ("1", "value".to_owned())];
        let c_statement = format!("hsa_signal_store_screlease({}, 1);", signal.c_expression);
        self.recorder.record("hsa_signal_store_screlease", &arguments, Some(c_statement), || {
            if let Some(store) = store {
                // SAFETY: the signal was not destroyed.
                unsafe { store(signal.value, 1) };
            }
            ((), None, vec![])
        });
        let arguments = [
            (to.c_expression.as_str(), hex(to.value)),
            (gpu.c_expression.as_str(), hex(gpu.value.handle)),
            (from.c_expression.as_str(), hex(from.value)),
            (gpu.c_expression.as_str(), hex(gpu.value.handle)),
            (size.c_expression.as_str(), hex(size.value)),
            ("0", "dependencies".into()),
            ("NULL", "0".into()),
            (signal.c_expression.as_str(), hex(signal.value.handle)),
        ];
        self.call_optional(core.hsa_amd_memory_async_copy, COPY, &arguments, true, |copy| {
            // SAFETY: both ranges belong to this process and have `size` bytes; nothing else uses them until the signal
            // reports the end.
            let status = unsafe {
                let (to, from) = (to.value as *mut c_void, from.value as *const c_void);
                copy(to, gpu.value, from, gpu.value, size.value, 0, null(), signal.value)
            };
            (status, vec![])
        })
    }

    /// Has a GPU copy memory, and returns whether the GPU faults.
    pub fn copy_faults(
        &self,
        to: &Address,
        from: &Address,
        size: &Named<usize>,
        gpu: &Agent,
        signal: &Named<sys::hsa_signal_t>,
    ) -> Result<bool> {
        self.begin_copy(to, from, size, gpu, signal)?;
        self.wait_for_fault(signal)
    }

    /// Has a GPU copy memory, and waits for the end of the copy.
    pub fn copy(
        &self,
        to: &Address,
        from: &Address,
        size: &Named<usize>,
        gpu: &Agent,
        signal: &Named<sys::hsa_signal_t>,
    ) -> Result<()> {
        self.begin_copy(to, from, size, gpu, signal)?;
        let Some(wait) = self.table.core.hsa_signal_wait_scacquire else {
            return Err(self.recorder.fail("the library has no hsa_signal_wait_scacquire"));
        };
        let copy = Copy { to, from, size: size.value };
        let arguments = [
            (signal.c_expression.as_str(), hex(signal.value.handle)),
            ("HSA_SIGNAL_CONDITION_LT", "2".to_owned()),
            ("1", "value".into()),
            ("UINT64_MAX", "no limit".into()),
            ("HSA_WAIT_STATE_BLOCKED", "0".into()),
        ];
        let names: Vec<&str> = arguments.iter().map(|argument| argument.0).collect();
        let c_statement = format!("WAIT(hsa_signal_wait_scacquire({}));", names.join(", "));
        let (_, value) = self.recorder.record(
            "hsa_signal_wait_scacquire",
            &arguments,
            Some(c_statement),
            || {
                let value = self.wait_for_end(wait, signal.value, copy);
                (value, None, output("value", value.to_string()))
            },
        );
        if value != 0 {
            return Err(self.recorder.fail_in(
                COPY,
                format!("the copy by {} failed: its signal is {value}, not 0", gpu.c_expression),
            ));
        }
        Ok(())
    }

    /// Has a GPU fill memory with a number, and waits until the memory is filled.
    pub fn fill_by_gpu(&self, address: &Address, size: usize, number: u32) -> Result<()> {
        let literal = hex(number);
        let arguments = [
            (address.c_expression.as_str(), hex(address.value)),
            (literal.as_str(), "number".to_owned()),
            ("size / 4", hex(size / 4)),
        ];
        let fill = self.table.core.hsa_amd_memory_fill;
        self.call_optional(fill, FILL, &arguments, true, |fill| {
            // SAFETY: the range belongs to this process and nothing else uses it.
            (unsafe { fill(address.value as *mut c_void, number, size / 4) }, vec![])
        })
    }
}
