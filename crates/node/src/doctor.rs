//! `doctor`: the capabilities of the host, and the driver that would hold the changes of runs in the current directory.

use api::{Driver, Rel};
use host::doctor::{Check, DoctorReport};
use state::Caller;
use std::path::Path;
use terms::Fault;
use workspace::Dir;

/// Examines the host as this caller finds it. `exe` is our own binary, which the last check starts.
pub fn examine(caller: &Caller, exe: &Path) -> DoctorReport {
    host::doctor::examine(&caller.env, exe, check(caller))
}

const NEEDED_FOR: &str = "changes that wait for review instead of reaching the host";

/// Checks the current directory and the state directory, and creates neither.
fn check(caller: &Caller) -> Check {
    let place = match state::directory::place(caller) {
        Ok(place) => place,
        Err(fault) => return amiss(&fault),
    };
    let elsewhere = "writes elsewhere that a policy allows reach the host at once";
    let (cwd, at) = (caller.cwd.display(), place.display());
    let layers = Dir::open(&place).and_then(|dir| dir.dir(&Rel::top().join(b"layers")));
    let (Ok(layers), Ok(base)) = (layers, Dir::open(&caller.cwd)) else {
        let detail = format!("changes in {cwd} go to {at}, which the first run creates; {elsewhere}");
        return Check::new("workspace", NEEDED_FOR, true, detail).optional();
    };
    match workspace::driver::choose(&base, &layers, None) {
        Ok(driver) => {
            let how = match driver {
                Driver::Overlay => "layers of overlayfs",
                Driver::Reflink => "a copy that shares bytes",
                Driver::Copy => "a plain copy",
            };
            let detail = format!("changes in {cwd} go to {at} ({how}); {elsewhere}");
            Check::new("workspace", NEEDED_FOR, true, detail).optional()
        }
        Err(fault) => amiss(&fault),
    }
}

fn amiss(fault: &Fault) -> Check {
    let fix = fault.hint.clone().unwrap_or_else(|| "set COFFERDAM_STATE to another directory".to_owned());
    Check::new("workspace", NEEDED_FOR, false, fault.message.clone()).optional().fix(fix)
}
