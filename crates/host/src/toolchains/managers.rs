//! Table of toolchain managers: where each keeps its installation, and which part of it its tools need. Data only;
//! `super` reads it.

/// A toolchain manager. Paths in `give`, `holes`, `links` and `marks` are relative to its root; the others to the home
/// directory.
pub(super) struct Manager {
    pub name: &'static str,
    /// Usual roots. A leading slash makes one absolute.
    pub roots: &'static [&'static str],
    /// Variables that name the root.
    pub vars: &'static [&'static str],
    /// Marks of which one must exist, or the directory is something else. Empty: the root is enough.
    pub marks: &'static [&'static str],
    /// Granted paths. Empty: the whole root, which then never holds credentials.
    pub give: &'static [&'static str],
    /// Files in the root that may hold credentials; where one exists, its neighbours are granted
    /// one by one instead of the directory. `*` is any one name.
    pub holes: &'static [&'static str],
    /// Directories whose symlinks lead to installations elsewhere.
    pub links: &'static [&'static str],
    /// Paths outside the root that its tools need.
    pub also: &'static [&'static str],
    /// Settings that are granted only if they contain nothing like a secret.
    pub settings: &'static [&'static str],
    /// Managers that come along.
    pub with: &'static [&'static str],
    /// Further variables that its tools use to find themselves: paths and versions, never secrets.
    pub env: &'static [&'static str],
}

const BLANK: Manager = Manager {
    name: "",
    roots: &[],
    vars: &[],
    marks: &[],
    give: &[],
    holes: &[],
    links: &[],
    also: &[],
    settings: &[],
    with: &[],
    env: &[],
};

/// Files of a conda prefix, and of its environments, that may contain channel tokens.
pub(super) const CONDA_HOLES: &[&str] =
    &[".condarc", "condarc", "condarc.d", "pip.conf", ".npmrc", "envs/*/.condarc", "envs/*/condarc", "envs/*/pip.conf"];

/// Variables that name an installation or a version of a toolchain in PATH.
pub(super) const COMMON_ENV: &[&str] = &[
    "ANDROID_HOME",
    "ANDROID_SDK_ROOT",
    "CONDA_DEFAULT_ENV",
    "CONDA_EXE",
    "CONDA_PREFIX",
    "CONDA_PYTHON_EXE",
    "CONDA_SHLVL",
    "DOTNET_ROOT",
    "GEM_HOME",
    "GEM_PATH",
    "GOPATH",
    "GOROOT",
    "GRADLE_HOME",
    "JAVA_HOME",
    "M2_HOME",
    "MAVEN_HOME",
    "PERL5LIB",
    "PERL_LOCAL_LIB_ROOT",
    "VIRTUAL_ENV",
];

/// Variables whose `bin` is an installation as good as a PATH entry: mvn and gradle find Java so.
pub(super) const INSTALLATION_VARS: &[&str] =
    &["JAVA_HOME", "GOROOT", "MAVEN_HOME", "M2_HOME", "GRADLE_HOME", "CONDA_PREFIX", "VIRTUAL_ENV"];

