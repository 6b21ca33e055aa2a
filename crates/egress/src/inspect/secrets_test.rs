use super::*;
use crate::http1::HeaderFields;

fn injection(header: &str, placeholder: &str, secret: &str) -> Injection {
    let value = format!("Bearer {secret}").into_bytes();
    let (header, placeholder) = (header.to_owned(), placeholder.to_owned());
    Injection { header, placeholder, value: value.into(), secret: Arc::from(secret.as_bytes()) }
}

const SECRET: &str = "s3cr3t/\"with\\odd+chars&more";

fn needles() -> Needles {
    Needles::of(&[injection("authorization", "PLACE", SECRET)]).unwrap()
}

#[test]
fn every_spelling_is_masked() {
    let base = |text: &str| STANDARD.encode(text);
    for told in [
        SECRET.to_owned(),
        serde_json::to_string(SECRET).unwrap(),
        "s3cr3t\\/\\\"with\\\\odd+chars&more".to_owned(),
        "s3cr3t/\\\"with\\\\odd+chars\\u0026more".to_owned(),
        "s3cr3t%2F%22with%5Codd%2Bchars%26more".to_owned(),
        "s3cr3t%2f%22with%5codd%2bchars%26more".to_owned(),
        "s3cr3t/%22with%5Codd%2Bchars%26more".to_owned(),
        base(SECRET),
        base(&format!("u:{SECRET}")),
        base(&format!("user:{SECRET}:x")),
        URL_SAFE_NO_PAD.encode(format!("x{SECRET}")),
        SECRET.bytes().map(|b| format!("{b:02x}")).collect(),
        SECRET.bytes().map(|b| format!("{b:02X}")).collect(),
    ] {
        let masked = needles().masked(format!("before {told} after").as_bytes());
        let masked = String::from_utf8(masked.unwrap_or_else(|| panic!("{told} is not found"))).unwrap();
        assert_eq!(masked.len(), told.len() + 13);
        assert!(masked.starts_with("before ") && masked.ends_with(" after") && masked.contains("********"), "{masked}");
    }
    assert_eq!(needles().masked(b"nothing of it: s3cr3t"), None);
}

#[test]
fn however_the_pieces_are_cut() {
    let text = format!("a{SECRET}b{SECRET}{SECRET}c s3cr3t/ s3cr");
    let stars = "*".repeat(SECRET.len());
    let wanted = format!("a{stars}b{stars}{stars}c s3cr3t/ s3cr");
    let needles = needles();
    for step in 1..text.len() {
        let mut mask = Mask::new(Some(&needles));
        let mut out = Vec::new();
        text.as_bytes().chunks(step).for_each(|part| out.extend(mask.pass(Bytes::copy_from_slice(part))));
        out.extend(mask.rest());
        assert_eq!(String::from_utf8(out).unwrap(), wanted, "in pieces of {step}");
    }
}

#[test]
fn only_what_could_be_a_secret_is_held() {
    let needles = needles();
    let mut mask = Mask::new(Some(&needles));
    assert_eq!(mask.pass(Bytes::from_static(b"data: hello\n\n")), "data: hello\n\n");
    assert!(!mask.may_release());
    assert_eq!(mask.pass(Bytes::from_static(b"yes s")), "yes ");
    assert!(mask.may_release());
    assert_eq!(mask.release(), "s");
    assert!(!mask.may_release());
    assert_eq!(mask.pass(Bytes::from_static(b" and so on")), " and so on");
    assert_eq!(mask.rest(), "");
}

/// Regression test: a secret sent byte by byte with pauses was released in pieces and then no longer recognised.
#[test]
fn pauses_show_three_bytes_and_no_more() {
    let needles = needles();
    let told = format!("so: {SECRET}, s3c s3cr s3cr3t and {SECRET}");
    let mut mask = Mask::new(Some(&needles));
    let mut out = Vec::new();
    for byte in told.as_bytes().chunks(1) {
        out.extend(mask.pass(Bytes::copy_from_slice(byte)));
        if mask.may_release() {
            out.extend(mask.release());
        }
    }
    out.extend(mask.rest());
    let seen = format!("s3c{}", "*".repeat(SECRET.len() - 3));
    assert_eq!(String::from_utf8(out).unwrap(), format!("so: {seen}, s3c s3cr s3cr3t and {seen}"));
}

/// Shorter secrets reveal fewer bytes.
#[test]
fn pauses_show_a_quarter_at_most() {
    for (secret, shown) in [("abcd", 1), ("abcdefgh", 2), ("abcdefghijkl", 3), ("abcdefghijklmnop", 3)] {
        let needles = Needles::of(&[injection("x", "p", secret)]).unwrap();
        assert_eq!(needles.max_released, shown, "{secret}");
    }
}

/// Reference implementation: every byte that lies in any encoding becomes a star.
fn plainly(needles: &Needles, text: &[u8]) -> Vec<u8> {
    let mut out = text.to_vec();
    for needle in &needles.needles {
        for at in 0..text.len() {
            if text[at..].starts_with(needle) {
                out[at..at + needle.len()].fill(MASKED);
            }
        }
    }
    out
}

