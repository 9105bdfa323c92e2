//! A bar: a stretch of addresses from left to right.

use super::markup::{self, Markup};
use super::style::{self, LEFT, RIGHT};
use crate::report::{MappingEntry, MemoryEntry, Report, ReservationEntry, Run, Size, runs};

/// How high a bar is.
const HEIGHT: f64 = 30.0;
/// How high a lane below it is.
pub(super) const LANE: f64 = 7.0;
/// How wide a hole is drawn that is cut short.
const CUT: f64 = 84.0;
/// How wide everything else is drawn at least, as long as there is room.
const LEAST: f64 = 5.0;
/// A hole is cut short that is so many times as large as all that is mapped.
const LONG: usize = 8;

/// From where, and how far.
pub(super) type Span = (f64, f64);

#[derive(Debug)]
pub(super) struct Bar {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    size: usize,
    class: String,
    /// What may be written on it, the best first.
    labels: Vec<String>,
    /// What whoever points at it is told.
    told: String,
    is_cut: bool,
    /// How many mappings it is.
    count: usize,
    mapping: Option<MappingEntry>,
    span: Span,
}

impl Bar {
    pub fn of(report: &Report, reservation: &ReservationEntry) -> Self {
        let mapped = reservation.mapped();
        let piece = |run: &Run<'_>| match run.mapping {
            Some(mapping) => {
                let piece = Piece::mapped(report, mapping, run.size, run.count);
                let class = if reservation.quarantined { "lost".to_owned() } else { piece.class };
                let told = format!("+{:#x}: {}", run.offset, piece.told);
                Piece { class, told, ..piece }
            }
            None => Piece {
                size: run.size,
                class: if reservation.quarantined { "lost" } else { "hole" }.to_owned(),
                labels: vec![format!("{} free", Size(run.size)), Size(run.size).to_string()],
                told: format!("+{:#x}: {} free", run.offset, Size(run.size)),
                is_cut: mapped > 0 && run.size / LONG > mapped,
                count: 1,
                mapping: None,
                span: Span::default(),
            },
        };
        Self::laid_out(runs(reservation).iter().map(piece).collect())
    }

    /// One piece, from end to end.
    pub fn whole(
        report: &Report,
        agent: Option<usize>,
        size: usize,
        mapping: &MappingEntry,
    ) -> Self {
        let mapping = MappingEntry { agent, ..mapping.clone() };
        Self::laid_out(vec![Piece::mapped(report, &mapping, size, 1)])
    }

    /// Memory that has no addresses.
    pub fn unmapped(report: &Report, memory: &[&MemoryEntry]) -> Self {
        let piece = |it: &&MemoryEntry| {
            let is_gpu = report.agent(it.agent).is_some_and(|agent| agent.is_gpu);
            let owner = report.label(it.agent);
            Piece {
                size: it.size,
                class: style::owner(it.agent, is_gpu),
                labels: labels(&it.name, &Size(it.size).to_string()),
                told: format!("{} of {owner}, handle {}", Size(it.size), it.handle),
                is_cut: false,
                count: 1,
                mapping: None,
                span: Span::default(),
            }
        };
        Self::laid_out(memory.iter().map(piece).collect())
    }

    /// Gives each piece its place: a cut one always the same, the others by their size.
    fn laid_out(mut pieces: Vec<Piece>) -> Self {
        let cuts = pieces.iter().filter(|piece| piece.is_cut).count();
        let others = (pieces.len() - cuts) as f64;
        let all = RIGHT - LEFT;
        // Half of the room is for proportions, whatever else there is.
        let cut = CUT.min(all / 2.0 / cuts.max(1) as f64);
        let room = all - cut * cuts as f64;
        let least = LEAST.min(room / 2.0 / others.max(1.0));
        let shared = room - least * others;
        let sizes: f64 = pieces.iter().filter(|it| !it.is_cut).map(|it| it.size as f64).sum();
        let mut x = LEFT;
        for piece in &mut pieces {
            let part = piece.size as f64 / sizes.max(1.0);
            let width = if piece.is_cut { cut } else { least + shared * part };
            piece.span = (x, width);
            x += width;
        }
        Self { pieces }
    }

    /// What is mapped, and where it is drawn.
    pub fn mapped(&self) -> impl Iterator<Item = (Span, &MappingEntry)> {
        self.pieces.iter().filter_map(|piece| Some((piece.span, piece.mapping.as_ref()?)))
    }

    /// Returns where it ends.
    pub fn draw(&self, markup: &mut Markup, y: f64) -> f64 {
        for piece in &self.pieces {
            piece.draw(markup, y);
        }
        y + HEIGHT - LANE
    }
}

