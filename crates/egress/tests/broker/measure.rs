//! Latency and throughput through the broker compared with direct connections, side by side.

use crate::guest::*;
use crate::world::{Case, SERVER, World, echo};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[Case { name: "figures", guest: figures, stage, check: |_| {}, ignored: true }];

const BULK: usize = 2_000_000_000;

fn stage(world: &mut World) {
    world.rules = r#"{"action":"allow","host":"a.example.org"}"#.to_owned();
    world.name("a.example.org", &[SERVER]);
    world.serve("93.184.216.34:7", echo);
    world.serve("93.184.216.34:9", sink);
    world.serve("93.184.216.34:19", source);
}

fn sink(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 20];
    while stream.read(&mut buffer).unwrap_or(0) > 0 {}
}

fn source(mut stream: TcpStream) {
    let buffer = vec![1; 1 << 20];
    let _ = stream.read(&mut [0; 1]);
    for _ in 0..BULK >> 20 {
        if stream.write_all(&buffer).is_err() {
            return;
        }
    }
}

fn figures() {
    // The same servers on the guest's own loopback, for comparison.
    for (port, each) in [(4007, echo as fn(TcpStream)), (4009, sink), (4019, source)] {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        std::thread::spawn(move || {
            listener.incoming().for_each(|s| drop(std::thread::spawn(move || each(s.unwrap()))))
        });
    }
    resolve("a.example.org");
    let (direct, door) = (first_byte("127.0.0.1:4007"), first_byte("93.184.216.34:7"));
    println!("connect and first byte: direct {direct:.1?}, door {door:.1?}, {:.2} times", ratio(door, direct));
    for (what, direct, door, run) in [
        ("upload", "127.0.0.1:4009", "93.184.216.34:9", upload as fn(&str) -> Duration),
        ("download", "127.0.0.1:4019", "93.184.216.34:19", download),
    ] {
        let (direct, door) = (run(direct), run(door));
        let rate = |took: Duration| BULK as f64 / took.as_secs_f64() / 1e9;
        let share = ratio(direct, door);
        println!("{what}: direct {:.2} GB/s, door {:.2} GB/s, {share:.2} of it", rate(direct), rate(door));
    }
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

/// Returns the median of many measurements.
fn first_byte(to: &str) -> Duration {
    let mut took: Vec<Duration> = (0..1000)
        .map(|_| {
            let begun = Instant::now();
            echoes(&mut connect(to), b"\x01");
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}

fn upload(to: &str) -> Duration {
    let mut stream = connect(to);
    let buffer = vec![1; 1 << 20];
    let begun = Instant::now();
    for _ in 0..BULK >> 20 {
        stream.write_all(&buffer).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
    while stream.read(&mut [0; 1]).unwrap() > 0 {}
    begun.elapsed()
}

fn download(from: &str) -> Duration {
    let mut stream = connect(from);
    let mut buffer = vec![0; 1 << 20];
    let begun = Instant::now();
    stream.write_all(b"\x01").unwrap();
    while stream.read(&mut buffer).unwrap() > 0 {}
    begun.elapsed()
}
