//! The power fails: every write and every flush of a file system is recorded while sandboxes are made, changed, frozen and reviewed. Then
//! the disk is made as it could have been at each moment, and whoever comes next must find what was acknowledged, and nothing in between.
use testkit as support;

mod failing;
mod recorder;
mod story;
mod waits;
