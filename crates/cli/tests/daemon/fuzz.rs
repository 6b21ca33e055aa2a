//! Generated requests against every route, from the checked API description: no request ends in an internal error, and
//! no response deviates from the description.

use crate::support::http::Daemon;
use crate::support::{As, Place, to_the_end};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Operations that the generator cannot do or that would revoke its own credential; each has tests of its own.
const LEFT_OUT: [(&str, &str); 9] = [
    ("/v1/events", "get"),
    ("/v1/runs/{run}/attach", "get"),
    ("/v1/runs/{run}/output", "get"),
    ("/v1/sandboxes/{id}/files/archive", ""),
    ("/v1/sandboxes/{id}/files/watch", "get"),
    ("/v1/sandboxes/{id}/network/events", "get"),
    ("/v1/sandboxes/{id}/ports/{port}/", ""),
    ("/v1/sandboxes/{id}/ports/{port}/{rest}", ""),
    ("/v1/tokens/{id}", "delete"),
];

/// API description without the excluded operations and without waiting.
fn described(daemon: &Daemon) -> Value {
    let mut document = daemon.get("/v1/openapi.json").assert_ok();
    let paths = document["paths"].as_object_mut().unwrap();
    for (path, method) in LEFT_OUT {
        let item = paths.get_mut(path).and_then(Value::as_object_mut).unwrap_or_else(|| panic!("no {path}"));
        match method {
            "" => item.clear(),
            method => drop(item.remove(method)),
        }
    }
    paths.retain(|_, item| item.as_object().is_some_and(|item| !item.is_empty()));
    for operation in paths.values_mut().flat_map(|i| i.as_object_mut().unwrap()) {
        if let Some(parameters) = operation.1.get_mut("parameters").and_then(Value::as_array_mut) {
            parameters.retain(|parameter| parameter["name"] != "wait");
        }
    }
    document
}

// promise 22
#[test]
fn no_request_makes_it_fail_or_say_what_is_not_described() {
    let place = Place::new(As::User);
    let daemon = Daemon::start_tcp(&place);
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/schemathesis/bin/schemathesis");
    assert!(tool.exists(), "{} is not there; tools/test installs it", tool.display());
    // Objects of each kind for the generator to find.
    let made = daemon.post("/v1/sandboxes", json!({"name": "found"})).assert_ok();
    let id = made["id"].as_str().unwrap();
    daemon.post(&format!("/v1/sandboxes/{id}/snapshots"), json!({})).assert_ok();
    let description = place.file("openapi.json", described(&daemon).to_string());
    // 501 says that this host cannot enforce a limit, which a generated request may well ask for.
    place.file(
        "schemathesis.toml",
        "[checks.not_a_server_error]\nexpected-statuses = [\"2xx\", \"3xx\", \"4xx\", 501]\n",
    );
    let seed = crate::support::sample::seed().to_string();
    let examples = crate::support::times(3, 100).to_string();
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                  response_schema_conformance,ignored_auth,unsupported_method";
    let mut command = Command::new(tool);
    command
        .arg("run")
        .arg(&description)
        .args(["--url", &format!("http://127.0.0.1:{}", daemon.port.unwrap()), "--checks", checks, "--seed", &seed])
        // A single worker: with two, CPython's parser now and then fails by itself ("AST constructor recursion depth
        // mismatch").
        .args(["--max-examples", &examples, "--generation-database", "none", "--workers", "1"])
        .args(["--request-timeout", "60", "--no-color"])
        .args(["-H", &format!("Authorization: Bearer {}", daemon.operator_token())])
        .current_dir(fs::canonicalize(description.parent().unwrap()).unwrap());
    let output = to_the_end(&mut command, b"");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("passed"), "control: requests were made: {said}");
    daemon.get(&format!("/v1/sandboxes/{id}")).json();
    daemon.get("/v1/health").assert_ok();
}
