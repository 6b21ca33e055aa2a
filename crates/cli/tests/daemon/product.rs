//! Every route against every wrong way to call it. Routes come from the API description, so that a new one is covered
//! from the start.

use crate::support::http::{Answer, Ask, Daemon};
use crate::support::{As, Place};
use serde_json::{Value, json};
use std::path::Path;

/// An operation of the API description.
struct Operation {
    method: String,
    path: String,
    tag: String,
    about: Value,
}

fn operations(daemon: &Daemon) -> (Value, Vec<Operation>) {
    let document = daemon.get("/v1/openapi.json").assert_ok();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, about) in item.as_object().unwrap() {
            let tag = about["tags"][0].as_str().unwrap().to_owned();
            all.push(Operation { method: method.to_uppercase(), path: path.clone(), tag, about: about.clone() });
        }
    }
    assert!(all.len() >= 12, "the routes are found: {}", all.len());
    (document, all)
}

/// Ids of one tenant's objects, for another tenant to name.
#[derive(Default)]
struct Names {
    sandbox: String,
    snapshot: String,
    run: String,
    name: String,
}

impl Operation {
    fn is_public(&self) -> bool {
        self.about["security"].as_array().is_some_and(|all| all.iter().any(|one| *one == json!({})))
    }

    fn parameters(&self, place: &str) -> Vec<Value> {
        let all = self.about["parameters"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|p| p["in"] == place).collect()
    }

    /// URL with ids filled in and every required query parameter.
    fn target(&self, document: &Value, names: &Names) -> String {
        let mut path = self.path.clone();
        for parameter in self.parameters("path") {
            let name = parameter["name"].as_str().unwrap();
            let value = match name {
                "id" if path.starts_with("/v1/snapshots") => names.snapshot.clone(),
                "id" | "sandbox" => names.sandbox.clone(),
                "run" => names.run.clone(),
                "n" | "port" => "8080".into(),
                _ => names.name.clone(),
            };
            path = path.replace(&format!("{{{name}}}"), &value).replace(&format!("{{*{name}}}"), &value);
        }
        let needed = self.parameters("query").into_iter().filter(|p| p["required"] == true);
        let query: Vec<String> = needed
            .map(|p| {
                let value = sample(document, &p["schema"]);
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{}={value}", p["name"].as_str().unwrap())
            })
            .collect();
        if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
    }

    fn ask<'a>(&self, daemon: &'a Daemon, document: &Value, names: &Names) -> Ask<'a> {
        let ask = daemon.ask(&self.method, &self.target(document, names)).over_tcp();
        let Some(content) = self.about["requestBody"]["content"].as_object() else { return ask };
        let (sort, about) = content.iter().next().unwrap();
        match sort.as_str() {
            "application/json" => ask.json(sample(document, &about["schema"])),
            other => ask.body(other, b"x"),
        }
    }
}

/// The smallest value that a schema allows.
fn sample(document: &Value, schema: &Value) -> Value {
    if let Some(name) = schema["$ref"].as_str() {
        return sample(document, document.pointer(name.trim_start_matches('#')).unwrap());
    }
    if let Some(all) = schema["allOf"].as_array() {
        let mut whole = serde_json::Map::new();
        for part in all {
            whole.extend(sample(document, part).as_object().cloned().unwrap_or_default());
        }
        return whole.into();
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(first) = schema[choice].as_array().and_then(|all| all.iter().find(|one| one["type"] != "null")) {
            return sample(document, first);
        }
    }
    if let Some(first) = schema["enum"].as_array().and_then(|all| all.first()) {
        return first.clone();
    }
    if let Some(first) = schema["examples"].as_array().and_then(|all| all.first()) {
        return first.clone();
    }
    let sort = schema["type"].as_array().and_then(|all| all.first()).unwrap_or(&schema["type"]);
    match sort.as_str() {
        Some("object") => {
            let needed = schema["required"].as_array().cloned().unwrap_or_default();
            let fields = needed.iter().filter_map(Value::as_str);
            fields
                .map(|name| (name.to_owned(), sample(document, &schema["properties"][name])))
                .collect::<serde_json::Map<_, _>>()
                .into()
        }
        Some("array") if schema["minItems"].as_u64().is_some_and(|n| n > 0) => {
            json!([sample(document, &schema["items"])])
        }
        Some("array") => json!([]),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(false),
        _ => json!("x"),
    }
}

