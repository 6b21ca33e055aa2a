//! Request and response documents of the HTTP API that no verb of the node has: the daemon reads what the client writes, and the other
//! way round. Types carry the names under which the OpenAPI document shows them.

mod health;
mod policies;
mod questions;
mod runs;
mod sandboxes;
mod snapshots;
mod templates;
mod tokens;
mod workspace;

pub use health::{Capability, Health};
pub use policies::{PolicyChecked, PolicyExplain, PolicyOf};
pub use questions::{QuestionAnswer, QuestionList};
pub use runs::{RunExplain, RunSignalled, RunningList};
pub use sandboxes::{SandboxCreate, SandboxList, SandboxSuspend, Swept};
pub use snapshots::{SandboxFork, SandboxRestore, SnapshotList, SnapshotTake};
pub use templates::{Template, TemplateCreate, TemplateList, TemplatePrepare, TemplateWarm};
pub use tokens::TokenList;
pub use workspace::{
    BatchUndo, CommitWish, SeenBy, WorkspaceApprove, WorkspaceRebase, WorkspaceReject, WorkspaceShown,
};
