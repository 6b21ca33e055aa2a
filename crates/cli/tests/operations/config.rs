//! The configuration: precedence, origin of each value, and refusals.

use crate::support::{As, Place, either, to_the_end};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

fn show(place: &Place, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = place.cofferdam(["config", "show", "--json"]);
    command.args(args).envs(env.iter().copied());
    to_the_end(&mut command, b"")
}

/// Value and origin of a key.
fn told(output: &Output, key: &str) -> (Value, Value) {
    let text = String::from_utf8_lossy(&output.stdout);
    let document: Value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text} {}", String::from_utf8_lossy(&output.stderr)));
    let found = document["settings"].as_array().unwrap().iter().find(|s| s["key"] == key);
    let found = found.unwrap_or_else(|| panic!("{key} is told: {document:#}"));
    (found["value"].clone(), found["origin"]["from"].clone())
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    for who in either() {
        let place = Place::new(who);
        let file = place.file("config.toml", "[serve]\ngrace = \"3s\"\n\n[log]\nlevel = \"warn\"\n");
        let (file, key) = (file.to_str().unwrap().to_owned(), "serve.grace");
        let grace = |args: &[&str], env: &[(&str, &str)]| told(&show(&place, args, env), key);
        assert_eq!(grace(&[], &[]), (30_000.into(), "default".into()));
        assert_eq!(grace(&["--config", &file], &[]), (3000.into(), "file".into()));
        let named = [("COFFERDAM_CONFIG", file.as_str()), ("COFFERDAM_SERVE_GRACE", "4s")];
        assert_eq!(grace(&[], &named[..1]), (3000.into(), "file".into()));
        assert_eq!(grace(&[], &named), (4000.into(), "environment".into()));
        assert_eq!(grace(&["--grace", "5s"], &named), (5000.into(), "flag".into()));
        // An empty variable counts as unset.
        assert_eq!(grace(&[], &[("COFFERDAM_SERVE_GRACE", "")]), (30_000.into(), "default".into()));
        let otel = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")];
        assert_eq!(told(&show(&place, &[], &otel), "telemetry.otlp_endpoint").1, "environment");
    }
}

/// Users have a file in their own configuration directory.
#[test]
fn the_usual_place_is_read_where_it_is_there() {
    let place = Place::new(As::User);
    let level = || told(&show(&place, &[], &[]), "log.level");
    assert_eq!(level(), ("info".into(), "default".into()));
    let file = place.file("home/.config/cofferdam/config.toml", "[log]\nlevel = \"debug\"\n");
    assert_eq!(level(), ("debug".into(), "file".into()));
    let lines = to_the_end(&mut place.cofferdam(["config", "show"]), b"");
    let text = String::from_utf8(lines.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("log.level")).unwrap();
    assert!(line.contains("debug") && line.ends_with(&format!("{}:2", file.display())), "{line}");
    let line = text.lines().find(|line| line.starts_with("serve.grace")).unwrap();
    assert!(line.contains("30s") && line.ends_with("default"), "{line}");
}

/// `config check` accepts exactly what `serve` accepts, and a refusal quotes the text and its position.
#[test]
fn a_check_and_a_start_refuse_the_same() {
    let place = Place::new(As::User);
    let file = place.root.join("config.toml");
    let said = |verb: &[&str]| {
        let output = to_the_end(place.cofferdam(verb).arg("--config").arg(&file), b"");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (check, start) = (["config", "check"], ["serve", "--check"]);
    place.file("config.toml", "[serve]\nallow_hosts = [\"box.example:7070\", \"[::1]\"]\n");
    assert_eq!((said(&check).0, said(&start).0), (Some(0), Some(0)), "the control");
    for wrong in ["https://box.example:7070/", "a b", ""] {
        place.file("config.toml", format!("[serve]\n\nallow_hosts = [{wrong:?}]\n"));
        for verb in [&check, &start] {
            let (code, told) = said(verb);
            let place = format!("{}:3", file.display());
            assert!(code == Some(2) && told.contains(&place) && !told.contains("--allow-host"), "{verb:?} {told}");
        }
    }
    place.file("config.toml", "[serve]\nsocket = \"/nonexistent/s\"\n");
    let (code, told) = said(&start);
    assert!(code == Some(2) && told.contains("config.toml:2: serve.socket /nonexistent/s"), "{told}");
    let (_, told) = said(&[&start[..], &["--socket", "/nonexistent/t"]].concat());
    assert!(told.contains("--socket /nonexistent/t"), "{told}");
}

#[test]
fn what_is_wrong_is_refused_with_key_and_line() {
    let place = Place::new(As::User);
    let check = |text: &str| {
        let file = place.file("config.toml", text);
        let mut command = place.cofferdam(["config", "check", "--json", "--config"]);
        let output = to_the_end(command.arg(&file), b"");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), document["message"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(check("[serve]\nlisten = \"127.0.0.1:7070\"\n").0, Some(0), "the control");
    for (text, says) in [
        ("[serve]\n\nsokket = 1\n", "config.toml:3: unknown key serve.sokket"),
        ("[serve]\nlisten = \"7070\"\n", "not ADDRESS:PORT"),
        ("[serve]\nlisten = \"0.0.0.0:7070\"\n", "other machines can reach"),
        ("[serve]\nlisten = \"0.0.0.0:7070\"\nlisten_anywhere = true\n", "needs TLS"),
        ("[serve]\ntls_cert = \"/c\"\n", "serve.tls_cert is set without"),
        ("[telemetry]\notlp_endpoint = \"grpc://x\"\n", "not an http:// or https:// URL"),
        ("[log]\nlevel = 3\n", "is an integer, but a string"),
    ] {
        let (code, message) = check(text);
        assert!(code == Some(2) && message.contains(says), "{text:?}: {code:?} {message}");
    }
    // A file that others can write is not trusted.
    let file = place.file("config.toml", "[log]\nlevel = \"warn\"\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let output = to_the_end(place.cofferdam(["config", "check", "--config"]).arg(&file), b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("other users can write to it"));
    let gone = to_the_end(&mut place.cofferdam(["config", "check", "--config", "/nowhere.toml"]), b"");
    assert_eq!(gone.status.code(), Some(2));
}
