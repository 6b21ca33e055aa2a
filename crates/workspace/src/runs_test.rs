//! Table of names against paths: a case for every rule, names that only look alike, and spellings that other file
//! systems take for the same.

use crate::class::rules_for;
use crate::runs::matcher::spelled_out;
use crate::runs::{RULES, RunsRule};
use api::Rel;
use globset::GlobBuilder;

/// Reason of the first match, and matching paths separated by spaces.
#[rustfmt::skip]
const POSITIVES: &[(&str, &str)] = &[
    ("git submodules", ".gitmodules"),
    ("git attributes", ".gitattributes sub/.gitattributes"),
    ("git LFS settings", ".lfsconfig"),
    ("git settings", ".gitconfig .git-credentials .config/git/config"),
    ("version control settings", ".hg/hgrc .svn/entries .jj/repo/config.toml CVS/Root _FOSSIL_ .hgrc .hgsub .mrconfig .p4config .gitreview"),
    ("settings of a review tool", ".arcconfig .reviewboardrc"),
    ("git hook", "githooks/x .git-hooks/x hooks/pre-push tools/hooks/commit-msg .husky/pre-commit .cargo-husky/hooks/x"),
    ("git hook settings", ".pre-commit-config.yaml .pre-commit-hooks.yml prek.toml lefthook.yml .lefthook-local.toml .overcommit.yml grumphp.yml captainhook.json .lintstagedrc.js .commitlintrc lint-staged.config.mjs"),
    ("settings of a commit tool", ".czrc .cz.toml cz.yaml .gitlint"),
    ("settings of a release tool", "cliff.toml release.toml .bumpversion.cfg .release-it.json .goreleaser.yml jreleaser.yml"),
    ("direnv", ".envrc .envrc.local sub/.envrc .direnv/x direnv.toml"),
    ("shell hook", ".shadowenv.d/500.lisp .autoenv.zsh .autoenv_leave.zsh .rvmrc .ondirrc"),
    ("environment of tools", ".env .env.local .flaskenv .ruby-gemset"),
    ("version manager", ".tool-versions .prototools mise.toml .mise.local.toml .mise/config.toml mise/config.toml .python-version .ruby-version .terraform-version .nvmrc rust-toolchain rust-toolchain.toml lean-toolchain global.json aqua.yaml .pkgx.yml rokit.toml bin/activate-hermit"),
    ("nix expression", "flake.nix shell.nix pkgs/x.nix flake.lock"),
    ("nix shell", "devenv.yaml devbox.json .flox/env/manifest.toml"),
    ("guix environment", "guix.scm manifest.scm .guix-channel"),
    ("shell start-up file", ".bashrc home/.zshrc .profile .zsh_aliases .xonshrc .bashrc.local etc/profile.d/x.sh .config/fish/config.fish profile.ps1"),
    ("session start-up file", ".xinitrc .xprofile .config/autostart/x.desktop"),
    ("start-up file of an interpreter", ".Rprofile .RData renv/activate.R .ghci .ocamlinit startup.m .irbrc .pryrc .juliarc.jl dev/user.clj .sbclrc sitecustomize.pl"),
    ("Python start-up file", "lib/site-packages/x.pth python312._pth sitecustomize.py usercustomize.py .venv/pyvenv.cfg venv/bin/activate.fish venv/Scripts/activate.bat .pdbrc matplotlibrc"),
    ("settings that name programs", "jupyter_notebook_config.py .jupyter/x .pylintrc pylintrc .flake8 mypy.ini .coveragerc .sqlfluff .rspec .rubocop.yml .rubocop_todo.yml phpunit.xml phpunit.xml.dist .phpcs.xml phpstan.neon psalm.xml .php-cs-fixer.dist.php .golangci.yml .golangci.toml .custom-gcl.yml .luacheckrc .trunk/trunk.yaml .mega-linter.yml .spectral.yml buf.gen.yaml sqlc.yaml .storybook/main.ts .eslintrc .eslintrc.json .prettierrc .babelrc.js .mocharc.yml .markdownlint-cli2.jsonc dprint.json tslint.json .ember-cli .sbtopts .scalafix.conf .changeset/config.json"),
    ("start-up file of a debugger", ".gdbinit .lldbinit lib/libx.so-gdb.py"),
    ("PHP settings", "public/.user.ini php.ini .php.ini"),
    ("settings of a web server", "public/.htaccess web.config Caddyfile"),
    ("console of a framework", "artisan manage.py wp-cli.yml wp-config.php bin/console bin/rails"),
    ("settings of a tool", ".psqlrc .my.cnf .aws/config .kube/config .netrc _netrc .curlrc .config/x/y .foorc pkg/.foorc .foorc.json"),
    ("systemd unit", "x.service x.timer x.path x.container"),
    ("desktop launcher", "app.desktop .directory run.command x.app/Contents/MacOS/x x.scptd/y autorun.inf desktop.ini x.lnk x.scf x.url x.hta"),
    ("launch agent", "com.example.x.plist"),
    ("cron table", "crontab x.cron etc/cron.daily/x"),
    ("system settings", "etc/init.d/x etc/udev/x sudoers etc/sudoers.d/x x.reg"),
    ("document with macros", "x.docm x.xlsm"),
    ("machine set-up", "user-data cloud-init.yaml x.ks"),
    ("rules of cofferdam", ".cofferdam.json .cofferdam/x"),
    ("MCP servers", ".mcp.json mcp.json mcp_config.json claude_desktop_config.json smithery.yaml"),
    ("agent instructions", "CLAUDE.md CLAUDE.local.md AGENTS.md sub/AGENTS.md agents.override.md GEMINI.md QWEN.md WARP.md copilot-instructions.md SKILL.md skills/x/SKILL.md x.prompt.md x.mdc .claude/settings.json .claude-plugin/plugin.json .cursor/rules/x.mdc .cursorrules .codex/config.toml .gemini/settings.json .amazonq/x .clinerules/x .windsurfrules .aider.conf.yml .roomodes .rules opencode.json .github/prompts/x.md .github/hooks/x .coderabbit.yaml .pr_agent.toml"),
    ("editor settings", ".vscode/tasks.json a/b/.vscode/launch.json .idea/workspace.xml .run/x.run.xml .zed/tasks.json .helix/config.toml x.code-workspace x.sublime-project x.sublime-build tasks.vs.json .vsconfig .vscode-test.mjs .project .externalToolBuilders/x.launch nbproject/project.xml .exrc _vimrc .nvimrc Session.vim .nvim.lua .vim/coc-settings.json .dir-locals.el .emacs .kakrc .kateproject .tm_properties project.godot addons/x/plugin.cfg Assets/x/Editor/y.cs"),
    ("settings of a language server", ".clangd compile_commands.json .merlin hie.yaml rust-analyzer.toml .bsp/sbt.json .ruby-lsp.yml .clj-kondo/hooks/x.clj"),
    ("plug-ins of a language server", "tsconfig.json tsconfig.build.json jsconfig.json"),
    ("development container", ".devcontainer.json .devcontainer/Dockerfile .gitpod.yml .replit .ddev/config.yaml .idx/x.txt devfile.yaml .lando.yml"),
    ("terminal layout", ".tmux.conf .tmuxinator.yml"),
    ("CI workflow", ".github/workflows/ci.yml .github/actions/x/action.yml .forgejo/workflows/x.yml .tekton/x.yaml .gitlab-ci.yml x.gitlab-ci.yml .circleci/config.yml .woodpecker.yml woodpecker/.woodpecker.yml .drone.yml .travis.yml .cirrus.star appveyor.yml bitrise.yml .taskcluster.yml .actrc action.yml azure-pipelines.yml .azure-pipelines/x.yml bitbucket-pipelines.yml Jenkinsfile Jenkinsfile.groovy x.jenkinsfile cloudbuild.yaml buildspec.yml .dagger/x dagger.json renovate.json .github/dependabot.yml"),
    ("rules of a forge", ".github/CODEOWNERS .mergify.yml .github/settings.yml"),
    ("deployment", "netlify.toml fly.toml vercel.json firebase.json render.yaml heroku.yml .platform.app.yaml .ebextensions/x.config bin/post_compile app.json"),
    ("Terraform configuration", "main.tf modules/x/y.tf x.tf.json x.tofu prod.tfvars .terraformrc"),
    ("HashiCorp configuration", "terragrunt.hcl .terraform.lock.hcl x.pkr.hcl job.nomad packer.json .tflint.hcl"),
    ("virtual machine", "Vagrantfile"),
    ("Pulumi project", "Pulumi.yaml Pulumi.prod.yaml"),
    ("cloud deployment", "cdk.json serverless.yml serverless.ts samconfig.toml"),
    ("cluster deployment", "Chart.yaml skaffold.yaml helmfile.yaml helmfile.yaml.gotmpl helmfile.d/x.yaml kustomization.yaml Tiltfile jsonnetfile.json Acornfile"),
    ("container build", "Dockerfile Dockerfile.dev Containerfile x.dockerfile docker-compose.yml docker-compose.override.yaml compose.yaml Singularity Singularity.recipe Earthfile docker-bake.json"),
    ("Ansible", "ansible.cfg .ansible/x playbook.yml site.yml group_vars/all playbooks/x.yml roles/web/tasks/main.yml inventory.ini"),
    ("Chef", "Berksfile .kitchen.yml .chef/knife.rb recipes/default.rb"),
    ("Puppet", "site.pp Puppetfile"),
    ("Salt", "top.sls"),
    ("task script", "Procfile Procfile.dev"),
    ("task settings", "mprocs.yaml supervisord.conf gunicorn.conf.py nodemon.json nx.json libs/a/project.json angular.json turbo.json common/config/rush/command-line.json .moon/tasks.yml Makefile.toml tauri.conf.json Properties/launchSettings.json .air.toml modd.conf bacon.toml"),
    ("package scripts", "package.json package.yaml binding.gyp composer.json"),
    ("package manager settings", ".npmrc .yarnrc.yml .pnpmfile.cjs bunfig.toml pnpm-workspace.yaml .yarn/plugins/x.cjs pip.conf uv.toml .pypirc anaconda-project.yml .bundle/config auth.json .config/dotnet-tools.json nuget.config paket.dependencies"),
    ("cargo settings", ".cargo/config.toml"),
    ("build settings of a crate", "Cargo.toml"),
    ("build settings of a package", "pyproject.toml"),
    ("where packages come from", "go.mod requirements.txt dev-requirements.in constraints.txt environment.yml Pipfile"),
    ("test or task script", "conftest.py tests/conftest.py noxfile.py tasks.py features/environment.py cypress/support/e2e.ts"),
    ("test or task settings", "tox.ini pytest.ini .pytest.toml .stestr.conf invoke.yaml .proverc t/.proverc .perltidyrc behat.yml .phan/config.php cucumber.yml cucumber.js"),
    ("build script", "build.rs go.work magefile.go setup.py hatch_build.py docs/source/conf.py Rakefile Gemfile Gemfile.local x.gemfile Capfile config.ru config/deploy.rb x.rake cpanfile rector.php _plugins/x.rb build.gradle settings.gradle.kts gradle/libs.versions.toml gradlew mvnw.cmd pom.xml build.sbt project/build.properties project/plugins.sbt deps.edn profiles.clj x.main.kts META-INF/services/javax.annotation.processing.Processor x.sln x.slnx x.csproj Directory.Build.props Directory.Build.rsp x.csproj.user x.tt build.cake mix.exs rebar.config .formatter.exs config/runtime.exs Setup.hs stack.yaml x.cabal src/dune x.opam Package.swift Podfile Dangerfile.ts fastlane/Fastfile x.podspec x.xcodeproj/project.pbxproj x.xcconfig analysis_options.yaml hook/build.dart build.zig x.nimble shard.yml Makefile.PL Build.PL META6.json x.rockspec deps/build.jl _quarto.yml Makevars x.asd conanfile.py platformio.ini"),
    ("build script", "Makefile makefile GNUmakefile BSDmakefile Makefile.am Makefile.in Makefile.common rules.mk Kbuild Kconfig justfile .justfile x.just Taskfile.yml maskfile.md CMakeLists.txt x.cmake x.cmake.in CMakeUserPresets.json configure configure.ac autogen.sh m4/x.m4 install-sh meson.build subprojects/x.wrap build.ninja BUILD BUILD.bazel WORKSPACE REPO.bazel .bazelrc ci.bazelrc pants.toml tools/bazel Snakefile x.bzl SConstruct site_scons/x.py wscript xmake.lua BUILD.gn DEPS Jamroot app.pro Tupfile Tupfile.lua Android.bp build.sh build.py dvc.yaml hooks/post_gen_project.sh copier.yml Doxyfile book.toml mkdocs.yml .latexmkrc hugo.toml"),
    ("build script", "deno.json deno.jsonc gulpfile.js gulpfile.babel.js Gruntfile.coffee gulpfile.js/index.js Jakefile Jakefile.js Cakefile webpack.config.js webpack.prod.config.js vite.config.ts packages/x/src/vitest.config.mts docusaurus.config.ts x.config.js packages/a/x.config.mjs karma.conf.js codegen.yml codegen.ts foundry.toml rescript.json shadow-cljs.edn"),
    ("package build", "debian/rules PKGBUILD x.spec x.ebuild snap/snapcraft.yaml"),
    ("ssh settings", ".ssh/config"),
    ("gpg settings", ".gnupg/gpg.conf"),
    ("hidden script", ".eleventy.js sub/.x.sh .cz-config.cjs"),
    // Spellings that are equal on a file system that folds case, composes or drops characters.
    ("build script", "MAKEFILE Makefile. mAkEfIlE new\nline/Makefile \u{ff2d}akefile"),
    ("editor settings", ".VSCode/Tasks.JSON .vs\u{200b}code/tasks.json"),
    ("direnv", ".ENVRC .env\u{200b}rc"),
    ("Terraform configuration", "MAIN.TF main.tf."),
];

