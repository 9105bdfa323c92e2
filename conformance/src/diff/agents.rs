//! Compares the agents of two reports: their properties, pools and links.

use super::{Change, changes};
use crate::describe::{AgentDescription, Fact, labels};
use serde::Serialize;

/// The name of the difference if the agent itself is in one report only.
pub(super) const AGENT: &str = "agent";

/// A difference of one agent, or of several with the same difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentChange {
    /// The agents: `GPU 0`.
    pub agents: Vec<String>,
    /// The difference; `agent` if the agent is in one report only.
    #[serde(flatten)]
    pub change: Change,
}

/// An agent with its parts, each of which may be missing.
struct Described {
    label: String,
    own: Vec<Fact>,
    parts: Vec<(String, Vec<Fact>)>,
}

pub(super) fn compare(a: &[AgentDescription], b: &[AgentDescription]) -> Vec<AgentChange> {
    let (a, b) = (described(a), described(b));
    let mut all: Vec<AgentChange> = Vec::new();
    let mut add =
        |label: &str, change: Change| match all.iter_mut().find(|other| other.change == change) {
            Some(other) => other.agents.push(label.to_owned()),
            None => all.push(AgentChange { agents: vec![label.to_owned()], change }),
        };
    for old in &a {
        match b.iter().find(|new| new.label == old.label) {
            Some(new) => agent(old, new).into_iter().for_each(|change| add(&old.label, change)),
            None => add(&old.label, absence(AGENT, Some(&old.own), None)),
        }
    }
    for new in b.iter().filter(|new| !a.iter().any(|old| old.label == new.label)) {
        add(&new.label, absence(AGENT, None, Some(&new.own)));
    }
    all
}

fn described(agents: &[AgentDescription]) -> Vec<Described> {
    let labels = labels(agents);
    let describe = |(agent, label): (&AgentDescription, &String)| {
        let pools = agent.pools.iter().map(|pool| (format!("pool {}", pool.label()), pool.facts()));
        let peers = agent.peers.iter().filter_map(|peer| {
            Some((format!("link to {}", labels.get(peer.agent)?), peer.facts()))
        });
        let mut seen: Vec<String> = Vec::new();
        let number = |(name, facts): (String, Vec<Fact>)| {
            // Pools of the same kind are matched by order.
            let before = seen.iter().filter(|other| **other == name).count();
            seen.push(name.clone());
            (if before == 0 { name } else { format!("{name} ({})", before + 1) }, facts)
        };
        let parts = pools.chain(peers).map(number).collect();
        Described { label: label.clone(), own: agent.facts(), parts }
    };
    agents.iter().zip(&labels).map(describe).collect()
}

fn agent(a: &Described, b: &Described) -> Vec<Change> {
    let mut all = changes(&a.own, &b.own);
    let find = |parts: &'_ [(String, Vec<Fact>)], name: &str| -> Option<Vec<Fact>> {
        parts.iter().find(|(other, _)| other == name).map(|(_, facts)| facts.clone())
    };
    for (name, old) in &a.parts {
        match find(&b.parts, name) {
            Some(new) => all.extend(
                changes(old, &new)
                    .into_iter()
                    .map(|change| Change { what: format!("{name}: {}", change.what), ..change }),
            ),
            None => all.push(absence(name, Some(old), None)),
        }
    }
    let new = b.parts.iter().filter(|(name, _)| find(&a.parts, name).is_none());
    all.extend(new.map(|(name, new)| absence(name, None, Some(new))));
    all
}

/// Describes a part that is in one report only, with its first property.
fn absence(what: &str, a: Option<&[Fact]>, b: Option<&[Fact]>) -> Change {
    let first = |facts: Option<&[Fact]>| {
        facts.map(|facts| facts.first().and_then(|fact| fact.value.clone()).unwrap_or_default())
    };
    Change { what: what.to_owned(), a: first(a), b: first(b) }
}
