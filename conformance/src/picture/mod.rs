//! Draws the address space of a [`Report`] as SVG.

mod bar;
mod svg;

use bar::{Bar, LANE};
use hsa_vmm::Access;
use hsa_vmm::memory::PoolMemoryInfo;
use hsa_vmm::report::{Report, ReservationEntry, Size};
use svg::{LEFT, RIGHT, Svg, lane_class, owner_class, text_width};

/// The distance from the top to the first row.
const TOP: f64 = 34.0;
/// The distance between two rows.
const ROW_GAP: f64 = 22.0;
/// The height of the line of text above a bar.
const TITLE_HEIGHT: f64 = 18.0;

/// Draws an address space as a complete SVG file.
///
/// Each reservation and each allocation of pool memory has a bar. The bars are ordered by address. One more bar shows
/// the memory that is not mapped. The colour of a mapping shows the owner of the memory. Below a bar is a lane for each
/// agent that can access memory in the bar. The lane is thick for read and write access, and thin for read access. An
/// outline means that no access is requested, but that the agent can still access the memory
/// ([`AccessEntry::can_do_more`](hsa_vmm::vmm::AccessEntry::can_do_more)). Long holes are shortened and labelled with
/// their size. All bars have the same width. Each part of a bar has a tooltip.
///
/// The colours follow the viewer's preference for a light or a dark background.
///
/// ```
/// # use hsa_vmm::{Runtime, Vmm, simulation::Config};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let vmm = Vmm::open(&Runtime::simulated(Config::mi300x(1))?)?;
/// vmm.address_reserve(64 << 20, 0, None)?;
/// let svg = hsa_vmm_conformance::picture::draw(&vmm.report());
/// assert!(svg.starts_with("<svg") && svg.contains("64 MiB free"));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn draw(report: &Report) -> String {
    let mut svg = Svg::default();
    let mut y = draw_legend(&mut svg, report, TOP);
    let mut end = None;
    for range in ranges(report) {
        y += ROW_GAP;
        let (start, size) = range.start_and_size();
        if let Some(gap) = end.and_then(|end| start.checked_sub(end)).filter(|gap| *gap > 0) {
            svg.text(LEFT, y - 3.0, "quiet", &format!("⋮ {} of other addresses", Size(gap)));
            y += TITLE_HEIGHT;
        }
        end = Some(start.saturating_add(size));
        y = match range {
            Range::Reservation(entry) => draw_reservation(&mut svg, report, y, entry),
            Range::Pool(memory) => draw_pool_memory(&mut svg, report, y, memory),
        };
    }
    y = draw_unmapped(&mut svg, report, y);
    if report.is_empty() {
        y += ROW_GAP;
        svg.text(LEFT, y, "quiet", "nothing is reserved, mapped or allocated");
    }
    svg.finish(y + ROW_GAP)
}

enum Range<'a> {
    Reservation(&'a ReservationEntry),
    Pool(&'a PoolMemoryInfo),
}

impl Range<'_> {
    fn start_and_size(&self) -> (usize, usize) {
        match self {
            Self::Reservation(it) => (it.address.get(), it.size),
            Self::Pool(it) => (it.address.get(), it.size),
        }
    }
}

/// Returns all ranges, by address.
fn ranges(report: &Report) -> Vec<Range<'_>> {
    let reservations = report.reservations.iter().map(Range::Reservation);
    let mut ranges: Vec<_> =
        reservations.chain(report.pool_memory.iter().map(Range::Pool)).collect();
    ranges.sort_by_key(Range::start_and_size);
    ranges
}

