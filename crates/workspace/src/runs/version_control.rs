//! Version control: settings, hooks and attributes that name programs or decide what is fetched.

use super::{RunsRule, rule};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    // git reads these in every working tree; drivers and urls in them start programs.
    rule("**/.gitmodules", "git submodules"),
    rule("**/.gitattributes", "git attributes"),
    rule("**/.lfsconfig", "git LFS settings"),
    rule("**/{.gitconfig,.git-credentials,.config/git/**}", "git settings"),
    // Other version control keeps settings that name programs in the tree as well.
    rule("**/{.hg,.svn,.jj,.bzr,.sl,.pijul,_darcs,cvs,.repo,_fossil_,.fslckout,.fossil-settings}{/**,}", "version control settings"),
    rule("**/{.hgsub,.hgsubstate,.hgrc,.hgeol,.cvsrc,.p4config,.p4enviro,.mrconfig,.gitreview}", "version control settings"),
    // Review tools that load code of the project.
    rule("**/{.arcconfig,.arclint,.arcunit,.reviewboardrc}", "settings of a review tool"),
    // Hooks that tools install or run on commit and push.
    rule("**/{.,}git{-,_,}hooks/**", "git hook"),
    // Any directory may be the one that a clone takes its hooks from; they are known by their names.
    rule("**/{pre,post}-{applypatch,commit,merge-commit,rebase,checkout,merge,push,receive,update,auto-gc,rewrite,index-change}", "git hook"),
    rule("**/{applypatch-msg,commit-msg,prepare-commit-msg,reference-transaction,push-to-checkout,proc-receive,sendemail-validate,fsmonitor-watchman}", "git hook"),
    rule("**/.{husky,cargo-husky}/**", "git hook"),
    rule("**/.pre-commit-{config,hooks}.y{a,}ml", "git hook settings"),
    rule("**/prek.toml", "git hook settings"),
    rule("**/{.,}lefthook{-local,}.{yml,yaml,toml,json}", "git hook settings"),
    rule("**/.overcommit.yml", "git hook settings"),
    rule("**/{grumphp,captainhook}{.dist,}.{yml,yaml,json}", "git hook settings"),
    rule("**/.{lintstagedrc,commitlintrc,huskyrc,simple-git-hooks}{.*,}", "git hook settings"),
    rule("**/{lint-staged,commitlint}.config.*", "git hook settings"),
    // Release and commit helpers run the commands and load the plug-ins that these name.
    rule("**/.{czrc,cz.json,cz.toml,cz.y{a,}ml,gitlint,gitchangelog.rc}", "settings of a commit tool"),
    rule("**/cz.{json,toml,y{a,}ml}", "settings of a commit tool"),
    rule("**/{.,}{cliff,release,release-plz,git-town,git-branchless}.toml", "settings of a release tool"),
    rule("**/.{bumpversion.{cfg,toml},release-it.*,versionrc{.*,},goreleaser.y{a,}ml}", "settings of a release tool"),
    rule("**/{goreleaser,jreleaser}.{yml,yaml,toml,json}", "settings of a release tool"),
];
