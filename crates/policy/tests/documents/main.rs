//! Tests of policy documents: strict parsing, merging, import from other tools, and fuzzing.

mod fuzz;
mod imports;
mod merging;
mod strict;
