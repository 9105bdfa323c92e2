//! The errors that buffers return for invalid arguments.

use hsa_vmm::error::{Argument, ErrorKind, Problem, Value};

pub fn page_error(page: usize, problem: Problem) -> ErrorKind {
    let value = Value::Number(page as u64);
    ErrorKind::InvalidArgument { argument: Argument::Page, value, problem }
}

/// Returns the error for a page of the destination.
pub fn destination_page_error(page: usize, problem: Problem) -> ErrorKind {
    let (argument, value) = (Argument::DestinationPage, Value::Number(page as u64));
    ErrorKind::InvalidArgument { argument, value, problem }
}

/// Returns the error for an offset.
pub fn out_of_bounds(offset: usize, size: usize, end: usize) -> ErrorKind {
    let (value, problem) = (Value::from(offset), Problem::OutOfBounds { size, end });
    ErrorKind::InvalidArgument { argument: Argument::Offset, value, problem }
}

pub fn size_error(size: usize, problem: Problem) -> ErrorKind {
    ErrorKind::InvalidArgument { argument: Argument::Size, value: Value::from(size), problem }
}

/// Returns the error for a page of the other buffer of an exchange.
pub fn other_page_error(page: usize, problem: Problem) -> ErrorKind {
    let (argument, value) = (Argument::OtherPage, Value::Number(page as u64));
    ErrorKind::InvalidArgument { argument, value, problem }
}

/// Returns the error for a buffer whose pages differ in size or memory.
pub fn different_pages(argument: Argument, problem: Problem) -> ErrorKind {
    let value = Value::None;
    ErrorKind::InvalidArgument { argument, value, problem }
}
