//! pjdfstest, outside as an ordinary user and inside as guests of root and of a user. Verdicts must agree, except for
//! the explained ones.

use crate::inside::{Inside, bring};
use crate::support::{As, Place, to_the_end};
use std::collections::BTreeMap;
use std::process::Command;

/// File times differ after one kernel tick; a pause of several keeps results stable on a busy machine and the suite
/// short. Both accounts must exist; only tests that need root use them, and no guest is root.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.05
[dummy_auth]
entries = [["nobody", "nogroup"], ["root", "root"]]
"#;

/// Tests with another verdict inside: both verdicts and the reason.
const EXPLAINED: [(&str, &str, &str, &str); 1] = [(
    "link::link_count_max",
    "ok",
    "skipped",
    "the C library knows the most links of a file by the type of its file system, and knows none for overlay",
)];

// promise 12
#[test]
fn the_posix_suite_says_the_same_inside_as_outside() {
    let places = [As::User, As::User, As::Root].map(Place::new);
    let [outside, user, root] = &places;
    let inside = [Inside::new(user), Inside::new(root)];
    let suites: Vec<_> = places.iter().map(suite).collect();
    let words: Vec<Vec<&str>> = suites.iter().map(|words| words.iter().map(String::as_str).collect()).collect();
    // The suite mostly sleeps, so all three run at once.
    let mut plain = outside.outside(words[0][0]);
    plain.args(&words[0][1..]);
    let mut commands = [plain, inside[0].command(&words[1]), inside[1].command(&words[2])];
    let verdicts: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = commands.iter_mut().map(|command| scope.spawn(move || verdicts_of(command))).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let expected = expected(&verdicts[0]);
    for (who, found) in [("user", &verdicts[1]), ("root", &verdicts[2])] {
        let differing: Vec<_> = expected.iter().filter(|(test, verdict)| found.get(*test) != Some(verdict)).collect();
        assert!(differing.is_empty(), "{who}: these were expected inside: {differing:?}");
        assert_eq!(expected.len(), found.len(), "{who}");
    }
}

/// Command line of the suite, with its configuration, in a directory of the base.
fn suite(place: &Place) -> Vec<String> {
    let configuration = place.file("home/project/posix.toml", CONFIGURATION);
    let dir = place.dir("home/project/posix");
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    vec![bring(place, "pjdfstest"), "-c".to_owned(), text(&configuration), "-p".to_owned(), text(&dir)]
}

fn verdicts_of(command: &mut Command) -> BTreeMap<String, String> {
    let output = to_the_end(command, b"");
    let text = String::from_utf8_lossy(&output.stdout);
    let verdict = |line: &str| {
        let (test, verdict) = line.split_once(char::is_whitespace)?;
        let verdict = verdict.trim();
        let is_one = test.contains("::") && ["ok", "skipped", "FAILED"].contains(&verdict);
        is_one.then(|| (test.to_owned(), verdict.to_owned()))
    };
    let found: BTreeMap<_, _> = text.lines().filter_map(verdict).collect();
    let passed = found.values().filter(|verdict| *verdict == "ok").count();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(passed > 200, "control: {passed} tests pass: {text}{stderr}");
    found
}

fn expected(outside: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut expected = outside.clone();
    for (test, before, after, why) in EXPLAINED {
        let was = expected.insert(test.to_owned(), after.to_owned());
        assert_eq!(was.as_deref(), Some(before), "{test} is explained ({why}), and need not be");
    }
    expected
}
