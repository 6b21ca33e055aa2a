//! Sandboxes: create, list, inspect, change, suspend, resume, remove.

use crate::Rel;
use crate::{DiskUsage, EndedRun, LiveRun, PastRun, PolicySource, Service, ServiceStatus};
use serde::Deserializer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use terms::Limits;
use utoipa::ToSchema;

/// A change of a sandbox. A field that is left out stays as it is; `null` takes it away: of `net` all rules, of `limits` all that were given. `publish` is a change
/// itself, and has no `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxChange {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub name: Option<Option<String>>,
    /// May be collected after so long, from now on.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub ttl_ms: Option<Option<u64>>,
    /// May be collected when unused for so long.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub idle_ms: Option<Option<u64>>,
    /// The network rules from now on, in place of all that there are. They can only take away, but for an operator.
    #[serde(default, deserialize_with = "or_none", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub net: Option<Vec<serde_json::Value>>,
    /// The limits from now on, in place of all that were given with it; those of its policy hold as well.
    #[serde(default, deserialize_with = "or_none", skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>, minimum = 0.01, maximum = 4096)]
    pub cpus: Option<Option<f64>>,
    /// The labels from now on, in place of all that there are.
    #[serde(default, deserialize_with = "or_none", skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Times out after so long, from now on.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 1000, maximum = 2_592_000_000_u64)]
    pub timeout_ms: Option<Option<u64>>,
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_timeout: Option<OnTimeout>,
    /// Ports of the host that lead inside as long as it is live. An operator of the host adds some; who runs commands can remove them.
    #[serde(default, deserialize_with = "stated", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub publish: Option<PublishChange>,
}