/// Paths that match no rule: modules and pages about such files, and names that begin or end alike.
#[rustfmt::skip]
const NEGATIVES: &str = "
    src/main.rs README.md a.c x/lib.py index.html data.json notes.txt src/app.ts
    makefile.py lib/pip/makefile.py __pycache__/makefile.cpython-312.pyc makefile_notes.txt Makefile.md
    procfile.py procfile.pyc dockerfile.py dockerfile.rs Dockerfile.md jenkinsfile.java tiltfile.go vagrantfile.ts snakefile.py kconfig.c
    scanfile.cpp pluginfile.js gemfile.lock Gemfile.lock
    envrc bashrc my.envrc dotenv.py env.example .env.example .env.sample
    package-lock.json yarn.lock Cargo.lock go.sum poetry.lock
    docs/agents/list.md docs/cursor.md docs/warp.md agents.py claude.py
    src/app/tasks.py app/tasks.py src/conf.py src/app/app.config.ts src/database.config.ts src/codegen.ts src/commands/build.ts lib/build.py
    locales/en/auth.json app/Info.plist foo.service.ts user.spec.ts x.spec.js timer.rs
    terraform.md main.tfstate.md tf.py x.hcl.md pulumi.ts helmfile.md
    sessions.vim.md Session.vimrc.txt global.jsonl project/readme.md solution.slnx.md
    browserslist .browserslistrc .editorconfig .gitignore .dockerignore .gitkeep .mailmap .clang-format
    renv/library/x/y.R debian/pkg/usr/bin/x .dvc/cache/ab .meteor/local/x fastlane/report.xml
    proverc hgrc artisan.md user.ini.txt
    src/build/x.c build/x.o target/x deps/x.py BUILD/x
    requirements.md requirements.py configure.md configuration.py modules/x.py
