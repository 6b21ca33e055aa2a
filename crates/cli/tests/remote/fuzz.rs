//! Recorded responses of a real daemon, mutated at random: the command line survives them all. A failure names its
//! seed; `COFFERDAM_FULL=1` tries fifty times as many.

use crate::fake::{Fake, Recorder, Transcript, whole};
use crate::hostile::Scene;
use crate::support::dice::Dice;
use crate::support::http::Daemon;
use crate::support::{As, Place, sample, to_the_end};
use crate::table::ARGS;
use serde_json::{Value, json};
use std::time::Duration;

/// Responses of a real daemon to every verb, and the run that `RUN` stands for.
fn recorded() -> (Transcript, String) {
    let place = Place::new(As::Root);
    let daemon = Daemon::start(&place);
    let setup = "set -e; c() { \"$COFFERDAM\" \"$@\"; }; c create --name box > /dev/null\n\
                 c exec box -c 'echo x > new; echo text > text; mkdir dir; echo y > dir/in; echo \"all:\" > Makefile; touch .hidden'\n\
                 c snapshot box --name snap > /dev/null; c template create tpl --from box > /dev/null\n\
                 r=$(c exec -d box -c 'echo said; echo err >&2; exit 3'); c wait $r > /dev/null || true; echo $r";
    let mut shell = place.outside("/bin/sh");
    shell.args(["-c", setup]).env("COFFERDAM", crate::support::binary()).env("COFFERDAM_SERVER", &daemon.socket);
    let out = to_the_end(&mut shell, b"");
    let run = String::from_utf8(out.stdout).unwrap().trim().to_owned();
    assert!(run.starts_with("run_"), "{run} {}", String::from_utf8_lossy(&out.stderr));
    let recorder = Recorder::start(place.root.join("recorder"), &daemon.socket);
    place.file("home/project/exported", "no archive");
    place.dir("home/project/made");
    for (_, args) in ARGS {
        let args = args.iter().map(|word| if *word == "RUN" { run.as_str() } else { word });
        to_the_end(place.cofferdam(args).env("COFFERDAM_SERVER", &recorder.socket), b"v\n");
    }
    std::thread::sleep(Duration::from_millis(300));
    let transcript = recorder.transcript();
    assert!(transcript.len() > 40, "{:?}", transcript.keys().collect::<Vec<_>>());
    (transcript, run)
}

/// Head and body of a response, with a chunked body joined.
fn parts(answer: &[u8]) -> Option<(String, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let body = &answer[end..];
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return Some((head, body.to_vec()));
    }
    let (mut all, mut rest) = (Vec::new(), body);
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let Ok(size) = usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.trim(), 16) else { break };
        let piece = rest.get(line + 2..line + 2 + size)?;
        all.extend_from_slice(piece);
        rest = rest.get(line + 4 + size..).unwrap_or_default();
    }
    Some((head, all))
}

fn odd(dice: &mut Dice) -> Value {
    let all = [
        json!(null),
        json!(0),
        json!(-1),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(true),
        json!([]),
        json!({}),
        json!(""),
        json!("\u{1b}[31m\u{9b}2J\r\u{7}\u{202e}"),
        json!("../../../etc/passwd"),
        json!("/"),
        json!("x".repeat(100_000)),
        json!({"base64": "/w=="}),
        json!({"base64": "!"}),
        json!([[[[{}]]]]),
    ];
    all[dice.roll(all.len())].clone()
}

/// Replaces a random part by an odd value.
fn change(value: &mut Value, dice: &mut Dice) {
    let deeper = dice.roll(8) != 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let at = dice.roll(map.len());
            let key = map.keys().nth(at).cloned().unwrap_or_default();
            match dice.roll(8) {
                0 => drop(map.remove(&key)),
                _ => map.get_mut(&key).into_iter().for_each(|inner| change(inner, dice)),
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = dice.roll(list.len());
            match dice.roll(8) {
                0 => {
                    let again = list[at].clone();
                    list.extend(std::iter::repeat_n(again, 1000));
                }
                _ => change(&mut list[at], dice),
            }
        }
        Value::String(text) if dice.roll(2) == 0 => text.push_str("\u{1b}]0;x\u{7}\u{9d}\u{200b}"),
        other => *other = odd(dice),
    }
}