/// Compares with the reference on secrets with common prefixes and suffixes, cut anywhere and with pauses anywhere.
#[test]
fn secrets_that_lie_in_each_other() {
    let secrets = ["abcabc", "abcabcabd", "cabdxx", "bcab", "aaaa", "xxabcabc"];
    let ours: Vec<Injection> = secrets.iter().map(|s| injection("x", "p", s)).collect();
    let needles = Needles::of(&ours).unwrap();
    let mut seed = 7u64;
    let mut below = |bound: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % bound
    };
    for round in 0..20_000 {
        let mut text = String::new();
        for _ in 0..1 + below(5) {
            let whole = secrets[below(secrets.len())];
            let from = below(whole.len());
            text += &whole[from..from + below(whole.len() - from + 1)];
            text += ["", "a", "x", "c", "-"][below(5)];
        }
        let (mut mask, mut out, mut rest) = (Mask::new(Some(&needles)), Vec::new(), text.as_bytes());
        let mut paused = false;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + below(rest.len()));
            out.extend(mask.pass(Bytes::copy_from_slice(now)));
            if mask.may_release() && below(3) == 0 {
                paused = true;
                out.extend(mask.release());
            }
            rest = later;
        }
        out.extend(mask.rest());
        let wanted = plainly(&needles, text.as_bytes());
        assert_eq!(out.len(), wanted.len(), "round {round}: {text}");
        // A pause reveals the first byte of these short secrets, and no more.
        let shown = out.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        assert!(shown == 0 || paused, "round {round}: {text} became {}", out.escape_ascii());
        let runs = out.windows(2).zip(wanted.windows(2)).filter(|(a, b)| a[0] != b[0] && a[1] != b[1]).count();
        assert_eq!(runs, 0, "round {round}: {text} became {}", out.escape_ascii());
    }
}

#[test]
fn no_secret_is_short() {
    assert!(Needles::of(&[injection("x", "p", "abc")]).is_none());
    assert!(Needles::of(&[]).is_none());
}

#[test]
fn which_header_is_filled() {
    let ours = [injection("Authorization", "PLACE", SECRET), injection("x-key", "OTHER", "another secret")];
    let check = |fields: &[(&str, &str)]| {
        let mut all = HeaderFields::default();
        fields.iter().for_each(|(name, value)| all.add(name, *value));
        chosen(&ours, &all).map(|c| c.iter().map(|i| i.header.clone()).collect::<Vec<_>>()).map_err(str::to_owned)
    };
    let both = Ok(vec!["Authorization".to_owned(), "x-key".to_owned()]);
    assert_eq!(check(&[]), both);
    assert_eq!(check(&[("authorization", "Bearer PLACE")]), both);
    assert_eq!(check(&[("AUTHORIZATION", &format!("Basic {}", STANDARD.encode("git:PLACE")))]), both);
    assert_eq!(check(&[("authorization", "Bearer mine")]), Err("Authorization".to_owned()));
    assert_eq!(check(&[("authorization", "PLACE"), ("authorization", "mine")]), Err("Authorization".to_owned()));
    assert_eq!(check(&[("x-key", "PLACE")]), Err("x-key".to_owned()));
    // Some servers treat this as the same header.
    assert_eq!(check(&[("X_Key", "OTHER")]), Err("x-key".to_owned()));
    assert_eq!(check(&[("x_keys", "mine"), ("x-key", "OTHER")]), both);
}

#[test]
fn one_of_two_secrets_for_one_header() {
    let ours = [injection("authorization", "ONE", "first secret"), injection("authorization", "TWO", "second secret")];
    let which = |value: Option<&str>| {
        let mut all = HeaderFields::default();
        value.iter().for_each(|value| all.add("authorization", *value));
        chosen(&ours, &all).unwrap().iter().map(|i| i.placeholder.clone()).collect::<Vec<_>>()
    };
    assert_eq!(which(None), ["ONE"]);
    assert_eq!(which(Some("Bearer TWO")), ["TWO"]);
}

#[test]
fn spelled_out_once() {
    let (cache, ours) = (NeedleCache::default(), [injection("authorization", "PLACE", SECRET)]);
    let first = cache.needles(&ours).unwrap();
    assert!(Arc::ptr_eq(&first, &cache.needles(&ours).unwrap()));
    for i in 0..100 {
        assert!(cache.needles(&[injection("x", "y", &format!("secret number {i}"))]).is_some());
    }
    assert_eq!(cache.0.lock().unwrap().len(), MAX_SPELLED);
    assert!(cache.needles(&ours).unwrap().masked(SECRET.as_bytes()).is_some());
}

/// A field whose name contains the secret is removed, since a name cannot be masked like a value.
#[test]
fn names_of_fields_tell_nothing() {
    let needles = Needles::of(&[injection("x", "p", "token-0123456789")]).unwrap();
    let named = ["x-a", "x-token-0123456789-b", "token-0123456789"];
    let (mut old, mut new) = (HeaderFields::default(), http::HeaderMap::new());
    for name in named {
        old.add(name, "is token-0123456789");
        new.insert(name, "is token-0123456789".parse().unwrap());
    }
    let masked: [&mut dyn Headers; 2] = [&mut old, &mut new];
    for headers in masked {
        headers.rewrite(&|value| needles.masked(value));
        assert_eq!((headers.names(), headers.values("x-a")), (vec!["x-a"], vec![&b"is ****************"[..]]));
    }
}
