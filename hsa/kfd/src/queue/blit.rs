//! The copy and fill kernels of AMD's runtime.
//!
//! The emulated GPUs run no code, but AMD's runtime uses these kernels for copies within one GPU. The emulation
//! recognises them by two properties, and performs the copy or fill itself. First, the runtime itself has assembled
//! the kernel object. Up to 6.4, the object has a header of the first code format, which compilers no longer emit. In
//! 7.x, its descriptor declares no arguments, although the kernel takes arguments. Second, the arguments have the form
//! of a copy or fill that fits the number of work items. Other kernels do not run.

use super::address_space::{AccessFault, GpuAddressSpace};
use super::engine;
use crate::driver::Driver;

/// The number of bytes that are read from a kernel object.
const HEADER_SIZE: usize = 24;
/// The number of bytes that are read from a kernel's arguments.
const ARGUMENTS_SIZE: usize = 88;

/// The operation of a copy or fill kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Copy { from: u64, to: u64, length: u64 },
    Fill { to: u64, length: u64, word: u32 },
}

/// Performs the operation of a copy or fill kernel. Returns `false` for other kernels.
pub(super) fn run(
    driver: &Driver,
    memory: &GpuAddressSpace,
    (kernel, arguments): (u64, u64),
    grid: u32,
) -> Result<bool, AccessFault> {
    let mut header = [0; HEADER_SIZE];
    memory.read(kernel, &mut header)?;
    if !is_runtime_kernel(&header) {
        return Ok(false);
    }
    let mut bytes = [0; ARGUMENTS_SIZE];
    memory.read(arguments, &mut bytes)?;
    match parse_arguments(&bytes, grid) {
        Some(Operation::Copy { from, to, length }) => {
            engine::copy(driver, memory, from, to, length)?
        }
        Some(Operation::Fill { to, length, word }) => {
            engine::fill(driver, memory, to, length, word)?
        }
        None => return Ok(false),
    }
    Ok(true)
}

/// Returns whether the runtime assembled the kernel.
fn is_runtime_kernel(header: &[u8; HEADER_SIZE]) -> bool {
    // `amd_kernel_code_t`: the major version.
    let has_first_format = header[..4] == [1, 0, 0, 0];
    // `kernel_descriptor_t`: no local memory, no private memory, and no arguments. The code starts
    // 256 bytes after the descriptor.
    let declares_no_arguments = header[..16] == [0; 16] && header[16..] == 256u64.to_le_bytes();
    has_first_format || declares_no_arguments
}

fn number(bytes: &[u8; ARGUMENTS_SIZE], index: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(number)
}

/// Parses the arguments of a copy in phases: `count` pairs of a source and a destination address.
/// There is a pair for the start of each phase, and a pair for the end of the last phase. Both
/// addresses must advance by the same amounts.
fn parse_phases(bytes: &[u8; ARGUMENTS_SIZE], count: usize) -> Option<Operation> {
    let (from, to) = (number(bytes, 0), number(bytes, 1));
    let mut copied = 0;
    for index in 1..count {
        let length = number(bytes, index * 2).checked_sub(from)?;
        if number(bytes, index * 2 + 1).checked_sub(to)? != length || length < copied {
            return None;
        }
        copied = length;
    }
    (copied > 0 && from != 0 && to != 0).then_some(Operation::Copy { from, to, length: copied })
}

/// Parses the arguments of a copy or fill kernel that runs on `grid` work items.
fn parse_arguments(bytes: &[u8; ARGUMENTS_SIZE], grid: u32) -> Option<Operation> {
    // The number of work items is the upper half (`high`) or the lower half of an argument. The grid can be rounded up
    // to whole wavefronts of 64 work items.
    let fits_grid = |index, high: bool| {
        let number = number(bytes, index);
        let items = if high { (number >> 32) as u32 } else { number as u32 };
        items != 0 && items.next_multiple_of(64) == grid.next_multiple_of(64)
    };
    // A copy between aligned addresses, in four phases.
    if fits_grid(10, false)
        && let Some(operation) = parse_phases(bytes, 5)
    {
        return Some(operation);
    }
    // A copy between misaligned addresses, in two phases.
    if fits_grid(6, false)
        && let Some(operation) = parse_phases(bytes, 3)
    {
        return Some(operation);
    }
    // A fill in two phases.
    let (to, middle, end) = (number(bytes, 0), number(bytes, 1), number(bytes, 2));
    if fits_grid(3, true) && to != 0 && to <= middle && middle <= end && to < end {
        let (length, word) = (end - to, number(bytes, 3) as u32);
        return Some(Operation::Fill { to, length, word });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(numbers: &[u64]) -> [u8; ARGUMENTS_SIZE] {
        let mut bytes = [0; ARGUMENTS_SIZE];
        for (index, number) in numbers.iter().enumerate() {
            bytes[index * 8..index * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn copy_and_fill_kernels_are_recognised() {
        let aligned = arguments(&[10, 110, 10, 110, 20, 120, 20, 120, 50, 150, 64]);
        let copy = Operation::Copy { from: 10, to: 110, length: 40 };
        assert_eq!(parse_arguments(&aligned, 64), Some(copy));
        assert_eq!(parse_arguments(&aligned, 128), None);
        let misaligned = arguments(&[10, 110, 20, 120, 50, 150, 64, 7, 7, 7, 7]);
        assert_eq!(parse_arguments(&misaligned, 64), Some(copy));
        let fill = arguments(&[16, 32, 48, 64 << 32 | 0xabcd]);
        let operation = Operation::Fill { to: 16, length: 32, word: 0xabcd };
        assert_eq!(parse_arguments(&fill, 64), Some(operation));
        assert_eq!(parse_arguments(&arguments(&[1, 2, 3, 4]), 64), None);
    }
}
