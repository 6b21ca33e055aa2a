//! `cofferdam doctor`.

use crate::connection;
use crate::render;
use clap::ArgMatches;
use host::doctor::{Check, DoctorReport, Level};
use node::doctor::examine;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Path of the running binary, whatever name it was started by.
const OURSELVES: &str = "/proc/self/exe";

pub fn main(m: &ArgMatches) -> ExitCode {
    let json = m.get_flag("json");
    let caller = match connection::local(m, "doctor") {
        Ok(caller) => caller,
        Err(fault) => return render::fault(&fault, json),
    };
    let report = examine(&caller, Path::new(OURSELVES));
    if json {
        render::print_json(&report);
    } else {
        let text = DoctorPage { colours: colours() }.render(&report);
        // A reader that left early is no error of ours.
        let _ = crate::stdout::lock().write_all(text.as_bytes());
    }
    // Limits that need control groups do not count: a run that requests one is refused, never run without it.
    ExitCode::from(if report.level == Level::Full { 0 } else { 1 })
}

fn colours() -> bool {
    render::takes_colours(&std::io::stdout())
}

struct DoctorPage {
    colours: bool,
}

impl DoctorPage {
    fn render(&self, report: &DoctorReport) -> String {
        let mut text = String::new();
        self.table(&mut text, "Enforcement and surroundings", &report.checks);
        self.table(&mut text, "Limits", &report.limits);
        self.fixes(&mut text, report);
        text.push_str(&self.conclusion(report));
        text
    }

    fn table(&self, text: &mut String, title: &str, checks: &[Check]) {
        let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        text.push_str(&format!("{}\n", self.paint("1", title)));
        for check in checks {
            let mark = match (check.ok, check.required) {
                (true, _) => self.paint("32", "ok     "),
                (false, true) => self.paint("31", "missing"),
                (false, false) => self.paint("33", "missing"),
            };
            let optional = if !check.ok && !check.required { " (optional)" } else { "" };
            text.push_str(&format!("  {mark}  {:<width$}  {}{optional}\n", check.name, render::safe(&check.detail)));
        }
        text.push('\n');
    }

    /// Writes an entry per distinct fix, with everything that it would repair.
    fn fixes(&self, text: &mut String, report: &DoctorReport) {
        let mut fixes: Vec<(&str, Vec<&str>)> = Vec::new();
        for check in report.checks.iter().chain(&report.limits) {
            let Some(fix) = check.fix.as_deref() else { continue };
            match fixes.iter_mut().find(|(known, _)| *known == fix) {
                Some((_, names)) => names.push(check.name),
                None => fixes.push((fix, vec![check.name])),
            }
        }
        if fixes.is_empty() {
            return;
        }
        text.push_str(&format!("{}\n", self.paint("1", "Smallest fixes")));
        for (fix, names) in fixes {
            text.push_str(&format!("  {}\n", names.join(", ")));
            for line in fix.lines() {
                text.push_str(&format!("      {}\n", render::safe(line)));
            }
        }
        text.push('\n');
    }

    fn conclusion(&self, report: &DoctorReport) -> String {
        let (colour, says) = match report.level {
            Level::Full => ("32", "everything can be enforced".to_owned()),
            Level::Partial => {
                let names: Vec<String> = report.degrade.iter().map(|d| format!("{d:?}")).collect();
                ("33", format!("only with a policy that has \"degrade\": [{}], and then without", names.join(", ")))
            }
            Level::None => ("31", "nothing can run here; missing".to_owned()),
        };
        let level = self.paint(colour, &format!("enforcement: {}", report.level.name()));
        let mut text = format!("{level}: {}\n", render::safe(&says));
        for wall in &report.missing {
            text.push_str(&format!("    {}\n", render::safe(wall)));
        }
        let unheld: Vec<&str> = report.limits.iter().filter(|c| !c.ok).map(|c| c.name).collect();
        text.push_str(&if unheld.is_empty() {
            "limits: each can be enforced\n".to_owned()
        } else {
            format!("limits: none on {}; a run that asks for one is refused\n", unheld.join(", "))
        });
        text
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, ok: bool, required: bool, fix: Option<&str>) -> Check {
        let detail = if ok { "works" } else { "refused\x1b[2J" };
        Check { name, ok, required, detail: detail.into(), needed_for: "tests", fix: fix.map(str::to_owned) }
    }

    #[test]
    fn a_page_tells_walls_limits_and_each_fix_once() {
        let report = DoctorReport {
            protocol_version: 1,
            level: Level::Partial,
            missing: vec!["landlock.scope".into()],
            degrade: vec!["landlock.scope".into()],
            checks: vec![
                check("kernel", true, true, None),
                check("landlock.scope", false, true, Some("newer kernel\nreboot")),
                check("landlock.refer", false, false, Some("newer kernel\nreboot")),
            ],
            limits: vec![check("memory_mb", false, false, None)],
        };
        let text = DoctorPage { colours: false }.render(&report);
        let expected = "\
Enforcement and surroundings
  ok       kernel          works
  missing  landlock.scope  refused\\u{1b}[2J
  missing  landlock.refer  refused\\u{1b}[2J (optional)

Limits
  missing  memory_mb  refused\\u{1b}[2J (optional)

Smallest fixes
  landlock.scope, landlock.refer
      newer kernel
      reboot

enforcement: partial: only with a policy that has \"degrade\": [\"landlock.scope\"], and then without
    landlock.scope
limits: none on memory_mb; a run that asks for one is refused
";
        assert_eq!(text, expected);
        assert!(DoctorPage { colours: true }.render(&report).contains("\x1b[31mmissing\x1b[0m"));
    }
}
