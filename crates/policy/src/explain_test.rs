use super::*;
use crate::document::{Format, parse};
use crate::policy::effective;
use crate::resolve::{Context, resolve};

fn policy() -> Resolved {
    let json = r#"{"version":1,"extends":["default"],
        "fs":{"rules":[{"action":"deny","path":"/etc/shadow"},{"action":"ask","path":"/opt/x","perms":["execute"]}]},
        "exec":{"rules":[{"action":"deny","path":"/usr/bin/nc"}]}}"#;
    let document = parse(json, Format::Json, "p.json").unwrap();
    let ctx = Context { home: "/home/u".into(), workspace: "/w".into(), toolchains: Vec::new() };
    resolve(&effective(&[document]).unwrap(), &ctx).unwrap()
}

#[test]
fn text_for_people() {
    assert_eq!(
        explain_fs(&policy(), Path::new("/etc/passwd")).to_text(),
        r#"/etc/passwd
  allow read_file, read_dir, execute  (default:fs.rules[7])
        default:fs.rules[7]: {"action":"allow","path":"/etc","perms":["read_file","read_dir","execute"]}
  deny  write_file, truncate, make_dir, make_reg, make_sym, make_sock, make_fifo, remove_*, refer  (defaults.fs)
        to allow it: add {"action":"allow","path":"/etc/passwd","perms":["read_file","read_dir","write_file","truncate","make_dir","make_reg","make_sym","make_sock","make_fifo","remove_*","refer"]} to fs.rules, or run with --write /etc/passwd
  deny  make_char, make_block  (defaults.fs)
  deny  ioctl_dev  (defaults.fs)
        to allow it: add {"action":"allow","path":"/etc/passwd","perms":["ioctl_dev"]} to fs.rules
"#
    );
    assert_eq!(
        explain_exec(&policy(), Path::new("/usr/bin/nc")).to_text(),
        r#"/usr/bin/nc
  deny  execute  (p.json:exec.rules[0])
        default:fs.rules[0]: {"action":"allow","path":"/usr","perms":["read_file","read_dir","execute"]}
        p.json:exec.rules[0]: {"action":"deny","path":"/usr/bin/nc"}
        to allow it: an allow rule cannot lift p.json:exec.rules[0]; remove or narrow it
"#
    );
    assert_eq!(
        explain_net(&policy(), &NetRequest::tcp("example.org", 443)).to_text(),
        r#"tcp example.org:443
  deny  connect  (defaults.net)
        to allow it: add {"action":"allow","proto":"tcp","host":"example.org","ports":"443"} to net.rules, or run with --net example.org:443
"#
    );
}

#[test]
fn json_for_programs() {
    let json = explain_exec(&policy(), Path::new("/opt/x")).to_json();
    assert_eq!(
        json,
        r#"{
  "subject": "/opt/x",
  "decisions": [
    {
      "operations": ["execute"],
      "action": "ask",
      "rule": "p.json:fs.rules[1]",
      "hint": "p.json:fs.rules[1] asks, and the operation is refused where no answer is possible; answer at a terminal, or with `cofferdam answer` in a live sandbox",
      "matches": [
        {
          "rule": "default:fs.rules[8]",
          "action": "allow",
          "text": "{\"action\":\"allow\",\"path\":\"/opt\",\"perms\":[\"read_file\",\"read_dir\",\"execute\"]}"
        },
        {
          "rule": "p.json:fs.rules[1]",
          "action": "ask",
          "text": "{\"action\":\"ask\",\"path\":\"/opt/x\",\"perms\":[\"execute\"]}"
        }
      ]
    }
  ]
}
"#
    );
}
