//! The steps that decide what can be started, where exec rules name it: denied programs lose execution, and where programs are
//! listed everything else does. What a person is asked about loses it, too, on a mount of its own that can be changed later.

use super::grants::is_system;
use super::{Builder, QUIET, cpath};
use crate::shift::Purpose;
use policy::{ExecPlan, Grant, Kind, Perms};
use rustix::fs::StatVfsMountFlags;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use sys::op::{Attr, Op};
use terms::{ErrorKind, Fault, Phase};

/// Directories that hold programs rather than libraries; covered without execution when exec rules list programs.
const PROGRAM_DIRS: [&str; 7] =
    ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/games", "/bin", "/sbin"];

impl Builder<'_> {
    pub(super) fn lists_programs(&self) -> bool {
        matches!(self.request.plan.exec, ExecPlan::Only { .. })
    }

    pub(super) fn programs(&mut self) -> Result<(), Fault> {
        match &self.request.plan.exec {
            ExecPlan::AllowBut(programs) => {
                for program in programs {
                    self.except(program)?;
                }
                Ok(())
            }
            ExecPlan::Only { programs, .. } => {
                for dir in PROGRAM_DIRS {
                    let real = std::fs::canonicalize(dir).unwrap_or_else(|_| PathBuf::from(dir));
                    if real == Path::new(dir) && self.is_mounted(&real) {
                        self.rebind(&real, Attr::NO_EXEC);
                    }
                }
                for program in programs {
                    if program.asked {
                        self.pin_above(&program.path);
                    }
                    self.program(program)?;
                    if program.asked {
                        self.bar(program)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Takes execution from a program, wherever it is shown: grants may show parts of a directory, and not itself.
    fn except(&mut self, program: &policy::Program) -> Result<(), Fault> {
        if program.asked && self.is_mounted(&program.path) {
            self.pin_above(&program.path);
            return self.bar(program);
        }
        let places = match self.is_mounted(&program.path) {
            true => vec![program.path.clone()],
            false => self.mounted_below(&program.path),
        };
        for place in places {
            self.pin_above(&place);
            self.rebind(&place, Attr::NO_EXEC);
        }
        Ok(())
    }

    /// What is mounted below a path, but for what every guest has of its own.
    fn mounted_below(&self, path: &Path) -> Vec<PathBuf> {
        let places = self.mounted.iter().map(PathBuf::from);
        places.filter(|at| at.starts_with(path) && at != Path::new("/proc")).collect()
    }

    /// Takes execution from a program until somebody says yes, and what could change it in between.
    fn bar(&mut self, program: &policy::Program) -> Result<(), Fault> {
        self.check_unwritten(program)?;
        self.check_runs_on_host(program)?;
        match program.sha256 {
            None => self.rebind(&program.path, Attr::NO_EXEC.with(Attr::READ_ONLY)),
            // One that is listed was copied already, to a mount that bars it.
            Some(digest) if !self.lists_programs() => self.copy(program, digest)?,
            Some(_) => {}
        }
        Ok(())
    }

    /// What the host lets nobody run is not run because of a yes.
    fn check_runs_on_host(&self, program: &policy::Program) -> Result<(), Fault> {
        let flags = rustix::fs::statvfs(&program.path).map(|found| found.f_flag);
        if self.workspace_at(&program.path).is_some() || !flags.is_ok_and(|f| f.contains(StatVfsMountFlags::NOEXEC)) {
            return Ok(());
        }
        let (rule, path) = (&program.rule, program.path.display());
        let message = format!("{rule}: {path} lies on a mount of the host that lets nothing run");
        let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
        Err(fault.hint("deny it, or keep it elsewhere"))
    }

    fn check_unwritten(&self, program: &policy::Program) -> Result<(), Fault> {
        let writes = |g: &&Grant| g.covers(&program.path) && !g.perms.and(Perms::CHANGES).is_empty();
        let (Kind::Dir, Some(grant)) = (program.kind, self.request.plan.grants.iter().find(writes)) else {
            return Ok(());
        };
        let what = program.path.display();
        let message = format!(
            "{}: {what} can be written ({}), and what is writable must not be executable",
            program.rule, grant.rule
        );
        let hint = "name the programs in it one by one, or grant no writing";
        Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
    }

    /// Binds a listed program executable. With a digest, its bytes are copied first: what was hashed is what runs.
    fn program(&mut self, program: &policy::Program) -> Result<(), Fault> {
        self.check_unwritten(program)?;
        if !self.is_mounted(&program.path) {
            match program.kind {
                Kind::Dir => self.dir(&program.path),
                _ => self.mount_point_file(&program.path),
            }
        }
        let Some(digest) = program.sha256 else {
            let attr = QUIET.with(Attr::READ_ONLY);
            let of_host = self.workspace_at(&program.path).is_none();
            if self.guest.privileged && of_host && !is_system(&program.path) {
                self.shifted(&program.path, &program.path, attr, &program.rule, Purpose::Shown);
            } else {
                let from = self.source(&program.path);
                self.push(Op::Bind { from, at: cpath(&program.path), attr });
            }
            self.mounted.insert(program.path.clone().into());
            self.cover_below(&program.path);
            return Ok(());
        };
        self.copy(program, digest)
    }

    fn copy(&mut self, program: &policy::Program, digest: [u8; 32]) -> Result<(), Fault> {
        let bytes = self.read_verified(&program.path, digest)?;
        let name = format!("program-{}", self.ops.len());
        let attr = if program.asked { Attr::NO_EXEC } else { Attr(0) };
        self.made_with(&name, bytes, 0o555, &program.path, attr);
        self.mounted.insert(program.path.clone().into());
        Ok(())
    }

    fn read_verified(&self, path: &Path, digest: [u8; 32]) -> Result<Vec<u8>, Fault> {
        let opened = match self.workspace_at(path) {
            Some(workspace) => (workspace.open)(path),
            None => File::open(path),
        };
        let refuse = |e: io::Error| Fault::new(ErrorKind::UnsupportedPolicy, format!("{}: {e}", path.display()));
        verified(opened.map_err(refuse)?, path, digest)
    }
}

/// The bytes of a program, which must have this digest.
fn verified(mut file: File, path: &Path, digest: [u8; 32]) -> Result<Vec<u8>, Fault> {
    use sha2::Digest;
    const MOST: u64 = 1 << 30;
    let refuse = |why: &str| Fault::new(ErrorKind::UnsupportedPolicy, format!("{}: {why}", path.display()));
    if file.metadata().map_or(0, |m| m.len()) > MOST {
        return Err(refuse("larger than 1 GiB"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| refuse(&e.to_string()))?;
    let found: [u8; 32] = sha2::Sha256::digest(&bytes).into();
    if found != digest {
        let message = format!("{}: changed while the run was being prepared", path.display());
        return Err(Fault::new(ErrorKind::Conflict, message).phase(Phase::Preparation));
    }
    Ok(bytes)
}
