//! `hsa-vmm info`: prints agents, pools, granules and features.

use crate::Exit;
use crate::arguments::{Common, Format};
use crate::screen::Screen;
use crate::table::table;
use clap::Args;
use hsa_vmm::agent::AgentKind;
use hsa_vmm::{Agent, Pool, Runtime};
use hsa_vmm_conformance::describe::{RuntimeDescription, describe, size};
use std::io::Write;

#[derive(Args, Debug)]
pub struct Info {
    #[command(flatten)]
    pub common: Common,
    /// The format of the output
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
}

pub fn run(args: &Info) -> anyhow::Result<Exit> {
    let runtime = args.common.runtime.open()?;
    let mut out = Screen::stdout();
    match args.format {
        Format::Json => {
            out.keep_utf8();
            serde_json::to_writer_pretty(&mut out, &describe(&runtime))?;
            writeln!(out)?;
        }
        Format::Table => {
            features(&mut out, &describe(&runtime).runtime)?;
            agents(&mut out, &runtime)?;
            pools(&mut out, &runtime)?;
            links(&mut out, &runtime)?;
        }
    }
    Ok(Exit::Success)
}

fn features(out: &mut Screen<'_>, runtime: &RuntimeDescription) -> anyhow::Result<()> {
    let path = runtime.path.as_ref().map(|path| path.display().to_string());
    let mut rows: Vec<(&str, String)> = path.map(|path| ("runtime", path)).into_iter().collect();
    rows.extend(runtime.facts().into_iter().filter_map(|fact| Some((fact.what, fact.value?))));
    let missing = runtime.missing_functions.as_ref().filter(|missing| !missing.is_empty());
    rows.extend(missing.map(|missing| ("not exported", missing.join(", "))));
    let quirks = runtime.quirks.iter().flatten();
    rows.extend(quirks.map(|quirk| ("works around", format!("{} ({})", quirk.name, quirk.issue))));
    for (name, value) in rows {
        writeln!(out, "{name:21} {value}")?;
    }
    writeln!(out)?;
    Ok(())
}

fn agents(out: &mut Screen<'_>, runtime: &Runtime) -> anyhow::Result<()> {
    let mut agents =
        table(&["agent", "kind", "name", "product", "NUMA", "PCI", "large BAR", "permissions"]);
    for agent in runtime.agents() {
        let pci = agent.pci.map(|pci| pci.to_string()).unwrap_or_default();
        let numa = agent.numa_node.map(|node| node.to_string()).unwrap_or_default();
        let large_bar = match (agent.kind(), agent.large_bar) {
            (AgentKind::Gpu, true) => "yes",
            (AgentKind::Gpu, false) => "no",
            _ => "",
        };
        agents.add_row(vec![
            number(agent),
            agent.kind().to_string(),
            agent.name().to_owned(),
            if agent.product == agent.name() { "" } else { &agent.product }.to_owned(),
            numa,
            pci,
            large_bar.to_owned(),
            agent.enforcement().to_string(),
        ]);
    }
    // Agent names and PCI addresses.
    agents.no_wrap([0, 5]);
    out.table(&agents)?;
    writeln!(out)?;
    Ok(())
}

fn pools(out: &mut Screen<'_>, runtime: &Runtime) -> anyhow::Result<()> {
    let mut pools = table(&[
        "agent",
        "pool",
        "flags",
        "size",
        "allocatable",
        "granule",
        "recommended",
        "handles",
    ]);
    for agent in runtime.agents() {
        for pool in &agent.pools {
            pools.add_row(row(agent, pool));
        }
    }
    out.table(&pools)?;
    writeln!(out)?;
    Ok(())
}

fn row(agent: &Agent, pool: &Pool) -> Vec<String> {
    let granule = |bytes: usize| if bytes == 0 { String::new() } else { size(bytes) };
    vec![
        number(agent),
        pool.segment.to_string(),
        pool.flags.names().collect::<Vec<_>>().join(", "),
        size(pool.size),
        if pool.allocatable { "yes" } else { "no" }.to_owned(),
        granule(pool.granule),
        granule(pool.recommended_granule),
        if pool.holds_handles() { "yes" } else { "" }.to_owned(),
    ]
}

fn links(out: &mut Screen<'_>, runtime: &Runtime) -> anyhow::Result<()> {
    let mut links = table(&["agent", "reaches", "by"]);
    for agent in runtime.agents() {
        for peer in &agent.peers {
            let by = if peer.reachable {
                let hops: Vec<_> = peer.links.iter().map(|link| link.kind.to_string()).collect();
                if hops.is_empty() { "(unknown)".to_owned() } else { hops.join(" + ") }
            } else {
                "not at all".to_owned()
            };
            links.add_row(vec![number(agent), peer.agent.to_string(), by]);
        }
    }
    Ok(out.table(&links)?)
}

fn number(agent: &Agent) -> String {
    agent.id().to_string()
}
