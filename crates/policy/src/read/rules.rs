//! Parsing of a rule about files or programs.

use super::action;
use crate::cursor::{Cursor, Problem, one_of_these, parsed};
use crate::document::{ExecRule, FsRule};
use crate::path::RulePath;
use crate::perms::Perms;
use crate::schema;
use terms::Action;

pub(super) fn fs(at: &Cursor<'_>) -> Result<FsRule, Problem> {
    let fields = at.object(&schema::FS_RULE)?;
    let action = action(&fields.need("action")?)?;
    let path = parsed(&fields.need("path")?, RulePath::parse)?;
    let perms = match fields.get("perms") {
        Some(at) => perms_of(&at)?,
        None if matches!(action, Action::Deny | Action::Ask) => Perms::ALL,
        None => {
            let article = if action == Action::Allow { "an" } else { "a" };
            let message = format!("{article} {} rule needs \"perms\"", action.name());
            return Err(fields.problem(message).hint("such as [\"read_file\", \"read_dir\"]"));
        }
    };
    Ok(FsRule { action, path, perms })
}

fn perms_of(at: &Cursor<'_>) -> Result<Perms, Problem> {
    let mut perms = Perms::NONE;
    for item in at.items()? {
        let name = item.text()?;
        let names: Vec<&str> = Perms::known_names().collect();
        let added = Perms::named(name)
            .ok_or_else(|| item.problem(format!("unknown permission {name:?}")).hint(one_of_these(name, &names)))?;
        if perms.and(added) == added {
            return Err(item.problem(format!("{name:?} is already in the list")));
        }
        perms = perms.union(added);
    }
    match perms.is_empty() {
        true => Err(at.problem("the list is empty").hint("name at least one permission")),
        false => Ok(perms),
    }
}

pub(super) fn exec(at: &Cursor<'_>) -> Result<ExecRule, Problem> {
    let fields = at.object(&schema::EXEC_RULE)?;
    let action = action(&fields.need("action")?)?;
    let path = parsed(&fields.need("path")?, RulePath::parse)?;
    let sha256 = match fields.get("sha256") {
        None => None,
        Some(at) if action == Action::Deny => {
            return Err(at
                .problem(format!("\"sha256\" does not go with {:?}", action.name()))
                .hint("a denial covers any content; leave the digest out"));
        }
        Some(at) => Some(sha256_of(&at)?),
    };
    Ok(ExecRule { action, path, sha256 })
}

fn sha256_of(at: &Cursor<'_>) -> Result<[u8; 32], Problem> {
    let text = at.text()?;
    terms::hex::decode(text)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| at.problem(format!("{text:?} is not a SHA-256 digest")).hint("64 hexadecimal digits"))
}
