//! Documents about sandboxes: create, list, suspend, collect.

use super::PolicyOf;
use node::gc::Collected;
use node::list::Row;
use node::sandbox::{Driver, Service, Sharing, Tier};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use terms::Limits;
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    pub sandboxes: Vec<Row>,
    /// The value of `after` for the next page; none on the last page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

/// A request for a new sandbox.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxCreate {
    /// The directory to cover, by its absolute path; an empty one of its own where none is given.
    #[schema(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    pub name: Option<String>,
    /// A template to begin from.
    pub template: Option<String>,
    /// Built-in policies by name, or whole documents; several are merged, and `default` is meant where there are none.
    pub policies: Vec<PolicyOf>,
    pub limits: Limits,
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
    /// May be collected after so long.
    pub ttl_ms: Option<u64>,
    /// May be collected when unused for so long.
    pub idle_ms: Option<u64>,
    /// Paths below the directory that no other sandbox may reserve meanwhile.
    pub reserve: Vec<String>,
    pub sharing: Sharing,
    /// The driver that keeps changes apart; the best that works where none is given.
    pub driver: Option<Driver>,
    /// Commands that run as long as it is live.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Makes the directory read-only inside.
    pub read_only: bool,
    /// Sources of secrets of the policies that are not kept under their own name: `NAME=store:OTHER`, for operators only, or
    /// `NAME=brought:run` with the runs themselves.
    pub secrets: Vec<String>,
    /// The largest size of the log of its network events in bytes [64 MiB]; `network/events` reads it.
    pub events_max: Option<u64>,
    /// Refused reads of its commands are reported, too; every open then waits for the keeper.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub report_reads: bool,
    /// The time that its questions wait for an answer, in milliseconds [60000].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 600_000)]
    pub ask_timeout_ms: Option<u64>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxSuspend {
    /// The tier to reach; the answer has the one that was reached.
    #[serde(default = "frozen")]
    pub tier: Tier,
    /// The time that commands get to end where they must, in milliseconds [default: 10000].
    pub grace_ms: Option<u64>,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct Swept {
    pub dry_run: bool,
    #[serde(flatten)]
    pub collected: Collected,
}

fn frozen() -> Tier {
    Tier::Frozen
}