pub(super) const MANAGERS: &[Manager] = &[
    // Directories of links and scripts. Their targets are followed one by one; the usual destinations are granted
    // without following each link.
    Manager {
        name: "user commands",
        roots: &[".local/bin", "bin", ".bin", ".local/sbin"],
        also: &[".local/lib", ".local/share/claude/versions", ".local/share/cursor-agent/versions"],
        with: &["pipx", "uv", "poetry", "python environments"],
        ..BLANK
    },
    // Python.
    Manager {
        name: "pyenv",
        roots: &[".pyenv", ".local/share/pyenv"],
        vars: &["PYENV_ROOT"],
        marks: &["shims", "versions", "libexec"],
        holes: &["versions/*/pip.conf"],
        links: &["versions"],
        env: &["PYENV_VERSION", "PYENV_VIRTUAL_ENV", "PYENV_HOOK_PATH"],
        ..BLANK
    },
    Manager {
        name: "conda",
        roots: &[
            "miniconda3",
            "anaconda3",
            "miniforge3",
            "mambaforge",
            "miniconda",
            "anaconda",
            "miniforge",
            "micromamba",
            "mamba",
            ".miniconda3",
            ".anaconda3",
            ".miniforge3",
            ".micromamba",
            ".mamba",
            ".local/share/mamba",
            ".local/share/micromamba",
        ],
        vars: &["MAMBA_ROOT_PREFIX"],
        marks: &["conda-meta", "condabin", "envs"],
        holes: CONDA_HOLES,
        env: &["MAMBA_EXE"],
        ..BLANK
    },
    Manager {
        // `uv auth` keeps its credentials beside these two.
        name: "uv",
        roots: &[".local/share/uv"],
        marks: &["python", "tools"],
        give: &["python", "tools"],
        with: &["uv pythons", "uv tools"],
        env: &["UV_TOOL_BIN_DIR"],
        ..BLANK
    },
    Manager { name: "uv pythons", vars: &["UV_PYTHON_INSTALL_DIR"], ..BLANK },
    Manager { name: "uv tools", vars: &["UV_TOOL_DIR"], ..BLANK },
    Manager {
        name: "pipx",
        roots: &[".local/share/pipx", ".local/pipx"],
        vars: &["PIPX_HOME"],
        marks: &["venvs"],
        give: &["venvs", "shared", "py"],
        env: &["PIPX_BIN_DIR"],
        ..BLANK
    },
    Manager {
        name: "poetry",
        roots: &[".local/share/pypoetry", ".poetry"],
        vars: &["POETRY_HOME"],
        marks: &["venv", "bin"],
        give: &["venv", "bin", "lib", "env", "python"],
        also: &[".cache/pypoetry/virtualenvs"],
        ..BLANK
    },
    Manager {
        name: "python environments",
        roots: &[".local/share/virtualenvs", ".virtualenvs"],
        vars: &["WORKON_HOME"],
        also: &[
            ".local/share/hatch/env",
            ".local/share/hatch/pythons",
            ".local/share/pdm/venvs",
            ".local/share/pdm/python",
        ],
        ..BLANK
    },
    Manager {
        name: "rye",
        roots: &[".rye"],
        vars: &["RYE_HOME"],
        marks: &["shims"],
        give: &["shims", "py", "tools", "self", "uv", "pip-tools", "env"],
        ..BLANK
    },
    Manager {
        name: "pixi",
        roots: &[".pixi"],
        vars: &["PIXI_HOME"],
        marks: &["bin"],
        give: &["bin", "envs", "completions"],
        ..BLANK
    },
    // Rust. The registry and git caches hold only published sources, and `cargo build --offline`
    // needs them; credentials.toml stays out, config.toml comes only when it holds no secret.
    Manager {
        name: "cargo",
        roots: &[".cargo", ".local/share/cargo"],
        vars: &["CARGO_HOME"],
        marks: &["bin", "env"],
        give: &["bin", "env", "registry", "git"],
        settings: &[".cargo/config.toml", ".cargo/config"],
        with: &["rustup", "uv"],
        ..BLANK
    },
    Manager {
        name: "rustup",
        roots: &[".rustup", ".local/share/rustup"],
        vars: &["RUSTUP_HOME"],
        marks: &["toolchains", "settings.toml"],
        links: &["toolchains"],
        env: &["RUSTUP_TOOLCHAIN"],
        ..BLANK
    },
    // JavaScript. A Node prefix may carry a global npmrc with a token.
    Manager {
        name: "nvm",
        roots: &[".nvm", ".config/nvm"],
        vars: &["NVM_DIR"],
        marks: &["versions", "nvm.sh"],
        holes: &["versions/node/*/etc/npmrc", ".npmrc"],
        env: &["NVM_BIN", "NVM_INC"],
        ..BLANK
    },
    Manager {
        name: "fnm",
        roots: &[".local/share/fnm", ".fnm"],
        vars: &["FNM_DIR"],
        marks: &["node-versions", "fnm"],
        holes: &["node-versions/*/installation/etc/npmrc"],
        env: &["FNM_MULTISHELL_PATH", "FNM_ARCH", "FNM_VERSION_FILE_STRATEGY"],
        ..BLANK
    },
    Manager {
        name: "volta",
        roots: &[".volta"],
        vars: &["VOLTA_HOME"],
        marks: &["bin", "tools"],
        holes: &["hooks.json", "tools/image/node/*/*/etc/npmrc", "tools/image/node/*/etc/npmrc"],
        ..BLANK
    },
    Manager {
        name: "nodenv",
        roots: &[".nodenv"],
        vars: &["NODENV_ROOT"],
        marks: &["shims", "versions"],
        holes: &["versions/*/etc/npmrc"],
        links: &["versions"],
        env: &["NODENV_VERSION"],
        ..BLANK
    },
    Manager {
        name: "pnpm",
        roots: &[".local/share/pnpm", ".pnpm"],
        vars: &["PNPM_HOME"],
        holes: &["rc", "auth.ini", "nodejs/*/etc/npmrc"],
        ..BLANK
    },
    Manager {
        name: "bun",
        roots: &[".bun"],
        vars: &["BUN_INSTALL"],
        marks: &["bin"],
        give: &["bin", "install"],
        ..BLANK
    },
    Manager {
        // DENO_DIR also keeps the localStorage of scripts, so only its code caches are granted.
        name: "deno",
        roots: &[".deno"],
        vars: &["DENO_INSTALL", "DENO_INSTALL_ROOT"],
        marks: &["bin"],
        give: &["bin", "env", "completions"],
        also: &[".cache/deno/deps", ".cache/deno/remote", ".cache/deno/npm", ".cache/deno/gen"],
        ..BLANK
    },
    Manager {
        name: "yarn",
        roots: &[".yarn", ".config/yarn/global"],
        marks: &["bin", "node_modules"],
        give: &["bin", "node_modules", "switch"],
        also: &[".config/yarn/global/node_modules"],
        ..BLANK
    },
    Manager {
        name: "n",
        roots: &["n"],
        vars: &["N_PREFIX"],
        marks: &["n"],
        give: &["bin", "lib", "include", "share", "n"],
        ..BLANK
    },
    Manager {
        name: "nvs",
        roots: &[".nvs"],
        vars: &["NVS_HOME"],
        marks: &["nvs.sh"],
        holes: &["node/*/*/etc/npmrc"],
        ..BLANK
    },
    // Several languages.
    Manager {
        name: "mise",
        roots: &[".local/share/mise", ".local/share/rtx", ".mise"],
        vars: &["MISE_DATA_DIR", "RTX_DATA_DIR"],
        marks: &["shims", "installs"],
        holes: &["installs/node/*/etc/npmrc", "installs/python/*/pip.conf"],
        also: &[".local/bin/mise", ".tool-versions", ".local/state/mise/trusted-configs"],
        settings: &[".config/mise/config.toml", ".mise.toml", "mise.toml"],
        with: &["cargo"],
        env: &["MISE_SHELL", "MISE_BIN"],
        ..BLANK
    },
    Manager {
        name: "asdf",
        roots: &[".asdf"],
        vars: &["ASDF_DATA_DIR", "ASDF_DIR"],
        marks: &["shims", "installs", "bin"],
        holes: &["installs/nodejs/*/etc/npmrc", "installs/python/*/pip.conf"],
        also: &[".tool-versions", ".asdfrc"],
        ..BLANK
    },
    Manager {
        name: "proto",
        roots: &[".proto"],
        vars: &["PROTO_HOME"],
        marks: &["shims", "tools"],
        give: &["bin", "shims", "tools", "plugins"],
        settings: &[".proto/.prototools"],
        ..BLANK
    },
    Manager { name: "vfox", roots: &[".version-fox", ".vfox"], vars: &["VFOX_HOME"], marks: &["cache"], ..BLANK },
    Manager {
        name: "aqua",
        roots: &[".local/share/aquaproj-aqua"],
        vars: &["AQUA_ROOT_DIR"],
        marks: &["bin", "pkgs"],
        ..BLANK
    },
    // Java and its neighbours.
    Manager {
        name: "sdkman",
        roots: &[".sdkman"],
        vars: &["SDKMAN_DIR"],
        marks: &["candidates"],
        env: &["SDKMAN_CANDIDATES_DIR"],
        ..BLANK
    },
    Manager {
        name: "jenv",
        roots: &[".jenv"],
        vars: &["JENV_ROOT"],
        marks: &["shims", "versions"],
        links: &["versions"],
        env: &["JENV_VERSION"],
        ..BLANK
    },
    Manager { name: "jabba", roots: &[".jabba"], vars: &["JABBA_HOME"], marks: &["jdk"], ..BLANK },
    Manager {
        name: "jbang",
        roots: &[".jbang"],
        vars: &["JBANG_DIR"],
        marks: &["bin"],
        give: &["bin", "cache", "currentjdk"],
        ..BLANK
    },
    Manager {
        // Launchers load a JVM and jars from the cache; credentials are in ~/.config/coursier.
        name: "coursier",
        roots: &[".local/share/coursier"],
        vars: &["COURSIER_INSTALL_DIR"],
        also: &[".cache/coursier"],
        env: &["COURSIER_CACHE", "COURSIER_BIN_DIR"],
        ..BLANK
    },
    Manager {
        name: "android",
        roots: &["Android/Sdk", "android-sdk"],
        vars: &["ANDROID_HOME", "ANDROID_SDK_ROOT"],
        marks: &["platform-tools", "cmdline-tools", "build-tools"],
        ..BLANK
    },
    Manager {
        name: "flutter",
        roots: &["flutter", ".flutter", "development/flutter", "sdk/flutter", "snap/flutter/common/flutter"],
        vars: &["FLUTTER_ROOT"],
        marks: &["packages/flutter_tools"],
        also: &[".pub-cache/hosted", ".pub-cache/global_packages", ".pub-cache/bin"],
        ..BLANK
    },
    Manager {
        name: "pub",
        roots: &[".pub-cache"],
        vars: &["PUB_CACHE"],
        give: &["bin", "hosted", "git", "global_packages"],
        ..BLANK
    },
    // Go. A module cache holds published sources only; ~/go/src of an old GOPATH is the user's own.
    Manager {
        name: "go",
        roots: &["go", ".go"],
        vars: &["GOPATH"],
        marks: &["bin", "pkg"],
        give: &["bin", "pkg/mod"],
        also: &["sdk"],
        settings: &[".config/go/env"],
        env: &["GOMODCACHE", "GOTOOLCHAIN"],
        ..BLANK
    },
    Manager {
        name: "goenv",
        roots: &[".goenv"],
        vars: &["GOENV_ROOT"],
        marks: &["shims", "versions"],
        links: &["versions"],
        env: &["GOENV_VERSION"],
        ..BLANK
    },
    Manager { name: "gvm", roots: &[".gvm"], vars: &["GVM_ROOT"], marks: &["gos"], ..BLANK },
    // Ruby.
    Manager {
        name: "rbenv",
        roots: &[".rbenv"],
        vars: &["RBENV_ROOT"],
        marks: &["shims", "versions", "libexec"],
        holes: &["versions/*/etc/gemrc"],
        links: &["versions"],
        env: &["RBENV_VERSION"],
        ..BLANK
    },
    Manager {
        name: "rvm",
        roots: &[".rvm"],
        vars: &["rvm_path"],
        marks: &["rubies", "scripts"],
        env: &["rvm_prefix", "rvm_bin_path", "MY_RUBY_HOME", "RUBY_VERSION"],
        ..BLANK
    },
    Manager { name: "chruby", roots: &[".rubies"], env: &["RUBY_ROOT", "GEM_ROOT", "RUBY_VERSION"], ..BLANK },
    Manager { name: "gem", roots: &[".gem", ".local/share/gem"], marks: &["ruby"], give: &["ruby"], ..BLANK },
    // Haskell, OCaml, Lean, Julia, Swift, Perl, PHP and smaller languages.
    Manager {
        name: "ghcup",
        roots: &[".ghcup"],
        marks: &["bin", "ghc"],
        env: &["GHCUP_INSTALL_BASE_PREFIX", "GHCUP_USE_XDG_DIRS"],
        with: &["cabal"],
        ..BLANK
    },
    Manager {
        name: "cabal",
        roots: &[".cabal"],
        vars: &["CABAL_DIR"],
        marks: &["bin", "store", "packages"],
        give: &["bin", "store", "packages", "lib", "share"],
        also: &[".local/state/cabal/store", ".cache/cabal/packages"],
        ..BLANK
    },
    Manager {
        name: "stack",
        roots: &[".stack"],
        vars: &["STACK_ROOT"],
        marks: &["programs"],
        give: &["programs", "snapshots", "pantry", "global-project", "setup-exe-cache"],
        ..BLANK
    },
    Manager {
        name: "opam",
        roots: &[".opam"],
        vars: &["OPAMROOT"],
        marks: &["config"],
        env: &["OPAM_SWITCH_PREFIX", "OPAMSWITCH", "CAML_LD_LIBRARY_PATH", "OCAML_TOPLEVEL_PATH"],
        ..BLANK
    },
    Manager {
        name: "elan",
        roots: &[".elan"],
        vars: &["ELAN_HOME"],
        marks: &["toolchains", "bin"],
        links: &["toolchains"],
        ..BLANK
    },
    Manager {
        name: "juliaup",
        roots: &[".juliaup", ".julia/juliaup"],
        marks: &["bin", "juliaup.json"],
        also: &[".julia/juliaup", ".julia/packages", ".julia/artifacts", ".julia/registries", ".julia/compiled"],
        env: &["JULIA_DEPOT_PATH", "JULIAUP_DEPOT_PATH"],
        ..BLANK
    },
    Manager {
        name: "swiftly",
        roots: &[".local/share/swiftly", ".swiftly"],
        vars: &["SWIFTLY_HOME_DIR"],
        marks: &["bin", "toolchains"],
        env: &["SWIFTLY_BIN_DIR", "SWIFTLY_TOOLCHAINS_DIR"],
        ..BLANK
    },
    Manager {
        name: "plenv",
        roots: &[".plenv"],
        vars: &["PLENV_ROOT"],
        marks: &["shims", "versions"],
        links: &["versions"],
        env: &["PLENV_VERSION"],
        ..BLANK
    },
    Manager {
        name: "perlbrew",
        roots: &["perl5/perlbrew"],
        vars: &["PERLBREW_ROOT"],
        marks: &["perls"],
        env: &["PERLBREW_PERL", "PERLBREW_PATH", "PERLBREW_HOME", "PERLBREW_VERSION"],
        ..BLANK
    },
    Manager {
        name: "phpenv",
        roots: &[".phpenv"],
        vars: &["PHPENV_ROOT"],
        marks: &["shims", "versions"],
        links: &["versions"],
        ..BLANK
    },
    Manager {
        name: "composer",
        roots: &[".config/composer", ".composer"],
        vars: &["COMPOSER_HOME"],
        marks: &["vendor"],
        give: &["vendor"],
        ..BLANK
    },
    Manager {
        // `dotnet` itself sits in the root, beside certificates of the user.
        name: "dotnet",
        roots: &[".dotnet", ".local/share/dotnet"],
        vars: &["DOTNET_ROOT"],
        marks: &["dotnet", "tools", "sdk"],
        give: &[
            "dotnet",
            "host",
            "sdk",
            "shared",
            "packs",
            "tools",
            "templates",
            "sdk-manifests",
            "library-packs",
            "metadata",
            "workloads",
        ],
        also: &[".nuget/packages"],
        env: &["DOTNET_ROOT_X64", "DOTNET_ROOT_ARM64", "NUGET_PACKAGES"],
        ..BLANK
    },
    Manager {
        name: "nim",
        roots: &[".nimble", ".choosenim"],
        marks: &["bin", "pkgs2", "toolchains"],
        give: &["bin", "pkgs", "pkgs2", "toolchains", "current"],
        also: &[".choosenim/toolchains", ".choosenim/current"],
        ..BLANK
    },
    Manager {
        name: "foundry",
        roots: &[".foundry"],
        marks: &["bin"],
        give: &["bin", "versions", "share"],
        also: &[".svm"],
        ..BLANK
    },
    Manager {
        name: "wasmer",
        roots: &[".wasmer"],
        marks: &["bin"],
        give: &["bin", "lib", "include"],
        env: &["WASMER_DIR"],
        ..BLANK
    },
    Manager {
        name: "solana",
        roots: &[".local/share/solana/install"],
        marks: &["active_release", "releases"],
        ..BLANK
    },
    Manager {
        name: "krew",
        roots: &[".krew"],
        vars: &["KREW_ROOT"],
        marks: &["bin"],
        give: &["bin", "store"],
        ..BLANK
    },
    Manager {
        name: "tfenv",
        roots: &[".tfenv", ".tenv", ".tgenv"],
        vars: &["TFENV_ROOT", "TENV_ROOT"],
        env: &["TFENV_TERRAFORM_VERSION"],
        ..BLANK
    },
    Manager {
        name: "google-cloud-sdk",
        roots: &["google-cloud-sdk", ".local/share/google-cloud-sdk"],
        marks: &["lib", "platform"],
        ..BLANK
    },
    Manager { name: "mason", roots: &[".local/share/nvim/mason"], marks: &["bin", "packages"], ..BLANK },
    Manager {
        name: "platformio",
        roots: &[".platformio"],
        vars: &["PLATFORMIO_CORE_DIR"],
        marks: &["penv"],
        give: &["penv", "packages", "platforms"],
        ..BLANK
    },
    Manager {
        name: "emsdk",
        roots: &["emsdk", ".emsdk"],
        vars: &["EMSDK"],
        marks: &["emsdk.py"],
        env: &["EMSDK_NODE", "EM_CONFIG"],
        ..BLANK
    },
    // Package managers.
    Manager {
        name: "homebrew",
        roots: &["/home/linuxbrew/.linuxbrew", ".linuxbrew"],
        vars: &["HOMEBREW_PREFIX"],
        marks: &["Cellar", "Homebrew"],
        give: &["bin", "sbin", "lib", "libexec", "share", "include", "opt", "Cellar", "etc", "Homebrew"],
        holes: &["etc/npmrc", "etc/my.cnf", "etc/gemrc", "etc/condarc"],
        env: &["HOMEBREW_CELLAR", "HOMEBREW_REPOSITORY"],
        ..BLANK
    },
    Manager {
        // Both are symlinks that end in /nix/store, which is a system directory.
        name: "nix",
        roots: &[".nix-profile", ".local/state/nix/profile", ".local/state/nix/profiles"],
        also: &[".local/state/nix/profiles"],
        env: &["NIX_PROFILES"],
        ..BLANK
    },
    Manager {
        name: "guix",
        roots: &[".guix-profile", ".config/guix/current"],
        env: &["GUIX_PROFILE", "GUIX_LOCPATH"],
        ..BLANK
    },
];

