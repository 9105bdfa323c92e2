//! Moves, shares and exchanges the memory of pages.

use super::table::{Page, PagedCore, commit, invalid};
use crate::error::{Argument, Error, ErrorKind, Operation, Problem};
use core::ops::Range;

/// Moves the memory of `pages` to other pages, shares it with the other pages, or exchanges it with their memory,
/// depending on `operation`. The other pages are as many pages of `to`, from page `first` on. `from` and `to` can be
/// the same buffer.
pub(super) fn transfer(
    operation: Operation,
    (from, pages): (&PagedCore, Range<usize>),
    (to, first): (&PagedCore, usize),
) -> Result<(), Error> {
    let to_error = |kind| Error::new(operation, of_other(operation, kind));
    from.vmm.runtime().check_not_forked().map_err(to_error)?;
    let both = check_both((from, pages), (to, first));
    let (pages, other_pages) = both.map_err(to_error)?;
    let end = pages.end;
    let both = [from.with_address(&pages), to.with_address(&other_pages)];
    // Locks the tables in the order of their own addresses, so that two threads cannot deadlock. The order of the
    // buffers' device addresses is not sufficient: two buffers can have the same device address, if the program has
    // freed the addresses of one of them.
    let from_is_first = std::ptr::from_ref(from) < std::ptr::from_ref(to);
    let mut to_table = (!std::ptr::eq(from, to) && !from_is_first).then(|| to.lock());
    let mut from_table = from.lock();
    if from_is_first {
        to_table = Some(to.lock());
    }
    let memory = from_table.memory(&pages).map_err(to_error)?;
    let destination_table = to_table.as_mut().unwrap_or(&mut from_table);
    destination_table.empty_unmapped_ahead(other_pages.clone());
    let mut plan = Vec::new();
    if operation == Operation::Exchange {
        let memory = destination_table.memory(&other_pages).map_err(of_destination);
        let memory = memory.map_err(to_error)?;
        plan.extend(pages.zip(memory.into_iter().map(Page::mapped)));
    } else {
        let free = destination_table.check_free(&other_pages).map_err(of_destination);
        free.map_err(to_error)?;
        if operation == Operation::MovePages {
            plan = from_table.plan_to_empty(pages);
        } else {
            for page in pages {
                let (mapping, _) = from_table.mapping_and_memory(page).map_err(to_error)?;
                mapping.check_mapped().map_err(|error| error.with_operation(operation))?;
            }
        }
    }
    let to_plan = other_pages.zip(memory.into_iter().map(Page::mapped));
    let committed = match &mut to_table {
        None => {
            plan.extend(to_plan);
            commit(operation, &both, &mut [(&mut from_table, plan)])
        }
        Some(table) => {
            let to_plan = to_plan.collect();
            commit(operation, &both, &mut [(&mut from_table, plan), (table, to_plan)])
        }
    };
    committed.map_err(|error| error.with_operation(operation))?;
    if operation == Operation::MovePages {
        from_table.unmap_ahead(end);
    }
    Ok(())
}

/// An exchange has no destination: names the other buffer instead.
fn of_other(operation: Operation, kind: ErrorKind) -> ErrorKind {
    match kind {
        ErrorKind::InvalidArgument { argument, value, problem }
            if operation == Operation::Exchange =>
        {
            let argument = match argument {
                Argument::Destination => Argument::OtherBuffer,
                Argument::DestinationPage => Argument::OtherPage,
                argument => argument,
            };
            ErrorKind::InvalidArgument { argument, value, problem }
        }
        kind => kind,
    }
}

/// If an error names a page, names it as a page of the destination.
fn of_destination(kind: ErrorKind) -> ErrorKind {
    match kind {
        ErrorKind::InvalidArgument { argument: Argument::Page, value, problem } => {
            ErrorKind::InvalidArgument { argument: Argument::DestinationPage, value, problem }
        }
        other => other,
    }
}

/// Checks that both ranges of pages exist and do not overlap, and that their pages can map each other's memory.
fn check_both(
    (from, pages): (&PagedCore, Range<usize>),
    (to, first): (&PagedCore, usize),
) -> Result<(Range<usize>, Range<usize>), ErrorKind> {
    let pages = from.check_range(pages)?;
    let other_pages = to.check_range(first..first.saturating_add(pages.len()));
    let other_pages = other_pages.map_err(of_destination)?;
    if !from.vmm.is_same(&to.vmm) {
        return Err(ErrorKind::without_value(Argument::Destination, Problem::ForeignHandle));
    }
    let problem = if from.page_size != to.page_size {
        Some(Problem::DifferentPages)
    } else if from.properties.location != to.properties.location {
        Some(Problem::DifferentLocation)
    } else {
        (from.properties != to.properties).then_some(Problem::DifferentProperties)
    };
    if let Some(problem) = problem {
        return Err(ErrorKind::without_value(Argument::Destination, problem));
    }
    let disjoint = pages.end <= other_pages.start || other_pages.end <= pages.start;
    if std::ptr::eq(from, to) && !disjoint {
        return Err(of_destination(invalid(first, Problem::Overlapping)));
    }
    Ok((pages, other_pages))
}