/// Ports to publish or to close, `[ADDRESS:]HOST:GUEST` each; 127.0.0.1 where no address is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PublishChange {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Connections to them are broken off. The port inside can be left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxChanged {
    pub id: String,
    pub version: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_at_ms: Option<u64>,
    /// Counts changes of its network rules and limits.
    pub revision: u64,
    /// Ports of the host that lead inside.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub publish: Vec<String>,
    /// True if the sandbox is live; the change then applies to running commands, too.
    pub live: bool,
    /// False when it was so already.
    pub changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxRemoved {
    pub id: String,
    /// False when it was removed already.
    pub changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ended: Vec<EndedRun>,
    pub freed: DiskUsage,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxCreated {
    pub id: String,
    pub version: u64,
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// An earlier request under the same key made it.
    pub existed: bool,
    /// True if a warm spare was used; the sandbox is then live.
    #[serde(default)]
    pub warm: bool,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxStateChanged {
    pub id: String,
    pub version: u64,
    pub state: Lifecycle,
    /// False when it was so already.
    pub changed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ended: Vec<EndedRun>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxSummary {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub state: SandboxState,
    /// A keeper holds it: commands start in it at once, several at a time. Also true while that keeper is `silent`.
    #[serde(default)]
    pub live: bool,
    /// Reason for which it lost its keeper.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<String>,
    /// Which keeper did not answer and for how long it was waited for, where its state is `silent`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
    #[schema(value_type = String)]
    pub base: PathBuf,
    pub version: u64,
    pub created_ms: u64,
    pub used_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub metadata: BTreeMap<String, String>,
    /// Time of its timeout.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_at_ms: Option<u64>,
    /// Reason for which `gc` would collect it now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expired: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// Command of its last run, where details were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub command: Vec<String>,
    /// Changes to review, where details were asked for and they can be counted now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pending: Option<PendingChanges>,
    /// Disk usage of its layers, where details were asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disk: Option<DiskUsage>,
}

/// Condition of the directory that a sandbox covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BaseState {
    Present,
    Gone,
    /// Another directory has its name.
    Replaced,
}

/// A sandbox with its state, usage, runs and related records.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxDetails {
    pub id: String,
    pub version: u64,
    pub standing: SandboxState,
    /// A keeper holds it: commands start in it at once, several at a time. Also true while that keeper is `silent`.
    #[serde(default)]
    pub live: bool,
    /// Reason for which it lost its keeper.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<String>,
    /// Which keeper did not answer and for how long it was waited for, where it stands as `silent`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub silent: Option<String>,
    #[serde(flatten)]
    pub sandbox: Sandbox,
    pub base_is: BaseState,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expired: Option<String>,
    pub holds_reservations: bool,
    pub running: Vec<LiveRun>,
    /// State of its services.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub services_now: Vec<ServiceStatus>,
    /// Number of changes against the base, counted without reading files unless the base drifted; absent if it cannot be counted now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pending: Option<PendingChanges>,
    /// Disk usage of its layers.
    pub disk: DiskUsage,
    pub layer_sizes: BTreeMap<String, LayerUsage>,
    /// Ids of records that refer to it, by kind: snapshots, batches and others.
    pub records: BTreeMap<String, Vec<String>>,
    pub last_runs: Vec<PastRun>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PendingChanges {
    /// Changes, as a diff counts them.
    pub changes: u64,
    /// Files that a diff withholds.
    #[serde(default)]
    pub withheld: u64,
    /// Of these, on files that were changed in the base since. One that was only touched counts if its former content is unknown.
    pub drifted: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LayerUsage {
    #[serde(flatten)]
    pub size: DiskUsage,
    pub shared: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxSuspended {
    pub id: String,
    pub version: u64,
    pub reached: Tier,
    /// False when it was so already.
    pub changed: bool,
    /// Mechanism that froze it: "cgroup" or "signals".
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub with: Option<String>,
    /// Bytes of its memory that the kernel took back; none where it cannot be asked to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub paged_out: Option<u64>,
    /// Runs that were ended for it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ended: Vec<EndedRun>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxResumed {
    pub id: String,
    pub version: u64,
    /// Tier at which it was suspended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub was: Option<Tier>,
    /// False when it was not suspended.
    pub changed: bool,
    /// Runs of services that were started for it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub started: Vec<String>,
}

/// The way in which a workspace keeps changes apart from its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// Layers of overlayfs, mounted inside the enclosure.
    Overlay,
    /// A copy whose bytes are shared until they are changed.
    Reflink,
    Copy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Commands can be run in it.
    Active,
    /// Only looked at and reviewed until it is started again.
    Stopped,
}

/// Depth of a suspension. A tier keeps whatever the tiers below it keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Ends the processes and keeps the workspace; services start again on resume.
    Hibernated,
    /// Stops the processes; they continue on resume.
    Frozen,
}

/// What a timeout does to a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// Ends its commands and stops it; its changes stay.
    #[default]
    Kill,
    /// Freezes its processes; a new command or `resume` wakes it, for another `timeout_ms`.
    Suspend,
    /// Removes it with its changes.
    Remove,
}

impl OnTimeout {
    pub fn is_default(&self) -> bool {
        *self == OnTimeout::default()
    }
}

/// Terms of a reservation of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", default)]
pub struct Sharing {
    /// Permits other sandboxes with this setting to reserve the same paths.
    pub shared: bool,
    /// Let go by `stop` already, not only by `rm`.
    pub until_stop: bool,
}

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Commands can be run in it, and none is.
    Active,
    /// A command runs in it.
    Running,
    /// Stopped: no command runs before it is started.
    Stopped,
    /// Stopped, and its last command has not ended yet.
    Stopping,
    /// Only its records are left.
    Removed,
    /// The keeper and its commands died. New commands can be run.
    Lost,
    /// The processes are stopped.
    Frozen,
    /// The processes were ended; services start again on resume.
    Hibernated,
    /// A warm spare of a template, without an owner.
    Ready,
    /// The keeper lives and did not answer in time, so its commands are unknown. It can be stopped, or removed by force.
    Silent,
}

impl SandboxState {
    pub const ALL: [SandboxState; 10] = [
        SandboxState::Active,
        SandboxState::Running,
        SandboxState::Stopped,
        SandboxState::Stopping,
        SandboxState::Removed,
        SandboxState::Lost,
        SandboxState::Frozen,
        SandboxState::Hibernated,
        SandboxState::Ready,
        SandboxState::Silent,
    ];

