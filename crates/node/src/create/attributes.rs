//! Checks of what a client attaches to a sandbox: labels, variables, a timeout.

use std::collections::BTreeMap;
use terms::{Fault, Phase};

const MAX_LABELS: usize = 64;
const MAX_LABEL_NAME_BYTES: usize = 128;
const MAX_LABEL_BYTES: usize = 1024;
const MAX_VARIABLES: usize = 256;
const MAX_VARIABLE_BYTES: usize = 64 << 10;
/// A second, and thirty days.
const TIMEOUTS_MS: std::ops::RangeInclusive<u64> = 1_000..=2_592_000_000;

fn invalid(message: String, hint: &str) -> Fault {
    Fault::invalid(message).hint(hint).phase(Phase::Admission)
}

pub fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Fault> {
    let hint = "give at most 64 labels: names of 1 to 128 bytes, values of at most 1024";
    if metadata.len() > MAX_LABELS {
        return Err(invalid(format!("metadata: {} labels", metadata.len()), hint));
    }
    for (name, value) in metadata {
        if name.is_empty() || name.len() > MAX_LABEL_NAME_BYTES {
            return Err(invalid(format!("metadata: a name of {} bytes", name.len()), hint));
        }
        if value.len() > MAX_LABEL_BYTES {
            return Err(invalid(format!("metadata: {name:?}: a value of {} bytes", value.len()), hint));
        }
    }
    Ok(())
}

pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), Fault> {
    if let Some(name) = env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        return Err(invalid(format!("env: {name:?} is no name of a variable"), "leave out `=` and zero bytes"));
    }
    if let Some((name, _)) = env.iter().find(|(_, value)| value.contains('\0')) {
        return Err(invalid(format!("env: {name:?}: the value has a zero byte"), "no variable can hold one"));
    }
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if env.len() > MAX_VARIABLES || bytes > MAX_VARIABLE_BYTES {
        let message = format!("env: {} variables with {bytes} bytes", env.len());
        return Err(invalid(message, "give at most 256 with 65536 bytes, and put what is long into a file"));
    }
    Ok(())
}

pub fn check_timeout(ms: u64) -> Result<(), Fault> {
    match TIMEOUTS_MS.contains(&ms) {
        true => Ok(()),
        false => Err(invalid(format!("timeout_ms: {ms}"), "from 1000 to 2592000000, which is thirty days")),
    }
}
