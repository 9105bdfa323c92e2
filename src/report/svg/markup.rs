//! SVG as text.

use super::style::{CSS, LEFT, RIGHT, WIDTH};
use core::fmt::Write as _;

/// What is drawn so far.
#[derive(Debug, Default)]
pub(super) struct Markup {
    body: String,
}

impl Markup {
    /// A rectangle: left, top, width, height. Whoever points at it is told something.
    pub fn rect(&mut self, (x, y, w, h): (f64, f64, f64, f64), class: &str, told: Option<&str>) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" class=\"{class}\""
        ));
        match told {
            Some(told) => self.add(format_args!("><title>{}</title></rect>\n", escaped(told))),
            None => self.add(format_args!("/>\n")),
        }
    }

    pub fn path(&mut self, path: &str, class: &str) {
        self.add(format_args!("<path d=\"{path}\" class=\"{class}\"/>\n"));
    }

    /// A line of text from a point on.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.anchored(x, y, class, "start", text);
    }

    /// The line above a bar: a name, if there is one; what it is the name of; and facts at the end.
    pub fn title(&mut self, y: f64, name: Option<&str>, what: &str, facts: &str) {
        self.add(format_args!("<text x=\"{LEFT:.1}\" y=\"{y:.1}\">"));
        if let Some(name) = name {
            let name = escaped(&shortened(name, 48));
            self.add(format_args!("<tspan class=\"name\">{name}</tspan>"));
        }
        let apart = if name.is_some() { 10 } else { 0 };
        let what = escaped(what);
        self.add(format_args!("<tspan class=\"mono\" dx=\"{apart}\">{what}</tspan></text>\n"));
        self.text_to(RIGHT, y, "quiet", facts);
    }

    /// A line of text up to a point.
    pub fn text_to(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.anchored(x, y, class, "end", text);
    }

    /// A line of text around a point.
    pub fn text_in_the_middle(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.anchored(x, y, class, "middle", text);
    }

    fn anchored(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = escaped(text);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>\n"
        ));
    }

    fn add(&mut self, text: core::fmt::Arguments<'_>) {
        // Text takes whatever is written to it.
        let _ = self.body.write_fmt(text);
    }

    /// The whole file.
    pub fn finish(self, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
             width=\"{WIDTH:.0}\" height=\"{height:.0}\" role=\"img\">\n\
             <title>Address space</title>\n<style>{CSS}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n{}</svg>\n",
            self.body
        )
    }
}

/// What XML can hold: names may be anything.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            // XML has no way to write these.
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            other if other.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The beginning of a name that is too long.
pub(super) fn shortened(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// How wide a text is about, in letters of that size: rather too wide than too narrow.
pub(super) fn width(text: &str, size: f64) -> f64 {
    // From there on, scripts are as wide as they are high.
    let letter = |it: char| if it < '\u{1100}' { 0.6 } else { 1.0 };
    text.chars().map(letter).sum::<f64>() * size
}
