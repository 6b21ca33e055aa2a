//! Corpus files, and parsers fed in pieces.

/// Reads a corpus file.
pub fn corpus(path: &str) -> Vec<u8> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    std::fs::read(root.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Parses ever longer prefixes and returns the first result other than "more", with the prefix length.
pub fn one_by_one<T>(bytes: &[u8], read: impl Fn(&[u8]) -> T, needs_more: impl Fn(&T) -> bool) -> (T, usize) {
    for len in 0..bytes.len() {
        let verdict = read(&bytes[..len]);
        if !needs_more(&verdict) {
            return (verdict, len);
        }
    }
    (read(bytes), bytes.len())
}

/// Decodes chunks in steps of one, a few, or all bytes: the body, its end, and the bytes left over.
pub fn dechunk(
    input: &[u8],
    step: usize,
) -> (Vec<u8>, egress::chunked::DecodeStep, usize, egress::http1::HeaderFields) {
    use egress::chunked::{Chunked, DecodeStep};
    let mut decoder = Chunked::new();
    let (mut body, mut at) = (Vec::new(), 0);
    for part in input.chunks(step.max(1)) {
        let mut rest = part;
        loop {
            match decoder.next(rest) {
                DecodeStep::NeedMore => break,
                DecodeStep::Data(range) => {
                    assert!(!range.is_empty() && range.end <= rest.len());
                    body.extend(&rest[range.clone()]);
                    rest = &rest[range.end..];
                }
                DecodeStep::End(used) => {
                    let consumed = at + (part.len() - rest.len()) + used;
                    return (body, DecodeStep::End(0), consumed, decoder.trailers().clone());
                }
                bad => return (body, bad, 0, Default::default()),
            }
        }
        at += part.len();
    }
    (body, DecodeStep::NeedMore, at, Default::default())
}