#[cfg(test)]
mod tests {
    use super::super::sensitive::sensitive;
    use super::*;
    use std::path::Path;

    /// A row that the final check would refuse has no effect.
    #[test]
    fn no_row_asks_for_a_sensitive_place() {
        let home = Path::new("/home/u");
        for manager in MANAGERS {
            for root in manager.roots {
                let root = home.join(root);
                let give = if manager.give.is_empty() { &[""][..] } else { manager.give };
                for part in give {
                    let path = if part.is_empty() { root.clone() } else { root.join(part) };
                    assert_eq!(sensitive(&path, home), None, "{}: {}", manager.name, path.display());
                }
            }
            for path in manager.also.iter().chain(manager.settings) {
                assert_eq!(sensitive(&home.join(path), home), None, "{}: {path}", manager.name);
            }
        }
    }

    #[test]
    fn companions_exist() {
        for name in MANAGERS.iter().flat_map(|m| m.with) {
            assert!(MANAGERS.iter().any(|m| m.name == *name), "{name}");
        }
    }

    #[test]
    fn no_variable_is_a_secret_by_name() {
        for name in MANAGERS.iter().flat_map(|m| m.vars.iter().chain(m.env)).chain(COMMON_ENV) {
            let upper = name.to_uppercase();
            assert!(!["TOKEN", "SECRET", "KEY", "PASS", "AUTH"].iter().any(|w| upper.contains(w)), "{name}");
        }
    }
}
