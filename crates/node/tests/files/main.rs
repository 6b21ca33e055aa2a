//! Files of a workspace through a handle on it: what can be done, and what cannot be reached whatever stands in the way.

mod attacks;
mod found;
mod streams;
mod verbs;
mod world;
