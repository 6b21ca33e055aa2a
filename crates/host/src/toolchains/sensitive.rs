//! Files of a home directory that no guest may see: keys, tokens, histories, mail, browser profiles. A table and a
//! lookup; the disk is never read.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Paths relative to a home directory, each with its kind. `*` matches any characters inside one component. A directory
/// includes everything below it.
///
/// Sorted by first component, those with a `*` in it last, because the table is searched some dozen times in a start of
/// two milliseconds. Kinds: `keys`, `passwords`, `tokens`, `cloud`, `cluster`, `registry` (package registries),
/// `forge`, `wallet`, `browser`, `mail`, `messages`, `history`, `editor` (sign-ins and unsaved files), `agent`, `ours`,
/// and `personal`: people's own files, since a PATH that names them is a mistake and not a toolchain.
pub const SENSITIVE: &[(&str, &str)] = &[
    (".1password", "passwords"),
    (".ICEauthority", "cookies"),
    (".IdentityService", "tokens"),
    (".Xauthority", "cookies"),
    (".age", "keys"),
    (".aliyun", "cloud"),
    (".android", "keys"),
    (".ansible", "passwords"),
    (".anthropic", "agent"),
    (".aptos", "wallet"),
    (".argocd", "tokens"),
    (".artifactory", "registry"),
    (".aspnet", "keys"),
    (".aws", "cloud"),
    (".azure", "cloud"),
    (".bash_sessions", "history"),
    (".bigqueryrc", "tokens"),
    (".bitcoin", "wallet"),
    (".bluemix", "cloud"),
    (".boto", "keys"),
    (".bundle", "registry"),
    (".bunfig.toml", "registry"),
    (".cabal/config", "registry"),
    (".cache/chromium*", "browser"),
    (".cache/git", "forge"),
    (".cache/google-chrome*", "browser"),
    (".cache/hatch/publish*", "registry"),
    (".cache/huggingface/stored_tokens", "tokens"),
    (".cache/huggingface/token", "tokens"),
    (".cache/keepassxc", "passwords"),
    (".cache/mozilla", "browser"),
    (".cache/rbw", "passwords"),
    (".cache/thumbnails", "history"),
    (".cache/wandb", "tokens"),
    (".cargo/credentials*", "registry"),
    (".chef", "keys"),
    (".circleci", "tokens"),
    (".claude", "agent"),
    (".cloudflared", "cloud"),
    (".codeium", "editor"),
    (".codex", "agent"),
    (".cofferdam", "ours"),
    (".colima", "keys"),
    (".composer/auth.json", "registry"),
    (".conda/.condarc", "registry"),
    (".condarc", "registry"),
    (".config/.bunfig.toml", "registry"),
    (".config/.wrangler", "cloud"),
    (".config/1Password", "passwords"),
    (".config/Bitwarden*", "passwords"),
    (".config/BraveSoftware", "browser"),
    (".config/Claude", "agent"),
    (".config/Code*", "editor"),
    (".config/Cursor", "editor"),
    (".config/Element*", "messages"),
    (".config/Exodus", "wallet"),
    (".config/JetBrains", "editor"),
    (".config/Ledger*", "wallet"),
    (".config/Microsoft", "messages"),
    (".config/NuGet", "registry"),
    (".config/Signal*", "messages"),
    (".config/Slack", "messages"),
    (".config/VSCodium", "editor"),
    (".config/Windsurf", "editor"),
    (".config/aerc", "mail"),
    (".config/age", "keys"),
    (".config/amp", "agent"),
    (".config/anthropic", "agent"),
    (".config/argocd", "tokens"),
    (".config/atuin", "history"),
    (".config/berg*", "forge"),
    (".config/binstar", "registry"),
    (".config/borg", "keys"),
    (".config/cabal", "registry"),
    (".config/cargo/credentials*", "registry"),
    (".config/chromium*", "browser"),
    (".config/claude*", "agent"),
    (".config/code-server", "editor"),
    (".config/cofferdam", "ours"),
    (".config/composer/auth.json", "registry"),
    (".config/conda", "registry"),
    (".config/configstore", "tokens"),
    (".config/containers", "registry"),
    (".config/coursier", "registry"),
    (".config/crush", "agent"),
    (".config/dart", "registry"),
    (".config/datadog", "tokens"),
    (".config/direnv", "tokens"),
    (".config/discord*", "messages"),
    (".config/doctl", "cloud"),
    (".config/environment.d", "tokens"),
    (".config/evolution", "mail"),
    (".config/exoscale", "cloud"),
    (".config/filezilla", "passwords"),
    (".config/firebase", "cloud"),
    (".config/fly", "cloud"),
    (".config/gcloud", "cloud"),
    (".config/gem", "registry"),
    (".config/gh", "forge"),
    (".config/gh-copilot", "forge"),
    (".config/git", "forge"),
    (".config/git/credentials", "forge"),
    (".config/github-copilot", "forge"),
    (".config/glab*", "forge"),
    (".config/goa-1.0", "accounts"),
    (".config/google-chrome*", "browser"),
    (".config/goose", "agent"),
    (".config/gopass", "passwords"),
    (".config/gsutil", "cloud"),
    (".config/hatch", "registry"),
    (".config/hcloud", "cloud"),
    (".config/helm", "registry"),
    (".config/heroku", "cloud"),
    (".config/hexchat", "messages"),
    (".config/himalaya", "mail"),
    (".config/hub", "forge"),
    (".config/io.datasette.llm", "agent"),
    (".config/jj", "forge"),
    (".config/k9s", "cluster"),
    (".config/kaggle", "tokens"),
    (".config/keepassxc", "passwords"),
    (".config/lftp", "passwords"),
    (".config/linode-cli", "cloud"),
    (".config/mcp", "agent"),
    (".config/microsoft-edge*", "browser"),
    (".config/neomutt", "mail"),
    (".config/netlify", "cloud"),
    (".config/ngrok", "tokens"),
    (".config/nix", "registry"),
    (".config/nuget", "registry"),
    (".config/nushell/history*", "history"),
    (".config/op", "passwords"),
    (".config/openai", "agent"),
    (".config/opencode", "agent"),
    (".config/openstack", "cloud"),
    (".config/opera*", "browser"),
    (".config/ovh*", "cloud"),
    (".config/pdm", "registry"),
    (".config/pip", "registry"),
    (".config/planetscale", "cloud"),
    (".config/pnpm", "registry"),
    (".config/pypoetry", "registry"),
    (".config/qutebrowser", "browser"),
    (".config/railway", "cloud"),
    (".config/rbw", "passwords"),
    (".config/rclone", "cloud"),
    (".config/rebar3", "registry"),
    (".config/remmina", "passwords"),
    (".config/rustic", "cloud"),
    (".config/scw", "cloud"),
    (".config/sentry", "tokens"),
    (".config/skypeforlinux", "messages"),
    (".config/snowflake", "passwords"),
    (".config/solana", "wallet"),
    (".config/sops", "keys"),
    (".config/stripe", "tokens"),
    (".config/supabase", "cloud"),
    (".config/systemd", "tokens"),
    (".config/tailscale", "keys"),
    (".config/tea", "forge"),
    (".config/teams*", "messages"),
    (".config/terraform", "tokens"),
    (".config/twilio-cli", "tokens"),
    (".config/uv", "registry"),
    (".config/vcpkg", "registry"),
    (".config/vercel", "cloud"),
    (".config/vivaldi*", "browser"),
    (".config/wandb", "tokens"),
    (".config/weechat", "messages"),
    (".config/zed", "editor"),
    (".consul-token", "tokens"),
    (".continue", "agent"),
    (".continuum", "registry"),
    (".copilot", "agent"),
    (".cursor", "editor"),
    (".cursor-server", "editor"),
    (".databricks", "tokens"),
    (".databrickscfg", "tokens"),
    (".dbt", "passwords"),
    (".docker", "registry"),
    (".dockercfg", "registry"),
    (".dotnet/corefx", "keys"),
    (".eclipse/org.eclipse.equinox.security", "editor"),
    (".electrum", "wallet"),
    (".emacs.d/auto-save-list", "history"),
    (".env", "tokens"),
    (".envrc", "tokens"),
    (".ethereum", "wallet"),
    (".factory", "agent"),
    (".fetchmailrc", "passwords"),
    (".fly/config.yml", "cloud"),
    (".foundry/keystores", "wallet"),
    (".gem/credentials", "registry"),
    (".gemini", "agent"),
    (".gemrc", "registry"),
    (".git-credential-cache", "forge"),
    (".git-credentials", "forge"),
    (".gnome2/keyrings", "passwords"),
    (".gnupg", "keys"),
    (".gnupg2", "keys"),
    (".google_authenticator", "seeds"),
    (".gradle/.tmp", "registry"),
    (".gradle/gradle.properties", "registry"),
    (".gradle/init*", "registry"),
    (".gsutil", "cloud"),
    (".heroku", "cloud"),
    (".hex", "registry"),
    (".hgrc", "forge"),
    (".histfile", "history"),
    (".history", "history"),
    (".huggingface", "tokens"),
    (".ipython", "history"),
    (".irssi", "messages"),
    (".ivy2/*credentials*", "registry"),
    (".ivy2/.credentials", "registry"),
    (".java/.userPrefs", "editor"),
    (".jfrog", "registry"),
    (".jsr", "registry"),
    (".julia/logs", "history"),
    (".julia/servers", "registry"),
    (".jupyter", "tokens"),
    (".k5login", "access"),
    (".kaggle", "tokens"),
    (".kimi", "agent"),
    (".krb5", "tickets"),
    (".kube", "cluster"),
    (".lastpass", "passwords"),
    (".lesshst", "history"),
    (".librewolf", "browser"),
    (".lightning", "cloud"),
    (".lima", "keys"),
    (".local/.IdentityService", "tokens"),
    (".local/share/*history*", "history"),
    (".local/share/.IdentityService", "tokens"),
    (".local/share/DBeaverData", "passwords"),
    (".local/share/TelegramDesktop", "messages"),
    (".local/share/Trash", "deleted"),
    (".local/share/amazon-q", "agent"),
    (".local/share/amp", "agent"),
    (".local/share/anaconda-client", "registry"),
    (".local/share/atuin", "history"),
    (".local/share/binstar", "registry"),
    (".local/share/code-server", "editor"),
    (".local/share/cofferdam", "ours"),
    (".local/share/com.vercel.cli", "cloud"),
    (".local/share/containers", "images"),
    (".local/share/crush", "agent"),
    (".local/share/epiphany", "browser"),
    (".local/share/evolution", "mail"),
    (".local/share/fish", "history"),
    (".local/share/gem/credentials", "registry"),
    (".local/share/goose", "agent"),
    (".local/share/gopass", "passwords"),
    (".local/share/hatch/publish*", "registry"),
    (".local/share/jupyter/runtime", "tokens"),
    (".local/share/k9s", "cluster"),
    (".local/share/keyrings", "passwords"),
    (".local/share/kwalletd", "passwords"),
    (".local/share/lpass", "passwords"),
    (".local/share/mail", "mail"),
    (".local/share/mcfly", "history"),
    (".local/share/mkcert", "keys"),
    (".local/share/nushell", "history"),
    (".local/share/nvim/shada", "history"),
    (".local/share/opencode", "agent"),
    (".local/share/password-store", "passwords"),
    (".local/share/pypoetry/auth.toml", "registry"),
    (".local/share/pyx", "registry"),
    (".local/share/qutebrowser", "browser"),
    (".local/share/rbw", "passwords"),
    (".local/share/recently-used.xbel", "history"),
    (".local/share/remmina", "passwords"),
    (".local/share/tailscale", "keys"),
    (".local/share/tmux", "history"),
    (".local/share/torbrowser", "browser"),
    (".local/share/uv/credentials", "registry"),
    (".local/share/zed", "editor"),
    (".local/share/zoxide", "history"),
    (".local/state/*history*", "history"),
    (".local/state/bash", "history"),
    (".local/state/cofferdam", "ours"),
    (".local/state/nvim", "history"),
    (".local/state/zsh", "history"),
    (".lpass", "passwords"),
    (".luarocks/upload_config.lua", "registry"),
    (".m2/settings*.xml", "registry"),
    (".mambarc", "registry"),
    (".mbsyncrc", "passwords"),
    (".mc", "cloud"),
    (".mcp-auth", "agent"),
    (".microsoft", "tokens"),
    (".minikube", "keys"),
    (".minisign", "keys"),
    (".mitmproxy", "keys"),
    (".modal.toml", "cloud"),
    (".monero", "wallet"),
    (".mozilla", "browser"),
    (".msmtprc", "passwords"),
    (".mutt", "passwords"),
    (".muttrc", "passwords"),
    (".my.cnf", "passwords"),
    (".mylogin.cnf", "passwords"),
    (".near-credentials", "wallet"),
    (".netlify", "cloud"),
    (".netrc", "passwords"),
    (".newrelic", "tokens"),
    (".ngrok2", "tokens"),
    (".nimble/nimble_*", "registry"),
    (".nomad-token", "tokens"),
    (".npmrc", "registry"),
    (".nuget/NuGet", "registry"),
    (".nuget/plugins", "registry"),
    (".oci", "cloud"),
    (".ollama", "keys"),
    (".op", "passwords"),
    (".openai", "agent"),
    (".oraclebmc", "cloud"),
    (".orbstack", "keys"),
    (".ovh.conf", "cloud"),
    (".pam_environment", "tokens"),
    (".passwd-s3fs", "keys"),
    (".password-store", "passwords"),
    (".pgpass", "passwords"),
    (".pip", "registry"),
    (".pixi/config.toml", "registry"),
    (".pki", "keys"),
    (".planetscale", "cloud"),
    (".platformio/appstate.json", "tokens"),
    (".pub-cache/credentials.json", "registry"),
    (".pulumi/credentials.json", "tokens"),
    (".puppetlabs", "keys"),
    (".purple", "messages"),
    (".putty", "keys"),
    (".pypirc", "registry"),
    (".qwen", "agent"),
    (".radicle", "keys"),
    (".railway", "cloud"),
    (".rattler", "registry"),
    (".rclone.conf", "cloud"),
    (".render", "cloud"),
    (".rye/credentials", "registry"),
    (".s3cfg", "keys"),
    (".sbt/*credentials*", "registry"),
    (".sentryclirc", "tokens"),
    (".signify", "keys"),
    (".sigstore", "tokens"),
    (".smbcredentials", "passwords"),
    (".snowflake", "passwords"),
    (".snowsql", "passwords"),
    (".ssh", "keys"),
    (".stack/upload", "registry"),
    (".step", "keys"),
    (".subversion/auth", "forge"),
    (".sui/sui_config", "wallet"),
    (".supabase", "cloud"),
    (".tccli", "cloud"),
    (".terraform.d", "tokens"),
    (".terraformrc", "tokens"),
    (".thunderbird", "mail"),
    (".tmux/resurrect", "history"),
    (".tofurc", "tokens"),
    (".tor-browser", "browser"),
    (".travis", "tokens"),
    (".twilio-cli", "tokens"),
    (".vagrant.d", "keys"),
    (".var/app", "apps"),
    (".vault", "tokens"),
    (".vault-token", "tokens"),
    (".vercel", "cloud"),
    (".vim/undo*", "history"),
    (".vscode-remote", "editor"),
    (".vultr-cli.yaml", "cloud"),
    (".wasmer/wasmer.toml", "registry"),
    (".waterfox", "browser"),
    (".weechat", "messages"),
    (".wget-hsts", "history"),
    (".wrangler", "cloud"),
    (".xsession-errors", "history"),
    (".zen", "browser"),
    (".zhistory", "history"),
    (".zsh_sessions", "history"),
    ("Desktop", "personal"),
    ("Documents", "personal"),
    ("Downloads", "personal"),
    ("Dropbox", "personal"),
    ("Library", "personal"),
    ("Mail", "mail"),
    ("Maildir", "mail"),
    ("Music", "personal"),
    ("Nextcloud", "personal"),
    ("Pictures", "personal"),
    ("Public", "personal"),
    ("Templates", "personal"),
    ("Videos", "personal"),
    ("_netrc", "passwords"),
    ("snap/chromium", "browser"),
    ("snap/firefox", "browser"),
    (".*-history", "history"),
    (".*_history", "history"),
    (".*_history-*", "history"),
    (".aider*", "agent"),
    (".authinfo*", "passwords"),
    (".claude.json*", "agent"),
    (".conan*/.conan.db", "registry"),
    (".conan*/credentials*", "registry"),
    (".credentials*", "tokens"),
    (".env.*", "tokens"),
    (".gitconfig*", "forge"),
    (".kde*", "passwords"),
    (".secrets*", "tokens"),
    (".vault_pass*", "passwords"),
    (".viminfo*", "history"),
    (".vscode-server*", "editor"),
    (".windsurf*", "editor"),
    (".yarnrc*", "registry"),
    ("OneDrive*", "personal"),
];

