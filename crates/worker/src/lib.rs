//! The supervisor's side of a worker: channels to warm interpreters, and the state of a call.
