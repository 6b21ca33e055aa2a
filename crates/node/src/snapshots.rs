//! Snapshots, forks, templates, and workspaces as files.
