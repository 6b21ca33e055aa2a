//! Counts of notifications that wait on threads of their own, with a limit for each kind, so that a guest cannot make
//! the supervisor start threads without bound. The judge and the threads share the counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The reason why a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// A person's answer.
    Answer,
    /// A connection on this host, where the listener's queue may be full.
    LocalConnection,
    /// A connection to a server, which is far away and may take long to answer.
    RemoteConnection,
    /// A file lock, which takes a descriptor of the supervisor besides the thread.
    Lock,
}

impl WaitReason {
    pub const fn limit(self) -> usize {
        match self {
            WaitReason::Answer | WaitReason::LocalConnection => 64,
            WaitReason::RemoteConnection => 512,
            WaitReason::Lock => 128,
        }
    }
}

/// The numbers of waiting calls, by kind. Only the supervisor's thread enters calls.
#[derive(Clone, Default)]
pub struct WaitingCalls(Arc<[AtomicUsize; 4]>);

/// A waiting call; dropping it decreases the count.
pub struct WaitingCall {
    calls: WaitingCalls,
    kind: WaitReason,
}

impl WaitingCalls {
    /// Counts one more call; `None` at the limit.
    pub fn enter(&self, kind: WaitReason) -> Option<WaitingCall> {
        let count = &self.0[kind as usize];
        if count.load(Ordering::Relaxed) >= kind.limit() {
            return None;
        }
        count.fetch_add(1, Ordering::Relaxed);
        Some(WaitingCall { calls: self.clone(), kind })
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.calls.0[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_limit_of_its_own_and_a_call_that_ends_makes_room() {
        let calls = WaitingCalls::default();
        let mut entered: Vec<_> =
            (0..WaitReason::Lock.limit()).map(|_| calls.enter(WaitReason::Lock).unwrap()).collect();
        assert!(calls.enter(WaitReason::Lock).is_none());
        assert!(calls.enter(WaitReason::Answer).is_some());
        assert!(WaitingCalls::default().enter(WaitReason::Lock).is_some(), "another guest's calls are counted apart");
        drop(entered.pop());
        assert!(calls.enter(WaitReason::Lock).is_some());
    }
}
