//! Whether a workspace is a directory like any other: the same programs do the same things outside, in a plain directory, and
//! inside, and what they leave must be equal. What differs on purpose or by the nature of overlayfs is named here, one by one, and
//! told in docs/concepts/workspace.md.
use testkit as support;

mod crash;
mod everyday;
mod exerciser;
mod inside;
mod posix;
mod storm;
