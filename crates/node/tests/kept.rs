//! Stored secrets, the tail of the journal, and paged diffs, through the library's API.

use api::{ChangeBody, WorkspaceDiff};
use node::audit::{self, JournalFilter, Tail};
use node::create;
use node::review::ReviewScope;
use node::review::diff::{self, DiffPage, DiffReader};
use node::sandbox::Which;
use node::secrets::kept;
use node::{Caller, Node};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use terms::ErrorKind;

struct NodeFixture {
    root: PathBuf,
    node: Node,
    caller: Caller,
}

impl NodeFixture {
    fn new() -> NodeFixture {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("cofferdam-kept-{}-{number}", std::process::id()));
        for dir in ["base", "home", "state"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        std::fs::set_permissions(root.join("state"), std::fs::Permissions::from_mode(0o700)).unwrap();
        let env = [("PATH", PathBuf::from("/usr/bin:/bin")), ("COFFERDAM_STATE", root.join("state"))];
        let env = env.into_iter().map(|(name, value)| (name.into(), value.into_os_string())).collect();
        let (cwd, home) = (root.join("base"), root.join("home"));
        let caller = Caller::new(cwd, home, "rita".into(), env, |_| None);
        NodeFixture { root, node: Node::for_command(), caller }
    }

    /// A sandbox over the base, and the directory of its changes.
    fn sandbox(&self) -> (String, PathBuf) {
        let made = create::create(&self.node, &self.caller, &create::CreateSandbox::default()).unwrap();
        let state = self.node.states.open(&self.caller).unwrap();
        let kept = state.store.read(|tx| node::sandbox::find(tx, Some(&made.id), &self.caller)).unwrap();
        let top = kept.record.layers.last().unwrap().clone();
        (made.id, self.root.join("state/layers").join(top).join("up"))
    }

    fn diff(&self, id: &str, page: DiffPage) -> Result<WorkspaceDiff, terms::Fault> {
        let of = ReviewScope::sandbox(Which { word: Some(id.to_owned()), version: None });
        diff::diff(
            &self.node,
            &self.caller,
            &diff::ReadDiff { of, everything: false, reader: DiffReader::Program, page: Some(page) },
        )
    }
}

impl Drop for NodeFixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_secret_is_kept_for_its_owner_and_told_to_nobody() {
    let fixture = NodeFixture::new();
    let canary = "canary-6f1d2c";
    assert!(!kept::set(&fixture.node, &fixture.caller, "API_KEY", canary.into()).unwrap().existed);
    assert!(kept::set(&fixture.node, &fixture.caller, "API_KEY", format!("{canary}2").into()).unwrap().existed);
    let file = fixture.root.join("state/secrets/API_KEY");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{canary}2"));
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(file.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let names = kept::list(&fixture.node, &fixture.caller).unwrap();
    assert_eq!(names.secrets.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["API_KEY"]);
    let journal = serde_json::to_string(&audit::log(&fixture.node, &fixture.caller, None, 100).unwrap()).unwrap();
    assert!(journal.contains("secret_set") && !journal.contains(canary), "{journal}");
    for beside in std::fs::read_dir(fixture.root.join("state")).unwrap().flatten().filter(|e| e.path().is_file()) {
        let bytes = std::fs::read(beside.path()).unwrap();
        assert!(!bytes.windows(canary.len()).any(|w| w == canary.as_bytes()), "{:?}", beside.path());
    }
    kept::remove(&fixture.node, &fixture.caller, "API_KEY").unwrap();
    assert!(!file.exists());
    assert_eq!(kept::remove(&fixture.node, &fixture.caller, "API_KEY").unwrap_err().error_kind, ErrorKind::NotFound);
}

#[test]
fn names_and_values_that_cannot_be_are_refused_and_not_repeated() {
    let fixture = NodeFixture::new();
    for (name, value) in [
        ("../x", "hunter2"),
        ("", "hunter2"),
        ("1A", "hunter2"),
        ("A/B", "hunter2"),
        ("hunter2!", "x"),
        ("A", ""),
        ("A", "hunter2\nsecond"),
    ] {
        let fault = kept::set(&fixture.node, &fixture.caller, name, value.into()).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::InvalidRequest, "{name}");
        assert!(!format!("{fault:?}").contains("hunter2"), "{fault:?}");
    }
    assert!(kept::set(&fixture.node, &fixture.caller, "A", "x".repeat(node::secrets::LONGEST + 1).into()).is_err());
    kept::set(&fixture.node, &fixture.caller, "A", "x".repeat(node::secrets::LONGEST).into()).unwrap();
}

