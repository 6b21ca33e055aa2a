//! `export` and `import`.

use crate::snapshots::{FIRST, inside, project, view};
use crate::support::{As, either};
use crate::words::Verbs;
use std::fs;

#[test]
fn a_workspace_travels_as_one_file() {
    for who in either() {
        let (place, id) = project(who);
        inside(&place, &id, FIRST);
        inside(&place, &id, "rm -r dir; mkdir dir; echo x > dir/only; mkfifo pipe; printf '\\377' > bytes");
        let file = place.home.join("out.cofferdam");
        let out = file.to_str().unwrap();
        let written = place.json(&["export", &id, out]);
        place.json(&["import", out, "--onto", ".", "--name", "copy"]);
        assert_eq!(view(&place, "copy"), view(&place, &id));
        let second = place.home.join("again.cofferdam");
        let again = place.json(&["export", "copy", second.to_str().unwrap()]);
        assert_eq!(again["digest"], written["digest"]);
        assert_eq!(fs::read(&file).unwrap(), fs::read(&second).unwrap(), "the same workspace makes the same bytes");
        // Imported over another base with other files.
        place.file("home/other/dir/hidden", "x");
        place.json(&["import", out, "--onto", "../other", "--name", "there"]);
        assert_eq!(
            inside(&place, "there", "ls dir; cat new; pwd"),
            format!("only\nnew\n{}\n", place.home.join("other").display())
        );
        let piped = place.verb(&["export", &id, "-"]);
        assert!(piped.status.success());
        assert_eq!(piped.stdout, fs::read(&file).unwrap());
    }
}

// promise 17
#[test]
fn a_file_that_is_refused_leaves_nothing() {
    let (place, id) = project(As::User);
    inside(&place, &id, FIRST);
    let good = place.verb(&["export", &id, "-"]).stdout;
    let before = (place.states(), place.layers().len());
    let bad = [good[..good.len() / 2].to_vec(), [&good[..], b"x"].concat(), b"garbage".to_vec(), Vec::new()];
    for bytes in bad {
        let file = place.file("home/bad", &bytes);
        let fault = place.fault(&["import", file.to_str().unwrap(), "--onto", "."], "invalid_request");
        assert!(fault["message"].as_str().unwrap().contains("refused"), "{fault}");
    }
    let file = place.file("home/good", &good);
    place.fault(&["import", file.to_str().unwrap(), "--onto", ".", "--max-size", "3"], "limit_exceeded");
    place.fault(&["import", file.to_str().unwrap(), "--onto", "missing"], "invalid_request");
    place.fault(&["import", "/nothing", "--onto", "."], "invalid_request");
    assert_eq!((place.states(), place.layers().len()), before, "nothing was left behind");
    place.json(&["import", file.to_str().unwrap(), "--onto", "."]);
}

#[test]
fn a_file_that_cannot_be_written_whole_is_not_there() {
    let (place, id) = project(As::User);
    inside(&place, &id, FIRST);
    let place_of = place.dir("home/closed");
    fs::set_permissions(&place_of, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    place.fault(&["export", &id, place_of.join("out").to_str().unwrap()], "unavailable");
    place.fault(&["export", "nobody", place.home.join("out").to_str().unwrap()], "not_found");
    let left = fs::read_dir(&place.home).unwrap().flatten().filter(|e| e.file_name().to_string_lossy().contains("out"));
    assert_eq!(left.count(), 0);
}
