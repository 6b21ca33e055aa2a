//! Network events of a live sandbox: bounded, with the newest kept, and read with care if the file was changed.

use crate::support::As;
use crate::support::http::with_daemon;
use crate::support::world::{PUBLIC, World};

const FLOOD: &str = r#"
policy = {"version": 1, "extends": ["default"], "net": {"rules": [{"action": "allow", "host": "good.test", "ports": "80"}]}}
status, made = ask("POST", "/v1/sandboxes", {"name": "live", "policies": [policy], "events_max": 65536})
assert status == 201, made
hold = subprocess.run([cofferdam, "exec", "-d", "live", "sleep", "1000"], capture_output=True, text=True)
assert hold.returncode == 0, hold
card = next(os.path.join(at, "keeper.json") for at, _, names in os.walk(state) if "keeper.json" in names)
keeper = json.load(open(card))["pid"]
def memory():
    return next(int(line.split()[1]) for line in open(f"/proc/{keeper}/status") if line.startswith("VmRSS"))
storm = "import socket\nfor n in range(%d):\n try: socket.create_connection(('1.2.3.%%d' %% (n %% 250 + 1), %d), 5)\n except OSError: pass"
def flood(count, port):
    done = subprocess.run([cofferdam, "exec", "--json", "live", "python3", "-c", storm % (count, port)], capture_output=True, timeout=120)
    return json.loads(done.stdout)
