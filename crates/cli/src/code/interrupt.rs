//! Ctrl-C during a call: the code is interrupted and its interpreter keeps its state. A second one ends this program.

use crate::connection;
use api::ContextInterrupt;
use clap::ArgMatches;
use client::Engine;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use terms::{Fault, Phase};

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
/// Time that the interpreter has to answer; a person who does not want to wait interrupts twice.
const GRACE_MS: u64 = 2000;
/// Status of a program that a Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// The call that is under way, and how often it was interrupted.
#[derive(Default)]
struct Call {
    under_way: Option<(String, String)>,
    interrupted: bool,
}

/// Takes the signals of this program while it runs code.
pub struct Interrupts(Arc<Mutex<Call>>);

impl Interrupts {
    /// Blocks the signals, and waits for them on a thread. Called before any other thread begins, which then blocks them as well.
    pub fn begin(m: &ArgMatches) -> Result<Interrupts, Fault> {
        let failed = |e: &dyn std::fmt::Display| Fault::internal(format!("signals: {e}")).phase(Phase::Preparation);
        let signals = node::signal_handle(&[SIGINT, SIGTERM]).map_err(|e| failed(&e))?;
        // A connection of its own: that of the call waits for events.
        let engine = connection::open(m)?;
        let call = Arc::<Mutex<Call>>::default();
        let waiting = Arc::clone(&call);
        let begun = thread::Builder::new().name("interrupts".into()).spawn(move || wait(&signals, &engine, &waiting));
        begun.map_err(|e| failed(&e))?;
        Ok(Interrupts(call))
    }

    /// Runs a call in a context, in which a signal interrupts it.
    pub fn during<T>(&self, sandbox: &str, context: &str, work: impl FnOnce() -> T) -> T {
        *lock(&self.0) = Call { under_way: Some((sandbox.to_owned(), context.to_owned())), interrupted: false };
        let done = work();
        *lock(&self.0) = Call::default();
        done
    }
}

fn wait(signals: &OwnedFd, engine: &Engine, call: &Mutex<Call>) {
    loop {
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], None); // an error comes back with the next look
        let Some((signal, _)) = node::next_signal(signals.as_fd()) else { continue };
        let mut held = lock(call);
        let again = std::mem::replace(&mut held.interrupted, true);
        let under_way = held.under_way.clone();
        drop(held);
        match under_way {
            Some((sandbox, context)) if !again && signal == SIGINT => {
                // A call that has ended meanwhile has nothing to interrupt.
                let patient = ContextInterrupt { grace_ms: Some(GRACE_MS) };
                let _ = engine.context_interrupt(Some(&sandbox), &context, &patient);
            }
            _ => std::process::exit(if signal == SIGTERM { 128 + SIGTERM } else { INTERRUPTED }),
        }
    }
}

fn lock(call: &Mutex<Call>) -> std::sync::MutexGuard<'_, Call> {
    call.lock().unwrap_or_else(PoisonError::into_inner)
}