/// Installations inside a sensitive directory.
const INSTALLED_WITHIN: &[&str] = &[".claude/local"];

/// Returns the kind of sensitive path that `path` is, contains or lies in (see [`SENSITIVE`]), below `home` or another
/// user's home. Only names count, so a file that does not exist yet is covered.
///
/// A name with a leading dot counts anywhere (`/data/backup/.ssh/id`), since copies of a home are as sensitive as the
/// home.
pub fn sensitive(path: &Path, home: &Path) -> Option<&'static str> {
    if home.starts_with(path) {
        return Some("home");
    }
    let bytes = path.as_os_str().as_bytes();
    let own = path.strip_prefix(home).ok().filter(|_| home != Path::new("/"));
    let own = own.map(|below| below.as_os_str().as_bytes());
    let below = own.or_else(|| below_other_home(bytes));
    if below == Some(b"") {
        return Some("home");
    }
    // The first component below a home is compared whole; further ones at any position.
    let mut rest = bytes;
    if let Some(below) = below {
        if let Some(why) = at_home(below) {
            return Some(why);
        }
        rest = after_slash(below);
    }
    while !rest.is_empty() {
        if rest[0] == b'.'
            && let Some(why) = lies_in(rest)
        {
            return Some(why);
        }
        rest = after_slash(rest);
    }
    None
}

