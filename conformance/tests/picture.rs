//! Tests pictures of address spaces.

#[path = "../../tests/machine/mod.rs"]
mod machine;

use hsa_vmm::report::Report;
use hsa_vmm::simulation::{Config, FaultPlan};
use hsa_vmm::{Access, Address, Handle};
use hsa_vmm_conformance::picture::draw;
use machine::{MIB, Machine, access, at};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

const GRANULE: usize = 2 * MIB;

fn machine() -> Machine {
    Machine::new(Config::mi300x(2))
}

/// Reserves granules, and maps memory of GPU 1 at the granules whose numbers are in `mapped`.
fn map_granules(machine: &Machine, granules: usize, mapped: &[usize]) -> (Address, Vec<Handle>) {
    let base = machine.reserve(granules * GRANULE);
    let map_granule = |&number: &usize| {
        let handle = machine.create(1, GRANULE);
        machine.map(at(base, number * GRANULE), GRANULE, handle);
        handle
    };
    (base, mapped.iter().map(map_granule).collect())
}

fn grant_both_gpus(machine: &Machine, base: Address, size: usize) {
    let grants = [machine.gpu(0), machine.gpu(1)].map(|gpu| access(gpu, Access::ReadWrite));
    machine.vmm.set_access(base, size, &grants).unwrap();
}

/// A rectangle: its class, left and right end.
type Rectangle = (String, f64, f64);

fn parse_picture(report: &Report) -> (Vec<Rectangle>, Vec<String>) {
    let svg = draw(report);
    let mut reader = Reader::from_str(&svg);
    reader.config_mut().check_end_names = true;
    let (mut rectangles, mut texts) = (Vec::new(), Vec::new());
    loop {
        match reader.read_event().unwrap_or_else(|error| panic!("{error} in {svg}")) {
            Event::Start(tag) | Event::Empty(tag) if tag.name().as_ref() == b"rect" => {
                rectangles.extend(parse_rectangle(&tag));
            }
            Event::Text(text) => texts.push(text.decode().unwrap().into_owned()),
            Event::Eof => return (rectangles, texts),
            _ => {}
        }
    }
}

/// Returns a rectangle, or `None` for the background, which has no position.
fn parse_rectangle(tag: &BytesStart<'_>) -> Option<Rectangle> {
    let value = |name: &str| {
        let attribute = tag.try_get_attribute(name).unwrap()?;
        Some(String::from_utf8(attribute.value.into_owned()).unwrap())
    };
    let number = |name: &str| value(name)?.parse::<f64>().ok();
    let (x, width) = (number("x")?, number("width")?);
    assert!(width > 0.0 && number("height")? > 0.0, "{tag:?}");
    Some((value("class")?, x, x + width))
}

/// Returns the ends of the rectangles of a class, without the rectangle in the legend. A class contains the agent's
/// index: agent 0 is the CPU, so `gpu2` is GPU 1.
fn of_class(rectangles: &[Rectangle], class: &str) -> Vec<(f64, f64)> {
    let mut found: Vec<_> =
        rectangles.iter().filter(|it| it.0 == class).map(|it| (it.1, it.2)).collect();
    if !class.starts_with("lane") && class != "cut" {
        found.remove(0);
    }
    found
}

#[test]
fn widths_are_proportional_to_sizes() {
    let machine = machine();
    let (base, _) = map_granules(&machine, 8, &[2, 3]);
    grant_both_gpus(&machine, base.checked_add(2 * GRANULE).unwrap(), GRANULE);
    let (rectangles, _) = parse_picture(&machine.vmm.report());
    let (mapped, holes) = (of_class(&rectangles, "gpu2"), of_class(&rectangles, "hole"));
    let width = |&(left, right): &(f64, f64)| right - left;
    assert_eq!((mapped.len(), holes.len()), (2, 2), "{rectangles:?}");
    // The parts are adjacent, in the order of addresses.
    let edges = [holes[0].1 - mapped[0].0, mapped[0].1 - mapped[1].0, mapped[1].1 - holes[1].0];
    assert!(edges.iter().all(|gap| gap.abs() < 0.2), "{rectangles:?}");
    assert!((width(&holes[1]) / width(&holes[0]) - 2.0).abs() < 0.05, "{holes:?}");
    assert!((width(&mapped[0]) - width(&mapped[1])).abs() < 0.2, "{mapped:?}");
    // Both GPUs have access to the first mapping.
    for lane in ["lane-gpu1", "lane-gpu2"] {
        let lanes = of_class(&rectangles, lane);
        assert_eq!(lanes.len(), 1, "{lane}");
        assert!((lanes[0].0 - mapped[0].0).abs() < 1.0, "{lanes:?} {mapped:?}");
    }
}

