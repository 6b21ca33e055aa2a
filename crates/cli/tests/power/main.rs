//! Power failures: every write and flush of a file system is recorded while sandboxes are created, changed, frozen and
//! reviewed. Then the disk is rebuilt as it could have been at each moment, and the next command must find everything
//! that was acknowledged, and nothing half done.
use testkit as support;

mod failing;
mod recorder;
mod story;
mod waits;
