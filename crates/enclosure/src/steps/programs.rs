//! Steps for exec rules: denied programs become noexec, and where programs are listed everything else does. A program
//! that a person is asked about becomes noexec on a mount of its own, which can be changed later.

use super::{Builder, QUIET};
use crate::idmap::{Purpose, is_system};
use policy::{ExecPlan, Grant, HostFileType, Perms};
use rustix::fs::StatVfsMountFlags;
use sha2::Digest;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;
use sys::arena::{Arena, ArenaRef};
use sys::op::{Attr, Op};
use terms::{ErrorKind, Fault, Phase, Retry};

/// Directories of programs rather than libraries; noexec when exec rules list programs.
const PROGRAM_DIRS: [&str; 7] =
    ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/games", "/bin", "/sbin"];

impl Builder<'_> {
    pub(super) fn lists_programs(&self) -> bool {
        matches!(self.spec.plan.exec, ExecPlan::Only { .. })
    }

    pub(super) fn programs(&mut self) -> Result<(), Fault> {
        match &self.spec.plan.exec {
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

    /// Makes a program noexec wherever it is shown: grants may show parts of a directory, and not itself.
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

    /// Lists the mounts below a path, except for the guest's own.
    fn mounted_below(&self, path: &Path) -> Vec<PathBuf> {
        let places = self.mounted.iter().map(PathBuf::from);
        places.filter(|at| at.starts_with(path) && at != Path::new("/proc")).collect()
    }

    /// Makes a program noexec and read-only until a person permits it.
    fn bar(&mut self, program: &policy::Program) -> Result<(), Fault> {
        self.check_unwritten(program)?;
        self.check_runs_on_host(program)?;
        match program.sha256 {
            None => self.rebind(&program.path, Attr::NO_EXEC.with(Attr::READ_ONLY)),
            // A listed program was copied to a noexec mount already.
            Some(digest) if !self.lists_programs() => self.copy(program, digest)?,
            Some(_) => {}
        }
        Ok(())
    }

    /// Refuses a question about a program on a noexec mount of the host: a yes must not make it executable.
    fn check_runs_on_host(&self, program: &policy::Program) -> Result<(), Fault> {
        let flags = rustix::fs::statvfs(&program.path).map(|found| found.f_flag);
        if self.workspace_at(&program.path).is_some() || !flags.is_ok_and(|f| f.contains(StatVfsMountFlags::NOEXEC)) {
            return Ok(());
        }
        let (rule, path) = (&program.rule, program.path.display());
        let message = format!("{rule}: {path} lies on a mount of the host with noexec");
        let fault = Fault::new(ErrorKind::UnsupportedPolicy, message).phase(Phase::Planning);
        Err(fault.hint("deny it, or keep it elsewhere"))
    }

    fn check_unwritten(&self, program: &policy::Program) -> Result<(), Fault> {
        let writes = |g: &&Grant| g.covers(&program.path) && !g.perms.and(Perms::CHANGES).is_empty();
        let (HostFileType::Dir, Some(grant)) = (program.kind, self.spec.plan.grants.iter().find(writes)) else {
            return Ok(());
        };
        let what = program.path.display();
        let message =
            format!("{}: {what} can be written ({}), and no writable file may be executable", program.rule, grant.rule);
        let hint = "name the programs in it one by one, or grant no writing";
        Err(Fault::new(ErrorKind::UnsupportedPolicy, message).hint(hint).phase(Phase::Planning))
    }

    /// Binds a listed program executable. With a digest, its bytes are copied first, so that the hashed bytes are the
    /// ones executed.
    fn program(&mut self, program: &policy::Program) -> Result<(), Fault> {
        self.check_unwritten(program)?;
        if !self.is_mounted(&program.path) {
            match program.kind {
                HostFileType::Dir => self.dir(&program.path),
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
                self.push(Op::Bind { from, at: self.cpath(&program.path), attr });
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

    /// Returns the bytes of a program for the guest, checked against a digest. A plan that is only explained gets zeros
    /// of that length.
    fn read_verified(&self, path: &Path, digest: [u8; 32]) -> Result<ArenaRef<[u8]>, Fault> {
        let opened = match self.workspace_at(path) {
            Some(workspace) => (workspace.open)(path),
            None => File::open(path),
        };
        let file = opened.map_err(|e| unreadable(path, &e.to_string()))?;
        let Some(deadline) = self.explained_by else {
            return verified(file, path, digest).map(|bytes| self.arena.list(&bytes));
        };
        let len = measured(file, path, digest, deadline)?;
        Arena::zeros(len).map_err(|e| Fault::internal(e.to_string()).phase(Phase::Planning))
    }
}

/// Bytes of the largest program with a digest.
const MOST_BYTES: u64 = 1 << 30;

/// Reads a program and checks its digest.
fn verified(mut file: File, path: &Path, digest: [u8; 32]) -> Result<Vec<u8>, Fault> {
    check_size(&file, path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|e| unreadable(path, &e.to_string()))?;
    check_digest(path, sha2::Sha256::digest(&bytes).into(), digest)?;
    Ok(bytes)
}

/// Checks a program's digest without keeping its bytes, up to the deadline; returns its length.
fn measured(mut file: File, path: &Path, digest: [u8; 32], deadline: Instant) -> Result<usize, Fault> {
    check_size(&file, path)?;
    let (mut hash, mut len, mut piece) = (sha2::Sha256::new(), 0, vec![0; 256 << 10]);
    loop {
        if Instant::now() > deadline {
            let message = format!("{}: checking the digests of programs takes too long", path.display());
            let fault = Fault::new(ErrorKind::Unavailable, message).retry(Retry::Later).phase(Phase::Planning);
            return Err(fault.hint("explain the run on the host itself, without --server"));
        }
        match file.read(&mut piece).map_err(|e| unreadable(path, &e.to_string()))? {
            0 => break,
            n => {
                hash.update(&piece[..n]);
                len += n;
            }
        }
    }
    check_digest(path, hash.finalize().into(), digest)?;
    Ok(len)
}

fn check_size(file: &File, path: &Path) -> Result<(), Fault> {
    match file.metadata().map_or(0, |m| m.len()) {
        len if len > MOST_BYTES => Err(unreadable(path, "larger than 1 GiB")),
        _ => Ok(()),
    }
}

fn check_digest(path: &Path, found: [u8; 32], digest: [u8; 32]) -> Result<(), Fault> {
    if found == digest {
        return Ok(());
    }
    let message = format!("{}: changed while the run was being prepared", path.display());
    Err(Fault::new(ErrorKind::Conflict, message).phase(Phase::Preparation))
}

fn unreadable(path: &Path, why: &str) -> Fault {
    Fault::new(ErrorKind::UnsupportedPolicy, format!("{}: {why}", path.display()))
}
