use super::*;
use crate::layer::Layers;
use crate::testing::Scratch;

struct Made {
    scratch: Scratch,
    layer: Layer,
    sealed: Sealed,
}

fn made() -> Made {
    let scratch = Scratch::new();
    let layers = Layers::open(&scratch.dir).unwrap();
    let (layer, _lock) = layers.make(&scratch.dir, [7; 16]).unwrap();
    let up = format!("layers/{}/up", layer.id);
    scratch.file(&format!("{up}/a/one"), b"1");
    scratch.file(&format!("{up}/a/two"), b"2");
    scratch.file(&format!("{up}/z"), b"z");
    scratch.link(&format!("{up}/link"), "a/one");
    scratch.strike(&format!("{up}/gone"));
    scratch.opaque(&format!("{up}/only"));
    let sealed = seal(&layer, Marks::Mean).unwrap();
    Made { scratch, layer, sealed }
}

#[test]
fn what_was_sealed_and_left_alone_is_verified() {
    let made = made();
    assert_eq!((made.sealed.entries, made.sealed.bytes), (7, 3));
    assert_eq!(verify(&made.layer, &made.sealed.digest, Marks::Mean).unwrap(), made.sealed);
    assert_eq!(seal(&made.layer, Marks::Mean).unwrap(), made.sealed);
}

type Harm = fn(&Scratch, &str);

// promise 17
#[test]
fn every_change_of_a_sealed_layer_is_named() {
    let harms: [(&str, &str, Harm); 10] = [
        ("a/two", "has other bytes", |s, up| s.file(&format!("{up}/a/two"), b"3")),
        ("a/two", "has other permission bits", |s, up| s.chmod(&format!("{up}/a/two"), 0o700)),
        ("a", "has other permission bits", |s, up| s.chmod(&format!("{up}/a"), 0o700)),
        ("a/one", "is missing", |s, up| std::fs::remove_file(s.path.join(up).join("a/one")).unwrap()),
        ("z", "is missing", |s, up| std::fs::remove_file(s.path.join(up).join("z")).unwrap()),
        ("a/three", "was not in it", |s, up| s.file(&format!("{up}/a/three"), b"")),
        ("zz", "was not in it", |s, up| s.file(&format!("{up}/zz"), b"")),
        ("z", "has other attributes", |s, up| s.attribute(&format!("{up}/z"), "user.x", b"1")),
        ("a", "hides other files of the base", |s, up| s.opaque(&format!("{up}/a"))),
        ("link", "leads elsewhere", |s, up| {
            std::fs::remove_file(s.path.join(up).join("link")).unwrap();
            s.link(&format!("{up}/link"), "/etc/passwd");
        }),
    ];
    for (path, how, harm) in harms {
        let made = made();
        harm(&made.scratch, &format!("layers/{}/up", made.layer.id));
        let fault = verify(&made.layer, &made.sealed.digest, Marks::Mean).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::Conflict);
        assert!(fault.message.ends_with(&format!(": {path} {how}")), "{path} {how}: {}", fault.message);
    }
}

// promise 17
#[test]
fn a_manifest_that_was_changed_with_its_layer_is_noticed() {
    let made = made();
    made.scratch.file(&format!("layers/{}/up/a/two", made.layer.id), b"3");
    let other = seal(&made.layer, Marks::Mean).unwrap();
    assert_ne!(other.digest, made.sealed.digest);
    let fault = verify(&made.layer, &made.sealed.digest, Marks::Mean).unwrap_err();
    assert!(fault.message.contains("its manifest was changed, too"), "{}", fault.message);
}

// promise 13
#[test]
fn huge_holes_cost_nothing() {
    let made = made();
    let file = File::create(made.scratch.path.join(format!("layers/{}/up/huge", made.layer.id))).unwrap();
    file.set_len(1 << 42).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", 1 << 41).unwrap();
    let sealed = seal(&made.layer, Marks::Mean).unwrap();
    verify(&made.layer, &sealed.digest, Marks::Mean).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"y", 1 << 41).unwrap();
    let fault = verify(&made.layer, &sealed.digest, Marks::Mean).unwrap_err();
    assert!(fault.message.contains("huge has other bytes"), "{}", fault.message);
}
