use super::*;
use crate::request_judge::Injection;

const SECRET: &str = "sk-0123456789abcdef";

fn needles() -> Needles {
    let secret = SECRET.as_bytes();
    let injection =
        Injection { header: "x".into(), placeholder: "p".into(), value: secret.into(), secret: secret.into() };
    Needles::of(&[injection]).unwrap()
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let head = match payload.len() {
        len @ ..126 => vec![first, len as u8],
        len => [&[first, 126][..], &(len as u16).to_be_bytes()].concat(),
    };
    [head, payload.to_vec()].concat()
}

/// Passes the bytes through in pieces of `size` and returns the output.
fn through(needles: &Needles, bytes: &[u8], step: usize) -> Result<Vec<u8>, &'static str> {
    let mut frames = Frames::new(needles);
    let mut out = Vec::new();
    for piece in bytes.chunks(step) {
        out.extend(frames.pass(Bytes::copy_from_slice(piece))?);
    }
    Ok(out)
}

#[test]
fn a_secret_cut_into_frames_is_masked() {
    let needles = needles();
    let text = format!("before {SECRET} after");
    let stars = text.replace(SECRET, &"*".repeat(SECRET.len()));
    let long = format!("{}{SECRET}", "x".repeat(300));
    for cut in 0..=text.len() {
        let cut_up = |text: &str, between: &[u8]| {
            let (one, two) = text.as_bytes().split_at(cut);
            [frame(0x01, one), between.to_vec(), frame(0x80, two)].concat()
        };
        // In one frame, in two frames, and with other frames between them.
        for between in [vec![], frame(0x00, b""), frame(0x89, b"ping"), frame(0x8a, SECRET.as_bytes())] {
            let mut shown = between.clone();
            if between.len() > 10 {
                shown[2..].fill(b'*');
            }
            for step in [1, 2, 7, 1000] {
                assert_eq!(
                    through(&needles, &cut_up(&text, &between), step).unwrap(),
                    cut_up(&stars, &shown),
                    "cut at {cut}"
                );
            }
        }
    }
    let masked = through(&needles, &frame(0x82, long.as_bytes()), 50).unwrap();
    assert_eq!(masked, frame(0x82, long.replace(SECRET, &"*".repeat(SECRET.len())).as_bytes()));
}

/// The end of a message decides the held bytes.
#[test]
fn a_whole_message_does_not_wait() {
    let needles = needles();
    for text in ["hello", "sk-0123", "", "sk-"] {
        let said = frame(0x81, text.as_bytes());
        assert_eq!(through(&needles, &said, 1).unwrap(), said);
    }
    // An unfinished message is held where it could contain the secret.
    assert_eq!(through(&needles, &frame(0x01, b"my sk-0123"), 99).unwrap(), b"\x01\x0amy ");
}

#[test]
fn what_is_no_frame_does_not_go_on() {
    let needles = needles();
    for bad in [
        &b"\xc1\x01x"[..],
        b"\x91\x00",
        b"\x81\x81\0\0\0\0x",
        b"\x83\x00",
        b"\x8b\x00",
        b"\x09\x00",
        b"\x89\x7e\x00\x80",
        b"\x80\x00",
        b"\x01\x00\x81\x00",
        b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        assert!(through(&needles, bad, 1).is_err() && through(&needles, bad, 99).is_err(), "{}", bad.escape_ascii());
    }
    // The number of frames queued behind held bytes is bounded.
    let pings = frame(0x89, b"").repeat(MAX_QUEUED + 1);
    assert!(through(&needles, &[frame(0x01, b"sk-0123"), pings.clone()].concat(), 99).is_err());
    assert_eq!(through(&needles, &[frame(0x01, b"other"), pings.clone()].concat(), 99).unwrap().len(), 7 + pings.len());
}

/// Property: the output does not depend on how the input is cut, and has the same length.
#[test]
fn any_bytes_in_any_pieces() {
    let needles = needles();
    let mut seed = 1u64;
    let mut below = |bound: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % bound
    };
    for _ in 0..5000 {
        let mut bytes = Vec::new();
        for _ in 0..1 + below(8) {
            let at = below(SECRET.len());
            let payload = [&b"x"[..below(2)], &SECRET.as_bytes()[at..], &SECRET.as_bytes()[..at]].concat();
            bytes.extend(frame(
                [0x01, 0x81, 0x00, 0x80, 0x89, 0x88, 0x02][below(7)],
                &payload[..below(payload.len() + 1)],
            ));
        }
        if below(4) == 0 {
            let at = below(bytes.len());
            bytes[at] = below(256) as u8;
        }
        let whole = through(&needles, &bytes, bytes.len());
        assert_eq!(through(&needles, &bytes, 1 + below(bytes.len())), whole, "{}", bytes.escape_ascii());
        if let Ok(out) = whole {
            assert!(out.len() <= bytes.len());
            assert!(!out.windows(SECRET.len()).any(|w| w == SECRET.as_bytes()));
        }
    }
}
