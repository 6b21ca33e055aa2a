//! Watch mode of a live sandbox's commands: the same for all, as the enclosure was built. A command that relies on another mode is refused
//! before it is started, and never runs without the requested mode.

use crate::questions::PATIENCE;
use serde::{Deserialize, Serialize};
use state::sandbox::Sandbox;
use terms::{ErrorKind, Fault, Phase};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchOptions {
    /// Refused reads are reported, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub report_reads: bool,
    /// Timeout of questions; `None` for a command that does not rely on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask_timeout_ms: Option<u64>,
}

impl WatchOptions {
    /// Returns the watch mode of a sandbox by its record.
    pub fn as_made(sandbox: &Sandbox) -> WatchOptions {
        let ask_timeout_ms = sandbox.ask_timeout_ms.or(u64::try_from(PATIENCE.as_millis()).ok());
        WatchOptions { report_reads: sandbox.report_reads, ask_timeout_ms }
    }

    /// Returns whether the command relies on nothing in particular.
    pub fn is_usual(&self) -> bool {
        *self == WatchOptions::default()
    }

    /// Checks that a sandbox with this watch mode offers what the command relies on.
    pub fn check(&self, there: &WatchOptions, sandbox: &str) -> Result<(), Fault> {
        let refuse = |message: String, hint: &str| {
            Err(Fault::new(ErrorKind::Conflict, message).hint(hint).subject(sandbox).phase(Phase::Admission))
        };
        if self.report_reads && !there.report_reads {
            let message = format!("{sandbox} was created without report_reads, which applies to all its commands");
            return refuse(
                message,
                "create one with `cofferdam create --report-reads`, or run the command by itself with `cofferdam run --report-reads`",
            );
        }
        match (self.ask_timeout_ms, there.ask_timeout_ms) {
            (Some(asked), Some(has)) if asked != has => {
                let message = format!("questions of {sandbox} wait {has} ms for all its commands, not {asked}");
                refuse(message, "leave ask_timeout_ms out, or create one with `cofferdam create --ask-timeout`")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_what_its_sandbox_has_and_nothing_else() {
        let watch = |report_reads, ask_timeout_ms| WatchOptions { report_reads, ask_timeout_ms };
        let usual = WatchOptions::as_made(&Sandbox::new("/".into(), (0, 0), serde_json::Value::Null, 0));
        assert_eq!(usual, watch(false, Some(60_000)));
        let kind =
            |asked: WatchOptions, there: WatchOptions| asked.check(&there, "sbx_1").map_err(|fault| fault.error_kind);
        for (asked, there) in [
            (WatchOptions::default(), usual),
            (WatchOptions::default(), watch(true, Some(5_000))),
            (watch(true, None), watch(true, Some(60_000))),
            (watch(false, Some(60_000)), usual),
            (watch(true, Some(5_000)), watch(true, Some(5_000))),
        ] {
            assert_eq!(kind(asked, there), Ok(()), "{asked:?} {there:?}");
        }
        for (asked, there) in [
            (watch(true, None), usual),
            (watch(false, Some(5_000)), usual),
            (watch(true, Some(5_000)), watch(true, Some(60_000))),
        ] {
            assert_eq!(kind(asked, there), Err(ErrorKind::Conflict), "{asked:?} {there:?}");
        }
    }
}
