//! Exec rules with action `ask` and no terminal: no bypass of the question starts the program. Each attempt has a
//! control that succeeds without the rule.

use crate::support::{BOTH, Place};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

struct AskFixture {
    place: Place,
    tool: String,
    /// A hard link to the tool, beside it.
    twin: String,
}

impl AskFixture {
    fn new(who: crate::support::As) -> AskFixture {
        let place = Place::new(who);
        let made = |path: &str| {
            let path = place.script(path, "");
            crate::support::copy_program("/bin/echo", &path);
            path.to_str().unwrap().to_owned()
        };
        let tool = made("tools/tool");
        made("home/project/sub/own");
        let twin = place.root.join("tools/twin");
        fs::hard_link(&tool, &twin).unwrap();
        symlink(&tool, place.project.join("link")).unwrap();
        place.script("home/project/by-interpreter", &format!("#!{tool} ran\n"));
        place.script("home/project/by-two", &format!("#!{}/by-interpreter\n", place.project.display()));
        AskFixture { twin: twin.to_str().unwrap().to_owned(), place, tool }
    }

    fn policy(&self, exec: &str, rules: &[Value]) -> String {
        let shown = json!([{"action": "allow", "path": self.place.root.join("tools"), "perms": ["read_file", "read_dir", "execute"]}]);
        let listed = [
            "/bin/sh",
            "/usr/bin/python3",
            "/usr/bin/env",
            "/usr/bin/cp",
            "/usr/bin/ln",
            "/usr/bin/mv",
            "/usr/bin/mkdir",
        ];
        let listed = listed.map(|path| json!({"action": "allow", "path": fs::canonicalize(path).unwrap()}));
        let own =
            ["by-interpreter", "by-two"].map(|name| json!({"action": "allow", "path": self.place.project.join(name)}));
        let rules = [rules, &listed, &own].concat();
        let defaults = json!({"exec": exec});
        self.place.policy(json!({"version": 1, "extends": ["default"], "defaults": defaults, "fs": {"rules": shown}, "exec": {"rules": rules}}))
    }

    fn asks(&self, exec: &str) -> String {
        let ask = |path: String| json!({"action": "ask", "path": path});
        self.policy(exec, &[ask(self.tool.clone()), ask("$WORKSPACE/sub/own".to_owned())])
    }
}

/// A Python command that executes a file by its descriptor.
fn by_descriptor(tool: &str, how: &str) -> String {
    format!(
        "/usr/bin/python3 -c \"import os; fd = os.open('{tool}', os.{how}); os.set_inheritable(fd, True); os.execve(fd, ['x', 'ran'], {{}})\""
    )
}

// promise 21
#[test]
fn no_way_around_the_question_starts_a_program() {
    for who in BOTH {
        let fixture = AskFixture::new(who);
        let (place, tool) = (&fixture.place, &fixture.tool);
        let attempts = [
            format!("{tool} ran"),
            format!("exec {tool} ran"),
            format!("env {tool} ran"),
            format!("/proc/self/root{tool} ran"),
            "/proc/self/cwd/../../tools/tool ran".to_owned(),
            "./link ran".to_owned(),
            "./by-interpreter".to_owned(),
            "./by-two".to_owned(),
            format!("{LOADER} {tool} ran"),
            by_descriptor(tool, "O_RDONLY"),
            by_descriptor(tool, "O_PATH"),
            format!(
                "python3 -c \"import os; fd = os.open('{tool}', os.O_RDONLY); os.execv('/proc/self/fd/%d' % fd, ['x', 'ran'])\""
            ),
            format!(
                "python3 -c \"import os; d = os.open('{}', os.O_RDONLY); os.chdir(d); os.execv('./tool', ['x', 'ran'])\"",
                place.root.join("tools").display()
            ),
            "sub/own ran".to_owned(),
            format!("{LOADER} sub/own ran"),
        ];
        for exec in ["allow", "deny"] {
            let policy = fixture.asks(exec);
            for text in &attempts {
                let run = place.sh(&["-p", &policy], text);
                assert!(!run.stdout().contains("ran"), "{who:?} {exec} {text}: {}", run.story());
                assert_ne!(run.code(), 0, "{who:?} {exec} {text}: {}", run.story());
            }
        }
        for text in &attempts {
            let run = place.sh(&["-p", &fixture.policy("allow", &[])], text);
            assert!(run.stdout().contains("ran"), "control: {who:?} {text}: {}", run.story());
        }
    }
}

