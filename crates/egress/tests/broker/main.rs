//! The broker with real guests, sockets and servers. Every case runs in a network of its own in which all addresses of
//! the world are local: servers stand at public addresses, and nothing leaves the machine.
//!
//! The binary plays three roles: without a role it starts a world for each case; a world clones a guest, which is this
//! binary again, and runs the broker and the servers; the guest is the client.

mod approvals;
mod asking;
mod connections;
mod datagrams;
mod disguises;
mod first_bytes;
mod guest;
mod measure;
mod names;
mod proxies;
mod world;

use std::process::ExitCode;
use world::{Case, World};

fn cases() -> Vec<Case> {
    [
        names::CASES,
        connections::CASES,
        first_bytes::CASES,
        disguises::CASES,
        proxies::CASES,
        datagrams::CASES,
        asking::CASES,
        measure::CASES,
    ]
    .concat()
}

fn main() -> ExitCode {
    let case = std::env::var(world::CASE).unwrap_or_default();
    let find = || cases().into_iter().find(|case_| case_.name == case).expect("a case of ours");
    match std::env::var(world::ROLE).as_deref() {
        Ok("guest") => (find().guest)(),
        Ok("world") => World::new(find()).run(),
        _ => return run_all(),
    }
    ExitCode::SUCCESS
}

fn run_all() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    let ignored = args.iter().any(|arg| arg == "--ignored");
    let filter: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let mut failed = 0;
    for case in cases().iter().filter(|case| case.ignored == ignored) {
        if !filter.is_empty() && !filter.iter().any(|f| case.name.contains(f.as_str())) {
            continue;
        }
        let good = world::start(case.name);
        println!("test {} ... {}", case.name, if good { "ok" } else { "FAILED" });
        failed += u32::from(!good);
    }
    println!("\ntest result: {failed} failed\n");
    ExitCode::from(u8::from(failed > 0))
}
