//! Has the binary begin with the instructions in `sys/src/entry.rs`, which go on to the C library's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--entry=cofferdam_entry");
}
