//! Draws memory that is mapped at many addresses while it changes.
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
    let page = 2 << 20;

    let properties = AllocationProperties::on(gpu);
    let reservation = Reservation::builder(PAGES * page).reserve(&vmm)?;
    let (red, blue) = (
        Allocation::create(&vmm, page, &properties)?,
        Allocation::create(&vmm, page, &properties)?,
    );

    let mut places: Vec<Option<Mapping>> = (0..PAGES).map(|_| None).collect();
    draw("reserved", &places)?;
    for (place, memory) in [(0, &red), (3, &red), (6, &red), (1, &blue), (7, &blue)] {
        let mapping = reservation.map(place * page, memory)?;
        mapping.grant(&[host, gpu], Access::ReadWrite)?;
        places[place] = Some(mapping);
    }
    draw("two pieces of memory at five addresses", &places)?;

    if let (Some(one), Some(other)) = (&places[0], &places[1]) {
        one.write(0, b"r")?;
        other.write(0, b"b")?;
    }
    draw("one letter written to each", &places)?;

    places[0] = None;
    places[6] = None;
    draw("two mappings dropped", &places)?;
    Ok(())
}

/// Draws each page as a box with the first byte that the CPU reads there.
fn draw(what: &str, places: &[Option<Mapping>]) -> anyhow::Result<()> {
    let mut row = String::new();
    for place in places {
        row.push_str(&match place {
            None => "|   ".to_owned(),
            Some(mapping) => {
                let mut byte = [0];
                mapping.read(0, &mut byte)?;
                let letter = if byte[0] == 0 { '0' } else { char::from(byte[0]) };
                format!("| {letter} ")
            }
        });
    }
    println!("{row}|  {what}");
    Ok(())
}
