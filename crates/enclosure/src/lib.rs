//! Plan in, contained process tree out. Builds the list of setup steps, starts the guest, watches over it, and
//! says how it ended. Reads no policy file and prints nothing.

mod actors;
mod alone;
mod asking;
mod capture;
mod connect;
mod denials;
mod driver;
mod flock;
mod ground;
mod guest;
mod host;
mod launch;
mod limits;
mod listen;
mod nameless;
mod network;
mod publish;
mod relay;
mod repository;
mod residence;
mod resolve;
mod shift;
mod standing;
mod steps;
mod supervise;
pub mod terminal;
mod trust;
mod verdict;
mod workspace;

pub use actors::Actors;
pub use asking::{Answer, Asking, Begun, Question, Waiting};
pub use driver::{Driver, Found as Enforced, choose};
pub use ground::{Groundwork, begin, forgo};
pub use host::{LocalHost, MOST_ENTRIES, digest_of, find_loader, loader_of, too_many, unlisted};
pub use launch::{Beside, Observed, Observer, Prepared, Request, Stdio, check_calls, prepare};
pub use limits::{Cpus, check as check_limits, give_up as give_up_limits, holds as holds_limits};
pub use nameless::{Nameless, NamelessFiles};
pub use network::{NetPlan, NetReport, Network, Opening};
pub use publish::Published;
pub use residence::{End, Frozen, Happened, Job, Residence, Start, Started, Streams, Use};
pub use trust::VARIABLES as TRUST_VARIABLES;
pub use verdict::Ending;
pub use workspace::{Crowd, Gauge, MOST_LAYERS, Over, Workspace};