#[test]
fn a_tail_gives_every_entry_once_and_passes_over_what_is_not_wanted() {
    let fixture = NodeFixture::new();
    let mut all = Tail::open(&fixture.node, &fixture.caller, None, JournalFilter::default()).unwrap();
    let (id, _) = fixture.sandbox();
    let created: Vec<u64> = all.next(100).unwrap().into_iter().map(|e| e.seq).collect();
    assert!(!created.is_empty() && all.next(100).unwrap().is_empty());
    kept::set(&fixture.node, &fixture.caller, "A", "b".into()).unwrap();
    let wanted = JournalFilter { subject: Some(id.clone()), ..JournalFilter::default() };
    let mut own = Tail::open(&fixture.node, &fixture.caller, Some(0), wanted).unwrap();
    let mut seen = Vec::new();
    loop {
        // Pages of one entry: a full page does not mean that more follow.
        let next = own.next(1).unwrap();
        if next.is_empty() {
            break;
        }
        seen.extend(next.into_iter().map(|e| e.seq));
    }
    assert_eq!(seen, created, "only its own, each once, in order");
    let later = Tail::open(&fixture.node, &fixture.caller, Some(own.at()), JournalFilter::default())
        .unwrap()
        .next(100)
        .unwrap();
    assert!(later.is_empty(), "what was passed over was looked at");
    assert_eq!(
        Tail::open(&fixture.node, &fixture.caller, Some(10_000), JournalFilter::default()).err().unwrap().error_kind,
        ErrorKind::InvalidRequest
    );
    let page = audit::page(&fixture.node, &fixture.caller, 0, JournalFilter::default(), 2).unwrap();
    assert_eq!((page.entries.len(), page.next), (2, Some(2)));
}

#[test]
fn pages_of_a_diff_make_up_the_whole_and_never_mix_two() {
    let fixture = NodeFixture::new();
    let (id, up) = fixture.sandbox();
    for n in 0..7 {
        std::fs::write(up.join(format!("f{n}")), format!("{n}\n")).unwrap();
    }
    let (mut names, mut after, mut digests) = (Vec::new(), None, Vec::new());
    loop {
        let page = fixture.diff(&id, DiffPage { files: 3, after, lines: true }).unwrap();
        names.extend(page.diff.files.iter().map(|f| f.change.path.to_string()));
        digests.push(page.diff.digest.clone());
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, (0..7).map(|n| format!("f{n}")).collect::<Vec<_>>());
    digests.dedup();
    assert_eq!(digests.len(), 1);
    let first = fixture.diff(&id, DiffPage { files: 3, after: None, lines: false }).unwrap();
    for file in &first.diff.files {
        let ChangeBody::Text(hunks) = &file.body else { panic!("{file:?}") };
        assert!(hunks.len() == 1 && hunks[0].lines.is_empty() && !hunks[0].id.is_empty(), "{hunks:?}");
    }
    std::fs::write(up.join("f9"), "new\n").unwrap();
    let fault = fixture.diff(&id, DiffPage { files: 3, after: first.next, lines: true }).unwrap_err();
    assert_eq!(fault.error_kind, ErrorKind::Conflict);
    for bad in ["", "x", "x.y", "."] {
        let fault = fixture.diff(&id, DiffPage { files: 3, after: Some(bad.into()), lines: true }).unwrap_err();
        assert_eq!(fault.error_kind, ErrorKind::InvalidRequest, "{bad}");
    }
    assert!(fixture.diff(&id, DiffPage { files: 0, after: None, lines: true }).is_err());
}

#[test]
fn answers_can_be_read_back_whatever_the_names() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = NodeFixture::new();
    let (id, up) = fixture.sandbox();
    std::fs::write(up.join(std::ffi::OsStr::from_bytes(b"odd\xff")), "x\n").unwrap();
    std::fs::write(up.join("plain"), "x\n").unwrap();
    let answer = fixture.diff(&id, DiffPage { files: 10, after: None, lines: true }).unwrap();
    let text = serde_json::to_string(&answer).unwrap();
    let again: WorkspaceDiff = serde_json::from_str(&text).unwrap();
    assert_eq!(again.diff, answer.diff);
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
}
