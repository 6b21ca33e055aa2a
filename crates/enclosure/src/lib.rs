//! Turns a plan into a contained process tree: builds the list of setup steps, starts the guest, supervises it, and
//! reports its outcome. Reads no policy file and prints nothing.
//!
//! Modules use those above them and none below:
//!
//! ```text
//! spec                         decisions about a guest                         (GuestSpec)
//! steps      groundwork        the ordered list of setup steps; the part that needs no plan
//! plan                         the specification with its steps                (GuestPlan)
//! listen     running           answers to seccomp notifications; the live guest (RunningGuest)
//! launch                       the clone, and the supervisor's part of the setup
//! supervise  outcome  run      one command to its end
//! residence                    a resident guest with many commands
//! ```

mod actors;
mod approval;
mod capture;
mod connect;
mod denials;
mod driver;
mod faults;
mod flock;
mod groundwork;
mod guest;
mod host;
mod idmap;
mod launch;
mod limits;
mod listen;
mod loopback;
mod nameless;
mod network;
mod outcome;
mod plan;
mod publish;
mod relay;
mod repository;
mod residence;
mod resolve;
mod run;
mod running;
mod spec;
mod steps;
mod supervise;
pub mod terminal;
mod trust;
mod waiting_calls;
mod workspace;

pub use actors::Actors;
pub use approval::{Approvals, AskResult, PendingAnswer, Question, QuestionAnswer};
pub use driver::{Driver, Found as Enforced, choose};
pub use flock::JobId;
pub use groundwork::{Groundwork, begin, begin_explained, forgo};
pub use host::{LocalHost, MOST_ENTRIES, digest_of, find_loader, loader_of, too_many, unlisted};
pub use limits::{Cpus, check as check_limits, give_up as give_up_limits, holds as holds_limits};
pub use nameless::{UnlinkedFileFinder, UnlinkedFiles};
pub use network::{NetPlan, NetReport, Network, Opening};
pub use outcome::Ending;
pub use plan::{GuestPlan, check_calls};
pub use publish::Published;
pub use residence::{
    CommandEnd, FreezeResult, PlannedCommand, Residence, ResidenceEvent, ResourceUsage, Started, Streams,
};
pub use spec::{DelayedCall, GuestServices, GuestSpec, Observed, Observer, Stdio};
pub use steps::{Point, home_points};
pub use trust::VARIABLES as TRUST_VARIABLES;
pub use workspace::{Cache, ChangeStorage, Gauge, MOST_LAYERS, OwnHome, TotalExceeded, Workspace};