";

fn first(path: &str) -> Option<&'static RunsRule> {
    rules_for(&Rel::parse(path.as_bytes()).unwrap()).next()
}

#[test]
fn names_in_the_table_give_their_reason() {
    for (why, paths) in POSITIVES {
        for path in paths.split(' ') {
            assert_eq!(first(path).map(|rule| rule.why), Some(*why), "{path}");
        }
    }
}

#[test]
fn names_that_only_look_alike_are_none() {
    for path in NEGATIVES.split_whitespace() {
        assert_eq!(first(path).map(|rule| rule.pattern), None, "{path}");
    }
}

/// A rule that no case matches is untested.
#[test]
fn every_rule_has_a_case_and_is_written_as_paths_are_folded() {
    let paths =
        POSITIVES.iter().flat_map(|(_, paths)| paths.split(' ')).map(|path| Rel::parse(path.as_bytes()).unwrap());
    let met: Vec<&str> = paths.flat_map(|path| rules_for(&path).collect::<Vec<_>>()).map(|rule| rule.pattern).collect();
    for rule in RULES.iter() {
        assert!(met.contains(&rule.pattern), "no case for {}", rule.pattern);
        assert_eq!(rule.pattern, rule.pattern.to_lowercase(), "paths are compared in lower case");
        for pattern in spelled_out(rule.pattern) {
            assert!(!pattern.contains(['{', '}', ',']), "{pattern} of {}", rule.pattern);
            GlobBuilder::new(&pattern).literal_separator(true).build().expect(rule.pattern);
        }
    }
}

#[test]
fn alternatives_are_spelled_out() {
    assert_eq!(spelled_out("a"), ["a"]);
    assert_eq!(spelled_out("{a,b}.y{a,}ml"), ["a.yaml", "a.yml", "b.yaml", "b.yml"]);
    assert_eq!(spelled_out("{,x/{y,z}/}w"), ["w", "x/y/w", "x/z/w"]);
}
