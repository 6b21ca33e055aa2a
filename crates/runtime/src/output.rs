//! Output files that the caller names. A command of this or an earlier run may have written there, where the policy allows it: it must
//! neither redirect the write by a link nor leave content of its own in the file.

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that is opened before a command and written after it.
pub struct Output {
    file: File,
    /// Path that must still lead to the file by then; `None` for devices and `/proc`, which only the system changes.
    name: Option<PathBuf>,
}

impl Output {
    /// Opens and empties the file, so that an earlier text is not taken for this one.
    pub fn create(name: &Path) -> Result<Output, String> {
        let file = create(name)?;
        let is_regular = file.metadata().is_ok_and(|m| m.is_file());
        let name = (is_regular && !is_of_system(name)).then(|| name.to_owned());
        Ok(Output { file, name })
    }

    /// Replaces the content with the text. An error when the path leads to another file by now.
    pub fn put(&mut self, text: &str) -> Result<(), String> {
        if let Some(name) = &self.name {
            let id = |of: std::fs::Metadata| (of.dev(), of.ino());
            let there = name.symlink_metadata().map(id).ok();
            if there.is_none() || there != self.file.metadata().map(id).ok() {
                return Err("it was removed or replaced while the command ran".to_owned());
            }
            self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|e| e.to_string())?;
        }
        self.file.write_all(text.as_bytes()).map_err(|e| e.to_string())
    }
}

impl From<File> for Output {
    fn from(file: File) -> Output {
        Output { file, name: None }
    }
}

/// Opens and empties a file. Follows only links of the system (`/dev`, `/proc`), and does not block: a pipe must have a reader already.
pub fn create(name: &Path) -> Result<File, String> {
    let follow = if is_of_system(name) { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK | follow;
    match open(name, flags, Mode::from_raw_mode(0o666)) {
        // Blocking from here on: a slow reader is waited for, as with any descriptor that was passed in.
        Ok(file) => match fcntl_getfl(&file).and_then(|now| fcntl_setfl(&file, now - OFlags::NONBLOCK)) {
            Ok(()) => Ok(file.into()),
            Err(error) => Err(Error::from(error).to_string()),
        },
        Err(Errno::LOOP) => Err("it is a link; name the file itself".to_owned()),
        Err(Errno::NXIO) => {
            Err("it is a pipe that nobody reads, or a socket; name a file, or start its reader first".to_owned())
        }
        Err(error) => Err(Error::from(error).to_string()),
    }
}

/// Writes a text after a command has ended. Pipes, sockets and other special files are not written to.
pub fn write(name: &Path, text: &str) -> Result<(), String> {
    let is_other = name.symlink_metadata().is_ok_and(|m| !m.is_file() && !m.is_symlink());
    if is_other && !is_of_system(name) {
        return Err("it is not a file".to_owned());
    }
    Output::from(create(name)?).put(text)
}

fn is_of_system(name: &Path) -> bool {
    ["/dev", "/proc"].iter().any(|dir| name.starts_with(dir))
}

#[cfg(test)]
mod test {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("cofferdam-output-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    // promise 9
    #[test]
    fn only_the_text_is_in_the_file() {
        let dir = scratch("text");
        let (name, other) = (dir.join("out"), dir.join("other"));
        let mut output = Output::create(&name).unwrap();
        std::fs::write(&name, "what a command has put there").unwrap();
        output.put("text\n").unwrap();
        assert_eq!(std::fs::read_to_string(&name).unwrap(), "text\n");
        std::fs::write(&other, "forged").unwrap();
        std::fs::rename(&other, &name).unwrap();
        assert!(output.put("text\n").unwrap_err().contains("replaced"));
        std::fs::remove_file(&name).unwrap();
        assert!(output.put("text\n").unwrap_err().contains("removed"));
        std::fs::remove_dir(&dir).unwrap();
    }

    /// A planted pipe would block the writer for a reader that never comes.
    // promise 22
    #[test]
    fn a_pipe_without_a_reader_is_not_waited_for() {
        let dir = scratch("pipe");
        let name = dir.join("out");
        rustix::fs::mkfifoat(rustix::fs::CWD, &name, Mode::from_raw_mode(0o600)).unwrap();
        assert!(create(&name).unwrap_err().contains("nobody reads"));
        let mut reader = File::options().read(true).write(true).open(&name).unwrap();
        create(&name).unwrap().write_all(b"control").unwrap();
        let mut heard = [0; 7];
        std::io::Read::read_exact(&mut reader, &mut heard).unwrap();
        assert_eq!(&heard, b"control");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    // promise 9
    #[test]
    fn no_link_is_followed_but_the_systems() {
        let dir = scratch("link");
        let (name, kept) = (dir.join("out"), dir.join("kept"));
        std::fs::write(&kept, "kept").unwrap();
        std::os::unix::fs::symlink(&kept, &name).unwrap();
        assert!(create(&name).unwrap_err().contains("link"));
        assert!(write(&name, "text").unwrap_err().contains("link"));
        assert!(write(&dir, "text").is_err());
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
        write(&kept, "text").unwrap();
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "text");
        let file = File::options().write(true).open(&kept).unwrap();
        use std::os::fd::AsRawFd;
        write(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), "more").unwrap();
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "more");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
