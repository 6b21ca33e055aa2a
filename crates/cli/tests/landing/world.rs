//! A project with a sandbox over it that changed most of it.

use crate::support::tree::{Tree, tree};
use crate::support::{As, Place, to_the_end, unique};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::rc::Rc;

pub struct World {
    pub place: Rc<Place>,
    /// The sandbox's.
    pub name: String,
    project: PathBuf,
}

const EDIT: &str = "echo of the guest > changed; rm gone; mv moved fresh; mkdir -p new/deep; echo x > new/deep/file; \
                    rm -r dead; ln -s changed link; chmod 755 mode; echo all: > Makefile";

impl World {
    pub fn new(who: As) -> World {
        World::beside(&Rc::new(Place::new(who)))
    }

    /// Another project of the same user.
    pub fn beside(place: &Rc<Place>) -> World {
        let name = format!("s{}", unique());
        let project = place.dir(format!("home/{name}"));
        for path in ["changed", "gone", "moved", "mode", "dead/a", "dead/b/c"] {
            place.file(project.join(path), format!("of the base: {path}\n"));
        }
        let world = World { place: place.clone(), name, project };
        world.ok(&["create", ".", "--name", &world.name]);
        world.ok(&["exec", &world.name, "--", "sh", "-c", EDIT]);
        world
    }

    pub fn cofferdam(&self, words: &[&str]) -> Output {
        to_the_end(self.place.cofferdam(words).current_dir(&self.project), b"")
    }

    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.cofferdam(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(words)).unwrap()
    }

    /// The fault that a verb ends in.
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

    /// The project as it can be compared.
    pub fn tree(&self) -> Tree {
        tree(self.project())
    }
}