/// Draws the legend. Returns the position of the legend's lower edge.
fn draw_legend(svg: &mut Svg, report: &Report, mut y: f64) -> f64 {
    svg.text(LEFT, y - 12.0, "head", "Address space");
    let mut x = LEFT;
    let agents = report.agents.iter().enumerate();
    let owners = agents.map(|(index, agent)| {
        (owner_class(Some(index), agent.is_gpu), format!("memory of {}", agent.label))
    });
    let marks = [("hole", "free"), ("lost", "quarantined")];
    let marks = marks.map(|(class, label)| (class.to_owned(), label.to_owned()));
    let lanes = [
        (LANE, "read and write"),
        (LANE / 3.0, "read"),
        (0.0, "no access requested, but still possible"),
    ];
    let mut next_position = |width: f64| {
        if x + width > RIGHT {
            (x, y) = (LEFT, y + 20.0);
        }
        let position = (x, y);
        x += width;
        position
    };
    for (class, label) in owners.chain(marks) {
        let (x, y) = next_position(44.0 + text_width(&label, 11.0));
        svg.rect((x, y, 20.0, 13.0), &class, None);
        svg.text(x + 26.0, y + 10.5, "", &label);
    }
    for (height, label) in lanes {
        let (x, y) = next_position(44.0 + text_width(label, 11.0));
        bar::draw_lane(svg, (x, 20.0), y + 3.0, height, "lane-cpu", None);
        svg.text(x + 26.0, y + 10.5, "", label);
    }
    y + 16.0
}

fn draw_reservation(svg: &mut Svg, report: &Report, y: f64, entry: &ReservationEntry) -> f64 {
    let free = entry.free_space();
    let mut facts = format!("{} mapped", Size(entry.mapped_size()));
    if free.gaps > 0 {
        facts += &format!(", {} free", Size(free.size));
    }
    if free.gaps > 1 {
        let (gaps, percent) = (free.gaps, free.fragmentation());
        facts += &format!(" in {gaps} gaps ({percent} % fragmented)");
    }
    if entry.quarantined {
        facts += ", quarantined";
    }
    let range = format!("{}  {}", entry.address, Size(entry.size));
    svg.title(y, entry.name.as_deref(), &range, &facts);
    let bar = Bar::of_reservation(report, entry);
    let below = bar.draw(svg, y + 7.0);
    draw_lanes(svg, report, below, &bar)
}

fn draw_pool_memory(svg: &mut Svg, report: &Report, y: f64, memory: &PoolMemoryInfo) -> f64 {
    let range = format!("{}  {}", memory.address, Size(memory.size));
    svg.title(y, memory.name.as_deref(), &range, "pool memory");
    let bar = Bar::of_pool_memory(report, memory);
    let below = bar.draw(svg, y + 7.0);
    draw_lanes(svg, report, below, &bar)
}

fn draw_unmapped(svg: &mut Svg, report: &Report, y: f64) -> f64 {
    let unmapped: Vec<_> = report.memory.iter().filter(|it| it.mappings == 0).collect();
    if unmapped.is_empty() {
        return y;
    }
    let y = y + ROW_GAP + TITLE_HEIGHT / 2.0;
    let size = unmapped.iter().map(|it| it.size).sum();
    svg.title(y, Some("not mapped"), &Size(size).to_string(), "memory with references only");
    Bar::of_unmapped(report, &unmapped).draw(svg, y + 7.0)
}

/// Draws a lane for each agent that can access a part of a bar. Returns the lower edge
/// of the last lane.
fn draw_lanes(svg: &mut Svg, report: &Report, mut y: f64, bar: &Bar) -> f64 {
    for (index, agent) in report.agents.iter().enumerate() {
        let mut label = Some(&agent.label);
        for (span, access) in bar.spans() {
            let Some(entry) = access.iter().find(|it| it.agent.index() == index) else {
                continue;
            };
            let height = match entry.access {
                Access::ReadWrite => LANE,
                Access::Read => LANE / 3.0,
                Access::None if entry.can_do_more => 0.0,
                Access::None => continue,
            };
            if let Some(label) = label.take() {
                y += LANE + 3.0;
                svg.text_ending_at(LEFT - 8.0, y + LANE - 0.5, "small", label);
            }
            let tip = format!("{}: {entry}", agent.label);
            let class = lane_class(index, agent.is_gpu);
            bar::draw_lane(svg, span, y, height, &class, Some(&tip));
        }
    }
    y + LANE
}
