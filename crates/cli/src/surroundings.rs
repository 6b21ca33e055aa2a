//! The caller of a verb, from this process's environment and working directory.

use node::Caller;
use std::path::PathBuf;
use terms::{Fault, Phase};

pub fn caller() -> Result<Caller, Fault> {
    let cwd = std::env::current_dir().map_err(|e| {
        Fault::invalid(format!("current directory: {e}"))
            .hint("change to a directory that exists")
            .phase(Phase::Admission)
    })?;
    let env: Vec<_> = std::env::vars_os().collect();
    let var = |name: &str| env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let home = var("HOME").map(PathBuf::from).filter(|h| h.is_absolute());
    // The directory tree must look the same inside, so the home directory is named by its real path.
    let home = home.map(|h| std::fs::canonicalize(&h).unwrap_or(h)).unwrap_or_else(|| PathBuf::from("/nonexistent"));
    let user = var("USER").or_else(|| var("LOGNAME")).and_then(|u| u.into_string().ok());
    let read_late = |name: &std::ffi::OsStr| std::env::var_os(name);
    Ok(Caller::new(cwd, home, user.unwrap_or_else(|| "user".into()), env, read_late))
}
