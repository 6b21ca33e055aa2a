//! Documents as written: parsed strictly, merged, imported from other tools, and generated at random.

mod fuzz;
mod imports;
mod merging;
mod strict;
