use super::*;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SMALL: usize = 1 << 12;

fn put(memfd: BorrowedFd<'_>, offset: usize, value: u64) {
    assert_eq!(rustix::io::pwrite(memfd, &value.to_le_bytes(), offset as u64), Ok(8));
}

/// Offset of the output ring.
const OUTPUT: usize = HEADER + SMALL;

#[test]
fn the_layout_is_that_of_the_reference() {
    let memfd = create(SMALL).unwrap();
    let mut rings = Rings::map(&memfd).unwrap();
    assert_eq!(rings.producer.write(b"supervisor to worker"), Ok(20));
    rings.producer.count_frame();
    let mut file = vec![0; 2 * (64 + SMALL)];
    assert_eq!(rustix::io::pread(&memfd, &mut file, 0), Ok(file.len()));
    assert_eq!(file[..16], *b"CFR1\x01\0\0\0\0\x10\0\0\0\0\0\0");
    assert_eq!(file[16..40], [20u64, 0, 1].map(u64::to_le_bytes).concat());
    assert_eq!(file[64..84], *b"supervisor to worker");
    assert_eq!(file[OUTPUT..OUTPUT + 16], file[..16]);
    let input = RingFigure { queued_bytes: 20, bytes: 20, frames: 1 };
    assert_eq!(figures(&memfd), Ok(RingFigures { capacity_bytes: SMALL as u64, input, output: RingFigure::default() }));
}

#[test]
fn the_size_never_changes() {
    let memfd = create(SMALL).unwrap();
    for size in [0, 4096, 2 * (64 + SMALL as u64) + 1] {
        assert_eq!(rustix::fs::ftruncate(&memfd, size), Err(Errno::PERM), "to {size}");
    }
    assert_eq!(rustix::fs::fcntl_add_seals(&memfd, SealFlags::WRITE), Err(Errno::PERM), "nor do the seals");
    // The control: without the seals it would.
    let open = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 2 * (64 + SMALL as u64)).unwrap();
    assert_eq!(Rings::map(&open).err(), Some(RingError::NotSealed));
    rustix::fs::ftruncate(&open, 100).unwrap();
    rustix::fs::fcntl_add_seals(&open, seals()).unwrap();
    assert_eq!(Rings::map(&open).err(), Some(RingError::Size(100)));
    assert!(matches!(figures(&open), Err(RingError::Size(100))));
    assert_eq!(Rings::map(std::fs::File::open("/dev/null").unwrap()).err(), Some(RingError::NotSealed));
}

#[test]
fn another_supervisor_goes_on_where_one_stopped() {
    let memfd = create(SMALL).unwrap();
    let mut worker = Rings::map_as(Side::Worker, &memfd).unwrap();
    let mut first = Rings::map(&memfd).unwrap();
    worker.producer.write(b"abcdef").unwrap();
    assert_eq!((first.consumer.available(), first.producer.write(b"xyz")), (Ok(6), Ok(3)));
    first.consumer.advance(4);
    drop(first);
    let mut second = Rings::map(&memfd).unwrap();
    assert_eq!((second.consumer.position(), second.producer.position()), (4, 3));
    assert_eq!(second.consumer.available(), Ok(2));
    let mut rest = [0; 2];
    second.consumer.copy(0, &mut rest);
    assert_eq!((&rest, second.producer.write(b"!"), worker.consumer.available()), (b"ef", Ok(1), Ok(4)));
}

#[test]
fn positions_that_lie_are_told_apart() {
    let capacity = SMALL as u64;
    let cases: [(&str, u64, u64, bool); 6] = [
        ("far ahead", u64::MAX, 0, false),
        ("one too many", capacity + 11, 10, false),
        ("behind the reader", 3, 10, false),
        ("all wrong", 0x0123_4567_89ab_cdef, 0xfedc_ba98, false),
        ("full", capacity + 10, 10, true),
        ("about to wrap", 2, u64::MAX - 1, true),
    ];
    for (name, head, tail, good) in cases {
        let memfd = create(SMALL).unwrap();
        put(memfd.as_fd(), OUTPUT + HEAD, head);
        put(memfd.as_fd(), OUTPUT + TAIL, tail);
        let mapped = Rings::map(&memfd);
        assert_eq!(mapped.is_ok(), good, "{name}");
        if let Err(error) = mapped {
            assert_eq!(error, RingError::Positions { head, tail, capacity }, "{name}");
        }
        let found = figures(&memfd).unwrap().output;
        assert!(found.queued_bytes <= capacity, "{name}: {found:?}");
    }
}

