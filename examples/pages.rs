//! Manages a KV cache. Sequences grow and end. Their pages are mapped and unmapped at fixed addresses. The
//! memory of pages moves to unmapped pages without copying.
//!
//! ```sh
//! cargo run --example pages                                       # on the simulation
//! HSA_VMM_RUNTIME=/opt/rocm/lib/libhsa-runtime64.so.1 cargo run --example pages
//! ```

use anyhow::Context;
use hsa_vmm::buffer::{PageState, PagedBuffer};
use hsa_vmm::{Access, AllocationProperties, Runtime, Vmm};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The maximum number of pages of a sequence. The buffer reserves addresses for this number from the start.
const MAX_PAGES: usize = 16;
const SEQUENCES: usize = 4;
const PAGE_SIZE: usize = 64 << 10;

struct Sequence {
    name: char,
    first_page: usize,
    page_count: usize,
}

impl Sequence {
    /// Returns the indexes of the pages.
    fn range(&self) -> Range<usize> {
        self.first_page..self.first_page + self.page_count
    }

    fn grow(&mut self, cache: &PagedBuffer, pages: usize) -> anyhow::Result<()> {
        let end = self.range().end;
        cache.map(end..end + pages)?;
        for page in end..end + pages {
            cache.write(page * PAGE_SIZE, &[self.name as u8; 64])?;
        }
        self.page_count += pages;
        Ok(())
    }
}

/// Draws a line for the addresses of each sequence. Each mapped page is shown by the first byte of its
/// contents.
fn draw(cache: &PagedBuffer, title: &str) -> anyhow::Result<()> {
    println!("\n{title}");
    for line in 0..SEQUENCES {
        let mut picture = String::new();
        for page in line * MAX_PAGES..(line + 1) * MAX_PAGES {
            let mut byte = [0];
            picture.push(match cache.state(page)? {
                PageState::Mapped => {
                    cache.read(page * PAGE_SIZE, &mut byte)?;
                    char::from(byte[0])
                }
                PageState::Ahead => '+',
                PageState::Zero => '0',
                PageState::Empty => '.',
                PageState::Lost | PageState::Quarantined => '!',
                _ => '?',
            });
        }
        println!("  {} {picture}", cache.address_of(line * MAX_PAGES)?);
    }
    println!("  {}", cache.statistics());
    Ok(())
}

/// Waits until the buffer's thread has mapped `pages` pages ahead.
fn wait_for_pages_ahead(cache: &PagedBuffer, pages: usize) {
    let begun = Instant::now();
    while cache.statistics().ahead < pages && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn main() -> anyhow::Result<()> {
    // Without HSA_VMM_RUNTIME, this example starts the simulation. The library never does so by itself.
    let runtime = match std::env::var_os("HSA_VMM_RUNTIME") {
        Some(path) if !path.is_empty() => Runtime::load()?,
        _ => Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?,
    };
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?;
    println!(
        "{} on {}; A-D: pages of a sequence, +: mapped ahead, .: nothing, 0: zeros",
        gpu.name(),
        runtime.info().name
    );

    let properties = AllocationProperties::on(gpu.id());
    let options = PagedBuffer::builder(SEQUENCES * MAX_PAGES * PAGE_SIZE)
        .with_page_size(PAGE_SIZE)
        .with_pages_ahead(2);
    let cache = options.reserve(&vmm, &properties)?;
    cache.grant(&[gpu.id(), runtime.host().id()], Access::ReadWrite)?;
    let mut sequences: Vec<Sequence> = (0..SEQUENCES)
        .map(|number| Sequence {
            name: (b'A' + number as u8) as char,
            first_page: number * MAX_PAGES,
            page_count: 0,
        })
        .collect();

    for (sequence, pages) in sequences.iter_mut().zip([3, 7, 2, 5]) {
        sequence.grow(&cache, pages)?;
    }
    wait_for_pages_ahead(&cache, 8);
    draw(&cache, "Four sequences, and two pages ahead of each of them:")?;

    sequences[0].grow(&cache, 2)?;
    sequences[2].grow(&cache, 1)?;
    wait_for_pages_ahead(&cache, 8);
    draw(&cache, "A and C have grown into pages that were mapped ahead:")?;

    cache.unmap(sequences[1].range())?;
    cache.unmap(sequences[3].first_page..sequences[3].first_page + 2)?;
    draw(&cache, "B has ended; D has released its first two pages:")?;

    let rest = sequences[3].first_page + 2..sequences[3].range().end;
    cache.move_pages(rest, &cache, sequences[1].first_page)?;
    draw(&cache, "The rest of D has moved to B's pages without copying:")?;

    // If a buffer has a zero page, unmapped pages read as zeros, so that a kernel can read past the end of
    // a sequence.
    let options = PagedBuffer::builder(SEQUENCES * MAX_PAGES * PAGE_SIZE)
        .with_page_size(PAGE_SIZE)
        .with_zero_page();
    let zeros = options.reserve(&vmm, &properties)?;
    zeros.grant(&[gpu.id(), runtime.host().id()], Access::ReadWrite)?;
    cache.move_pages(sequences[1].first_page..sequences[1].first_page + 3, &zeros, 20)?;
    let mut byte = [0xff];
    zeros.read(23 * PAGE_SIZE, &mut byte)?;
    draw(&zeros, &format!("Another buffer, which reads as {} at unmapped pages:", byte[0]))?;
    cache.trim()?;
    draw(&cache, "The first buffer, trimmed:")?;
    Ok(())
}