/// What to write on something: its name and its size, or one of them.
fn labels(name: &Option<String>, size: &str) -> Vec<String> {
    let named = name.as_deref().map(|name| markup::shortened(name, 40));
    let both = named.as_ref().map(|name| format!("{name} · {size}"));
    both.into_iter().chain(named).chain([size.to_owned()]).collect()
}

impl Piece {
    fn mapped(report: &Report, mapping: &MappingEntry, size: usize, count: usize) -> Self {
        let each = Size(size / count.max(1));
        let sizes = if count > 1 { format!("{count} × {each}") } else { each.to_string() };
        let is_gpu = report.agent(mapping.agent).is_some_and(|agent| agent.is_gpu);
        let mut told = format!("{sizes} of {}", report.label(mapping.agent));
        if let Some(name) = &mapping.name {
            told = format!("{name}: {told}");
        }
        for entry in &mapping.access {
            let agent = report.label(Some(entry.agent));
            told += &format!("\n{agent}: {}", entry.words());
        }
        if mapping.access.is_empty() {
            told += "\nno agent may use it";
        }
        Self {
            size,
            class: style::owner(mapping.agent, is_gpu),
            labels: labels(&mapping.name, &sizes),
            told,
            is_cut: false,
            count,
            mapping: Some(mapping.clone()),
            span: Span::default(),
        }
    }

    fn draw(&self, markup: &mut Markup, y: f64) {
        let (x, width) = self.span;
        if self.is_cut {
            self.draw_cut(markup, y);
            return;
        }
        markup.rect((x, y, width, HEIGHT), &self.class, Some(&self.told));
        let each = width / self.count as f64;
        if self.count > 1 && each >= LEAST {
            let ticks: String = (1..self.count)
                .map(|number| {
                    let x = x + each * number as f64;
                    // The middle is for the label.
                    format!("M{x:.1} {y:.1}v6M{x:.1} {:.1}v-6", y + HEIGHT)
                })
                .collect();
            markup.path(&ticks, "tick");
        }
        let class = if self.class == "hole" { "quiet on" } else { "on" };
        let fits = |label: &&String| markup::width(label, 11.0) + 8.0 <= width;
        if let Some(label) = self.labels.iter().find(fits) {
            markup.text_in_the_middle(x + width / 2.0, y + HEIGHT / 2.0 + 4.0, class, label);
        }
    }

    /// The beginning and the end of a long hole, and how long it is.
    fn draw_cut(&self, markup: &mut Markup, y: f64) {
        let (x, width) = self.span;
        markup.rect((x, y, width, HEIGHT), "cut", Some(&self.told));
        let zigzag = |at: f64| {
            let mut path = format!("M{at:.1} {y:.1}");
            for step in 0..5u8 {
                let side = if step % 2 == 0 { 4.0 } else { -4.0 };
                path += &format!("l{side:.1} {:.1}", HEIGHT / 5.0);
            }
            path
        };
        markup.path(&zigzag(x + 5.0), "break");
        markup.path(&zigzag(x + width - 9.0), "break");
        let size = self.labels.last().map_or("", String::as_str);
        if markup::width(size, 11.0) + 24.0 <= width {
            let middle = x + width / 2.0;
            markup.text_in_the_middle(middle, y + HEIGHT / 2.0 + 4.0, "quiet on", size);
        }
    }
}

/// What an agent may do with a stretch: the higher, the more; of no height, what it can do although
/// it may not.
pub(super) fn lane(
    markup: &mut Markup,
    (x, width): Span,
    y: f64,
    height: f64,
    class: &str,
    told: Option<&str>,
) {
    // Neighbours stay apart.
    let width = (width - 1.0).max(1.0);
    if height > 0.0 {
        markup.rect((x + 0.5, y + (LANE - height) / 2.0, width, height), class, told);
    } else {
        let class = format!("{class} outline");
        markup.rect((x + 0.5, y + 0.5, width, LANE - 1.0), &class, told);
    }
}
