use super::*;
use proptest::prelude::*;

struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        let dir = std::env::temp_dir().join(terms::id("spool", sys::random::id_bytes()));
        Place(dir)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kinds() -> impl Strategy<Value = RecordKind> {
    prop_oneof![
        Just(RecordKind::Stdout),
        Just(RecordKind::Stderr),
        Just(RecordKind::Terminal),
        Just(RecordKind::Dropped)
    ]
}

fn all(dir: &Path, from: u64, most: usize) -> (Vec<Record>, bool) {
    let mut reader = SpoolReader::open(dir).unwrap();
    let (mut found, mut at) = (Vec::new(), from);
    loop {
        let page = reader.read(at, most).unwrap();
        if page.records.is_empty() {
            return (found, page.ended);
        }
        at = page.next;
        found.extend(page.records);
        if page.ended {
            return (found, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Reading from any record's offset returns the records written from there on, whatever the page size.
    #[test]
    fn reads_what_was_written(
        written in prop::collection::vec((kinds(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..300)), 0..40),
        most in 0usize..700,
        pick in any::<prop::sample::Index>(),
    ) {
        let place = Place::new();
        let mut writer = SpoolWriter::create(&place.0).unwrap();
        let mut want = Vec::new();
        for (kind, at_ms, bytes) in written {
            let offset = writer.append(kind, at_ms, &bytes).unwrap();
            want.push(Record { offset, kind, at_ms, bytes });
        }
        prop_assert_eq!(all(&place.0, 0, most), (want.clone(), false));
        let offset = writer.end(7, b"{}").unwrap();
        want.push(Record { offset, kind: RecordKind::End, at_ms: 7, bytes: b"{}".to_vec() });
        let last = SpoolReader::last(&place.0).unwrap();
        prop_assert_eq!(last.as_ref(), want.last());
        let from = pick.index(want.len());
        prop_assert_eq!(all(&place.0, want[from].offset, most), (want[from..].to_vec(), true));
        // At the end there are no records, and the log is reported as ended.
        let page = SpoolReader::open(&place.0).unwrap().read(writer.next(), 10).unwrap();
        prop_assert_eq!((page.records.len(), page.ended), (0, true));
    }

    /// A log that is truncated anywhere has all records before the cut; the next writer continues after them.
    #[test]
    fn a_torn_record_is_not_there(
        written in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..12),
        cut in any::<prop::sample::Index>(),
        zeros in 0u64..64,
    ) {
        let place = Place::new();
        let mut writer = SpoolWriter::create(&place.0).unwrap();
        let mut offsets: Vec<u64> = written.iter().map(|bytes| writer.append(RecordKind::Stdout, 1, bytes).unwrap()).collect();
        offsets.push(writer.next());
        let cut = cut.index(writer.next() as usize + 1) as u64;
        let file = OpenOptions::new().write(true).open(place.0.join(name(0))).unwrap();
        file.set_len(cut).unwrap();
        file.set_len(cut + zeros).unwrap();
        let whole = offsets.iter().skip(1).filter(|end| **end <= cut).count();
        let (found, ended) = all(&place.0, 0, 1 << 20);
        // Zeros after the cut may complete a payload, but never yield more records than were started.
        prop_assert!(found.len() == whole || (zeros > 0 && found.len() == whole + 1), "{} of {whole}", found.len());
        prop_assert!(!ended);
        let mut again = SpoolWriter::take_up(&place.0).unwrap();
        let offset = again.end(2, b"lost").unwrap();
        prop_assert_eq!(offset, offsets[found.len()]);
        let (after, ended) = all(&place.0, 0, 1 << 20);
        prop_assert_eq!((after.len(), ended), (found.len() + 1, true));
        prop_assert_eq!(&after.last().unwrap().bytes, b"lost");
    }
}

#[test]
fn a_guest_cannot_forge_a_record() {
    let place = Place::new();
    let mut writer = SpoolWriter::create(&place.0).unwrap();
    let mut forged = Head::write(RecordKind::End, 0, 2).to_vec();
    forged.extend_from_slice(b"{}");
    writer.append(RecordKind::Stdout, 0, &forged).unwrap();
    let mut reader = SpoolReader::open(&place.0).unwrap();
    let inside = HEAD as u64;
    assert!(matches!(reader.read(inside, 100), Err(ReadError::NoRecord { offset }) if offset == inside));
    assert!(matches!(reader.read(1 << 40, 100), Err(ReadError::NoRecord { .. })));
    // Control: a record does begin there, and after it.
    assert_eq!(reader.read(0, 100).unwrap().records[0].bytes, forged);
    assert!(reader.read(writer.next(), 100).unwrap().records.is_empty());
}

#[test]
fn the_oldest_segments_go_and_a_reader_is_told() {
    let place = Place::new();
    let mut writer = SpoolWriter::create(&place.0).unwrap();
    let mut early = SpoolReader::open(&place.0).unwrap();
    let piece = vec![7u8; MOST];
    writer.append(RecordKind::Stdout, 0, &piece).unwrap();
    let seen = early.read(0, 1).unwrap();
    assert_eq!((seen.records.len(), seen.gap), (1, None));
    let a_segment = SEGMENT as usize / (MOST + HEAD);
    for _ in 0..a_segment * (KEPT + 3) {
        writer.append(RecordKind::Stdout, 0, &piece).unwrap();
    }
    let kept = segments(&place.0).unwrap();
    assert_eq!(kept.len(), KEPT);
    // A reader with a deleted segment open reads it to its end, and then learns of the gap.
    let (mut at, mut gap) = (seen.next, None);
    while gap.is_none() {
        let page = early.read(at, MOST * 4).unwrap();
        assert!(!page.records.is_empty());
        (at, gap) = (page.next, page.gap);
    }
    assert!(gap.unwrap().1 >= kept[0] && gap.unwrap().0 < kept[0]);
    // A new reader learns of the gap at once.
    let page = SpoolReader::open(&place.0).unwrap().read(0, 1).unwrap();
    assert_eq!((page.gap, page.records[0].offset), (Some((0, kept[0])), kept[0]));
    assert!(writer.append(RecordKind::Stdout, 0, &[0; MOST + 1]).is_err());
}

#[test]
fn a_log_grows_under_its_reader() {
    let place = Place::new();
    let mut writer = SpoolWriter::create(&place.0).unwrap();
    let mut reader = SpoolReader::open(&place.0).unwrap();
    let mut at = 0;
    for n in 0..100u64 {
        assert!(reader.read(at, 100).unwrap().records.is_empty());
        writer.append(RecordKind::Dropped, n, &n.to_le_bytes()).unwrap();
        let page = reader.read(at, 100).unwrap();
        assert_eq!(page.records[0].dropped(), Some(n));
        at = page.next;
    }
}

/// Foreign files in a log's directory: nothing outside is read or written, and no number overflows.
// promise 25
#[test]
fn what_is_not_of_a_log_is_not_read_and_not_written() {
    let (place, other) = (Place::new(), Place::new());
    for dir in [&place.0, &other.0] {
        let mut writer = SpoolWriter::create(dir).unwrap();
        writer.append(RecordKind::Stdout, 1, b"said").unwrap();
    }
    let (segment, foreign) = (place.0.join(name(0)), other.0.join(name(0)));
    let whole = std::fs::read(&foreign).unwrap();
    assert_eq!(all(&place.0, 0, 10).0.len(), 1, "the control");
    let read = |dir: &Path| SpoolReader::open(dir).map_err(ReadError::from).and_then(|mut reader| reader.read(0, 100));
    let is_shut =
        |dir: &Path| read(dir).is_err() && SpoolWriter::take_up(dir).is_err() && SpoolReader::last(dir).is_err();
    std::fs::remove_file(&segment).unwrap();
    std::os::unix::fs::symlink(&foreign, &segment).unwrap();
    assert!(is_shut(&place.0), "a link in the place of a segment");
    std::fs::remove_file(&segment).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &segment, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(is_shut(&place.0), "a pipe");
    std::fs::remove_dir_all(&place.0).unwrap();
    std::os::unix::fs::symlink(&other.0, &place.0).unwrap();
    assert!(is_shut(&place.0), "a link in the place of its directory");
    std::fs::remove_file(&place.0).unwrap();
    assert_eq!(std::fs::read(&foreign).unwrap(), whole, "nothing was written there");
    // Numbers beyond any log's offsets, and more segments than any log has.
    let mut writer = SpoolWriter::create(&place.0).unwrap();
    writer.append(RecordKind::Stdout, 1, b"said").unwrap();
    for first in [u64::MAX, u64::MAX - 7, 1 << 63] {
        std::fs::write(place.0.join(name(first)), &whole).unwrap();
    }
    assert_eq!(all(&place.0, 0, 10).0.len(), 1);
    assert!(SpoolWriter::take_up(&place.0).unwrap().next() == writer.next());
    std::fs::write(place.0.join(name(LAST)), &whole).unwrap();
    assert_eq!(SpoolReader::last(&place.0).unwrap().unwrap().offset, LAST);
    assert_eq!(SpoolWriter::take_up(&place.0).unwrap().next(), LAST + whole.len() as u64);
    // Bytes behind the end of a segment are ignored, however long the file is.
    std::fs::remove_file(place.0.join(name(LAST))).unwrap();
    OpenOptions::new().write(true).open(&segment).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(all(&place.0, 0, 10).0.len(), 1);
    for n in 1..=MOST_SEGMENTS as u64 {
        std::fs::write(place.0.join(name(n << 30)), b"").unwrap();
    }
    assert!(is_shut(&place.0), "more than any writer leaves");
}
