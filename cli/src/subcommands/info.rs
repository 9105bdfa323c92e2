//! `hsa-vmm info`: prints agents, pools, granules and features.

use crate::Exit;
use crate::arguments::{CommonOptions, Format};
use crate::output::Output;
use crate::provenance::Privacy;
use crate::screen::{Screen, note};
use crate::table::table;
use clap::Args;
use hsa_vmm::agent::AgentKind;
use hsa_vmm::runtime::Origin;
use hsa_vmm::{Agent, Pool, Runtime};
use hsa_vmm_conformance::KernelConfiguration;
use hsa_vmm_conformance::describe::{
    AgentDescription, Description, describe_probed, format_size, labels,
};
use std::io::Write;

#[derive(Args, Debug)]
pub struct Info {
    #[command(flatten)]
    pub common: CommonOptions,
    /// The format of the output
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    #[command(flatten)]
    pub output: Output,
}

pub fn run(args: &Info) -> anyhow::Result<Exit> {
    args.output.check_writable()?;
    let runtime = args.common.runtime.open()?;
    args.output.write(|out| match args.format {
        Format::Json => {
            out.keep_utf8();
            // Users send this output in bug reports, so the names of the user and of the home folder are replaced.
            let text = serde_json::to_string_pretty(&describe_probed(&runtime))?;
            Ok(writeln!(out, "{}", Privacy::default().clean_text(&text))?)
        }
        Format::Table => {
            let mut description = describe_probed(&runtime);
            if runtime.info().origin == Some(Origin::Program) {
                let origin = match args.common.runtime.outer_choice() {
                    Some(outer) => format!("`{outer}` names its release"),
                    None => "--runtime or HSA_VMM_RUNTIME names it".to_owned(),
                };
                description.runtime.origin = Some(origin);
            }
            print_features(out, &description)?;
            print_agents(out, &runtime, &description.agents)?;
            print_pools(out, &runtime)?;
            print_links(out, &runtime)
        }
    })?;
    Ok(Exit::Success)
}

fn print_features(out: &mut Screen<'_>, description: &Description) -> anyhow::Result<()> {
    let runtime = &description.runtime;
    let path = runtime.path.as_ref().map(|path| path.display().to_string());
    let mut rows: Vec<(&str, String)> = path.map(|path| ("runtime", path)).into_iter().collect();
    rows.extend(runtime.origin.clone().map(|origin| ("chosen because", origin)));
    rows.extend(runtime.facts().into_iter().filter_map(|fact| Some((fact.name, fact.value?))));
    let missing = runtime.missing_functions.as_ref().filter(|missing| !missing.is_empty());
    rows.extend(missing.map(|missing| ("not exported", missing.join(", "))));
    let quirks = runtime.quirks.iter().flatten();
    rows.extend(quirks.map(|quirk| ("works around", format!("{} ({})", quirk.name, quirk.issue))));
    rows.extend(page_tables(&description.agents));
    let others = runtime.other_libraries();
    rows.extend(others.iter().map(|library| ("also loaded", library.to_string())));
    for (name, value) in rows {
        writeln!(out, "{name:21} {value}")?;
    }
    if !others.is_empty() {
        note!(
            "warning: this process has loaded {} HSA libraries, which can disturb each other; \
             see `also loaded`",
            others.len() + 1
        );
    }
    let gpus = description.agents.iter().filter(|agent| agent.kind == "gpu").count();
    let kernel = runtime.kernel.iter().filter(|_| gpus > 1);
    for warning in kernel.flat_map(KernelConfiguration::warnings) {
        note!("warning: {warning}");
    }
    writeln!(out)?;
    Ok(())
}

