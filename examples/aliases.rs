//! Maps two allocations at several addresses, and draws the pages after each change.
//!
//! ```sh
//! cargo run --example aliases
//! ```

use anyhow::Context;
use hsa_vmm::{Access, Allocation, AllocationProperties, Mapping, Reservation, Runtime, Vmm};

const PAGES: usize = 8;

pub(crate) fn main() -> anyhow::Result<()> {
    let runtime = Runtime::simulated(hsa_vmm::simulation::Config::mi300x(1))?;
    let vmm = Vmm::open(&runtime)?;
    let gpu = runtime.gpus().next().context("this runtime has no GPU")?.id();
    let host = runtime.host().id();
    let page_size = 2 << 20;

    let properties = AllocationProperties::on(gpu);
    let reservation = Reservation::builder(PAGES * page_size).reserve(&vmm)?;
    let (red, blue) = (
        Allocation::create(&vmm, page_size, &properties)?,
        Allocation::create(&vmm, page_size, &properties)?,
    );

    let mut pages: Vec<Option<Mapping>> = (0..PAGES).map(|_| None).collect();
    draw("reserved", &pages)?;
    for (page, memory) in [(0, &red), (3, &red), (6, &red), (1, &blue), (7, &blue)] {
        let mapping = reservation.map(page * page_size, memory)?;
        mapping.grant(&[host, gpu], Access::ReadWrite)?;
        pages[page] = Some(mapping);
    }
    draw("two allocations at five addresses", &pages)?;

    if let (Some(red), Some(blue)) = (&pages[0], &pages[1]) {
        red.write(0, b"r")?;
        blue.write(0, b"b")?;
    }
    draw("one letter written to each allocation", &pages)?;

    pages[0] = None;
    pages[6] = None;
    draw("two mappings dropped", &pages)?;
    Ok(())
}

/// Draws each page as a box with its first byte, which the CPU reads.
fn draw(title: &str, pages: &[Option<Mapping>]) -> anyhow::Result<()> {
    let mut row = String::new();
    for page in pages {
        row.push_str(&match page {
            None => "|   ".to_owned(),
            Some(mapping) => {
                let mut byte = [0];
                mapping.read(0, &mut byte)?;
                let letter = if byte[0] == 0 { '0' } else { char::from(byte[0]) };
                format!("| {letter} ")
            }
        });
    }
    println!("{row}|  {title}");
    Ok(())
}
