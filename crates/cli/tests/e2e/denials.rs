//! denials
