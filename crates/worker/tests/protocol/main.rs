//! The worker protocol, from both sides: a worker that was written from its page works, and no bytes in the rings do more than end their
//! worker.

mod lines;

use ::worker::{Broken, Channel, EndStatus, Ends, Event, Hello, Launch, Received};
use api::{Completeness, Language};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{pread, pwrite};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// A channel with a worker at its other end.
struct Pair {
    channel: Channel,
    supervisor: Vec<OwnedFd>,
    worker: JoinHandle<()>,
}

fn copies(ends: &[OwnedFd]) -> Vec<OwnedFd> {
    ends.iter().map(|end| end.try_clone().unwrap()).collect()
}

fn ends() -> Ends {
    let launch = Launch::of(Language::Python);
    let ends = launch.ends().unwrap();
    let hello = Hello { language: Language::Python, cwd: "/".into(), env: BTreeMap::new() };
    launch.greet(&ends.supervisor, &hello).unwrap();
    ends
}

impl Pair {
    fn new() -> Pair {
        let Ends { supervisor, worker } = ends();
        let [memory, bell, _source]: [OwnedFd; 3] = worker.try_into().unwrap();
        let worker = std::thread::spawn(move || lines::Worker::work(memory, bell));
        let channel = Channel::open(Language::Python, copies(&supervisor)).unwrap();
        Pair { channel, supervisor, worker }
    }

    fn run(&mut self, request: u32, line: &str) -> Vec<Event> {
        self.channel.execute(request, line).unwrap();
        self.until_end(request)
    }

    fn until_end(&mut self, request: u32) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let received = self.channel.step().unwrap();
            if received.is_empty() {
                wait(&self.channel);
            }
            for Received { request: of, event, .. } in received {
                let is_end = of == request && matches!(event, Event::End { .. } | Event::Checked(_));
                events.push(event);
                if is_end {
                    return events;
                }
            }
        }
    }
}

fn wait(channel: &Channel) {
    let wakes = channel.wakes();
    let mut polled: Vec<PollFd<'_>> = wakes.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert!(poll(&mut polled, Some(&patience)).unwrap() > 0, "nothing came within a minute");
}

// promise 29
#[test]
fn a_worker_that_was_written_from_the_page_works() {
    let mut pair = Pair::new();
    let first = pair.run(1, "print hello");
    assert_eq!(first[0], Event::Ready { version: "1".into() });
    assert_eq!(
        first[1..],
        [Event::Stdout(b"hello".to_vec()), Event::End { status: EndStatus::Ok, execution_count: 1 }]
    );
    // A value of many frames, and more than a ring holds.
    let Event::Result(bundle) = pair.run(2, "value 3000000").remove(0) else { panic!("no value") };
    assert_eq!(bundle.data["text/plain"].as_str().map(str::len), Some(3_000_000));
    let failed = pair.run(3, "nonsense");
    assert!(matches!(&failed[0], Event::Error(error) if error.name == "Unknown"), "{failed:?}");
    pair.channel.check(4, "print").unwrap();
    let judged = pair.until_end(4);
    assert!(matches!(&judged[0], Event::Checked(checked) if checked.status == Completeness::Complete), "{judged:?}");
    // Code of more than a ring holds goes over as there is room.
    let long = format!("print {}", "x".repeat(3 << 20));
    let length = |event: &Event| if let Event::Stdout(bytes) = event { bytes.len() } else { 0 };
    let printed: usize = pair.run(5, &long).iter().map(length).sum();
    assert_eq!(printed, 3 << 20);
    pair.channel.execute(6, "quit").unwrap();
    pair.worker.join().unwrap();
    while pair.channel.step().is_ok_and(|events| events.is_empty()) {
        wait(&pair.channel);
    }
    assert_eq!(pair.channel.step(), Err(Broken::Gone), "a worker that ended is told");
}

/// A supervisor that is gone in the middle of a flood: the worker waits, and the next one reads on. Nothing is lost or read twice.
// promise 29
#[test]
fn a_later_supervisor_goes_on_where_one_stopped() {
    const COUNT: u32 = 300_000;
    let mut pair = Pair::new();
    pair.channel.execute(7, &format!("flood {COUNT}")).unwrap();
    let (mut next, mut supervisors) = (0u32, 0);
    loop {
        let events = pair.channel.step().unwrap();
        if events.is_empty() {
            wait(&pair.channel);
            continue;
        }
        let mut is_over = false;
        for Received { event, .. } in events {
            match event {
                Event::Stdout(bytes) => {
                    assert_eq!(bytes, next.to_le_bytes());
                    next += 1;
                }
                Event::End { .. } => is_over = true,
                _ => {}
            }
        }
        if is_over {
            break;
        }
        pair.channel = Channel::open(Language::Python, copies(&pair.supervisor)).unwrap();
        supervisors += 1;
    }
    assert_eq!(next, COUNT);
    assert!(supervisors > 10, "{supervisors}");
}

