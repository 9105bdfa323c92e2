//! A report as a picture.

use super::*;
use hsa_vmm::report::Report;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// A rectangle: its class, left and right end.
type Rectangle = (String, f64, f64);

/// What is drawn; fails if the file is no XML.
fn drawn(report: &Report) -> (Vec<Rectangle>, Vec<String>) {
    let svg = report.to_svg();
    let mut reader = Reader::from_str(&svg);
    reader.config_mut().check_end_names = true;
    let (mut rectangles, mut texts) = (Vec::new(), Vec::new());
    loop {
        match reader.read_event().unwrap_or_else(|error| panic!("{error} in {svg}")) {
            Event::Start(tag) | Event::Empty(tag) if tag.name().as_ref() == b"rect" => {
                rectangles.extend(rectangle(&tag));
            }
            Event::Text(text) => texts.push(text.decode().unwrap().into_owned()),
            Event::Eof => return (rectangles, texts),
            _ => {}
        }
    }
}

/// All but the ground, which has no place of its own.
fn rectangle(tag: &BytesStart<'_>) -> Option<Rectangle> {
    let value = |name: &str| {
        let attribute = tag.try_get_attribute(name).unwrap()?;
        Some(String::from_utf8(attribute.value.into_owned()).unwrap())
    };
    let number = |name: &str| value(name)?.parse::<f64>().ok();
    let (x, width) = (number("x")?, number("width")?);
    assert!(width > 0.0 && number("height")? > 0.0, "{tag:?}");
    Some((value("class")?, x, x + width))
}

/// Those of a class, without the one of the legend.
fn of_class(rectangles: &[Rectangle], class: &str) -> Vec<(f64, f64)> {
    let mut found: Vec<_> =
        rectangles.iter().filter(|it| it.0 == class).map(|it| (it.1, it.2)).collect();
    if !class.starts_with("lane") && class != "cut" {
        found.remove(0);
    }
    found
}

#[test]
fn pieces_are_as_wide_as_they_are_large() {
    let machine = machine();
    let (base, _) = cache(&machine, 8, &[2, 3]);
    grant_both(&machine, base.checked_add(2 * GRANULE).unwrap(), GRANULE);
    let (rectangles, _) = drawn(&machine.vmm.report());
    let (mapped, holes) = (of_class(&rectangles, "gpu2"), of_class(&rectangles, "hole"));
    let width = |&(left, right): &(f64, f64)| right - left;
    assert_eq!((mapped.len(), holes.len()), (2, 2), "{rectangles:?}");
    // In order and without gaps, from the same left to the same right.
    let edges = [holes[0].1 - mapped[0].0, mapped[0].1 - mapped[1].0, mapped[1].1 - holes[1].0];
    assert!(edges.iter().all(|gap| gap.abs() < 0.2), "{rectangles:?}");
    assert!((width(&holes[1]) / width(&holes[0]) - 2.0).abs() < 0.05, "{holes:?}");
    assert!((width(&mapped[0]) - width(&mapped[1])).abs() < 0.2, "{mapped:?}");
    // Who may use the first of them.
    for lane in ["lane-gpu1", "lane-gpu2"] {
        let lanes = of_class(&rectangles, lane);
        assert_eq!(lanes.len(), 1, "{lane}");
        assert!((lanes[0].0 - mapped[0].0).abs() < 1.0, "{lanes:?} {mapped:?}");
    }
}

#[test]
fn long_stretches_of_nothing_are_cut_out_and_say_how_long() {
    let machine = machine();
    let size = 64 << 30;
    let base = machine.reserve(size);
    let handle = machine.create(0, GRANULE);
    for at_granule in [0, 100, 20_000] {
        machine.map(at(base, at_granule * GRANULE), GRANULE, handle);
    }
    let (rectangles, texts) = drawn(&machine.vmm.report());
    let mapped = of_class(&rectangles, "gpu1");
    assert_eq!((mapped.len(), of_class(&rectangles, "cut").len()), (3, 3));
    assert!(mapped.iter().all(|(left, right)| right - left > 100.0), "{mapped:?}");
    assert!(texts.iter().any(|text| text == "198 MiB"), "{texts:?}");
}

#[test]
fn however_many_there_are_they_stay_inside() {
    let machine = machine();
    let count = 3000;
    let base = machine.reserve(2 * count * GRANULE);
    let handle = machine.create(0, GRANULE);
    for number in 0..count {
        machine.map(at(base, 2 * number * GRANULE), GRANULE, handle);
    }
    let (rectangles, _) = drawn(&machine.vmm.report());
    let mapped = of_class(&rectangles, "gpu1");
    assert_eq!(mapped.len(), count);
    let right = rectangles.iter().map(|it| it.2).fold(0.0, f64::max);
    assert!(right < 1000.0, "{right}");
}

/// Alike and next to each other, they are one piece.
#[test]
fn a_row_of_pages_is_one_piece() {
    let machine = machine();
    let all: Vec<usize> = (0..500).collect();
    let (base, _) = cache(&machine, 500, &all);
    let (rectangles, texts) = drawn(&machine.vmm.report());
    assert_eq!(of_class(&rectangles, "gpu2").len(), 1);
    assert!(texts.iter().any(|text| text.contains("500 × 2 MiB")), "{texts:?}");
    machine.vmm.name_mapping(at(base, 7 * GRANULE), "this one").unwrap();
    assert_eq!(of_class(&drawn(&machine.vmm.report()).0, "gpu2").len(), 3);
}

#[test]
fn names_may_be_anything() {
    let machine = machine();
    let (base, handles) = cache(&machine, 2, &[0]);
    let nasty = "<&>\"'\u{0}\u{1b}[31m\u{fffe}\u{7f}]]></title>\n\tüб漢";
    machine.vmm.name_reservation(base, nasty).unwrap();
    machine.vmm.name_mapping(base, &nasty.repeat(50)).unwrap();
    machine.vmm.name_handle(handles[0], nasty).unwrap();
    let svg = machine.vmm.report().to_svg();
    drawn(&machine.vmm.report());
    let allowed = |it: char| it == '\n' || !it.is_control() && it != '\u{fffe}';
    assert!(svg.chars().all(allowed));
    assert!(svg.contains("üб漢"));
}

#[test]
fn every_device_has_its_own_colour_and_dark_is_thought_of() {
    let machine = Machine::new(Config::mi300x(8));
    for gpu in 0..8 {
        let base = machine.reserve(GRANULE);
        machine.map(base, GRANULE, machine.create(gpu, GRANULE));
    }
    let report = machine.vmm.report();
    let (rectangles, texts) = drawn(&report);
    let gpus = 0..8;
    for class in gpus.map(|colour| format!("gpu{colour}")) {
        assert_eq!(of_class(&rectangles, &class).len(), 1, "{class}");
    }
    for gpu in 0..8 {
        assert!(texts.iter().any(|text| *text == format!("memory of GPU {gpu}")), "{texts:?}");
    }
    assert!(report.to_svg().contains("prefers-color-scheme:dark"));
}

#[test]
fn of_nothing_it_says_so() {
    let (_, texts) = drawn(&machine().vmm.report());
    assert!(texts.iter().any(|text| text.starts_with("nothing is reserved")), "{texts:?}");
}