along = tempfile.TemporaryFile("w+")
follower = subprocess.Popen([cofferdam, "events", "--network", "--json", "-f", "live"], stdout=along)
flood(2000, 81)
before = memory()
outcome = flood(6000, 82)
# The newest event is kept, however many came before.
flood(1, 83)
time.sleep(1)
grown = memory() - before
def told(*words):
    done = subprocess.run([cofferdam, "events", "--network", "live", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout.splitlines()
seen = told()
subprocess.run([cofferdam, "stop", "live"], capture_output=True)
follower.wait(60)
where = os.path.dirname(card)
files = [name for name in os.listdir(where) if name.startswith("events")]
size = sum(os.path.getsize(os.path.join(where, name)) for name in files)
lines = [json.loads(line) for line in told("--json")]
assert told("--json", "--server", path) == told("--json")
refused = [line for line in lines if line["op"] == "net.connect"]
lost = sum(line["count"] for line in lines if line["op"] == "net.lost")
assert size <= 65536 < 2 * size and len(files) <= 10, (size, files)
assert len(refused) > 50 and refused[-1]["port"] == 83 and lines[0]["op"] == "net.lost", (refused[-1], lines[0])
# A dropped line may itself have been a count of lost lines; nothing else may be missing.
assert 8001 <= len(refused) + lost <= 8001 + 50, (len(refused), lost)
# A follower got as many events, and a printed number resumes at the same lines.
along.seek(0)
heard = [json.loads(line) for line in along]
count = sum(line["count"] if line["op"] == "net.lost" else 1 for line in heard)
assert 8001 <= count <= 8001 + 50 and heard[-1] == lines[-1], count
number = seen[len(seen) // 2].split()[0]
assert told("--from", number)[:3] == seen[len(seen) // 2 + 1:][:3], number
assert grown < 8192, grown
print("bounded", outcome["verdict"] != "lost")
"#;

/// A guest whose connections are refused without end fills neither memory nor disk. Regression: once the file was
/// full, no new event was reported again.
// promise 9
#[test]
fn a_flood_of_events_is_bounded_and_counted_and_the_newest_are_kept() {
    let world = World::new(As::Root).host(PUBLIC, "good.test").server("http", PUBLIC, 80);
    assert_eq!(with_daemon(&world, &format!("import tempfile\n{FLOOD}")), "bounded True\n");
}

const CHANGED: &str = r#"
policy = {"version": 1, "extends": ["default"], "net": {"rules": [{"action": "allow", "host": "good.test", "ports": "80"}]}}
status, made = ask("POST", "/v1/sandboxes", {"name": "live", "policies": [policy]})
assert status == 201, made
started = subprocess.run([cofferdam, "start", "--live", "live"], capture_output=True)
assert started.returncode == 0, started
def fetch():
    done = subprocess.run([cofferdam, "exec", "live", "curl", "-sS", "-m", "10", "http://good.test/"], capture_output=True, timeout=60)
    assert done.returncode == 0, done
fetch()
file = next(os.path.join(at, "events.jsonl") for at, _, names in os.walk(state) if "events.jsonl" in names)
subprocess.run([cofferdam, "stop", "live"], capture_output=True)
whole = open(file, "rb").read()
def told(*words):
    done = subprocess.run([cofferdam, "events", "--network", "--json", "live", *words], capture_output=True, text=True, timeout=60)
    assert "panicked" not in done.stderr, done
    return done.returncode, [json.loads(line) for line in (done.stdout.splitlines() if done.returncode == 0 else [done.stdout])]
def both(*words):
    here, there = told(*words), told("--server", path, *words)
    assert here[0] == there[0] and [line.get("count") for line in here[1]] == [line.get("count") for line in there[1]], (here, there)
    return here
code, lines = both()
assert code == 0 and len(lines) >= 2 and all(line["op"] != "net.lost" for line in lines), lines
first, rest = whole.split(b"\n", 1)
for bad, missing in ((b"", 1), (b"\xff\x00\x1b[2J", 1), (first[:40], 1), (b"[" * 5000, 1), (b"{\"op\":\r\"net.lost\"}", 1),
                     (b"x" * (8 << 20), 1), (b"[]\n{}\n7", 3), (b"{\"op\":\"net.lost\",\"count\":-1e99", 1)):
    open(file, "wb").write(bad + b"\n" + whole)
    for words in ((), ("-f",)):
        code, lines = both(*words)
        assert code == 0 and lines[0].get("count") == missing and len(lines) > 2, (bad[:20], code, lines[:2])
# A valid JSON line with fields of wrong types.
open(file, "wb").write(b'{"op":"net.lost","count":-1e99,"time":[],"port":"x","bytes_in":null}\n' + whole)
plain = subprocess.run([cofferdam, "events", "--network", "live"], capture_output=True, text=True, timeout=60)
assert plain.returncode == 0 and "panicked" not in plain.stderr, plain
# A file cut anywhere: all complete lines are reported.
for at in range(0, len(whole), 397):
    open(file, "wb").write(whole[:at])
    code, lines = told()
    assert code == 0 and len(lines) == whole[:at].count(b"\n"), (at, lines)
# A file larger than any keeper writes, and a link in its place, are faults.
os.truncate(file, 1 << 40)
code, fault = both()
assert code == 125 and fault[0]["error_kind"] == "unavailable", fault
os.remove(file)
os.symlink("/etc/passwd", file)
code, fault = both()
assert code == 125 and fault[0]["error_kind"] == "unavailable" and "root" not in json.dumps(fault), fault
# The next keeper continues the file as far as it is valid.
os.remove(file)
open(file, "wb").write(b"\xff" * 1000)
started = subprocess.run([cofferdam, "start", "--live", "live"], capture_output=True)
assert started.returncode == 0, started
fetch()
# Events are recorded with a short delay.
until("what was fetched is told", lambda: told()[1][-1].get("stage") == "closed")
code, lines = both()
assert code == 0 and lines[0]["count"] == 1, lines
print("whole")
"#;

/// A file of network events that was changed on disk is reported as far as it is valid, by the binary and by a daemon.
// promise 9
#[test]
fn a_journal_that_was_changed_is_told_as_far_as_it_is_one() {
    let world = World::new(As::Root).host(PUBLIC, "good.test").server("http", PUBLIC, 80);
    assert_eq!(with_daemon(&world, CHANGED), "whole\n");
}