/// Messages with a number each, from one thread to another, round a ring many times; `COFFERDAM_FULL=1 cargo test --release` sends 10⁸.
// promise 29
#[test]
fn messages_go_round_a_ring_in_order_and_none_is_lost() {
    let count = testkit::times(300_000, 100_000_000);
    let memory = sys::ring::create(1 << 12).unwrap();
    let mut reader = sys::ring::Rings::map(&memory).unwrap().consumer;
    std::thread::scope(|scope| {
        let mut writer = sys::ring::Rings::map_as(sys::ring::Side::Worker, &memory).unwrap().producer;
        scope.spawn(move || {
            for number in 0..count {
                // Lengths of 8 to 15 bytes, so that messages begin at every offset and cross the ring's end.
                let length = 8 + (number % 8) as usize;
                let message = [number.to_le_bytes(), [number as u8; 8]].concat();
                while writer.free().unwrap() < length as u64 {
                    std::thread::yield_now();
                }
                assert_eq!(writer.write(&message[..length]), Ok(length));
            }
        });
        for number in 0..count {
            let length = 8 + (number % 8) as usize;
            while reader.available().unwrap() < length {
                std::thread::yield_now();
            }
            let mut message = [0; 16];
            reader.copy(0, &mut message[..length]);
            assert_eq!(message[..8], number.to_le_bytes());
            assert!(message[8..length].iter().all(|byte| *byte == number as u8));
            reader.advance(length);
        }
    });
    assert_eq!(reader.available(), Ok(0));
}

/// Bytes of a whole conversation, as a worker wrote it.
fn conversation() -> (Vec<u8>, Vec<u8>) {
    let mut pair = Pair::new();
    for (request, line) in [(1, "print hello"), (2, "value 300000"), (3, "nonsense"), (4, "flood 5")] {
        pair.run(request, line);
    }
    let mut memory = vec![0; 2 * (64 + (1 << 20))];
    pread(&pair.supervisor[0], &mut memory, 0).unwrap();
    let output = memory.split_off(64 + (1 << 20));
    (output[..64].to_vec(), output[64..].to_vec())
}

/// Reads what a guest may have put into the output ring: a bounded number of events, or a rule that was broken.
fn read_all(header: &[u8], data: &[u8]) -> Result<usize, Broken> {
    let ends = ends();
    let ring = 64 + (1 << 20);
    pwrite(&ends.worker[0], header, ring).unwrap();
    pwrite(&ends.worker[0], data, ring + 64).unwrap();
    let mut channel = Channel::open(Language::Python, ends.supervisor)?;
    let mut count = 0;
    // Each step consumes frames, or there are none.
    for _ in 0..1 << 17 {
        let events = channel.step()?;
        if events.is_empty() && channel.pending() == 0 {
            return Ok(count);
        }
        count += events.len();
        if events.is_empty() {
            return Ok(count);
        }
    }
    panic!("more events than a ring can hold");
}

fn with_head(header: &[u8], head: u64) -> Vec<u8> {
    [&header[..16], &head.to_le_bytes(), &0u64.to_le_bytes(), &header[32..]].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: testkit::times(150, 100_000) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Fuzzes a true conversation: bytes of frames and of positions are changed.
    #[test]
    fn no_bytes_in_the_rings_do_more_than_break_the_channel(seed in any::<u64>()) {
        static TRUE: std::sync::OnceLock<(Vec<u8>, Vec<u8>)> = std::sync::OnceLock::new();
        let (header, data) = TRUE.get_or_init(conversation);
        let written = u64::from_le_bytes(header[16..24].try_into().unwrap());
        // The control: as it was written it is read to its end.
        prop_assert_eq!(read_all(&with_head(header, written), data).map(|count| count > 10), Ok(true));
        let mut random = testkit::sample::Random(seed);
        let words: [&[u8]; 6] = [&[0; 8], &[255; 8], b"\x16\0\0\0", b"{\"data\":", b"\x11\x01", &[0, 0, 4, 0]];
        let part = random.below(400) + 1;
        let mut changed = testkit::sample::mutate(&data[..part], &data[..4096], &words, &mut random);
        changed.truncate(1 << 16);
        let length = changed.len() as u64;
        let data = [&changed[..], &data[part..written as usize]].concat();
        let head = [length, written, written + random.next() % 64, random.next()][random.below(4)];
        let _ = read_all(&with_head(header, head), &data);
    }
}

/// Each single rule of the page, broken alone.
// promise 29
#[test]
fn each_rule_that_is_broken_is_named() {
    let (header, data) = conversation();
    let written = u64::from_le_bytes(header[16..24].try_into().unwrap());
    let changed = |at: usize, byte: u8| {
        let mut data = data.clone();
        data[at] ^= byte;
        read_all(&with_head(&header, written), &data)
    };
    let rule = |result: Result<usize, Broken>| match result {
        Err(Broken::Rule(rule)) => rule,
        other => panic!("{other:?}"),
    };
    for (at, byte, word) in [
        (3, 0x80, "bytes"),
        (4, 0x80, "unknown type"),
        (5, 0x02, "flags"),
        (6, 0x01, "flags"),
        (8, 0x01, "checksum"),
        (12, 0x01, "checksum"),
        (20, 0x01, "checksum"),
    ] {
        let told = rule(changed(at, byte));
        assert!(told.contains(word), "byte {at}: {told}");
    }
    let far = rule(read_all(&with_head(&header, (1 << 20) + 1), &data));
    assert!(far.contains("position"), "{far}");
}