/// A head or tail that changes under a mapping: typed, and no byte outside of what was available is read.
#[test]
fn a_position_that_changes_is_checked_each_time() {
    let memfd = create(SMALL).unwrap();
    let mut rings = Rings::map(&memfd).unwrap();
    let capacity = SMALL as u64;
    let mut seen = |head: u64| {
        put(memfd.as_fd(), OUTPUT + HEAD, head);
        rings.consumer.available()
    };
    assert_eq!(seen(10), Ok(10));
    assert_eq!(seen(9), Err(RingError::Backward { from: 10, to: 9 }));
    assert_eq!(seen(10), Ok(10), "the control: nothing else is wrong");
    assert_eq!(seen(capacity + 1), Err(RingError::Positions { head: capacity + 1, tail: 0, capacity }));
    assert_eq!(seen(u64::MAX), Err(RingError::Positions { head: u64::MAX, tail: 0, capacity }));
    assert_eq!(rings.producer.write(b"0123456789"), Ok(10));
    let mut write = |tail: u64| {
        put(memfd.as_fd(), TAIL, tail);
        rings.producer.write(b"")
    };
    assert_eq!(write(4), Ok(0));
    assert_eq!(write(3), Err(RingError::Backward { from: 4, to: 3 }));
    assert_eq!(write(11), Err(RingError::Positions { head: 10, tail: 11, capacity }));
    put(memfd.as_fd(), 8, 1 << 20);
    assert_eq!(Rings::map(&memfd).err(), Some(RingError::Header), "a capacity that lies");
}

#[test]
fn bytes_of_every_length_go_round_at_every_offset() {
    let memfd = create(HEADER).unwrap();
    let (mut ours, mut theirs) = (Rings::map(&memfd).unwrap(), Rings::map_as(Side::Worker, &memfd).unwrap());
    let mut count = 0u8;
    for length in (0..=HEADER).cycle().take(20 * HEADER) {
        let sent: Vec<u8> = (0..length as u8).map(|n| n.wrapping_add(count)).collect();
        assert_eq!(ours.producer.write(&sent), Ok(length));
        assert_eq!(theirs.consumer.available(), Ok(length));
        // From a place behind the reader's position, too.
        let mut got = vec![0; length];
        let (first, second) = got.split_at_mut(length / 3);
        theirs.consumer.copy(0, first);
        theirs.consumer.copy(length / 3, second);
        assert_eq!(got, sent);
        theirs.consumer.advance(length);
        count = count.wrapping_add(length as u8 + 1);
    }
    assert_eq!(ours.producer.write(&[0; HEADER + 1]), Ok(HEADER), "as many as fit");
    assert_eq!(ours.producer.write(b"x"), Ok(0), "a full ring takes none");
    assert_eq!(theirs.consumer.available(), Ok(HEADER));
    assert!(theirs.consumer.advance(HEADER / 2 + 1), "from full to less than half");
    assert!(!theirs.consumer.advance(1), "from less than half to less");
}

#[test]
#[should_panic(expected = "only what is available is read")]
fn nothing_is_read_that_is_not_there() {
    let rings = Rings::map(create(SMALL).unwrap()).unwrap();
    rings.consumer.copy(0, &mut [0]);
}

/// The other side flips every byte of the header and the data while they are read: each look gives a number that fits, or
/// an error; no read leaves the ring.
#[test]
fn a_ring_that_changes_while_it_is_read_is_only_wrong() {
    let memfd = create(SMALL).unwrap();
    let mut rings = Rings::map(&memfd).unwrap();
    let hostile = Mapping::new(memfd.as_fd(), 2 * half(SMALL)).map(Arc::new).unwrap();
    let hostile = MappedRing::new(&hostile, half(SMALL), SMALL);
    let over = AtomicBool::new(false);
    let flips = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use cursors::Memory;
            let mut number = 1u64;
            while !over.load(Ordering::Relaxed) {
                number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
                let head = if number & 3 == 0 { number } else { number % (SMALL as u64 + 9) };
                hostile.head().store(head, Ordering::Release);
                hostile.data()[number as usize % hostile.data().len()].store(number, Ordering::Relaxed);
                flips.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (mut good, mut bad) = (0, 0);
        while good < 1000 || bad < 1000 || flips.load(Ordering::Relaxed) < 1000 {
            match rings.consumer.available() {
                Ok(count) => {
                    assert!(count <= SMALL);
                    let mut bytes = vec![0; count];
                    rings.consumer.copy(0, &mut bytes);
                    rings.consumer.advance(count);
                    good += 1;
                }
                Err(RingError::Positions { .. } | RingError::Backward { .. } | RingError::Unsteady) => bad += 1,
                Err(error) => panic!("{error}"),
            }
            // A supervisor would end the worker; a new one would look again.
            if rings.consumer.position() > (SMALL / 2) as u64 {
                put(memfd.as_fd(), OUTPUT + TAIL, 0);
                hostile_free_map(&memfd, &mut rings);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Maps the rings anew, as often as the positions happen to be wrong.
fn hostile_free_map(memfd: &OwnedFd, rings: &mut Rings) {
    loop {
        match Rings::map(memfd) {
            Ok(mapped) => return *rings = mapped,
            Err(error) => assert!(!matches!(error, RingError::Call(_)), "{error}"),
        }
    }
}
