//! Draws a chart of cost against live mappings.

use anyhow::anyhow;
use hsa_vmm_bench::{Level, Measurement, Operation};
use plotters::prelude::*;

const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x7f, 0x7f, 0x7f),
];

/// The operations whose cost can depend on the number of mappings.
pub const OPERATIONS: [Operation; 7] = [
    Operation::Reserve,
    Operation::Map,
    Operation::SetAccess,
    Operation::GetAccess,
    Operation::Retain,
    Operation::Unmap,
    Operation::Free,
];

/// The start of the axis of costs, in nanoseconds. Smaller costs are drawn as this cost.
const MIN_COST: f64 = 10.0;

/// The title of a chart of results with level `raw`.
const TITLE: &str = "time that Vmm adds to the raw call, by number of live mappings";
/// The title of a chart of results without level `raw`.
const TITLE_WITHOUT_RAW: &str = "time of a call of Vmm, by number of live mappings";
/// The style sheet for dark mode. Its rules override the colours in the elements' attributes.
const DARK: &str = "@media (prefers-color-scheme:dark){text{fill:#e6edf3}\
    [fill=\"#FFFFFF\"]{fill:#0d1117}[stroke=\"#000000\"]{stroke:#e6edf3}}";
/// The left end of the legend, to the right of the chart.
const LEGEND_LEFT: i32 = 636;

/// Draws the time that `Vmm` adds to the raw call. If the raw call was not measured, draws the time of `Vmm`.
pub fn draw(results: &[Measurement]) -> anyhow::Result<String> {
    let cost = |result: &Measurement| result.over_raw_ns.unwrap_or(result.median_ns).max(MIN_COST);
    let curves: Vec<(Operation, Vec<(f64, f64)>)> = OPERATIONS
        .into_iter()
        .map(|operation| {
            let is_on_curve =
                |result: &&Measurement| result.operation == operation && result.level == Level::Vmm;
            let point = |result: &Measurement| (result.live_mappings as f64, cost(result));
            (operation, results.iter().filter(is_on_curve).map(point).collect())
        })
        .filter(|(_, points): &(_, Vec<_>)| !points.is_empty())
        .collect();
    let points = || curves.iter().flat_map(|(_, points)| points);
    let max_live = points().map(|point| point.0).fold(10.0, f64::max);
    let has_raw = results.iter().any(|result| result.over_raw_ns.is_some());
    let title = if has_raw { TITLE } else { TITLE_WITHOUT_RAW };
    let max_cost = points().map(|point| point.1).fold(100.0, f64::max);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (760, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(14)
            // The space of the legend.
            .margin_right(150)
            .caption(title, ("sans-serif", 16))
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(
                (1.0..max_live).log_scale(),
                (MIN_COST..max_cost * 1.3).log_scale(),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", 15))
            .x_desc("live mappings")
            .y_desc("nanoseconds")
            .x_label_formatter(&|count| format!("{count:.0}"))
            .y_label_formatter(&|cost| format!("{cost:.0}"))
            .draw()?;
        let mut legend_y = 52;
        for ((operation, points), colour) in curves.iter().zip(COLOURS) {
            let line = ShapeStyle::from(colour).stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), line).point_size(3))
                .map_err(|error| anyhow!("{error}"))?;
            let sample = [(LEGEND_LEFT, legend_y), (LEGEND_LEFT + 16, legend_y)];
            area.draw(&PathElement::new(sample, line))?;
            let start = (LEGEND_LEFT + 22, legend_y - 6);
            area.draw(&Text::new(operation.name(), start, ("sans-serif", 15)))?;
            legend_y += 20;
        }
        area.present()?;
    }
    Ok(with_title_and_style(&text, title) + "\n")
}

/// Adds the title, for screen readers, and the style sheet to a picture.
fn with_title_and_style(svg: &str, title: &str) -> String {
    let svg = svg.replacen("<svg ", "<svg role=\"img\" ", 1);
    // The first `>` ends the start tag of the picture.
    svg.replacen('>', &format!(">\n<title>{title}</title>\n<style>{DARK}</style>"), 1)
}
