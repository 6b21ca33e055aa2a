//! Policies: rules in, decisions and plans out. Pure: no file, clock or environment is read; the host is seen through
//! the `plan::Host` trait that the caller implements.
//!
//! ```text
//! text ── parse ──▶ Document ── effective ──▶ Policy ── resolve ──▶ Resolved ── plan ──▶ Plan
//!                                                                      └─ fs, exec, net ──▶ Decision
//! ```

pub mod agents;
mod cidr;
mod component;
mod cursor;
mod decide;
mod diff;
mod document;
pub mod env;
mod error;
mod explain;
mod follow;
mod glob;
mod host;
pub mod import;
pub mod learn;
mod locate;
mod net;
mod net_target;
mod node;
mod path;
mod perms;
mod plan;
mod planner;
mod policy;
mod ports;
mod presets;
mod private;
mod reach;
mod read;
mod reference;
mod resolve;
mod schema;
mod sockets;
mod walk;
mod write;

pub use cidr::{Cidr, is_special};
pub use decide::{Decision, Matched};
pub use diff::{Change, Diff, Effect, diff};
pub use document::{
    Capability, Defaults, Document, Env, ExecRule, Format, FsRule, NetRule, NetTarget, Proto, Secret, UrlPath, VERSION,
    parse,
};
pub use error::{PlanError, PolicyError};
pub use explain::{Explanation, Row, explain_exec, explain_fs, explain_net};
pub use glob::Pattern;
pub use host::{HostName, HostPattern};
pub use net::NetRequest;
pub use net_target::{parse_target, split_ports, split_targets};
pub use path::{Base, PathRefusal, RulePath};
pub use perms::{Perm, Perms};
pub use plan::*;
pub use policy::{Labelled, Policy, effective, merge};
pub use ports::Ports;
pub use presets::{PRESETS, preset, preset_document};
pub use private::{PRIVATE, PrivateDirs, private_place};
pub use reference::reference;
pub use resolve::{Context, Resolved, resolve};
pub use schema::{AUDIT_EVENTS, DEGRADES, nearest};
pub use terms::Action;
