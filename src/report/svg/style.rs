//! How it looks.

/// The width of a picture.
pub(super) const WIDTH: f64 = 1000.0;
/// Where bars begin, right of the names of lanes.
pub(super) const LEFT: f64 = 64.0;
/// Where bars end.
pub(super) const RIGHT: f64 = WIDTH - 16.0;
/// How many GPUs have a colour of their own.
const COLOURS: usize = 8;

/// The class of an agent's memory.
pub(super) fn owner(agent: Option<usize>, is_gpu: bool) -> String {
    match agent {
        Some(agent) if is_gpu => format!("gpu{}", agent % COLOURS),
        Some(_) => "cpu".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// The class of an agent's lane.
pub(super) fn lane(agent: usize, is_gpu: bool) -> String {
    format!("lane-{}", owner(Some(agent), is_gpu))
}

/// Not with CSS's variables, which not everything that draws SVG knows.
pub(super) const CSS: &str = "
text{font:11px ui-sans-serif,system-ui,sans-serif;fill:#1f2328}
.head{font-size:16px;font-weight:600}.name{font-size:13px;font-weight:600}
.mono{font:12px ui-monospace,monospace}.small{font-size:9.5px;fill:#59636e}.quiet{fill:#59636e}
.tick{fill:none;stroke:#1f2328;stroke-opacity:.25;pointer-events:none}
.on{pointer-events:none}.ground{fill:#fff}
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
text{fill:#e6edf3}.small,.quiet{fill:#9da7b3}.ground{fill:#0d1117}
.gpu0{fill:#6b4712}.gpu1{fill:#1d4e77}.gpu2{fill:#64305f}.gpu3{fill:#245a2f}
.gpu4{fill:#433b80}.gpu5{fill:#783128}.gpu6{fill:#17544e}.gpu7{fill:#565012}
.cpu{fill:#3d444d;stroke:#9198a1}.unknown{fill:#2b2a26}
.hole{stroke:#59636e}.break{stroke:#9da7b3}.lost{fill:#4a1d1d;stroke:#f85149}
.lane-cpu{fill:#9198a1}.lane-cpu.outline{fill:none;stroke:#9198a1}.tick{stroke:#e6edf3}
}
";
