//! How the commands of a live sandbox are watched: all alike, as its enclosure was built. One that counts on something else is refused
//! before it is started, and never runs without what was asked for it.

use crate::questions::PATIENCE;
use crate::run::Ask;
use crate::sandbox::Sandbox;
use serde::{Deserialize, Serialize};
use terms::{ErrorKind, Fault, Phase};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watch {
    /// Refused reads are reported, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub report_reads: bool,
    /// How long questions wait; of a command that counts on nothing, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask_timeout_ms: Option<u64>,
}

impl Watch {
    /// What a command counts on.
    pub fn of(ask: &Ask) -> Watch {
        let ask_timeout_ms = ask.ask_timeout.and_then(|time| u64::try_from(time.as_millis()).ok());
        Watch { report_reads: ask.report_reads, ask_timeout_ms }
    }

    /// How the commands of a sandbox are watched, by its record.
    pub fn as_made(sandbox: &Sandbox) -> Watch {
        let ask_timeout_ms = sandbox.ask_timeout_ms.or(u64::try_from(PATIENCE.as_millis()).ok());
        Watch { report_reads: sandbox.report_reads, ask_timeout_ms }
    }

    /// It counts on nothing.
    pub fn is_usual(&self) -> bool {
        *self == Watch::default()
    }

    /// Whether a sandbox that is watched like this has what the command counts on.
    pub fn check(&self, there: &Watch, sandbox: &str) -> Result<(), Fault> {
        let refuse = |message: String, hint: &str| {
            Err(Fault::new(ErrorKind::Conflict, message).hint(hint).subject(sandbox).phase(Phase::Admission))
        };
        if self.report_reads && !there.report_reads {
            let message = format!("{sandbox} was made without report_reads, and all its commands are watched alike");
            return refuse(
                message,
                "make one with `cofferdam create --report-reads`, or `cofferdam run --report-reads` the command by itself",
            );
        }
        match (self.ask_timeout_ms, there.ask_timeout_ms) {
            (Some(asked), Some(has)) if asked != has => {
                let message =
                    format!("questions of {sandbox} wait {has} ms, those of all its commands alike, not {asked}");
                refuse(message, "leave ask_timeout_ms out, or make one with `cofferdam create --ask-timeout`")
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
        let watch = |report_reads, ask_timeout_ms| Watch { report_reads, ask_timeout_ms };
        let usual = Watch::as_made(&Sandbox::new("/".into(), (0, 0), serde_json::Value::Null, 0));
        assert_eq!(usual, watch(false, Some(60_000)));
        let kind = |asked: Watch, there: Watch| asked.check(&there, "sbx_1").map_err(|fault| fault.error_kind);
        for (asked, there) in [
            (Watch::default(), usual),
            (Watch::default(), watch(true, Some(5_000))),
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
