//! Writes SVG elements and their style sheet.

use quick_xml::Writer;
use quick_xml::events::{BytesStart, BytesText, Event};
use std::io;

const WIDTH: f64 = 1000.0;
/// The left end of bars, to the right of the lanes' names.
pub(super) const LEFT: f64 = 64.0;
/// The right end of bars.
pub(super) const RIGHT: f64 = WIDTH - 16.0;
/// The number of colours for GPUs. GPUs with higher indexes repeat the colours.
const COLOURS: usize = 8;

/// Returns the class of an agent's memory.
pub(super) fn owner_class(agent: Option<usize>, is_gpu: bool) -> String {
    match agent {
        Some(agent) if is_gpu => format!("gpu{}", agent % COLOURS),
        Some(_) => "cpu".to_owned(),
        None => "unknown".to_owned(),
    }
}

pub(super) fn lane_class(agent: usize, is_gpu: bool) -> String {
    format!("lane-{}", owner_class(Some(agent), is_gpu))
}

/// The elements written so far.
pub(super) struct Svg {
    writer: Writer<Vec<u8>>,
}

impl Default for Svg {
    fn default() -> Self {
        Self { writer: Writer::new_with_indent(Vec::new(), b' ', 0) }
    }
}

impl Svg {
    /// Draws a rectangle: left, top, width, height. A viewer shows `tip` under the pointer.
    pub fn rect(&mut self, (x, y, w, h): (f64, f64, f64, f64), class: &str, tip: Option<&str>) {
        let [x, y, w, h] = [x, y, w, h].map(|value| format!("{value:.1}"));
        let attributes = [("x", &*x), ("y", &y), ("width", &w), ("height", &h), ("class", class)];
        let element = self.writer.create_element("rect").with_attributes(attributes);
        ignore(match tip {
            None => element.write_empty(),
            Some(tip) => element.write_inner_content(|writer| {
                let title = writer.create_element("title");
                title.write_text_content(BytesText::new(&replace_invalid(tip))).map(|_| ())
            }),
        });
    }

    pub fn path(&mut self, path: &str, class: &str) {
        let element = self.writer.create_element("path");
        ignore(element.with_attributes([("d", path), ("class", class)]).write_empty());
    }

    /// Writes text that begins at a point.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.write_anchored_text(x, y, class, "start", text);
    }

    /// Writes text that ends at a point.
    pub fn text_ending_at(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.write_anchored_text(x, y, class, "end", text);
    }

    /// Writes text centred on a point.
    pub fn text_centred(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.write_anchored_text(x, y, class, "middle", text);
    }

    /// Writes the line above a bar: an optional name, the extent, and facts at the right end.
    pub fn title(&mut self, y: f64, name: Option<&str>, extent: &str, facts: &str) {
        let (x, top) = (format!("{LEFT:.1}"), format!("{y:.1}"));
        let element = self.writer.create_element("text");
        let element = element.with_attributes([("x", &*x), ("y", &top)]);
        ignore(element.write_inner_content(|writer| {
            // Write each part as one event, so that the writer inserts no white space.
            let mut span = |attributes: &[(&str, &str)], text: &str| {
                let mut start = BytesStart::new("tspan");
                start.extend_attributes(attributes.iter().copied());
                let end = start.to_end().into_owned();
                writer.write_event(Event::Start(start.borrow()))?;
                writer.write_event(Event::Text(BytesText::new(&replace_invalid(text))))?;
                writer.write_event(Event::End(end))
            };
            if let Some(name) = name {
                span(&[("class", "name")], &shortened(name, 48))?;
            }
            let gap = if name.is_some() { "10" } else { "0" };
            span(&[("class", "mono"), ("dx", gap)], extent)
        }));
        self.text_ending_at(RIGHT, y, "quiet", facts);
    }

    fn write_anchored_text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
        let element = self.writer.create_element("text");
        let attributes = [("x", &*x), ("y", &y), ("class", class), ("text-anchor", anchor)];
        let element = element.with_attributes(attributes);
        ignore(element.write_text_content(BytesText::new(&replace_invalid(text))));
    }

    /// Returns the complete file.
    pub fn finish(self, height: f64) -> String {
        let body = String::from_utf8(self.writer.into_inner()).unwrap_or_default();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
             width=\"{WIDTH:.0}\" height=\"{height:.0}\" role=\"img\">\n\
             <title>Address space</title>\n<style>{CSS}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"background\"/>\n{body}\n</svg>\n"
        )
    }
}

