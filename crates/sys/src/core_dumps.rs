//! Core dumps of a guest: none may leave it. With a file as `core_pattern` any small RLIMIT_CORE prevents a dump. With
//! a pipe the kernel starts a program of the host, as root, and ignores the limit, except for the value 1, which it
//! reserves for programs that must not be dumped to a pipe. With a socket (Linux 6.16) it ignores the limit altogether,
//! and no setting that a guest could not undo prevents the dump.

use crate::host::{self, BoundedResource};

/// The name under `degrade` that consents to core dumps that reach the host's handler.
pub const NAME: &str = "core_dumps";

const PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// A handler of the host that a crashing guest would reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposed {
    /// The kernel starts a program, and our hard limit is too low to set the value 1.
    Pipe,
    /// The kernel connects to a service, at any limit.
    Socket,
}

/// The guest's RLIMIT_CORE, soft and hard. 0 only where the caller's own hard limit leaves nothing else. The call filter keeps the guest from
/// lowering 1 to 0, which would switch dumps to a pipe on again.
pub fn limit() -> u64 {
    u64::from(can_set_one())
}

fn can_set_one() -> bool {
    host::bound(BoundedResource::CoreBytes).maximum.is_none_or(|most| most >= 1)
}

/// Returns the handler that a crash inside would reach on this host. A kernel without core dumps has no pattern.
pub fn exposed() -> Option<Exposed> {
    judge(&host::kernel_file(PATTERN)?, can_set_one())
}

fn judge(pattern: &str, can_set_one: bool) -> Option<Exposed> {
    match pattern.as_bytes().first() {
        Some(b'@') => Some(Exposed::Socket),
        Some(b'|') if !can_set_one => Some(Exposed::Pipe),
        _ => None,
    }
}

impl Exposed {
    /// Returns the text by which the outcome names the missing mechanism.
    pub fn missing(self) -> String {
        format!("{NAME}: {}", self.cause())
    }

    pub fn cause(self) -> &'static str {
        match self {
            Exposed::Pipe => {
                "kernel.core_pattern pipes core dumps to a program, and the hard limit on core dumps is 0, which does not stop that"
            }
            Exposed::Socket => "kernel.core_pattern sends core dumps to a socket, which no limit stops",
        }
    }

    pub fn fix(self) -> &'static str {
        match self {
            Exposed::Pipe => {
                "raise the hard limit to 1 or more (`ulimit -Hc`, limits.conf, LimitCORE= of the unit), or set kernel.core_pattern to a file name"
            }
            Exposed::Socket => "set kernel.core_pattern to a file name or a pipe (sysctl)",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handlers_that_the_limit_does_not_stop_are_exposed() {
        for (pattern, can_set_one, want) in [
            ("core\n", true, None),
            ("/var/cores/%p\n", false, None),
            ("\n", false, None),
            ("|/usr/share/apport/apport %p\n", true, None),
            ("|/usr/share/apport/apport %p\n", false, Some(Exposed::Pipe)),
            ("@/run/coredump.socket\n", true, Some(Exposed::Socket)),
            ("@@/run/coredump.socket\n", false, Some(Exposed::Socket)),
        ] {
            assert_eq!(judge(pattern, can_set_one), want, "{pattern:?} {can_set_one}");
        }
    }
}
