//! Shells, and tools that act when a shell enters a directory: environments and version managers.

use super::{RunCondition, RunsRule, rule, rule_except, rule_when};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    // Shells source these, or source what they name, when the directory is entered.
    rule("**/.envrc*", "direnv"),
    rule("**/{.direnv/**,.direnvrc,direnv.toml}", "direnv"),
    rule("**/.shadowenv.d/**", "shell hook"),
    rule("**/.autoenv*", "shell hook"),
    rule("**/{.ondirrc,.smartcd/**,.powrc,.powenv}", "shell hook"),
    rule("**/.env", "environment of tools"),
    rule_except("**/.env.*", "environment of tools", &[".example", ".sample", ".template"]),
    rule("**/{.flaskenv,.ruby-gemset,.overmind.env,.foreman}", "environment of tools"),
    // Version managers choose, and often install, the programs that run next. `.rvmrc` is shell code.
    rule("**/.rvmrc", "shell hook"),
    rule("**/{.tool-versions,.asdfrc,.prototools,.sdkmanrc,.jabbarc,.fvmrc,.fvm/**}", "version manager"),
    rule("**/{.,}{mise,rtx,vfox}{.*,}.toml", "version manager"),
    rule("**/{{.mise,.config/mise,.rtx,.mise-tasks,mise-tasks}/**,mise/config.toml}", "version manager"),
    rule("**/.*-version{s,}", "version manager"),
    rule("**/.{nvmrc,gvmrc,dvmrc,zvmrc,bvmrc}", "version manager"),
    rule("**/{rust-toolchain{.toml,},lean-toolchain}", "version manager"),
    rule_when("**/global.json", "version manager", RunCondition::Keys(&["sdk", "msbuild-sdks", "tools", "native-tools", "test"])),
    rule("**/{.,}aqua{-policy,}.y{a,}ml", "version manager"),
    rule("**/{.,}{pkgx,tea}.y{a,}ml", "version manager"),
    rule("**/{aftman,rokit,foreman}.toml", "version manager"),
    rule("**/bin/{hermit,hermit.hcl,activate-hermit{.fish,}}", "version manager"),
    // Nix and Guix evaluate expressions and run the shell hooks in them; the lock says what is fetched.
    rule("**/*.nix", "nix expression"),
    rule("**/flake.lock", "nix expression"),
    rule("**/{devenv.{yaml,lock,local.yaml},devbox.{json,lock}}", "nix shell"),
    rule("**/.{devenv,devbox,flox}/**", "nix shell"),
    rule("**/{guix,manifest,channels}.scm", "guix environment"),
    rule("**/{.guix-channel,.guix-authorizations,.guix/**}", "guix environment"),
    // Read at the start of a shell or session whose home, or ZDOTDIR, is the directory.
    rule("**/.{bashrc,bash_profile,bash_login,bash_logout,bash_aliases,bash_functions,profile,inputrc,aliases,exports,functions}", "shell start-up file"),
    rule("**/.{zshrc,zshenv,zprofile,zlogin,zlogout,zsh_aliases,kshrc,mkshrc,cshrc,tcshrc,login,logout,shrc,xonshrc}", "shell start-up file"),
    rule("**/.{bashrc,zshrc,profile,bash_profile,zshenv}.*", "shell start-up file"),
    rule("**/{.{bashrc,zshrc,profile}.d,profile.d,.oh-my-zsh,.zsh,.elvish}/**", "shell start-up file"),
    rule("**/.config/{fish,zsh,nushell,elvish,xonsh,powershell}/**", "shell start-up file"),
    rule("**/{microsoft.powershell_,}profile.ps1", "shell start-up file"),
    rule("**/{.xinitrc,.xsession,.xsessionrc,.xprofile,.xserverrc,.pam_environment,.login_conf}", "session start-up file"),
    rule("**/.config/{autostart,systemd,plasma-workspace}/**", "session start-up file"),
];