/// Names of files that hold credentials, in whichever directory of a home.
const CREDENTIAL_FILES: [&str; 14] = [
    ".credentials.json",
    ".git-credentials",
    ".netrc",
    ".npmrc",
    ".pypirc",
    "access_tokens.db",
    "auth.json",
    "credentials",
    "credentials.db",
    "credentials.json",
    "credentials.toml",
    "hosts.yml",
    "oauth_creds.json",
    "token.json",
];

/// Returns true if a path relative to a home is a sensitive one (see [`SENSITIVE`]) or lies in one.
pub fn lies_in_sensitive(below_home: &Path) -> bool {
    look_up(below_home.as_os_str().as_bytes(), |relation| relation == Relation::Within).is_some()
}

/// Returns true if a file of this name holds credentials wherever it lies.
pub fn is_credential_file(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| CREDENTIAL_FILES.contains(&name))
}

fn after_slash(path: &[u8]) -> &[u8] {
    path.iter().position(|b| *b == b'/').map_or(&[], |slash| &path[slash + 1..])
}

/// Returns the part of `path` below a home directory: `/home/x/…`, `/Users/x/…`, `/root/…`. Empty for the home itself,
/// and for the directory of homes.
fn below_other_home(path: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = path.strip_prefix(b"/root") {
        return match rest.first() {
            None => Some(rest),
            Some(b'/') => Some(&rest[1..]),
            Some(_) => None,
        };
    }
    let rest = path.strip_prefix(b"/home").or_else(|| path.strip_prefix(b"/Users"))?;
    let Some(rest) = rest.strip_prefix(b"/") else {
        return rest.is_empty().then_some(rest);
    };
    let user = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
    Some(rest.get(user + 1..).unwrap_or_default())
}

