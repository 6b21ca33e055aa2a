//! Rules with action `ask` in a live sandbox: the call waits and a reviewer answers over HTTP; an agent cannot.

use crate::support::http::{Daemon, with_daemon};
use crate::support::world::{PUBLIC, World};
use crate::support::{As, either};
use serde_json::{Value, json};

const SCRIPT: &str = r#"
rules = {"version": 1, "extends": ["default"], "net": {"rules": [{"action": "ask", "host": "good.test"}]}}
status, made = ask("POST", "/v1/sandboxes", {"name": "asks", "policies": [rules]})
assert status == 201, made
status, none = ask("GET", "/v1/sandboxes/asks/questions")
assert (status, none["questions"]) == (200, []), none
curl = ["curl", "-sS", "-m", "30", "http://good.test/page"]
def begin():
    return subprocess.Popen([cofferdam, "exec", "asks", *curl], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
keep = subprocess.run([cofferdam, "exec", "-d", "asks", "sleep", "60"], capture_output=True)
assert keep.returncode == 0, keep
def question():
    status, open_ = ask("GET", "/v1/sandboxes/asks/questions?wait=120s")
    assert status == 200 and len(open_["questions"]) == 1, open_
    return open_["questions"][0]
agent = ask("POST", "/v1/tokens", {"name": "agent", "scopes": ["agent"]})[1]["token"]
reviewer = ask("POST", "/v1/tokens", {"name": "reviewer", "scopes": ["reviewer"]})[1]["token"]
held = begin()
one = question()
assert (one["op"], one["target"], one["rule"]) == ("net.resolve", "good.test", one["rule"]), one
assert one["exe"].endswith("/curl") and one["id"].startswith("qst_"), one
at = "/v1/questions/" + one["id"]
yes = {"answer": "allow", "remember": "once"}
assert ask("POST", at, yes, agent)[0] == 403
assert ask("GET", "/v1/sandboxes/asks/questions", None, agent)[0] == 403
assert ask("POST", at, {"answer": "perhaps"}, reviewer)[0] == 400
assert held.poll() is None
status, answered = ask("POST", at, yes, reviewer)
assert (status, answered["target"]) == (200, "good.test"), answered
out, err = held.communicate(timeout=30)
assert held.returncode == 0 and out.startswith(b"GET /page host=good.test"), (out, err)
assert ask("POST", at, yes, reviewer)[0] == 404
assert ask("POST", "/v1/questions/qst_nothing_1", yes)[0] == 404
print("allowed")
# A sandbox that is live again asks again.
subprocess.run([cofferdam, "stop", "asks"], capture_output=True)
subprocess.run([cofferdam, "start", "asks"], capture_output=True)
keep = subprocess.run([cofferdam, "exec", "-d", "asks", "sleep", "60"], capture_output=True)
assert keep.returncode == 0, keep
held = begin()
one = question()
status, answered = ask("POST", "/v1/questions/" + one["id"], {"answer": "deny"}, reviewer)
assert status == 200, answered
out, err = held.communicate(timeout=30)
assert held.returncode != 0 and b"GET" not in out, (out, err)
print("denied")
log = json.loads(subprocess.run([cofferdam, "audit", "log", "--json"], capture_output=True).stdout)
answers = [e for e in log["entries"] if e["verb"] == "answer"]
assert [(e["actor"], e["body"]["answer"]) for e in answers] == [("reviewer", "allow"), ("reviewer", "deny")], answers
print("recorded")
"#;

#[test]
fn a_reviewer_answers_what_an_agent_cannot() {
    for who in either() {
        let world = World::new(who).host(PUBLIC, "good.test").server("http", PUBLIC, 80);
        assert_eq!(with_daemon(&world, SCRIPT), "allowed\ndenied\nrecorded\n");
    }
}

const PROGRAMS: &str = r#"
rules = {"version": 1, "extends": ["default"], "exec": {"rules": [{"action": "ask", "path": "/usr/bin/id"}, {"action": "ask", "path": "/usr/bin/uname"}]}}
status, made = ask("POST", "/v1/sandboxes", {"name": "asks", "policies": [rules]})
assert status == 201, made
def begin(*words):
    return subprocess.Popen([cofferdam, "exec", "asks", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
keep = subprocess.run([cofferdam, "exec", "-d", "asks", "sleep", "60"], capture_output=True)
assert keep.returncode == 0, keep
def answer(target, word):
    status, open_ = ask("GET", "/v1/sandboxes/asks/questions?wait=120s")
    assert status == 200 and len(open_["questions"]) == 1, open_
    one = open_["questions"][0]
    assert (one["op"], one["target"]) == ("exec", target), one
    status, answered = ask("POST", "/v1/questions/" + one["id"], {"answer": word, "remember": "once"}, reviewer)
    assert status == 200, answered
agent = ask("POST", "/v1/tokens", {"name": "agent", "scopes": ["agent"]})[1]["token"]
reviewer = ask("POST", "/v1/tokens", {"name": "reviewer", "scopes": ["reviewer"]})[1]["token"]
held = begin("sh", "-c", "id -u; uname")
answer("/usr/bin/id", "allow")
answer("/usr/bin/uname", "deny")
out, err = held.communicate(timeout=30)
assert out.strip().isdigit() and b"denied" in err, (out, err)
print("one of two")
held = begin("id", "-u")
out, err = held.communicate(timeout=30)
assert held.returncode == 0 and out.strip().isdigit(), (out, err)
print("from then on")
# A denial is remembered for a moment, as /bin/uname is the same program.
time.sleep(4)
held = begin("uname")
answer("/usr/bin/uname", "allow")
out, err = held.communicate(timeout=30)
assert held.returncode == 0 and out == b"Linux\n", (out, err)
print("the command itself")
"#;

/// A program under an `ask` rule starts once a reviewer allows it, and from then on without a question.
// promise 21
#[test]
fn a_reviewer_lets_a_program_start() {
    for who in either() {
        let world = World::new(who);
        assert_eq!(with_daemon(&world, PROGRAMS), "one of two\nfrom then on\nthe command itself\n");
    }
}

/// A sandbox that is not live has no questions.
#[test]
fn without_a_live_sandbox_there_is_nothing_to_answer() {
    let place = crate::support::Place::new(As::User);
    let daemon = Daemon::start(&place);
    daemon.post("/v1/sandboxes", json!({"name": "still"})).assert_ok();
    assert_eq!(daemon.get("/v1/sandboxes/still/questions").assert_ok()["questions"], Value::Array(Vec::new()));
    daemon.get("/v1/sandboxes/none/questions").assert_fault(404, "not_found");
}
