//! Attacks by a guest on questions about files: it changes the path in memory while the path is read, swaps links,
//! climbs from a directory that it was handed, and asks for things that are not files. Each has a control that must
//! succeed.

use crate::questions::{AskingSandbox, READS};
use crate::support::{Place, either};
use crate::words::text;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Guest program that tries every attack in turn and prints a line for each that succeeded.
const GUEST: &str = r##"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char path[4096], one[4096], two[4096], three[4096];
static volatile int over;

static void say(const char *what, int won) { if (won) printf("%s\n", what); fflush(stdout); }
static void show(int fd, const char *what) {
    char text[64] = {0};
    if (fd >= 0 && read(fd, text, 63) > 0) { text[strcspn(text, "\n")] = 0; printf("%s %s\n", what, text); }
    if (fd >= 0) close(fd);
}
static void *swap_memory(void *unused) {
    char *all[] = {one, two, three};
    for (int i = 0; !over; i++) { memcpy(path, all[i % 3], 4096); __asm__ volatile("" ::: "memory"); }
    return 0;
}
static void *swap_links(void *unused) {
    while (!over) {
        symlink(one, "l1"); rename("l1", "l"); symlink(two, "l1"); rename("l1", "l");
        symlink(three, "l1"); rename("l1", "l");
    }
    return 0;
}
static void *open_unanswered(void *file) { open(file, O_RDONLY); return 0; }