fn mangled(body: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut body = body.to_vec();
    for _ in 0..=dice.roll(4) {
        let at = dice.roll(body.len() + 1);
        match dice.roll(4) {
            0 if !body.is_empty() => body[at.min(at.saturating_sub(1))] = dice.roll(256) as u8,
            1 => body.truncate(at),
            2 => drop(body.splice(at..at, b"\x1b[31m\xff\x00\n\n".iter().copied())),
            _ => {
                let piece = body[at..].to_vec();
                body.extend(piece);
            }
        }
    }
    body
}

fn mutated(answer: &[u8], dice: &mut Dice) -> Vec<u8> {
    let Some((head, body)) = parts(answer) else { return mangled(answer, dice) };
    let status =
        head.lines().next().and_then(|line| line.split_once(' ')).map_or("200 OK", |(_, rest)| rest).to_owned();
    let sort =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-type: ").map(str::to_owned));
    let sort = sort.unwrap_or_else(|| "application/json".to_owned());
    let body = match (dice.roll(4), serde_json::from_slice::<Value>(&body)) {
        (1.., Ok(mut value)) => {
            (0..=dice.roll(3)).for_each(|_| change(&mut value, dice));
            value.to_string().into_bytes()
        }
        _ => mangled(&body, dice),
    };
    // Most mutations keep the version, because otherwise nothing else would be parsed.
    let body = match serde_json::from_slice::<Value>(&body) {
        Ok(Value::Object(mut map)) if map.contains_key("protocol_version") => {
            map.insert("protocol_version".into(), json!(1));
            Value::Object(map).to_string().into_bytes()
        }
        _ => body,
    };
    let sort = if dice.roll(20) == 0 { "text/plain".to_owned() } else { sort };
    let status = if dice.roll(20) == 0 { "418 Odd".to_owned() } else { status };
    whole(&status, &sort, &body)
}

/// Responses per test run, each to one verb.
const ANSWERS: u64 = 250;

// promise 27
#[test]
fn answers_that_were_changed_at_random_hurt_nobody() {
    let first = sample::seed().wrapping_mul(ANSWERS);
    let (transcript, run) = recorded();
    let scene = Scene::new();
    let fake = Fake::start(scene.place.root.join("fake"));
    let server = fake.socket.to_string_lossy().into_owned();
    let (mut seed, mut tried) = (first, 0u64);
    while tried < sample::times(ANSWERS, 50 * ANSWERS) {
        let (verb, args) = ARGS[tried as usize % ARGS.len()];
        let (told, transcript, run_id) = (seed, transcript.clone(), run.clone());
        fake.respond_with(move |asked, to| {
            // The same seed gives the same responses, whichever request comes first and whatever the run's id is.
            let salt = asked
                .replace(&run_id, "RUN")
                .bytes()
                .fold(told, |all, byte| all.wrapping_mul(31).wrapping_add(u64::from(byte)));
            let mut dice = Dice::of(salt, 0);
            let Some(known) = transcript.get(asked).filter(|known| !known.is_empty()) else {
                return to.write_all(&whole("404 Not Found", "application/json", b"{}"));
            };
            let answer = &known[dice.roll(known.len())];
            match dice.roll(4) {
                0 => to.write_all(answer),
                _ => to.write_all(&mutated(answer, &mut dice)),
            }
        });
        let mut args: Vec<&str> = args.iter().map(|word| if *word == "RUN" { run.as_str() } else { word }).collect();
        // JSON output is shown on terminals, too.
        if (seed / ARGS.len() as u64) % 2 == 1 && !args.contains(&"--") {
            args.push("--json");
        }
        scene.ask(&server, verb, &args, &format!("seed {seed}"));
        (seed, tried) = (seed.wrapping_add(1), tried + 1);
    }
    println!("{tried} answers from seed {first} on");
}