/// Requests without a token, with a wrong one, with one in the URL, from a foreign page or for another host are
/// refused on every route.
// promise 23
#[test]
fn no_route_is_open_to_strangers() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let token = daemon.operator_token();
    let (document, all) = operations(&daemon);
    let names = Names { sandbox: "none".into(), snapshot: "none".into(), run: "none".into(), name: "none".into() };
    let wrong = format!("cof_{}_{}", "1".repeat(32), "2".repeat(64));
    for operation in &all {
        let at = format!("{} {}", operation.method, operation.path);
        let ask = || operation.ask(&daemon, &document, &names);
        let status = |ask: Ask<'_>| {
            let answer = ask.send();
            let is_told = operation.method == "HEAD" || answer.status < 400;
            assert!(is_told || answer.json()["error_kind"].is_string(), "{at}: {answer:?}");
            answer.status
        };
        match operation.is_public() {
            true => assert_eq!(status(ask()), 200, "{at}"),
            false => assert_eq!(status(ask()), 401, "{at} without a token"),
        }
        assert_eq!(status(ask().bearer(&wrong)), 401, "{at} with a wrong token");
        for origin in ["http://evil.example", "null"] {
            assert_eq!(status(ask().bearer(&token).header("origin", origin)), 403, "{at} from {origin}");
        }
        assert_eq!(status(ask().bearer(&token).header("sec-fetch-site", "cross-site")), 403, "{at} from another site");
        for host in ["evil.example", "localhost:1", "localhost.evil"] {
            assert_eq!(status(ask().bearer(&token).host(host)), 421, "{at} for {host}");
        }
        let spilled = operation.target(&document, &names);
        let with = if spilled.contains('?') { '&' } else { '?' };
        let spilled = daemon.ask(&operation.method, &format!("{spilled}{with}token={token}")).over_tcp();
        assert_eq!(status(spilled), 400, "{at} with its token in the address");
        if operation.about["x-passes-through"] != true {
            let target = operation.target(&document, &names);
            let odd = format!("{target}{}no_such_parameter=1", if target.contains('?') { '&' } else { '?' });
            assert_eq!(
                status(daemon.ask(&operation.method, &odd).over_tcp().bearer(&token)),
                400,
                "{at} with an odd query"
            );
        }
        if operation.method != "GET" && operation.about["x-passes-through"] != true {
            let form = daemon.ask(&operation.method, &operation.target(&document, &names)).over_tcp().bearer(&token);
            assert_eq!(status(form.body("application/x-www-form-urlencoded", b"a=b")), 415, "{at} as a form");
        }
    }
}

/// Creates one of each object for a tenant, by the command line on the tenant's state directory.
fn furnish(place: &Place, state: &Path) -> Names {
    let run = |words: &[&str]| {
        let output = place.cofferdam(words).env("COFFERDAM_STATE", state).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let sandbox = run(&["create", "--name", "A_CANARY"]).trim().to_owned();
    run(&["exec", "A_CANARY", "true"]);
    let snapshot = run(&["snapshot", "A_CANARY"]).trim().to_owned();
    let whole: Value = serde_json::from_str(&run(&["inspect", "A_CANARY"])).unwrap();
    let run = whole["last_runs"][0]["run"].as_str().unwrap().to_owned();
    Names { sandbox, snapshot, run, name: "A_CANARY".into() }
}

/// Objects of a tenant do not exist for another tenant on any route, nor objects of an agent for another agent of the
/// same tenant.
// promise 23
#[test]
fn what_is_anothers_is_not_there_on_any_route() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let (document, all) = operations(&daemon);
    let of = |tenant: &str| {
        daemon.token(json!({"name": tenant, "tenant": tenant, "scopes": ["agent", "reviewer", "operator"]}))
    };
    let (a, b) = (of("a"), of("b"));
    daemon.ask("GET", "/v1/sandboxes").over_tcp().bearer(&a).send().assert_ok();
    let names = furnish(&place, &place.state().join("tenants/a"));
    // The control: they exist for their owner.
    let bound = json!({"name": "bound", "tenant": "a", "scopes": ["agent"], "sandboxes": ["A_CANARY"]});
    let at = format!("/v1/sandboxes/{}", names.sandbox);
    let own = daemon.ask("GET", &at).over_tcp().bearer(&a).send().assert_ok();
    assert_eq!(own["name"], "A_CANARY");
    let bound = daemon.ask("GET", &at).over_tcp().bearer(&daemon.token(bound)).send().assert_ok();
    assert_eq!(bound["name"], "A_CANARY");
    let other = daemon.token(json!({"name": "other", "tenant": "a", "scopes": ["agent", "reviewer"]}));
    let unused_id = |prefix: &str| format!("{prefix}_{}", "0".repeat(32));
    let unknown =
        Names { sandbox: unused_id("sbx"), snapshot: unused_id("snp"), run: unused_id("run"), name: "NOBODYS".into() };
    let kind =
        |answer: &Answer| serde_json::from_slice::<Value>(&answer.body).unwrap_or_default()["error_kind"].clone();
    // A PUT under a name creates an object of the caller's own, also if another tenant uses that name.
    let names_another =
        |o: &&Operation| !(o.parameters("path").is_empty() || o.method == "PUT" && o.path.ends_with("{name}"));
    for token in [&b, &other] {
        let (mut tried, mut absent) = (0, 0);
        for operation in all.iter().filter(names_another) {
            let answer = operation.ask(&daemon, &document, &names).bearer(token).send();
            let at = format!("{} {}: {} {}", operation.method, operation.path, answer.status, answer.text());
            // The response is the one for an id that does not exist: refused, and indistinguishable.
            let unknown = operation.ask(&daemon, &document, &unknown).bearer(token).send();
            assert_eq!((answer.status, kind(&answer)), (unknown.status, kind(&unknown)), "{at}");
            assert!(answer.status >= 400, "{at}");
            absent += usize::from(answer.status == 404);
            let told = answer.text();
            assert!(!told.contains(place.project.to_str().unwrap()) && !told.contains("tenants/a"), "{at}");
            tried += 1;
        }
        assert!(tried >= 5 && absent * 2 > tried, "{absent} of {tried}");
    }
    // Lists do not mention them, either.
    for operation in all.iter().filter(|o| o.method == "GET" && o.parameters("path").is_empty()) {
        let is_stream = operation.path == "/v1/events";
        let ask = operation.ask(&daemon, &document, &names).bearer(&other);
        let told = if is_stream { String::new() } else { ask.send().text() };
        assert!(!told.contains(&names.sandbox) && !told.contains("A_CANARY"), "{}: {told}", operation.path);
    }
    let still = daemon.ask("GET", &format!("/v1/sandboxes/{}", names.sandbox)).over_tcp().bearer(&a).send().assert_ok();
    assert_eq!((&still["version"], &still["state"]), (&own["version"], &own["state"]), "nothing was changed");
}

