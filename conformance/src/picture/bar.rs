//! A bar: a reservation, pool memory, or the memory that is not mapped, drawn from left to right.

use super::svg::{self, LEFT, RIGHT, Svg, owner_class, text_width};
use hsa_vmm::memory::PoolMemoryInfo;
use hsa_vmm::report::{MemoryEntry, Report, ReservationEntry, ReservationPart, Size};
use hsa_vmm::vmm::AccessEntry;
use hsa_vmm::{Access, AgentId};

const HEIGHT: f64 = 30.0;
/// The height of a lane: a line below a bar that shows one agent's access.
pub(super) const LANE: f64 = 7.0;
/// The maximum width of a shortened hole.
const SHORTENED_WIDTH: f64 = 84.0;
/// The minimum width of a part that is not shortened, if there is enough space.
const MIN_WIDTH: f64 = 5.0;
/// A hole is shortened if the hole is this many times as large as all mappings together.
const LONG_HOLE: usize = 8;

/// A left edge and a width.
pub(super) type Span = (f64, f64);

/// A reservation, divided into mappings and holes; or one or several allocations.
#[derive(Debug)]
pub(super) struct Bar {
    parts: Vec<Part>,
}

/// A part of a bar: equal adjacent mappings, a hole, or an allocation.
#[derive(Debug)]
struct Part {
    size: usize,
    /// The class in the style sheet.
    class: String,
    /// Possible labels, the most detailed first.
    labels: Vec<String>,
    tip: String,
    is_shortened: bool,
    /// The number of mappings in the part; 1 for a hole or an allocation.
    count: usize,
    access: Vec<AccessEntry>,
    span: Span,
}

impl Bar {
    pub fn of_reservation(report: &Report, reservation: &ReservationEntry) -> Self {
        let mapped = reservation.mapped_size();
        let to_part = |from: &ReservationPart<'_>| {
            let mut part = match from.mapping {
                Some(it) => {
                    let part = Part::of_memory(report, &it.name, it.agent, from.size, from.count);
                    part.with_access(it.access.clone())
                }
                None => Part::hole(from.size, mapped > 0 && from.size / LONG_HOLE > mapped),
            };
            part.tip = format!("+{:#x}: {}", from.offset, part.tip);
            if reservation.quarantined {
                part.class = "lost".to_owned();
            }
            part
        };
        Self::of_parts(reservation.parts().iter().map(to_part).collect())
    }

    pub fn of_pool_memory(report: &Report, memory: &PoolMemoryInfo) -> Self {
        let access = |&agent| AccessEntry { agent, access: Access::ReadWrite, can_do_more: false };
        let part = Part::of_memory(report, &memory.name, Some(memory.agent), memory.size, 1);
        Self::of_parts(vec![part.with_access(memory.agents.iter().map(access).collect())])
    }

    pub fn of_unmapped(report: &Report, memory: &[&MemoryEntry]) -> Self {
        let part = |entry: &&MemoryEntry| {
            let mut part = Part::of_memory(report, &entry.name, entry.agent, entry.size, 1);
            part.tip += &format!(", handle {}", entry.handle);
            part
        };
        Self::of_parts(memory.iter().map(part).collect())
    }

    /// Computes the spans. Shortened holes have a fixed width. The width of every other part grows with the part's
    /// size.
    fn of_parts(mut parts: Vec<Part>) -> Self {
        let holes = parts.iter().filter(|part| part.is_shortened).count();
        let others = (parts.len() - holes) as f64;
        let bar_width = RIGHT - LEFT;
        // At least half of the width remains for other parts.
        let hole_width = SHORTENED_WIDTH.min(bar_width / 2.0 / holes.max(1) as f64);
        let remaining = bar_width - hole_width * holes as f64;
        let min_width = MIN_WIDTH.min(remaining / 2.0 / others.max(1.0));
        let shared = remaining - min_width * others;
        let sizes: f64 = parts.iter().filter(|it| !it.is_shortened).map(|it| it.size as f64).sum();
        let mut x = LEFT;
        for part in &mut parts {
            let share = part.size as f64 / sizes.max(1.0);
            let width = if part.is_shortened { hole_width } else { min_width + shared * share };
            part.span = (x, width);
            x += width;
        }
        Self { parts }
    }

    /// Returns the span of each part, and the agents' access to the part.
    pub fn spans(&self) -> impl Iterator<Item = (Span, &[AccessEntry])> {
        self.parts.iter().map(|part| (part.span, &*part.access))
    }

    /// Draws the bar. Returns the position that [`draw_lanes`](super::draw_lanes) starts from: the bar's
    /// lower edge minus [`LANE`].
    pub fn draw(&self, svg: &mut Svg, y: f64) -> f64 {
        for part in &self.parts {
            if part.is_shortened {
                part.draw_shortened(svg, y);
            } else {
                part.draw(svg, y);
            }
        }
        y + HEIGHT - LANE
    }
}

