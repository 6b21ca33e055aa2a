//! File contents from a commit.

use crate::fixture::GitFixture;
use api::Rel;
use workspace::git::{CommitFiles, CommittedFile, head};

#[test]
fn old_contents_are_as_a_check_out_writes_them() {
    let fixture = GitFixture::new();
    fixture.git(&["config", "core.autocrlf", "true"]);
    fixture.write("odd\nname", "odd\n");
    fixture.write("large", &"x".repeat(5000));
    fixture.write(".gitattributes", "*.bin filter=lfs\n");
    fixture.write("x.bin", "pointer\n");
    fixture.git(&["add", "-A"]);
    fixture.git(&["commit", "-qm", "more"]);
    let commit = head(&fixture.project).unwrap();
    fixture.write("a.txt", "later\n");
    let names = ["a.txt", "odd\nname", "none", "large", "x.bin", "src"];
    let paths: Vec<Rel> = names.iter().map(|n| Rel::parse(n.as_bytes()).unwrap()).collect();
    let old = CommitFiles::look_up(&fixture.project, &fixture.surroundings(), &commit, &paths).unwrap().expect("known");
    let was = |n: usize| old.contents(&paths[n], 4000).unwrap();
    assert_eq!(was(0), CommittedFile::File(b"one\r\ntwo\r\nthree\r\n".to_vec()));
    assert_eq!(was(1), CommittedFile::File(b"odd\r\n".to_vec()));
    assert_eq!(was(2), CommittedFile::Absent);
    assert_eq!(was(3), CommittedFile::Unknown, "too large");
    assert_eq!(was(4), CommittedFile::Unknown, "a filter's");
    assert_eq!(was(5), CommittedFile::Unknown, "a directory");
    let gone = CommitFiles::look_up(&fixture.project, &fixture.surroundings(), &"1".repeat(40), &paths).unwrap();
    assert!(gone.is_none(), "a commit that is not there knows nothing");
}
