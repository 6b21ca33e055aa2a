//! A run that a verb ended, as its response lists it.