int main(int argc, char **argv) {
    char *docs = argv[1], name[4096];
    snprintf(one, 4096, "%s/open.txt", docs); snprintf(two, 4096, "%s/shut.txt", docs);
    snprintf(three, 4096, "%s", argv[2]); memcpy(path, one, 4096);
    if (!strcmp(argv[3], "race")) {
        pthread_t t[2];
        pthread_create(&t[0], 0, swap_memory, 0); pthread_create(&t[1], 0, swap_links, 0);
        for (int i = 0; i < 1500; i++) { show(open(path, O_RDONLY), "memory"); show(open("l", O_RDONLY), "link"); }
        over = 1; pthread_join(t[0], 0); pthread_join(t[1], 0);
        return 0;
    }
    if (!strcmp(argv[3], "exec")) {
        /* The waiting thread ends with the exec; the new program asks for itself. */
        pthread_t t; pthread_create(&t, 0, open_unanswered, two); sleep(1);
        execl("/bin/cat", "cat", one, (char *)0);
    }
    /* A descriptor that was handed for reading. */
    int fd = open(one, O_RDONLY);
    say("control: read", fd >= 0);
    snprintf(name, 4096, "/proc/self/fd/%d", fd);
    say("chmod", fchmod(fd, 0666) == 0);
    say("times", futimens(fd, 0) == 0);
    say("reopened for writing", open(name, O_RDWR) >= 0);
    say("truncated", truncate(name, 0) == 0);
    say("mapped for writing", mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED);
    say("mapped to run", mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != MAP_FAILED);
    say("control: mapped", mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
    say("linked", linkat(fd, "", AT_FDCWD, "stolen", AT_EMPTY_PATH) == 0 || linkat(AT_FDCWD, name, AT_FDCWD, "stolen", AT_SYMLINK_FOLLOW) == 0);
    /* A directory: neither up, nor down, nor through its link. */
    int dir = open(docs, O_RDONLY | O_DIRECTORY), up;
    struct stat a, b;
    say("control: directory", dir >= 0 && fstat(dir, &a) == 0);
    up = openat(dir, "..", O_PATH);
    say("climbed", up >= 0 && fstat(up, &b) == 0 && (a.st_ino != b.st_ino || a.st_dev != b.st_dev));
    say("climbed to", fstatat(dir, "../../../etc/passwd", &b, 0) == 0 || openat(dir, "../shut.txt", O_RDONLY) >= 0);
    show(openat(dir, "open.txt", O_RDONLY), "control: relative");
    show(openat(dir, "shut.txt", O_RDONLY), "relative");
    snprintf(name, 4096, "/proc/self/fd/%d/shut.txt", dir);
    show(open(name, O_RDONLY), "by its link");
    snprintf(name, 4096, "/proc/self/fd/%d/sub", dir);
    say("open questions", open(name, O_RDONLY | O_DIRECTORY) >= 0);
    snprintf(name, 4096, "/proc/self/root%s", two);
    show(open(name, O_RDONLY), "by its root");
    say("changed below", fchmodat(dir, "shut.txt", 0666, 0) == 0 || unlinkat(dir, "shut.txt", 0) == 0);
    say("made below", openat(dir, "made", O_CREAT | O_WRONLY, 0666) >= 0 || mkdirat(dir, "made", 0777) == 0);
    say("went there", fchdir(dir) == 0);
    show(open("shut.txt", O_RDONLY), "from there");
    show(open("open.txt", O_RDONLY), "control: from there");
    chdir("/");
    close(dir);
    show(openat(dir, "open.txt", O_RDONLY), "closed");
    show(openat(9999, "open.txt", O_RDONLY), "never open");
    /* Special files raise no question. */
    snprintf(name, 4096, "%s/pipe", docs); say("pipe", open(name, O_RDONLY | O_NONBLOCK) >= 0);
    snprintf(name, 4096, "%s/socket", docs); say("socket", open(name, O_RDONLY) >= 0);
    snprintf(name, 4096, "%s/null", docs); say("device", open(name, O_RDONLY) >= 0);
    /* A tool that may be read may not be run. */
    snprintf(name, 4096, "%s/tool", docs);
    int tool = open(name, O_RDONLY);
    char *none[] = {"tool", 0};
    say("control: tool", tool >= 0);
    if (!fork()) { syscall(SYS_execveat, tool, "", none, none, AT_EMPTY_PATH); _exit(0); }
    sleep(1);
    return 0;
}
"##;

fn world(place: &Place) -> String {
    place.file("docs/open.txt", "open\n".repeat(2000));
    place.file("docs/shut.txt", "shut\n");
    place.file("docs/sub/below", "below\n");
    place.file("secret", "secret\n");
    let tool = place.file("docs/tool", fs::read("/bin/echo").unwrap());
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let docs = place.root.join("docs");
    let made = |program: &str, words: &[&str]| assert!(Command::new(program).args(words).status().unwrap().success());
    let at = |name: &str| docs.join(name).to_str().unwrap().to_owned();
    made("mkfifo", &["-m", "666", &at("pipe")]);
    made("mknod", &["-m", "666", &at("null"), "c", "1", "3"]);
    drop(std::os::unix::net::UnixListener::bind(docs.join("socket")).unwrap());
    place.c_program("guest", GUEST);
    docs.to_str().unwrap().to_owned()
}

// promise 21
#[test]
fn a_guest_gets_what_was_shown_and_climbs_nowhere_from_there() {
    for who in either() {
        let place = Place::new(who);
        let docs = world(&place);
        let reads: Value = serde_json::from_str(READS).unwrap();
        let asked = AskingSandbox::new(&place, json!([{"action": "ask", "path": docs, "perms": reads}]));
        let (one, two) = (format!("{docs}/open.txt"), format!("{docs}/shut.txt"));
        let secret = place.root.join("secret").to_str().unwrap().to_owned();
        let always = |target: &str, answer: &str| {
            asked.run(&format!("head -c 1 {target}"), &[("fs.read", target, &[answer, "--remember"])]);
        };
        always(&one, "allow");
        always(&two, "deny");
        always(&format!("{docs}/tool"), "allow");
        let (said, _) = asked.run(&format!("ls {docs}"), &[("fs.read", &docs, &["allow", "--remember"])]);
        assert!(said.contains("shut.txt"), "control: {said}");
        let (said, outcome) = asked.run(&format!("./guest {docs} {secret} race"), &[]);
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines.contains(&"memory open") && lines.contains(&"link open"), "{who:?} control: {outcome}");
        assert!(lines.iter().all(|line| *line == "memory open" || *line == "link open"), "{who:?} {lines:?}");
        let (said, outcome) = asked.run(&format!("./guest {docs} {secret} climb"), &[]);
        let controls = [
            "control: read",
            "control: mapped",
            "control: directory",
            "control: relative open",
            "went there",
            "control: from there open",
            "control: tool",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), controls, "{who:?} {outcome:#}");
        // An exec in a waiting process withdraws its question.
        let run = asked.live.detach(&["-t", "280s"], &format!("./guest {docs} {docs}/sub/below exec"));
        assert_eq!(asked.live.outcome(&run)["success"], true);
        assert!(text(&asked.live.logs(&[&run]).stdout).starts_with("open\n"));
        assert_eq!(asked.open(), Vec::<Value>::new());
        assert_eq!(fs::read_to_string(&two).unwrap(), "shut\n");
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o644);
    }
}
