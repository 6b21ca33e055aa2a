//! Sandboxes come and go: create, list, look at, start, stop, remove, collect.
