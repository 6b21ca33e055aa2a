//! Sandboxes: create, list, inspect, change, suspend, resume, remove.

use crate::Rel;
use crate::{DiskUsage, EndedRun, LiveRun, PastRun, PolicySource, Service, ServiceStatus};
use serde::Deserializer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use terms::Limits;
use utoipa::ToSchema;

/// A change of a sandbox. An absent field stays unchanged; `null` removes the value: all rules of `net`, all given
/// limits. `publish` accepts no `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxChange {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub name: Option<Option<String>>,
    /// Time from now after which it may be collected.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub ttl_ms: Option<Option<u64>>,
    /// Time without use after which it may be collected.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub idle_ms: Option<Option<u64>>,
    /// New network rules, which replace all rules. Only an operator can allow more than before.
    #[serde(default, deserialize_with = "or_none", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub net: Option<Vec<serde_json::Value>>,
    /// New limits, which replace all given ones; those of its policy still apply.
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
    /// Ports to close, with their connections. The port inside can be left out.
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
    /// Ports of the host that are forwarded inside.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub publish: Vec<String>,
    /// True if the sandbox is live; the change then applies to running commands, too.
    pub live: bool,
    /// False if nothing had to be changed.
    pub changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SandboxRemoved {
    pub id: String,
    /// False if it was removed already.
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
    /// An earlier request under the same key created it.
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
    /// False if nothing had to be changed.
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
    /// A keeper holds it: commands start at once, several at a time. Also true while that keeper is `silent`.
    #[serde(default)]
    pub live: bool,
    /// Reason why it lost its keeper.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<String>,
    /// The keeper that did not respond, and the time waited, if its state is `silent`.
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
    /// Command of its last run, if details were requested.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub command: Vec<String>,
    /// Changes to review, if details were requested and they can be counted now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pending: Option<PendingChanges>,
    /// Disk usage of its layers, if details were requested.
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
    /// A keeper holds it: commands start at once, several at a time. Also true while that keeper is `silent`.
    #[serde(default)]
    pub live: bool,
    /// Reason why it lost its keeper.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost: Option<String>,
    /// The keeper that did not respond, and the time waited, if its state is `silent`.
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
    /// Number of changes against the base, counted without reading files unless the base drifted; absent if it
    /// cannot be counted now.
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
    /// Number of changes in the diff.
    pub changes: u64,
    /// Number of files that the diff withholds.
    #[serde(default)]
    pub withheld: u64,
    /// Number of these whose file also changed in the base. A file that was only touched counts if its former content is unknown.
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
    /// False if nothing had to be changed.
    pub changed: bool,
    /// Mechanism that froze it: "cgroup" or "signals".
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub with: Option<String>,
    /// Bytes of its memory that the kernel reclaimed; absent if it cannot.
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
    /// False if it was not suspended.
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

/// Depth of a suspension. A tier keeps everything that the tiers below it keep.
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
    /// True if `stop` ends the reservation, not only `rm`.
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
    /// Value of `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
}

/// A request for a new sandbox.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxCreate {
    /// Absolute path of the directory to cover; without one, the sandbox gets an empty directory of its own.
    #[schema(value_type = Option<String>)]
    pub dir: Option<PathBuf>,
    pub name: Option<String>,
    /// Template to create it from.
    pub template: Option<String>,
    /// Built-in policies by name, or documents; several are merged [default: `default`].
    pub policies: Vec<PolicySource>,
    pub limits: Limits,
    #[schema(minimum = 0.01, maximum = 4096)]
    pub cpus: Option<f64>,
    /// Time after which it may be collected.
    pub ttl_ms: Option<u64>,
    /// Time without use after which it may be collected.
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
    /// Storage driver; default: the best available.
    pub driver: Option<Driver>,
    /// Commands that run while it is live.
    #[serde(default)]
    pub services: Vec<Service>,
    /// Makes the directory read-only inside.
    pub read_only: bool,
    /// Sources of secrets that are not stored under their own name: `NAME=store:OTHER`, for operators only, or
    /// `NAME=brought:run` for values in each run's request.
    pub secrets: Vec<String>,
    /// Maximum size of its network event log in bytes [default: 64 MiB]; `network/events` reads it.
    pub events_max: Option<u64>,
    /// Also reports refused reads of its commands; every open then waits for the keeper.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub report_reads: bool,
    /// Time that its questions wait for an answer, in milliseconds [default: 60000].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1000, maximum = 600_000)]
    pub ask_timeout_ms: Option<u64>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxSuspend {
    /// Tier to reach; the response has the tier that was reached.
    #[serde(default = "frozen")]
    pub tier: Tier,
    /// Time that commands have to end, if the tier requires it, in milliseconds [default: 10000].
    pub grace_ms: Option<u64>,
}

/// A sandbox as its record has it. Ids are `sbx_…`; times are milliseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Token that created it, if that token may use only its own sandboxes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<String>,
    /// The directory it covers: canonical, UTF-8.
    #[schema(value_type = String)]
    pub base: PathBuf,
    /// Device and inode of the base, so that another directory under its name is noticed.
    #[schema(value_type = Vec<u64>)]
    pub base_id: (u64, u64),
    /// The directory was created for it, and is removed when no record refers to it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub own_base: bool,
    pub driver: Driver,
    /// Ids of layers from the bottom up; the last is written to by runs.
    pub layers: Vec<String>,
    /// Creation time of its top layer: seconds and nanoseconds.
    #[schema(value_type = Vec<i64>)]
    pub since: (i64, u32),
    pub state: Lifecycle,
    /// The complete policy document of its runs, as JSON.
    pub policy: serde_json::Value,
    /// Number of the current rules and limits, counted from 1.
    #[serde(default = "first")]
    pub revision: u64,
    /// Ceiling for changes of its policy by callers without full access: the policy at creation, once it was changed.
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
    /// Commit of the base when the sandbox was created or last rebased.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub git_head: Option<String>,
    pub created_ms: u64,
    /// Time of the last run or change.
    pub used_ms: u64,
    /// Time at which it may be collected; absent for never.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires_ms: Option<u64>,
    /// Time without use after which it is collected.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub idle_ms: Option<u64>,
    /// Keeps it live between start and stop, also without commands.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub stays: bool,
    /// Commands that run while it is live.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub services: Vec<Service>,
    /// Ports of the host that are forwarded to ports inside while it is live: `ADDRESS:HOST:GUEST`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub publish: Vec<String>,
    /// Sources of secrets that are not stored under their own name: `NAME=store:OTHER`, or `NAME=brought:run`
    /// for values that each command's request provides. Never a value.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub secrets: Vec<String>,
    /// Size limit of the network event log, in bytes; absent if no log is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub events_max: Option<u64>,
    /// Also reports refused reads of its commands.
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