fn at_home(below: &[u8]) -> Option<&'static str> {
    look_up(below, |relation| relation != Relation::Apart)
}

fn lies_in(tail: &[u8]) -> Option<&'static str> {
    look_up(tail, |relation| relation == Relation::Within)
}

fn look_up(path: &[u8], hit: impl Fn(Relation) -> bool) -> Option<&'static str> {
    let head = first(path);
    let from = PLAIN.partition_point(|(place, _)| first(place.as_bytes()) < head);
    let same = PLAIN[from..].iter().take_while(|(place, _)| first(place.as_bytes()) == head);
    let starred = STARRED.iter().filter(|(place, _)| {
        let place = place.as_bytes();
        place[1] == b'*' || path.get(1) == Some(&place[1])
    });
    let mut rows = same.chain(starred);
    let why = rows.find(|(place, _)| hit(compare(path, place.as_bytes())))?.1;
    let installed = INSTALLED_WITHIN.iter().any(|place| compare(path, place.as_bytes()) == Relation::Within);
    (!installed).then_some(why)
}

type Row = (&'static str, &'static str);
const PLAIN: &[Row] = SENSITIVE.split_at(first_starred()).0;
const STARRED: &[Row] = SENSITIVE.split_at(first_starred()).1;

const fn first_starred() -> usize {
    let mut row = 0;
    while row < SENSITIVE.len() {
        let place = SENSITIVE[row].0.as_bytes();
        let mut at = 0;
        while at < place.len() && place[at] != b'/' {
            if place[at] == b'*' {
                return row;
            }
            at += 1;
        }
        row += 1;
    }
    row
}