#[test]
fn long_holes_are_shortened_and_labelled() {
    let machine = machine();
    let size = 64 << 30;
    let base = machine.reserve(size);
    let handle = machine.create(0, GRANULE);
    for granule in [0, 100, 20_000] {
        machine.map(at(base, granule * GRANULE), GRANULE, handle);
    }
    let (rectangles, texts) = parse_picture(&machine.vmm.report());
    let mapped = of_class(&rectangles, "gpu1");
    assert_eq!((mapped.len(), of_class(&rectangles, "cut").len()), (3, 3));
    assert!(mapped.iter().all(|(left, right)| right - left > 100.0), "{mapped:?}");
    assert!(texts.iter().any(|text| text == "198 MiB"), "{texts:?}");
}

#[test]
fn thousands_of_mappings_fit() {
    let machine = machine();
    let count = 3000;
    let base = machine.reserve(2 * count * GRANULE);
    let handle = machine.create(0, GRANULE);
    for number in 0..count {
        machine.map(at(base, 2 * number * GRANULE), GRANULE, handle);
    }
    let (rectangles, _) = parse_picture(&machine.vmm.report());
    let mapped = of_class(&rectangles, "gpu1");
    assert_eq!(mapped.len(), count);
    let right = rectangles.iter().map(|it| it.2).fold(0.0, f64::max);
    assert!(right < 1000.0, "{right}");
}

#[test]
fn similar_adjacent_mappings_are_merged() {
    let machine = machine();
    let all: Vec<usize> = (0..500).collect();
    let (base, _) = map_granules(&machine, 500, &all);
    let (rectangles, texts) = parse_picture(&machine.vmm.report());
    assert_eq!(of_class(&rectangles, "gpu2").len(), 1);
    assert!(texts.iter().any(|text| text.contains("500 × 2 MiB")), "{texts:?}");
    machine.vmm.name_mapping(at(base, 7 * GRANULE), "this one").unwrap();
    assert_eq!(of_class(&parse_picture(&machine.vmm.report()).0, "gpu2").len(), 3);
}

#[test]
fn names_can_contain_any_character() {
    let machine = machine();
    let (base, handles) = map_granules(&machine, 2, &[0]);
    let special = "<&>\"'\u{0}\u{1b}[31m\u{fffe}\u{7f}]]></title>\n\tüб漢";
    machine.vmm.name_reservation(base, special).unwrap();
    machine.vmm.name_mapping(base, &special.repeat(50)).unwrap();
    machine.vmm.name_handle(handles[0], special).unwrap();
    let svg = draw(&machine.vmm.report());
    parse_picture(&machine.vmm.report());
    let is_allowed = |it: char| it == '\n' || !it.is_control() && it != '\u{fffe}';
    assert!(svg.chars().all(is_allowed));
    assert!(svg.contains("üб漢"));
}

#[test]
fn gpus_have_different_colours() {
    let machine = Machine::new(Config::mi300x(8));
    for gpu in 0..8 {
        let base = machine.reserve(GRANULE);
        machine.map(base, GRANULE, machine.create(gpu, GRANULE));
    }
    let report = machine.vmm.report();
    let (rectangles, texts) = parse_picture(&report);
    for class in (0..8).map(|colour| format!("gpu{colour}")) {
        assert_eq!(of_class(&rectangles, &class).len(), 1, "{class}");
    }
    for gpu in 0..8 {
        assert!(texts.iter().any(|text| *text == format!("memory of GPU {gpu}")), "{texts:?}");
    }
    assert!(draw(&report).contains("prefers-color-scheme:dark"));
}

#[test]
fn empty_report_has_a_text() {
    let (_, texts) = parse_picture(&machine().vmm.report());
    assert!(texts.iter().any(|text| text.starts_with("nothing is reserved")), "{texts:?}");
}

#[test]
fn quarantined_reservation_is_marked() {
    // Revoking access unmaps the memory. The planned faults then make the next calls of `hsa_amd_vmem_map` fail.
    let mut config = Config::mi300x(2);
    config.faults = machine::fail_calls(FaultPlan::default(), "hsa_amd_vmem_map", 2..9, 0x1000);
    let machine = Machine::new(config);
    let (base, _) = map_granules(&machine, 1, &[0]);
    grant_both_gpus(&machine, base, GRANULE);
    machine.vmm.revoke(base, GRANULE, &[machine.gpu(0)]).unwrap_err();
    // One rectangle of this class is in the legend, and the other rectangle marks the reservation.
    assert_eq!(draw(&machine.vmm.report()).matches("class=\"lost\"").count(), 2);
}
