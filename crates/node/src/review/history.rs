//! Git history inside a workspace: the branch that is checked out, and the commits that the base does not have.

use api::WorkspaceHistory;
use state::Caller;
use state::sandbox::Sandbox;
use store::Kept;
use terms::Fault;
use workspace::Stack;
use workspace::git::{self, GitEnvironment, Head, Intake};

/// Returns the history inside, if it differs from the base, and a note if it cannot be read.
pub fn of(caller: &Caller, sandbox: &Kept<Sandbox>, stack: &Stack) -> (Option<WorkspaceHistory>, Option<String>) {
    let Some(base) = git::head_of_top(&sandbox.record.base) else { return (None, None) };
    match inside(caller, sandbox, stack, &base) {
        Ok(found) => (found, None),
        Err(fault) => (None, Some(format!("commits made inside are not listed: {}", fault.message))),
    }
}

fn inside(
    caller: &Caller,
    sandbox: &Kept<Sandbox>,
    stack: &Stack,
    base: &Head,
) -> Result<Option<WorkspaceHistory>, Fault> {
    let Some(head) = git::head_inside(stack)?.filter(|head| head != base) else { return Ok(None) };
    let switched = branch(&head) != branch(base);
    let began = sandbox.record.git_head.as_deref();
    let tip = head.commit().filter(|tip| Some(*tip) != base.commit() && Some(*tip) != began);
    let (commits, commits_more) = match tip {
        None => (Vec::new(), 0),
        Some(tip) => {
            let intake = open(caller, sandbox, stack, tip)?;
            let commits = intake.commits()?;
            let more = intake.count().saturating_sub(commits.len()) as u64;
            (commits, more)
        }
    };
    if !switched && commits.is_empty() {
        return Ok(None);
    }
    Ok(Some(WorkspaceHistory {
        branch: head.label().to_owned(),
        commit: head.commit().map(str::to_owned),
        base_branch: base.label().to_owned(),
        base_commit: base.commit().map(str::to_owned),
        switched,
        commits,
        commits_more,
    }))
}

fn branch(head: &Head) -> Option<&str> {
    match head {
        Head::Branch { name, .. } => Some(name),
        Head::Detached { .. } => None,
    }
}

/// Returns what is checked out inside and in the base, if these are different branches.
pub fn switched(sandbox: &Kept<Sandbox>, stack: &Stack) -> Result<Option<(String, String)>, Fault> {
    let Some(base) = git::head_of_top(&sandbox.record.base) else { return Ok(None) };
    let head = git::head_inside(stack).map_err(|fault| fault.subject(&sandbox.id))?;
    let head = head.filter(|head| branch(head) != branch(&base));
    Ok(head.map(|head| (head.label().to_owned(), base.label().to_owned())))
}

/// Takes the history of a commit inside into quarantine.
pub fn open(caller: &Caller, sandbox: &Kept<Sandbox>, stack: &Stack, tip: &str) -> Result<Intake, Fault> {
    let known: Vec<String> = sandbox.record.git_head.iter().cloned().collect();
    Intake::open(&sandbox.record.base, &GitEnvironment { env: &caller.env }, stack, tip, &known)
        .map_err(|fault| fault.subject(&sandbox.id))
}

/// The commit that HEAD names inside.
pub fn tip(sandbox: &Kept<Sandbox>, stack: &Stack) -> Result<String, Fault> {
    let head = git::head_inside(stack).map_err(|fault| fault.subject(&sandbox.id))?;
    let tip = head.as_ref().and_then(Head::commit).map(str::to_owned);
    tip.ok_or_else(|| {
        let fault = Fault::invalid("there is no git repository inside with a commit").subject(&sandbox.id);
        fault.hint("approve the files with `cofferdam approve`").phase(terms::Phase::Review)
    })
}
