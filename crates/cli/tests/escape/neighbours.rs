//! neighbours