    pub fn name(self) -> &'static str {
        match self {
            SandboxState::Active => "active",
            SandboxState::Running => "running",
            SandboxState::Stopped => "stopped",
            SandboxState::Stopping => "stopping",
            SandboxState::Removed => "removed",
            SandboxState::Lost => "lost",
            SandboxState::Frozen => "frozen",
            SandboxState::Hibernated => "hibernated",
            SandboxState::Ready => "ready",
            SandboxState::Silent => "silent",
        }
    }
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    pub sandboxes: Vec<SandboxSummary>,
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
    pub policies: Vec<PolicySource>,
    pub limits: Limits,
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
    /// May be collected after so long.
    pub ttl_ms: Option<u64>,
    /// May be collected when unused for so long.
    pub idle_ms: Option<u64>,
    /// Labels of the client's own, by which a list can be filtered: at most 64, of at most 128 bytes with values of at most 1024.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Variables that its commands inherit: at most 256 with 64 KiB. Everybody who may look at the sandbox sees them; secrets have `secrets`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Times out after so long, as `on_timeout` says, unless the time is set anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 2_592_000_000_u64)]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "OnTimeout::is_default")]
    pub on_timeout: OnTimeout,
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

/// A sandbox as its record has it. Ids are `sbx_…`; times are milliseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// The token that made it, where it is one of those that have only what they made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<String>,
    /// The directory it covers: canonical, UTF-8.
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// Device and inode of the base, so that another directory under its name is noticed.
    #[schema(value_type = Vec<u64>)]
    pub base_id: (u64, u64),
    /// The directory was made for it, and goes when nothing stands on it any more.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub own_base: bool,
    pub driver: Driver,
    /// Ids of layers from the bottom up; the last is written to by runs.
    pub layers: Vec<String>,
    /// Creation time of its top layer: seconds and nanoseconds.
    #[schema(value_type = Vec<i64>)]
    pub since: (i64, u32),
    pub state: Lifecycle,
    /// The whole policy document that its runs are made under, as JSON.
    pub policy: serde_json::Value,
    /// Counts how often its network rules or limits were changed, from 1 on.
    #[serde(default = "first")]
    pub revision: u64,
    /// The most that its policy may be changed to by those who may not have everything: what it was made with, once it was changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ceiling: Option<serde_json::Value>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpus: Option<f64>,
    #[serde(default)]
    #[schema(value_type = Vec<serde_json::Value>)]
    pub reserve: Vec<Rel>,
    #[serde(default)]
    pub sharing: Sharing,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub template: Option<String>,
    /// The commit that the base stood on when the sandbox was made or last rebased.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_head: Option<String>,
    pub created_ms: u64,
    /// Time of the last run or change.
    pub used_ms: u64,
    /// Time at which it may be collected; absent for never.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    /// Collected when unused for so long.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_ms: Option<u64>,
    /// Stays live between start and stop, also while no command runs.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stays: bool,
    /// Commands that run in it as long as it is live.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub services: Vec<Service>,
    /// Ports of the host that lead to ports inside as long as it is live: `ADDRESS:HOST:GUEST`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub publish: Vec<String>,
    /// Sources of secrets that are not stored under their own name: `NAME=store:OTHER`, or `NAME=brought:run` for values
    /// that the caller of a command brings. Never a value.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub secrets: Vec<String>,
    /// Size limit of the network event log, in bytes; absent if no log is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub events_max: Option<u64>,
    /// Refused reads of its commands are reported, too.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub report_reads: bool,
    /// Timeout of its questions, if it is not the default.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ask_timeout_ms: Option<u64>,
    /// Tier at which it was suspended and its processes ended; absent once it is resumed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub suspended: Option<Tier>,
    /// Labels of its client.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub metadata: BTreeMap<String, String>,
    /// Variables that its commands inherit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub env: BTreeMap<String, String>,
    /// Time from its start, or from the last change of this, to its timeout.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_ms: Option<u64>,
    /// Time of its timeout; in the past, once it was timed out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_at_ms: Option<u64>,
    #[serde(skip_serializing_if = "OnTimeout::is_default", default)]
    pub on_timeout: OnTimeout,
    /// Notes for the reviewer: "found after a crash", "the machine went down while it ran".
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

fn first() -> u64 {
    1
}

fn frozen() -> Tier {
    Tier::Frozen
}

/// `null` is something else than nothing.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// `null` is none of them.
fn or_none<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from).map(|given| Some(given.unwrap_or_default()))
}

fn stated<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}