fn first(path: &[u8]) -> &[u8] {
    path.split(|b| *b == b'/').next().unwrap_or_default()
}

#[derive(PartialEq, Eq)]
enum Relation {
    Apart,
    /// The path is the table's entry or lies below it.
    Within,
    /// The table's entry lies below the path.
    Around,
}

fn compare(path: &[u8], place: &[u8]) -> Relation {
    let mut path = path.split(|b| *b == b'/');
    for wanted in place.split(|b| *b == b'/') {
        match path.next() {
            None => return Relation::Around,
            Some(part) if !glob_matches(part, wanted) => return Relation::Apart,
            Some(_) => {}
        }
    }
    Relation::Within
}

/// Returns true if a name matches a pattern in which `*` matches any characters.
fn glob_matches(name: &[u8], pattern: &[u8]) -> bool {
    let Some(star) = pattern.iter().position(|b| *b == b'*') else {
        return name == pattern;
    };
    let (head, tail) = (&pattern[..star], &pattern[star + 1..]);
    name.starts_with(head) && (star..=name.len()).any(|from| glob_matches(&name[from..], tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str) -> Option<&'static str> {
        sensitive(Path::new(path), Path::new("/home/u"))
    }

    #[test]
    fn is_contains_or_lies_in() {
        for path in [
            "/",
            "/home",
            "/home/u",
            "/home/u/.ssh",
            "/home/u/.ssh/id_ed25519",
            "/home/u/.cargo",
            "/home/u/.cargo/credentials",
            "/home/u/.cargo/credentials.toml",
            "/home/u/.config",
            "/home/u/.config/gh/hosts.yml",
            "/home/u/.local",
            "/home/u/.local/share",
            "/home/u/.local/share/uv",
            "/home/u/.bash_history",
            "/home/u/.viminfo.tmp",
            "/home/u/.claude/projects",
            "/home/u/Documents/bin",
            "/home/other",
            "/home/other/.aws",
            "/home/other/.cargo",
            "/root",
            "/root/.kube/config",
            "/data/backup/.ssh",
            "/data/backup/.config/gcloud/x",
        ] {
            assert!(check(path).is_some(), "{path} must be sensitive");
        }
        for path in [
            "/home/u/.cargo/bin",
            "/home/u/.cargo/registry",
            "/home/u/.sshd-tools",
            "/home/u/.pyenv",
            "/home/u/.local/bin",
            "/home/u/.local/share/uv/python",
            "/home/u/.claude/local/claude",
            "/home/other/tools/bin",
            "/home/linuxbrew/.linuxbrew",
            "/rootfs",
            "/homes",
            "/data/tools/bin",
        ] {
            assert_eq!(check(path), None, "{path} must not be sensitive");
        }
    }

    #[test]
    fn rows_are_relative_unique_and_sorted() {
        for (at, (place, why)) in SENSITIVE.iter().enumerate() {
            assert!(!place.starts_with('/') && !place.ends_with('/') && !place.is_empty(), "{place}");
            assert!(!why.contains(' '), "{place}: one word");
            assert!(!SENSITIVE[..at].iter().any(|(other, _)| other == place), "{place} twice");
            let starred = first(place.as_bytes()).contains(&b'*');
            assert!(!starred || place.find('*') > Some(0), "{place}: too wide");
            assert_eq!(starred, at >= PLAIN.len(), "{place}: rows with a star in front come last");
            if at > 0 && !starred {
                let before = SENSITIVE[at - 1].0;
                assert!(first(before.as_bytes()) <= first(place.as_bytes()), "{before} before {place}");
            }
        }
    }
}
