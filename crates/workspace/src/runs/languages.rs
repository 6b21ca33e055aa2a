//! Package managers and build tools of single languages: scripts of install, build and test, and package sources.

use super::{RunCondition, RunsRule, rule, rule_except, rule_when};

const COMPOSER_KEYS: RunCondition = RunCondition::Keys(&[
    "scripts",
    "bin",
    "autoload",
    "autoload-dev",
    "config",
    "repositories",
    "extra",
    "minimum-stability",
]);

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    // Rust.
    rule("**/build.rs", "build script"),
    rule("**/.cargo/**", "cargo settings"),
    rule_when("**/cargo.toml", "build settings of a crate",
        RunCondition::Words(&["build", "patch", "replace", "links", "proc-macro", "proc_macro", "runner", "linker", "\\"])),
    rule("**/{makefile,trunk,dioxus,tauri,cross,bacon,cargo-generate,dist-workspace,nextest}.toml", "task settings"),
    rule("**/tauri{.*,}.conf.json{5,}", "task settings"),
    // Go.
    rule_when("**/go.mod", "where packages come from", RunCondition::Words(&["replace", "=>", "toolchain", "tool ", "godebug"])),
    rule("**/{go.work,magefile.go,magefiles/**}", "build script"),
    rule("**/{.ko,buf,buf.gen,buf.work,buf.gen.*,sqlc}.{yaml,yml,json}", "settings that name programs"),
    // Python.
    rule("**/{setup.{py,cfg},hatch_build.py,pavement.py,bootstrap-buildout.py,buildout.cfg}", "build script"),
    rule_when("**/pyproject.toml", "build settings of a package", RunCondition::Outside(&["project", "project.urls", "project.optional-dependencies", "dependency-groups"])),
    rule("**/{conftest,noxfile,fabfile,dodo,duties}.py", "test or task script"),
    // Applications have modules of these names in every directory; tools look at the top.
    rule("{tasks,conf,pelicanconf,publishconf}.py", "test or task script"),
    rule("**/{features,behave}/environment.py", "test or task script"),
    rule("**/{fabric,invoke}.{yml,yaml,json,py}", "test or task settings"),
    rule("**/{tox.ini,{.,}pytest.{ini,toml},.stestr.conf,.testr.conf,.noserc,nose.cfg,unittest.cfg,behave.ini,.behaverc,robot.toml}", "test or task settings"),
    rule("**/{pip.{conf,ini},uv.toml,poetry.toml,{.,}pdm.toml,.pdm-python,hatch.toml,pixi.toml,.pixi/**,.condarc,.pypirc}", "package manager settings"),
    rule("**/{anaconda-project,conda-project}.y{a,}ml", "package manager settings"),
    rule_when("**/*requirements*.{txt,in}", "where packages come from", RunCondition::Words(&["--", "-i", "-e", "-f", "-r", "-c", "://", "@", "\\"])),
    rule_when("**/*constraints*.txt", "where packages come from", RunCondition::Words(&["--", "-i", "-e", "-f", "-r", "-c", "://", "@", "\\"])),
    rule("**/environment{.*,-*,}.y{a,}ml", "where packages come from"),
    rule_when("**/pipfile", "where packages come from", RunCondition::Outside(&["packages", "dev-packages"])),
    rule("**/doc{s,}/**/conf.py", "build script"),
    // Ruby.
    rule("**/{rake,gem,guard,cap,thor,brew,steep,build,mint,cart,appraisal}file{.rb,.private,}", "build script"),
    rule("**/{gems.rb,appraisals,config.ru,.foreman,.autotest,.simplecov,.yardopts,.rdoc_options}", "build script"),
    rule_except("**/gemfile.*", "build script", &[".lock"]),
    rule("**/*.{rake,gemspec,gemfile,thor}", "build script"),
    rule("**/config/deploy{.rb,/**}", "build script"),
    rule("**/.bundle/**", "package manager settings"),
    rule("**/cpanfile{.*,}", "build script"),
    // PHP.
    rule_when("**/composer.json", "package scripts", COMPOSER_KEYS),
    rule("auth.json", "package manager settings"),
    rule("**/{robofile,deploy,castor,rector,ecs,phinx,envoy.blade,.phpstorm.meta,kahlan-config}.php", "build script"),
    rule("**/_plugins/**/*.rb", "build script"),
    // JVM.
    rule("**/{*.gradle{.kts,},gradle.properties,local.properties,gradle/**,buildsrc/**,build-logic/**}", "build script"),
    rule("**/{gradlew,mvnw,sbt,mill,lein,boot,bazelisk}{.bat,.cmd,}", "build script"),
    rule("**/{pom.xml,.mvn/**,ivy.xml,ivysettings.xml,maven-settings.xml}", "build script"),
    rule("**/{build.{xml,sbt,sc,mill,kts},*.sbt,*.mill,project/*.{scala,sbt,properties}}", "build script"),
    rule("**/{project.clj,profiles.clj,build.clj,build.boot,boot.properties,deps.edn,bb.edn,.nrepl.edn,.lein*}", "build script"),
    rule("**/.{sbtopts,sbtrc,jvmopts,mill-jvm-opts,mill-opts,java-opts,scalafix.conf,scalafmt.conf,scala-build/**,jbang/**}", "settings that name programs"),
    rule("**/{jbang-catalog.json,*.main.kts}", "build script"),
    rule("**/meta-inf/services/javax.annotation.processing.processor", "build script"),
    // .NET: MSBuild runs tasks of every project, props and targets file that it finds on its way up.
    rule("**/*.{sln,slnx,slnf,csproj,fsproj,vbproj,vcxproj,vcproj,sqlproj,wixproj,njsproj,pyproj,esproj,shproj,projitems,proj,props,targets,tasks,nuspec,pubxml,ruleset,runsettings}", "build script"),
    rule("**/*.{csproj,fsproj,vbproj,vcxproj}.user", "build script"),
    rule("**/{directory.build,msbuild}.rsp", "build script"),
    rule("**/*.{cake,csx,tt,t4}", "build script"),
    rule("**/{.config/,}dotnet-tools.json", "package manager settings"),
    rule("**/{nuget.config,packages.config,paket.dependencies,paket.references,.paket/**,.nuget/**,.nuke/**}", "package manager settings"),
    rule("**/{launchsettings.json,build.fsx,psakefile.ps1,*.build.ps1,.globalconfig}", "task settings"),
    // Erlang and Elixir evaluate settings.
    rule("**/{mix.exs,rebar.config{.script,},elvis.config,sys.config{.src,},vm.args{.eex,.src,}}", "build script"),
    rule("**/{.formatter,.credo,.iex,.dialyzer_ignore,.doctor,.sobelow-conf,config/*,rel/env*}.exs", "build script"),
    // Haskell and OCaml.
    rule("**/{setup.{hs,lhs},shakefile.{hs,lhs},stack{.*,}.yaml,*.cabal,cabal.project{.*,}}", "build script"),
    rule("**/{dune,dune.inc,dune-project,dune-workspace{.*,},*.opam,opam,myocamlbuild.ml,setup.ml,_oasis,_tags,omakefile,omakeroot}", "build script"),
    // Apple.
    rule("**/{package{@*,}.swift,project.swift,workspace.swift,tuist/*,tuist/projectdescriptionhelpers/**,.swiftpm/**,project.yml,swiftgen.yml,.sourcery.yml}", "build script"),
    rule("**/{pod,fast,app,match,deliver,gym,scan,snap,plugin,danger}file{.swift,.rb,}", "build script"),
    rule("**/dangerfile.{js,ts,kts,py}", "build script"),
    rule("**/{fastlane/*file,fastlane/actions/**,*.podspec{.json,}}", "build script"),
    rule("**/*.{xcodeproj,xcworkspace,playground}/**", "build script"),
    rule("**/*.xcconfig", "build script"),
    // Dart.
    rule("**/{hook/{build,link}.dart,{build,melos,pubspec_overrides,analysis_options}.yaml}", "build script"),
    // Further languages.
    rule("**/{build.zig,build.zig.zon,*.nimble,config.nims,nim.cfg,*.nim.cfg,*.nims,shard{.override,}.yml,dub.{json,sdl,selections.json},*.vsh}", "build script"),
    rule("**/{makefile.pl,build.pl,dist.ini,minil.toml,meta6.json,build.rakumod}", "build script"),
    rule("**/{*.rockspec,.luarocks/**,.busted,.luacov,config.ld,wally.toml}", "build script"),
    rule("**/{deps/build.jl,docs/make.jl,localpreferences.toml}", "build script"),
    rule("**/{_targets.r,_quarto.y{a,}ml,_bookdown.yml,*.rproj,makevars{.win,.ucrt,.in,},cleanup{.win,.ucrt,}}", "build script"),
    rule("**/{*.asd,eldev,cask,eask,pkgindex.tcl,pkg_add,pkg_del,haxelib.json,*.hxml}", "build script"),
    rule("**/{conanfile.{py,txt},conandata.yml,.conan/**,.conan2/**,vcpkg-configuration.json,vcpkg.json}", "build script"),
    rule("**/{platformio.ini,west.yml,.west/**,zephyr/module.yml,idf_component.yml}", "build script"),
];