impl Part {
    /// Creates the part for an agent's memory: one or several mappings, or an allocation.
    fn of_memory(
        report: &Report,
        name: &Option<String>,
        agent: Option<AgentId>,
        size: usize,
        count: usize,
    ) -> Self {
        let each = Size(size / count.max(1));
        let sizes = if count > 1 { format!("{count} × {each}") } else { each.to_string() };
        let short_name = name.as_deref().map(|name| svg::shortened(name, 40));
        let both = short_name.as_ref().map(|name| format!("{name} · {sizes}"));
        let labels = both.into_iter().chain(short_name).chain([sizes.clone()]).collect();
        let owner = agent.map_or("unknown owner".to_owned(), |agent| agent.to_string());
        let tip = match name {
            Some(name) => format!("{name}: {sizes} of {owner}"),
            None => format!("{sizes} of {owner}"),
        };
        let index = agent.map(AgentId::index);
        let is_gpu = index.and_then(|index| report.agents.get(index)).is_some_and(|it| it.is_gpu);
        let class = owner_class(index, is_gpu);
        let (access, span) = (Vec::new(), Span::default());
        Self { size, class, labels, tip, is_shortened: false, count, access, span }
    }

    fn hole(size: usize, is_shortened: bool) -> Self {
        let tip = format!("{} free", Size(size));
        let labels = vec![tip.clone(), Size(size).to_string()];
        let (class, access, span) = ("hole".to_owned(), Vec::new(), Span::default());
        Self { size, class, labels, tip, is_shortened, count: 1, access, span }
    }

    fn with_access(mut self, access: Vec<AccessEntry>) -> Self {
        for entry in &access {
            self.tip += &format!("\n{}: {entry}", entry.agent);
        }
        if access.is_empty() {
            self.tip += "\nno agent has access";
        }
        Self { access, ..self }
    }

    fn draw(&self, svg: &mut Svg, y: f64) {
        let (x, width) = self.span;
        svg.rect((x, y, width, HEIGHT), &self.class, Some(&self.tip));
        let each = width / self.count as f64;
        if self.count > 1 && each >= MIN_WIDTH {
            let ticks: String = (1..self.count)
                .map(|number| {
                    let x = x + each * number as f64;
                    // Leave room for the label in the middle.
                    format!("M{x:.1} {y:.1}v6M{x:.1} {:.1}v-6", y + HEIGHT)
                })
                .collect();
            svg.path(&ticks, "tick");
        }
        let class = if self.class == "hole" { "quiet on" } else { "on" };
        let fits = |label: &&String| text_width(label, 11.0) + 8.0 <= width;
        if let Some(label) = self.labels.iter().find(fits) {
            svg.text_centred(x + width / 2.0, y + HEIGHT / 2.0 + 4.0, class, label);
        }
    }

    /// Draws the ends of a shortened hole, and its size if there is enough space.
    fn draw_shortened(&self, svg: &mut Svg, y: f64) {
        let (x, width) = self.span;
        svg.rect((x, y, width, HEIGHT), "cut", Some(&self.tip));
        let zigzag = |at: f64| {
            let mut path = format!("M{at:.1} {y:.1}");
            for step in 0..5u8 {
                let side = if step % 2 == 0 { 4.0 } else { -4.0 };
                path += &format!("l{side:.1} {:.1}", HEIGHT / 5.0);
            }
            path
        };
        svg.path(&zigzag(x + 5.0), "break");
        svg.path(&zigzag(x + width - 9.0), "break");
        let size = Size(self.size).to_string();
        if text_width(&size, 11.0) + 24.0 <= width {
            svg.text_centred(x + width / 2.0, y + HEIGHT / 2.0 + 4.0, "quiet on", &size);
        }
    }
}

/// Draws an agent's access as a line whose height shows the permission. Height 0 draws an outline: no access is
/// requested for the agent, but the agent can still access the memory.
pub(super) fn draw_lane(
    svg: &mut Svg,
    (x, width): Span,
    y: f64,
    height: f64,
    class: &str,
    tip: Option<&str>,
) {
    // Leave space between adjacent lanes.
    let width = (width - 1.0).max(1.0);
    if height > 0.0 {
        svg.rect((x + 0.5, y + (LANE - height) / 2.0, width, height), class, tip);
    } else {
        let class = format!("{class} outline");
        svg.rect((x + 0.5, y + 0.5, width, LANE - 1.0), &class, tip);
    }
}
