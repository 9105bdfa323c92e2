//! A report as a picture.

mod bar;
mod markup;
mod style;

use super::{AgentEntry, MappingEntry, PoolMemoryEntry, Report, ReservationEntry, Size};
use crate::vmm::Access;
use bar::{Bar, LANE};
use markup::Markup;
use style::{LEFT, RIGHT};

/// From the top of a picture to the first row.
const TOP: f64 = 34.0;
/// Between two rows.
const BETWEEN: f64 = 22.0;
/// The line of text above a bar.
const TITLE: f64 = 18.0;

impl Report {
    /// Draws the address space as SVG, a file of its own.
    ///
    /// A bar for each reservation and for each piece of pool memory, in the order of their
    /// addresses, and one for memory that is mapped nowhere. What is mapped has the colour of the
    /// device whose memory it is. Below it is a lane for each agent: thick where it may read and
    /// write, thin where it may read, an outline where it may do nothing and reaches the memory all
    /// the same. Long stretches of nothing are cut out, and say how long they were. Each bar is as
    /// wide as the others, however large it is. Whoever points at a piece is told more.
    ///
    /// Colours are chosen for light and for dark surroundings by what the viewer prefers.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut markup = Markup::default();
        let mut y = self.draw_legend(&mut markup, TOP);
        let mut end = None;
        for place in self.places() {
            y += BETWEEN;
            if let Some(gap) =
                end.and_then(|end| place.start().checked_sub(end)).filter(|it| *it > 0)
            {
                markup.text(LEFT, y - 3.0, "quiet", &format!("⋮ {} of other addresses", Size(gap)));
                y += TITLE;
            }
            end = Some(place.start().saturating_add(place.size()));
            y = match place {
                Place::Reservation(it) => self.draw_reservation(&mut markup, y, it),
                Place::Pool(it) => self.draw_pool(&mut markup, y, it),
            };
        }
        y = self.draw_unmapped(&mut markup, y);
        if self.is_empty() {
            y += BETWEEN;
            markup.text(LEFT, y, "quiet", "nothing is reserved, mapped or held");
        }
        markup.finish(y + BETWEEN)
    }

    /// What is at addresses, in their order.
    fn places(&self) -> Vec<Place<'_>> {
        let reservations = self.reservations.iter().map(Place::Reservation);
        let mut places: Vec<_> =
            reservations.chain(self.pool_memory.iter().map(Place::Pool)).collect();
        places.sort_by_key(Place::start);
        places
    }

    /// What the colours and marks mean. Returns where it ends.
    fn draw_legend(&self, markup: &mut Markup, mut y: f64) -> f64 {
        markup.text(LEFT, y - 12.0, "head", "Address space");
        let mut x = LEFT;
        let agents = self.agents.iter().enumerate();
        let owners = agents.map(|(index, agent)| (style::owner(Some(index), agent.is_gpu), agent));
        let owners = owners.map(|(class, agent)| (class, format!("memory of {}", agent.label)));
        let marks = [("hole", "free"), ("lost", "in quarantine")];
        let marks = marks.map(|(class, what)| (class.to_owned(), what.to_owned()));
        let lanes = [
            (LANE, "may read and write"),
            (LANE / 3.0, "may only read"),
            (0.0, "may not, but can"),
        ];
        let mut place = |width: f64| {
            if x + width > RIGHT {
                (x, y) = (LEFT, y + 20.0);
            }
            let at = (x, y);
            x += width;
            at
        };
        for (class, what) in owners.chain(marks) {
            let (x, y) = place(44.0 + markup::width(&what, 11.0));
            markup.rect((x, y, 20.0, 13.0), &class, None);
            markup.text(x + 26.0, y + 10.5, "", &what);
        }
        for (height, what) in lanes {
            let (x, y) = place(44.0 + markup::width(what, 11.0));
            bar::lane(markup, (x, 20.0), y + 3.0, height, "lane-cpu", None);
            markup.text(x + 26.0, y + 10.5, "", what);
        }
        y + 16.0
    }

    fn draw_reservation(&self, markup: &mut Markup, y: f64, it: &ReservationEntry) -> f64 {
        let free = it.free();
        let mut facts = format!("{} mapped", Size(it.mapped()));
        if free.holes > 0 {
            facts += &format!(", {} free", Size(free.size));
        }
        if free.holes > 1 {
            let (holes, percent) = (free.holes, free.fragmentation());
            facts += &format!(" in {holes} holes ({percent} % fragmented)");
        }
        if it.quarantined {
            facts += ", in quarantine";
        }
        let what = format!("{}  {}", it.address, Size(it.size));
        markup.title(y, it.name.as_deref(), &what, &facts);
        let bar = Bar::of(self, it);
        let below = bar.draw(markup, y + 7.0);
        self.draw_lanes(markup, below, &bar)
    }

    /// A lane for each agent that may or can use something of a bar. Returns where they end.
    fn draw_lanes(&self, markup: &mut Markup, mut y: f64, bar: &Bar) -> f64 {
        for (index, agent) in self.agents.iter().enumerate() {
            let mut label = Some(&agent.label);
            for (span, mapping) in bar.mapped() {
                let Some(entry) = mapping.access.iter().find(|it| it.agent == index) else {
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
                    markup.text_to(LEFT - 8.0, y + LANE - 0.5, "small", label);
                }
                let told = format!("{}: {}", agent.label, entry.words());
                let class = style::lane(index, agent.is_gpu);
                bar::lane(markup, span, y, height, &class, Some(&told));
            }
        }
        y + LANE
    }

    fn draw_pool(&self, markup: &mut Markup, y: f64, it: &PoolMemoryEntry) -> f64 {
        let what = format!("{}  {}", it.address, Size(it.size));
        markup.title(y, it.name.as_deref(), &what, "pool memory");
        let bar = Bar::whole(self, Some(it.agent), it.size, &pool_access(it));
        let below = bar.draw(markup, y + 7.0);
        self.draw_lanes(markup, below, &bar)
    }

    fn draw_unmapped(&self, markup: &mut Markup, y: f64) -> f64 {
        let unmapped: Vec<_> = self.memory.iter().filter(|it| it.mappings == 0).collect();
        if unmapped.is_empty() {
            return y;
        }
        let y = y + BETWEEN + TITLE / 2.0;
        let size = unmapped.iter().map(|it| it.size).sum();
        let size = Size(size).to_string();
        markup.title(y, Some("mapped nowhere"), &size, "memory that is only referenced");
        Bar::unmapped(self, &unmapped).draw(markup, y + 7.0)
    }

    fn agent(&self, agent: Option<usize>) -> Option<&AgentEntry> {
        agent.and_then(|agent| self.agents.get(agent))
    }
}

/// Something at addresses.
enum Place<'a> {
    Reservation(&'a ReservationEntry),
    Pool(&'a PoolMemoryEntry),
}

impl Place<'_> {
    fn start(&self) -> usize {
        match self {
            Self::Reservation(it) => it.address.get(),
            Self::Pool(it) => it.address.get(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Reservation(it) => it.size,
            Self::Pool(it) => it.size,
        }
    }
}

/// Pool memory as if it were mapped, for the agents that may use it.
fn pool_access(it: &PoolMemoryEntry) -> MappingEntry {
    let may = |&agent: &usize| super::AccessEntry {
        agent,
        access: Access::ReadWrite,
        can_do_more: false,
    };
    MappingEntry {
        address: it.address,
        size: it.size,
        name: it.name.clone(),
        memory: crate::vmm::Handle::from_bits(0),
        agent: Some(it.agent),
        access: it.agents.iter().map(may).collect(),
    }
}