/// Starts files with malformed headers, as scripts and as ELF programs, then a program that is allowed and one under
/// `ask`.
const NONSENSE: &str = r"
import os, random, subprocess, struct, sys
random.seed(7)
here, tool = os.getcwd(), sys.argv[1]
whole = open('/bin/echo', 'rb').read()
entry = lambda offset, size: struct.pack('<IIQQQQQQ', 3, 4, offset, 0, 0, size, size, 1)
elf = lambda table, size, count: b'\x7fELF\x02\x01' + bytes(26) + struct.pack('<Q', table) + bytes(14) + struct.pack('<HH', size, count) + bytes(6)
heads = [b'', b'#!', b'#!\n', b'#! \t\n', b'#!' + b'/' * 5000, b'#!\0/bin/sh\n', b'#!' + here.encode() + b'/f\n', b'#!' + here.encode() + b'\n',
         b'#!/dev/zero\n', b'#!/proc/self/mem\n', b'\x7fELF', elf(2**64 - 1, 65535, 65535), elf(64, 56, 65535), elf(64, 0, 9),
         elf(64, 56, 1) + entry(2**64 - 1, 9), elf(64, 56, 1) + entry(0, 2**63), elf(64, 56, 1) + entry(120, 9) + b'\xff' * 9]
for _ in range(60):
    changed = bytearray(whole)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(1024)] = random.randrange(256)
    heads.append(bytes(changed))
for head in heads:
    with open('f', 'wb') as file:
        file.write(head)
    os.chmod('f', 0o755)
    try:
        subprocess.run(['./f'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        pass
print('through', len(heads), flush=True)
os.system('/bin/echo control')
try:
    subprocess.run([tool, 'ran'])
except PermissionError:
    print('shut')
";

/// Under an `ask` rule the supervisor parses headers of files that the guest wrote.
// promise 21
#[test]
fn nonsense_at_the_head_of_a_program_is_no_matter() {
    for who in BOTH {
        let fixture = AskFixture::new(who);
        fixture.place.file("home/project/nonsense.py", NONSENSE);
        let command = ["python3", "nonsense.py", &fixture.tool];
        let run = fixture.place.run(&["-p", &fixture.asks("allow")], &command);
        assert_eq!(run.stdout(), "through 77\ncontrol\nshut\n", "{who:?}: {}", run.story());
        let free = fixture.place.run(&["-p", &fixture.policy("allow", &[])], &command);
        assert_eq!(free.stdout(), "through 77\ncontrol\nran\n", "control: {who:?}: {}", free.story());
    }
}

/// A program under `ask` cannot be moved or replaced, so the path in a question is the file that starts.
// promise 21
#[test]
fn a_program_that_is_asked_about_cannot_be_exchanged() {
    for who in BOTH {
        let fixture = AskFixture::new(who);
        let place = &fixture.place;
        let moves = [
            "mv sub/own sub/away",
            "mv sub away",
            "cp /bin/sh sub/own",
            "echo x >> sub/own",
            "rm -f sub/own",
            "ln sub/own here",
            "ln -f /bin/true sub/own",
            "python3 -c \"import os; os.chmod('sub/own', 0o777)\"",
            "python3 -c \"import os; os.truncate('sub/own', 0)\"",
        ];
        for exec in ["allow", "deny"] {
            let text = moves.map(|text| format!("({text}) 2>/dev/null && echo '{text}'")).join("\n");
            let run = place.sh(&["-p", &fixture.asks(exec)], &format!("{text}\necho end"));
            assert_eq!(run.stdout(), "end\n", "{who:?} {exec}: {}", run.story());
        }
        let run = place.sh(&[], "mv sub/own sub/away && mv sub away && echo moved");
        assert_eq!(run.stdout(), "moved\n", "control: {}", run.story());
    }
}

/// Under a list of allowed programs, the program's bytes start under no other name. Elsewhere a copy is another
/// program, as with a deny rule.
// promise 21
#[test]
fn where_programs_are_listed_no_copy_of_it_runs() {
    for who in BOTH {
        let fixture = AskFixture::new(who);
        let (place, tool, twin) = (&fixture.place, &fixture.tool, &fixture.twin);
        let memory = format!(
            "python3 -c \"import os; fd = os.memfd_create('x', 0); os.write(fd, open('{tool}', 'rb').read()); os.execve(fd, ['x', 'ran'], {{}})\""
        );
        let attempts = [
            format!("cp {tool} /tmp/copy && /tmp/copy ran"),
            format!("cp {tool} copy && ./copy ran"),
            format!("cp {tool} copy && {LOADER} ./copy ran"),
            format!("{twin} ran"),
            format!("{LOADER} {twin} ran"),
            memory,
        ];
        let policy = fixture.asks("deny");
        for text in &attempts {
            let run = place.sh(&["-p", &policy], text);
            assert!(!run.stdout().contains("ran"), "{who:?} {text}: {}", run.story());
            let run = place.sh(&["-p", &fixture.asks("allow")], text);
            assert!(run.stdout().contains("ran"), "control: {who:?} {text}: {}", run.story());
        }
    }
}
