//! Live sandboxes on cgroup v2: frozen by the kernel, with their limits, and removed without a trace.

use crate::machine;
use crate::place::{As, BOTH, fresh, unique};
use serde_json::{Value, json};

/// Script that runs a sandbox live with a limit, suspends, resumes and stops it; prints each answer and a counter's
/// progress.
fn script(who: As) -> String {
    let (word, name) = (who.word(), format!("lab-{}", unique()));
    format!(
        "{}exec 2>&1
        {word} cofferdam create --name {name} -m 128m --json > /dev/null || exit 1
        {word} cofferdam start --live --json {name} > /dev/null || exit 2
        run=$({word} cofferdam exec -d {name} -- sh -c 'while :; do echo x >> ticks; sleep 0.1; done') || exit 3
        {word} cofferdam exec {name} -- sh -c 'until [ -s ticks ]; do sleep 0.1; done; cat /proc/self/cgroup' || exit 4
        count() {{ find \"${{COFFERDAM_STATE:-/nowhere}}\" /var/lib/cofferdam /home/ann/.local/state/cofferdam -name ticks -path '*/up/*' -exec cat {{}} + 2> /dev/null | wc -c; }}
        {word} cofferdam suspend --json {name} | tr -d '\\n'; echo
        before=$(count); sleep 3; echo stood $(($(count) - before))
        find /sys/fs/cgroup -path '*run_*' -name cgroup.events -exec grep -l 'frozen 1' {{}} + 2> /dev/null | wc -l
        {word} cofferdam resume --json {name} | tr -d '\\n'; echo
        until_true '[ $(count) -gt '$before' ]' && echo goes on
        {word} cofferdam stop --json {name} > /dev/null || exit 5
        {word} cofferdam wait --json $run | tr -d '\\n'; echo
        {word} cofferdam rm --force {name} > /dev/null && echo removed",
        fresh(who)
    )
}

// promise 20
#[test]
fn the_kernel_holds_it_still_and_lets_it_go_on() {
    let machine = machine::new();
    for who in BOTH {
        let said = machine.bash(&script(who)).assert_ok();
        let lines: Vec<&str> = said.lines().collect();
        let [_, suspended, stood, frozen, resumed, goes_on, ended, removed] = lines[..] else {
            panic!("{who:?}: {said}")
        };
        let document =
            |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{who:?}: {e}: {said}"));
        let suspended = document(suspended);
        assert_eq!((&suspended["reached"], &suspended["with"]), (&json!("frozen"), &json!("cgroup")), "{said}");
        assert_eq!(stood, "stood 0", "{said}");
        assert!(frozen.parse::<u32>().unwrap() > 0, "{said}");
        assert_eq!(document(resumed)["was"], "frozen", "{said}");
        assert_eq!((goes_on, removed), ("goes on", "removed"), "{said}");
        assert_eq!(document(ended)["success"], false, "{said}");
    }
}
