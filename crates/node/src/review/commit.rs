//! A commit of what lands, for the verb that lands it: everything that can be refused is refused before, the rest is told after.

use crate::Caller;
use crate::sandbox::Sandbox;
use store::Kept;
use terms::Fault;
use workspace::Rel;
use workspace::git::{self, Author, Plan, Prepared, Surroundings};

/// What the reviewer said of it.
#[derive(Clone, Debug)]
pub struct Wish {
    pub message: String,
    pub author: Author,
}

/// To be called before anything lands, with every path that will; `Prepared::commit` then takes the batch and what has landed.
pub fn prepare(caller: &Caller, sandbox: &Kept<Sandbox>, wish: &Wish, paths: &[Rel]) -> Result<Prepared, Fault> {
    let Kept { id, record, .. } = sandbox;
    let agent = record.name.as_deref().unwrap_or_default();
    let plan = Plan { message: &wish.message, author: wish.author, agent, sandbox: id };
    git::prepare(&record.base, &Surroundings { env: &caller.env }, &plan, paths).map_err(|fault| fault.subject(id))
}