/// Ignores the result of writing to a `Vec`, which does not fail.
fn ignore<T>(_: io::Result<T>) {}

/// Replaces characters that XML cannot contain, but names of reservations and memory can.
fn replace_invalid(text: &str) -> String {
    let is_invalid =
        |it: char| it != '\n' && it.is_control() || matches!(it, '\u{fffe}' | '\u{ffff}');
    text.replace(is_invalid, "\u{fffd}")
}

/// Shortens a text that is longer than `max` characters.
pub(super) fn shortened(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

/// Estimates the width of a text at a font size. Most texts are narrower than the estimate.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    // From U+1100 on, the letters of most scripts are as wide as they are high.
    let letter = |it: char| if it < '\u{1100}' { 0.6 } else { 1.0 };
    text.chars().map(letter).sum::<f64>() * size
}

/// The style sheet. It uses no CSS variables, which some SVG renderers do not support.
const CSS: &str = "
text{font:11px ui-sans-serif,system-ui,sans-serif;fill:#1f2328}
.head{font-size:16px;font-weight:600}.name{font-size:13px;font-weight:600}
.mono{font:12px ui-monospace,monospace}.small{font-size:9.5px;fill:#59636e}.quiet{fill:#59636e}
.tick{fill:none;stroke:#1f2328;stroke-opacity:.25;pointer-events:none}
.on{pointer-events:none}.background{fill:#fff}
.gpu0{fill:#f6d3a0;stroke:#b97a1c}.gpu1{fill:#a9d3f5;stroke:#2f7fbf}
.gpu2{fill:#f0c4e6;stroke:#a3509a}.gpu3{fill:#b4e0b9;stroke:#3a8f4b}
.gpu4{fill:#cfc9f4;stroke:#6a5fc4}.gpu5{fill:#f7c1b9;stroke:#c2503f}
.gpu6{fill:#a6e0da;stroke:#22897f}.gpu7{fill:#e0dc9a;stroke:#8c8120}
.cpu{fill:#d8dde3;stroke:#6e7781}.unknown{fill:#f3f0e8;stroke:#8a8577}
.lane-gpu0{fill:#b97a1c}.lane-gpu1{fill:#2f7fbf}.lane-gpu2{fill:#a3509a}.lane-gpu3{fill:#3a8f4b}
.lane-gpu4{fill:#6a5fc4}.lane-gpu5{fill:#c2503f}.lane-gpu6{fill:#22897f}.lane-gpu7{fill:#8c8120}
.lane-cpu{fill:#6e7781}
.hole{fill:none;stroke:#aab2bb;stroke-dasharray:3 3;pointer-events:all}
.cut{fill:none;stroke:none;pointer-events:all}.break{fill:none;stroke:#59636e}
.lost{fill:#ffd8d3;stroke:#cf222e;stroke-width:2;stroke-dasharray:6 3}
.lane-gpu0.outline{stroke:#b97a1c}.lane-gpu1.outline{stroke:#2f7fbf}
.lane-gpu2.outline{stroke:#a3509a}.lane-gpu3.outline{stroke:#3a8f4b}
.lane-gpu4.outline{stroke:#6a5fc4}.lane-gpu5.outline{stroke:#c2503f}
.lane-gpu6.outline{stroke:#22897f}.lane-gpu7.outline{stroke:#8c8120}
.lane-cpu.outline{fill:none;stroke:#6e7781}
.lane-gpu0.outline,.lane-gpu1.outline,.lane-gpu2.outline,.lane-gpu3.outline,
.lane-gpu4.outline,.lane-gpu5.outline,.lane-gpu6.outline,.lane-gpu7.outline{fill:none}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.small,.quiet{fill:#9da7b3}.background{fill:#0d1117}
.gpu0{fill:#6b4712}.gpu1{fill:#1d4e77}.gpu2{fill:#64305f}.gpu3{fill:#245a2f}
.gpu4{fill:#433b80}.gpu5{fill:#783128}.gpu6{fill:#17544e}.gpu7{fill:#565012}
.cpu{fill:#3d444d;stroke:#9198a1}.unknown{fill:#2b2a26}
.hole{stroke:#59636e}.break{stroke:#9da7b3}.lost{fill:#4a1d1d;stroke:#f85149}
.lane-cpu{fill:#9198a1}.lane-cpu.outline{fill:none;stroke:#9198a1}.tick{stroke:#e6edf3}
}
";
