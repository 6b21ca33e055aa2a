//! A workspace compared with a plain directory: the same programs run outside and inside, and their results must be
//! equal. Intended differences and those of overlayfs are listed here one by one, and in docs/concepts/workspace.md.
use testkit as support;

mod crash;
mod everyday;
mod exerciser;
mod inside;
mod posix;
mod storm;