/// Returns a row for each GPU, or one row if the rows of all GPUs are equal. A row says whether the library can control
/// the GPU's page table.
fn page_tables(agents: &[AgentDescription]) -> Vec<(&'static str, String)> {
    let sentence = |reason: &str| match reason {
        "" => "can be controlled, which enforces permissions (conform --page-tables)".to_owned(),
        reason => format!("cannot be controlled: {reason}"),
    };
    let labels = labels(agents);
    let tested = agents.iter().zip(&labels).filter_map(|(agent, label)| {
        agent.page_table_failure.as_ref().map(|reason| (label, sentence(reason)))
    });
    let tested: Vec<_> = tested.collect();
    match tested.as_slice() {
        [(_, first), rest @ ..] if rest.iter().all(|(_, other)| other == first) => {
            vec![("page tables", first.clone())]
        }
        each => each.iter().map(|(gpu, it)| ("page tables", format!("{gpu}: {it}"))).collect(),
    }
}

fn print_agents(
    out: &mut Screen<'_>,
    runtime: &Runtime,
    described: &[AgentDescription],
) -> anyhow::Result<()> {
    let mut agents =
        table(&["agent", "kind", "name", "product", "NUMA", "PCI", "large BAR", "permissions"]);
    for (agent, described) in runtime.agents().iter().zip(described) {
        let pci = agent.pci.map(|pci| pci.to_string()).unwrap_or_default();
        let numa = agent.numa_node.map(|node| node.to_string()).unwrap_or_default();
        let large_bar = match (agent.kind(), agent.large_bar) {
            (AgentKind::Gpu, true) => "yes",
            (AgentKind::Gpu, false) => "no",
            _ => "",
        };
        agents.add_row(vec![
            agent_id(agent),
            agent.kind().to_string(),
            agent.name().to_owned(),
            if agent.product == agent.name() { "" } else { &agent.product }.to_owned(),
            numa,
            pci,
            large_bar.to_owned(),
            permissions(described),
        ]);
    }
    // The columns of agents and PCI addresses.
    agents.no_wrap([0, 5]);
    out.write_table(&agents)?;
    writeln!(out)?;
    Ok(())
}

/// Describes whether an agent's permissions are enforced. Only a `Vmm` that controls page tables enforces the
/// permissions of a GPU.
fn permissions(agent: &AgentDescription) -> String {
    match (agent.page_table_failure.as_deref(), agent.enforcement.as_str()) {
        (Some(""), "enforced") => "enforced with page tables".to_owned(),
        (_, enforcement) => enforcement.to_owned(),
    }
}

fn print_pools(out: &mut Screen<'_>, runtime: &Runtime) -> anyhow::Result<()> {
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
            pools.add_row(pool_row(agent, pool));
        }
    }
    out.write_table(&pools)?;
    writeln!(out)?;
    Ok(())
}

fn pool_row(agent: &Agent, pool: &Pool) -> Vec<String> {
    let granule = |bytes: usize| if bytes == 0 { String::new() } else { format_size(bytes) };
    vec![
        agent_id(agent),
        pool.segment.to_string(),
        pool.flags.names().collect::<Vec<_>>().join(", "),
        format_size(pool.size),
        if pool.allocatable { "yes" } else { "no" }.to_owned(),
        granule(pool.granule),
        granule(pool.recommended_granule),
        if pool.supports_handles() { "yes" } else { "" }.to_owned(),
    ]
}

fn print_links(out: &mut Screen<'_>, runtime: &Runtime) -> anyhow::Result<()> {
    let mut links = table(&["agent", "peer", "links"]);
    for agent in runtime.agents() {
        for peer in &agent.peers {
            let path = if peer.reachable {
                let hops: Vec<_> = peer.links.iter().map(|link| link.kind.to_string()).collect();
                if hops.is_empty() { "(unknown)".to_owned() } else { hops.join(" + ") }
            } else {
                "not reachable".to_owned()
            };
            links.add_row(vec![agent_id(agent), peer.agent.to_string(), path]);
        }
    }
    Ok(out.write_table(&links)?)
}

fn agent_id(agent: &Agent) -> String {
    agent.id().to_string()
}
