use super::*;
use crate::document::{Format, parse};
use crate::policy::effective;

fn policy(json: &str) -> Policy {
    effective(&[parse(json, Format::Json, "p").unwrap()]).unwrap()
}

#[test]
fn more_less_and_different() {
    let a = policy(
        r#"{"version":1,"fs":{"rules":[{"action":"deny","path":"/x"},{"action":"allow","path":"/y","perms":["read_file"]}]},
            "limits":{"max_wall_ms":1000},"env":{"set":{"A":"1"}},"degrade":["landlock.scope"]}"#,
    );
    let b = policy(
        r#"{"version":1,"defaults":{"net":"allow"},"fs":{"rules":[{"action":"allow","path":"/z","perms":["read_file"]}]},
            "limits":{"max_wall_ms":2000,"max_memory_mb":64},"env":{"set":{"A":"2"}},"syscalls":{"deny":["bpf"]},
            "capabilities":{"net.fetch":{"allow":true,"budget":2}}}"#,
    );
    assert_eq!(
        diff(&a, &b).to_text(),
        "allows more:\n\
         \x20 defaults.net: deny → allow\n\
         \x20 fs.rules: added {\"action\":\"allow\",\"path\":\"/z\",\"perms\":[\"read_file\"]}\n\
         \x20 fs.rules: removed {\"action\":\"deny\",\"path\":\"/x\"}\n\
         \x20 limits.max_wall_ms: 1000 → 2000\n\
         \x20 capabilities.net.fetch: 0 → 2 calls\n\
         allows less:\n\
         \x20 fs.rules: removed {\"action\":\"allow\",\"path\":\"/y\",\"perms\":[\"read_file\"]}\n\
         \x20 syscalls.deny: added bpf\n\
         \x20 degrade: removed landlock.scope\n\
         \x20 limits.max_memory_mb: none → 64\n\
         differs:\n\
         \x20 env.set: A: 1 → 2\n"
    );
    let json: serde_json::Value = serde_json::from_str(&diff(&a, &b).to_json()).unwrap();
    assert_eq!(json["more"].as_array().unwrap().len(), 5);
    assert_eq!(json["less"][1]["place"], "syscalls.deny");
    assert_eq!(diff(&a, &a).to_text(), "no difference\n");
}
