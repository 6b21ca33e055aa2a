//! A run in three shapes: requested (`RunRequest`), planned (`RunPlan`), and running, until `run` returns its outcome.

mod aside;
mod disk_meter;
mod explanation;
pub mod hidden;
pub(crate) mod home;
mod home_copy;
mod inside;
pub mod layer;
mod mode;
mod phases;
pub mod place;
mod plan;
pub mod record;
mod registration;
pub mod repository;
mod request;
mod resident;
pub mod sandboxed;
mod view;

pub use self::home_copy::copy_in;
pub use self::mode::{check_read_only, check_readable};
pub(crate) use self::phases::Timer;
pub use self::phases::{Phases, Timed};
pub use self::place::{ChangeDestination, Keep, NewWorkspace};
pub use self::plan::{RunPlan, RunRefused};
use self::record::Tracked;
pub(crate) use self::record::{RunWriter, is_stopped};
pub use self::request::{Learn, RunRequest};
pub(crate) use self::resident::{Holding, ResidentContext, ResidentPlan};
use crate::events::EventFile;
use crate::network::{Brokered, EventObserver};
use crate::questions::{Person, Prompter, Questions};
use crate::roster::Roster;
use enclosure::GuestServices;
pub use enclosure::{Groundwork, Observed, Observer, Stdio, begin, forgo};
pub use state::sandbox::TTL_MS;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use terms::{Fault, Outcome, Phase};

/// Takes a descriptor of the caller's, by number, to write the verdict to.
pub fn status_descriptor(fd: u32) -> Result<std::fs::File, String> {
    sys::process::inherited_for_writing(fd).map(std::fs::File::from).map_err(|e| e.to_string())
}

/// Runs a planned command to its end in this process, and records it where it has a workspace. `enclosure` starts and supervises it; broker,
/// questions and the gauge of the workspace are handed to it as `Beside`. Network events are written to `events` and passed to `ear`.
pub fn run<'a>(
    mut plan: RunPlan,
    observer: Option<Observer<'a>>,
    events: Option<EventFile>,
    ear: Option<EventObserver<'a>>,
) -> Result<Outcome, Fault> {
    plan.timer.enter(Phase::Start);
    if let Some(network) = &mut plan.network {
        network.secrets.open()?;
    }
    let roster = Roster::of(plan.guest.spec().run_id.as_str());
    plan.network.iter_mut().for_each(|network| network.roster = roster.clone());
    let events = events.map(|mut file| {
        file.attribute_to(&roster, 1);
        file
    });
    let journal = events.map(|file| Rc::new(RefCell::new(file)));
    let brokered = plan.network.map(|wanted| Brokered::new(wanted, journal.clone(), ear));
    let network = brokered.map(|brokered| Box::new(brokered) as Box<dyn enclosure::Network + 'a>);
    let observer = match &journal {
        Some(journal) => Some(journalled(observer, journal.clone())),
        None => observer,
    };
    let asking = asking(plan.questions, plan.person);
    let (mut tracked, mut timer) = (plan.tracked, plan.timer);
    let lasting = match &mut tracked {
        Some(tracked) => tracked.begin()?,
        None => None,
    };
    let gauge = tracked.as_ref().and_then(Tracked::gauge);
    let ended = plan.guest.run(GuestServices { observer, network, publish: plan.publish, asking, gauge, lasting });
    if let Ok(outcome) = &ended {
        let began = Instant::now().checked_sub(Duration::from_millis(outcome.usage.wall_ms));
        timer.enter_at(Phase::Execution, began.unwrap_or_else(Instant::now));
    }
    timer.enter(Phase::Close);
    tracked.iter_mut().for_each(|tracked| tracked.timer = Some(timer.clone()));
    let (dropped, reason) = journal.map(|journal| journal.borrow_mut().close()).unwrap_or_default();
    let ended = ended.map(|outcome| Outcome { events_dropped: dropped, events_reason: reason, ..outcome });
    match (ended, tracked) {
        (Ok(outcome), Some(tracked)) => Ok(tracked.end(outcome)),
        (Err(fault), Some(tracked)) => {
            tracked.fail(&fault);
            Err(fault)
        }
        (ended, None) => ended,
    }
}

fn asking(questions: Option<Questions>, person: Option<Box<dyn Person>>) -> Option<Box<dyn enclosure::Approvals>> {
    questions.map(|questions| Box::new(Prompter::new(questions, person)) as Box<dyn enclosure::Approvals>)
}

/// Returns an observer that also records questions, and connections to unix sockets of the host, which do not pass the broker.
fn journalled<'a>(mut observer: Option<Observer<'a>>, journal: Rc<RefCell<EventFile>>) -> Observer<'a> {
    Box::new(move |seen| {
        match &seen {
            Observed::Socket { path, rule, action, actor } => journal.borrow_mut().socket(path, rule, *action, actor),
            Observed::Asked { op, target, rule, actor } => journal.borrow_mut().asked(op, target, rule, actor),
            _ => {}
        }
        if let Some(observer) = &mut observer {
            observer(seen);
        }
    })
}
