//! Files of a workspace through a handle on it: the verbs, and attempts to reach files outside.

mod attacks;
mod fixture;
mod found;
mod streams;
mod verbs;
