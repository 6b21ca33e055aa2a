//! A project with a sandbox over it that changed most of its files.

use crate::support::tree::{Tree, tree};
use crate::support::{As, Place, to_the_end, unique};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::rc::Rc;

pub struct EditedProject {
    pub place: Rc<Place>,
    /// Name of the sandbox.
    pub name: String,
    project: PathBuf,
}

const EDIT: &str = "echo of the guest > changed; rm gone; mv moved fresh; mkdir -p new/deep; echo x > new/deep/file; \
                    rm -r dead; ln -s changed link; chmod 755 mode; echo all: > Makefile";

impl EditedProject {
    pub fn new(who: As) -> EditedProject {
        EditedProject::beside(&Rc::new(Place::new(who)))
    }

    /// A second project of the same user.
    pub fn beside(place: &Rc<Place>) -> EditedProject {
        let name = format!("s{}", unique());
        let project = place.dir(format!("home/{name}"));
        for path in ["changed", "gone", "moved", "mode", "dead/a", "dead/b/c"] {
            place.file(project.join(path), format!("of the base: {path}\n"));
        }
        let project = EditedProject { place: place.clone(), name, project };
        project.ok(&["create", ".", "--name", &project.name]);
        project.ok(&["exec", &project.name, "--", "sh", "-c", EDIT]);
        project
    }

    pub fn cofferdam(&self, words: &[&str]) -> Output {
        to_the_end(self.place.cofferdam(words).current_dir(&self.project), b"")
    }

    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.cofferdam(words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(words)).unwrap()
    }

    /// The fault document of a verb that must fail.
    pub fn fault(&self, words: &[&str]) -> Value {
        let output = self.cofferdam(words);
        assert!(!output.status.success(), "{words:?} succeeded");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn project(&self) -> &Path {
        &self.project
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.project().join(path)).unwrap()
    }

    /// The project's tree, for comparison.
    pub fn tree(&self) -> Tree {
        tree(self.project())
    }
}