/// Tags whose routes an agent's token may call, each with its exceptions.
const OF_AGENTS: [(&str, &[&str]); 10] = [
    ("code", &[]),
    ("urls", &[]),
    ("events", &[]),
    ("files", &[]),
    ("health", &["/v1/metrics"]),
    ("policies", &[]),
    ("ports", &[]),
    ("runs", &[]),
    ("sandboxes", &["/v1/gc"]),
    ("snapshots", &[]),
];
/// Single routes of other tags. Every other route must refuse an agent, a new one included until it is listed here.
const ALSO_OF_AGENTS: [&str; 9] = [
    "GET /v1/sandboxes/{id}/workspace/conflicts",
    "GET /v1/sandboxes/{id}/workspace/diff",
    "GET /v1/sandboxes/{id}/workspace/patch",
    "GET /v1/sandboxes/{id}/workspace/provenance",
    "POST /v1/sandboxes/{id}/workspace/prune",
    "POST /v1/sandboxes/{id}/workspace/rebase",
    "GET /v1/secrets",
    "GET /v1/templates",
    "GET /v1/templates/{name}",
];

/// An agent's token opens the routes listed above and no other.
// promise 23
#[test]
fn an_agent_does_only_what_agents_may() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let (document, all) = operations(&daemon);
    let agent = daemon.token(json!({"name": "agent", "scopes": ["agent"]}));
    let names = furnish(&place, &place.state());
    let (mut open, mut closed, mut wrong) = (0, 0, Vec::new());
    for operation in all.iter().filter(|operation| !operation.is_public()) {
        let listed = OF_AGENTS.iter().find(|(tag, _)| *tag == operation.tag);
        let single = format!("{} {}", operation.method, operation.path);
        let may = listed.is_some_and(|(_, but)| !but.contains(&operation.path.as_str()))
            || ALSO_OF_AGENTS.contains(&single.as_str());
        // Permitted operations are tried only where they change nothing.
        if may && operation.method != "GET" {
            continue;
        }
        let answer = operation.ask(&daemon, &document, &names).bearer(&agent).send();
        let at = format!("{} {}: {} {}", operation.method, operation.path, answer.status, answer.text());
        if may == (answer.status == 403) {
            wrong.push(format!("may: {may}, {at}"));
        }
        *(if may { &mut open } else { &mut closed }) += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(open >= 3 && closed >= 4, "{open} {closed}");
}
