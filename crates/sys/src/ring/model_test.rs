//! The ring's algorithm under a model checker, which runs it in every order in which two threads can see each other's
//! writes, weaker ones than this machine's among them.

use super::cursors::{Consumer, Memory, Producer};
use super::words::Word;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Notify};
use loom::thread;
use std::sync::atomic::Ordering;

/// A position that the writer publishes with this order in place of the one that the algorithm asks for.
struct Cell {
    value: AtomicU64,
    weakened: bool,
}

impl Cell {
    fn new(weakened: bool) -> Cell {
        Cell { value: AtomicU64::new(0), weakened }
    }
}

impl Word for Cell {
    fn load(&self, order: Ordering) -> u64 {
        self.value.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.value.store(value, if self.weakened { Ordering::Relaxed } else { order });
    }
}

/// A ring of eight bytes.
struct Model {
    head: Cell,
    tail: Cell,
    frames: Cell,
    data: [Cell; 1],
}

impl Memory for Arc<Model> {
    type Word = Cell;

    fn head(&self) -> &Cell {
        &self.head
    }

    fn tail(&self) -> &Cell {
        &self.tail
    }

    fn frames(&self) -> &Cell {
        &self.frames
    }

    fn data(&self) -> &[Cell] {
        &self.data
    }
}

fn ends(weakened: bool) -> (Producer<Arc<Model>>, Consumer<Arc<Model>>) {
    let model = Arc::new(Model {
        head: Cell::new(weakened),
        tail: Cell::new(false),
        frames: Cell::new(false),
        data: [Cell::new(false)],
    });
    (Producer::resume(Arc::clone(&model)).unwrap(), Consumer::resume(model).unwrap())
}

/// Orders that an ordinary run tries.
const ORDERS: usize = 200_000;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // More switches than this find nothing that fewer do not, and take minutes.
    builder.preemption_bound = Some(2);
    // A fixed part of the orders; `COFFERDAM_FULL=1` tries all of them, which takes long.
    builder.max_permutations = std::env::var_os("COFFERDAM_FULL").is_none().then_some(ORDERS);
    builder.check(model);
}

/// Writes the bytes 1 to `count`, three at a time; waits for the bell when none fits.
fn write_all(mut producer: Producer<Arc<Model>>, count: u8, bells: &[Arc<Notify>; 2]) {
    let mut left: &[u8] = &(1..=count).collect::<Vec<_>>();
    while !left.is_empty() {
        match producer.write(&left[..left.len().min(3)]).unwrap() {
            0 => bells[0].wait(),
            written => {
                left = &left[written..];
                bells[1].notify();
            }
        }
    }
}

/// Reads the bytes 1 to `count` in frames of two, and rings only when the ring came below half.
fn read_all(mut consumer: Consumer<Arc<Model>>, count: u8, bells: &[Arc<Notify>; 2]) {
    let mut next = 1;
    while next <= count {
        if consumer.available().unwrap() < 2 {
            bells[1].wait();
            continue;
        }
        while consumer.queued() >= 2 {
            let mut frame = [0; 2];
            consumer.copy(0, &mut frame);
            assert_eq!(frame, [next, next + 1], "bytes arrive as they were written");
            next += 2;
            if consumer.advance(2) {
                bells[0].notify();
            }
        }
    }
}

fn exchange(count: u8, weakened: bool) {
    let (producer, consumer) = ends(weakened);
    let bells = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    let theirs = bells.clone();
    let writer = thread::spawn(move || write_all(producer, count, &theirs));
    read_all(consumer, count, &bells);
    writer.join().unwrap();
}

/// No order of steps loses a byte, reads one too early, or lets both sides wait for each other.
#[test]
fn bytes_arrive_and_wake_ups_suffice_in_every_order() {
    check(|| exchange(10, false));
}

#[test]
#[should_panic(expected = "bytes arrive as they were written")]
fn control_the_model_sees_a_head_that_is_published_too_early() {
    check(|| exchange(2, true));
}
