//! Compares the agents of two reports: their properties, pools and links.

use super::{Change, changes};
use crate::describe::{AgentDescription, Fact, PERMISSIONS, labels};
use serde::Serialize;

/// The name of the change ([`Change::what`]) if an agent is in one report only.
pub(super) const AGENT: &str = "agent";

/// A difference, and all agents with that difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentChange {
    /// The labels of the agents, such as `GPU 0`.
    pub agents: Vec<String>,
    /// The difference. If the agent is in one report only, the name of the difference is `agent`.
    #[serde(flatten)]
    pub change: Change,
}

/// The properties of an agent, its pools and its links.
struct AgentFacts {
    label: String,
    /// The properties of the agent itself.
    own: Vec<Fact>,
    /// The name and properties of each pool and link.
    parts: Vec<(String, Vec<Fact>)>,
}

/// Returns the differences of the agents, in the order of report A. Agents that are only in report B come last.
/// Compares permissions only if `same_kind` is true: a report of `info` says which permissions can be enforced, a
/// report of `conform` says which are enforced.
pub(super) fn compare(
    a: &[AgentDescription],
    b: &[AgentDescription],
    same_kind: bool,
) -> Vec<AgentChange> {
    let (mut a, mut b) = (facts_of(a), facts_of(b));
    if !same_kind {
        a.iter_mut().chain(&mut b).for_each(|it| it.own.retain(|fact| fact.name != PERMISSIONS));
    }
    let mut differences: Vec<AgentChange> = Vec::new();
    let mut add = |label: &str, change: Change| match differences
        .iter_mut()
        .find(|other| other.change == change)
    {
        Some(other) => other.agents.push(label.to_owned()),
        None => differences.push(AgentChange { agents: vec![label.to_owned()], change }),
    };
    for old in &a {
        match b.iter().find(|new| new.label == old.label) {
            Some(new) => {
                compare_agent(old, new).into_iter().for_each(|change| add(&old.label, change))
            }
            None => add(&old.label, one_sided(AGENT, Some(&old.own), None)),
        }
    }
    for new in b.iter().filter(|new| !a.iter().any(|old| old.label == new.label)) {
        add(&new.label, one_sided(AGENT, None, Some(&new.own)));
    }
    differences
}

/// Collects the properties of all agents. Numbers pools and links with the same name.
fn facts_of(agents: &[AgentDescription]) -> Vec<AgentFacts> {
    let labels = labels(agents);
    let collect = |(agent, label): (&AgentDescription, &String)| {
        let pools = agent.pools.iter().map(|pool| (format!("pool {}", pool.label()), pool.facts()));
        let peers = agent.peers.iter().filter_map(|peer| {
            Some((format!("link to {}", labels.get(peer.agent)?), peer.facts()))
        });
        let mut names: Vec<String> = Vec::new();
        let numbered = |(name, facts): (String, Vec<Fact>)| {
            // Number pools with the same name, so that the comparison matches them by their order.
            let earlier = names.iter().filter(|other| **other == name).count();
            names.push(name.clone());
            (if earlier == 0 { name } else { format!("{name} ({})", earlier + 1) }, facts)
        };
        let parts = pools.chain(peers).map(numbered).collect();
        AgentFacts { label: label.clone(), own: agent.facts(), parts }
    };
    agents.iter().zip(&labels).map(collect).collect()
}

/// Returns the differences of one agent, its pools and its links.
fn compare_agent(a: &AgentFacts, b: &AgentFacts) -> Vec<Change> {
    let mut changed = changes(&a.own, &b.own);
    let find = |parts: &'_ [(String, Vec<Fact>)], name: &str| -> Option<Vec<Fact>> {
        parts.iter().find(|(other, _)| other == name).map(|(_, facts)| facts.clone())
    };
    for (name, old) in &a.parts {
        match find(&b.parts, name) {
            Some(new) => changed.extend(
                changes(old, &new)
                    .into_iter()
                    .map(|change| Change { what: format!("{name}: {}", change.what), ..change }),
            ),
            None => changed.push(one_sided(name, Some(old), None)),
        }
    }
    let new = b.parts.iter().filter(|(name, _)| find(&a.parts, name).is_none());
    changed.extend(new.map(|(name, new)| one_sided(name, None, Some(new))));
    changed
}

/// Returns the change for an agent, pool or link that only one report has. The change's value is the first property of
/// the agent, pool or link.
fn one_sided(what: &str, a: Option<&[Fact]>, b: Option<&[Fact]>) -> Change {
    let first = |facts: Option<&[Fact]>| {
        facts.map(|facts| facts.first().and_then(|fact| fact.value.clone()).unwrap_or_default())
    };
    Change { what: what.to_owned(), a: first(a), b: first(b) }
}
