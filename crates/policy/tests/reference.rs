//! Checks that the reference in `docs/` matches the crate's output. `UPDATE_REFERENCE=1 cargo test` rewrites it.

use std::path::Path;

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/policy.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, policy::reference()).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == policy::reference(), "docs/reference/policy.md is old; run this test with UPDATE_REFERENCE=1");
}

#[test]
fn its_example_is_a_policy() {
    let text = policy::reference();
    let example = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    policy::parse(example, policy::Format::Json, "example").unwrap();
}
