//! Admission of verbs by the state of a sandbox: one pure table that reads no clock, file or store.

use api::SandboxState;
use terms::{ErrorKind, Fault, Phase, Retry};

/// A verb on a sandbox, as far as admission distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Exec,
    Start,
    Stop,
    Remove,
    /// Removal that stops the sandbox first.
    RemoveByForce,
    /// Removal by gc, after expiry.
    Collect,
    Diff,
    /// Approve and undo: change the base, and the layer only where no run writes to it.
    Land,
    /// Reject, rebase, prune and restore: write to the layer.
    Rewrite,
    /// Allowed while a command runs, which is frozen for it.
    Snapshot,
    Suspend,
    Resume,
}

impl Verb {
    pub const ALL: [Verb; 12] = [
        Verb::Exec,
        Verb::Start,
        Verb::Stop,
        Verb::Remove,
        Verb::RemoveByForce,
        Verb::Collect,
        Verb::Diff,
        Verb::Land,
        Verb::Rewrite,
        Verb::Snapshot,
        Verb::Suspend,
        Verb::Resume,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    Allowed,
    /// The state holds already: an answer without a change.
    NothingToDo,
    Refused(RefusalReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    Running,
    Stopped,
    Removed,
    Ready,
    Silent,
}

/// Looks up the table.
pub fn admit(standing: SandboxState, verb: Verb) -> Ruling {
    use Ruling::{Allowed, NothingToDo, Refused};
    match (standing, verb) {
        (SandboxState::Removed, Verb::Remove | Verb::RemoveByForce | Verb::Collect) => NothingToDo,
        (SandboxState::Removed, _) => Refused(RefusalReason::Removed),
        (SandboxState::Ready, _) => Refused(RefusalReason::Ready),

        // A silent keeper can be killed; every other verb would need its answer.
        (
            SandboxState::Silent,
            Verb::Exec | Verb::Start | Verb::Remove | Verb::Collect | Verb::Rewrite | Verb::Suspend | Verb::Resume,
        ) => Refused(RefusalReason::Silent),

        // A suspended sandbox is resumed by it.
        (SandboxState::Active | SandboxState::Lost | SandboxState::Frozen | SandboxState::Hibernated, Verb::Exec) => {
            Allowed
        }
        (SandboxState::Running | SandboxState::Stopping, Verb::Exec) => Refused(RefusalReason::Running),
        (SandboxState::Stopped, Verb::Exec) => Refused(RefusalReason::Stopped),

        (SandboxState::Active | SandboxState::Running, Verb::Start) => NothingToDo,
        (SandboxState::Stopped | SandboxState::Lost | SandboxState::Frozen | SandboxState::Hibernated, Verb::Start) => {
            Allowed
        }
        (SandboxState::Stopping, Verb::Start) => Refused(RefusalReason::Running),

        (SandboxState::Stopped, Verb::Stop) => NothingToDo,
        (_, Verb::Stop) => Allowed,

        (
            SandboxState::Running | SandboxState::Stopping | SandboxState::Frozen,
            Verb::Remove | Verb::Collect | Verb::Rewrite,
        ) => Refused(RefusalReason::Running),
        (_, Verb::Remove | Verb::Collect | Verb::Rewrite) => Allowed,

        (SandboxState::Stopped | SandboxState::Stopping, Verb::Suspend | Verb::Resume) => {
            Refused(RefusalReason::Stopped)
        }
        (SandboxState::Hibernated, Verb::Suspend) => NothingToDo,
        (_, Verb::Suspend) => Allowed,
        (SandboxState::Frozen | SandboxState::Hibernated, Verb::Resume) => Allowed,
        (_, Verb::Resume) => NothingToDo,

        (_, Verb::RemoveByForce | Verb::Diff | Verb::Land | Verb::Snapshot) => Allowed,
    }
}

/// Checks a verb; returns whether there is something to do.
pub fn check(standing: SandboxState, verb: Verb, id: &str) -> Result<bool, Fault> {
    match admit(standing, verb) {
        Ruling::Allowed => Ok(true),
        Ruling::NothingToDo => Ok(false),
        Ruling::Refused(why) => Err(refusal(why, id)),
    }
}

fn refusal(why: RefusalReason, id: &str) -> Fault {
    let (kind, what, hint) = match why {
        RefusalReason::Running => {
            (ErrorKind::Conflict, "a command runs in it", "wait for it, or end it with `cofferdam stop`")
        }
        RefusalReason::Stopped => (ErrorKind::Conflict, "it is stopped", "start it again with `cofferdam start`"),
        RefusalReason::Removed => (ErrorKind::NotFound, "it was removed", "`cofferdam ls` lists the existing ones"),
        RefusalReason::Ready => {
            (ErrorKind::Conflict, "it is a spare that is not claimed yet", "`cofferdam create --template` claims one")
        }
        RefusalReason::Silent => (
            ErrorKind::Unavailable,
            "its keeper does not answer",
            "try again; if it still fails, `cofferdam stop` or `cofferdam rm --force` ends it with all its processes",
        ),
    };
    let fault = Fault::new(kind, format!("{id}: {what}")).hint(hint).subject(id).phase(Phase::Admission);
    if why == RefusalReason::Silent { fault.retry(Retry::Later) } else { fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows are verbs, columns are standings in the order of `SandboxState::ALL`: `+` allowed, `.` nothing to do, and the
    /// first letter of why not.
    const TABLE: [(&str, &str); 12] = [
        ("Exec", "+RSRX+++NQ"),
        ("Start", "..+RX+++NQ"),
        ("Stop", "++.+X+++N+"),
        ("Remove", "+R+R.+R+NQ"),
        ("RemoveByForce", "++++.+++N+"),
        ("Collect", "+R+R.+R+NQ"),
        ("Diff", "++++X+++N+"),
        ("Land", "++++X+++N+"),
        ("Rewrite", "+R+RX+R+NQ"),
        ("Snapshot", "++++X+++N+"),
        ("Suspend", "++SSX++.NQ"),
        ("Resume", "..SSX.++NQ"),
    ];

    // promise 18
    #[test]
    fn the_table_is_whole() {
        for (verb, (name, row)) in Verb::ALL.into_iter().zip(TABLE) {
            assert_eq!(format!("{verb:?}"), name);
            for (standing, want) in SandboxState::ALL.into_iter().zip(row.chars()) {
                let got = match admit(standing, verb) {
                    Ruling::Allowed => '+',
                    Ruling::NothingToDo => '.',
                    Ruling::Refused(RefusalReason::Running) => 'R',
                    Ruling::Refused(RefusalReason::Stopped) => 'S',
                    Ruling::Refused(RefusalReason::Removed) => 'X',
                    Ruling::Refused(RefusalReason::Ready) => 'N',
                    Ruling::Refused(RefusalReason::Silent) => 'Q',
                };
                assert_eq!(got, want, "{verb:?} of one that is {standing:?}");
            }
        }
    }

    /// A repeated verb finds nothing to do, or does the same again.
    // promise 18
    #[test]
    fn every_transition_can_be_repeated() {
        let after = [
            (Verb::Start, SandboxState::Active),
            (Verb::Stop, SandboxState::Stopped),
            (Verb::Remove, SandboxState::Removed),
            (Verb::Suspend, SandboxState::Hibernated),
            (Verb::Resume, SandboxState::Active),
        ];
        for (verb, standing) in after {
            assert_eq!(admit(standing, verb), Ruling::NothingToDo, "{verb:?}");
        }
    }

    // promise 18
    #[test]
    fn a_refusal_says_which_and_what_to_do() {
        for (standing, kind) in [
            (SandboxState::Stopped, ErrorKind::Conflict),
            (SandboxState::Removed, ErrorKind::NotFound),
            (SandboxState::Silent, ErrorKind::Unavailable),
        ] {
            let fault = check(standing, Verb::Exec, "sbx_1").unwrap_err();
            assert_eq!((fault.error_kind, fault.subject.as_deref()), (kind, Some("sbx_1")));
            assert!(fault.hint.is_some());
        }
        assert_eq!(check(SandboxState::Active, Verb::Exec, "sbx_1"), Ok(true));
        assert_eq!(check(SandboxState::Active, Verb::Start, "sbx_1"), Ok(false));
    }
}
