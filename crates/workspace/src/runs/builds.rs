//! Build tools and task runners that serve any language, packaging for distributions, documents that are built.

use super::{RunsRule, SOURCES, rule, rule_except};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule("**/{gnu,bsd,}makefile", "build script"),
    rule_except("**/{gnu,bsd,}makefile.*", "build script", SOURCES),
    rule("**/*.{mk,mak,make}", "build script"),
    rule("**/{kbuild,config.in}", "build script"),
    // `$(shell)` in them runs while menus are drawn.
    rule_except("**/kconfig{.*,}", "build script", SOURCES),
    rule("**/{{.,}justfile,*.just}", "build script"),
    rule("**/{.,}taskfile{.*,_*,}.y{a,}ml", "build script"),
    rule("**/{maskfile.md,toast.yml,sakefile,nukefile,rantfile}", "build script"),
    rule("**/{cmakelists.txt,*.cmake{.in,},cmake{user,}presets.json}", "build script"),
    // Autotools run these from `configure` on.
    rule("**/configure{.ac,.in,.py,.win,.ucrt,.sh,.cmd,.bat,}", "build script"),
    rule("**/{autogen.sh,bootstrap{.sh,},buildconf,*.m4,config.{guess,sub,rpath},ltmain.sh,libtool,install-sh,missing,depcomp,compile,test-driver}", "build script"),
    rule("**/{meson{.build,_options.txt,.options},*.wrap}", "build script"),
    rule("**/*.ninja", "build script"),
    rule("**/{build,workspace,module}{.bazel,.bzlmod,.plz,.pants,}", "build script"),
    rule("**/repo.bazel", "build script"),
    rule("**/{.bazelrc,*.bazelrc,.bazeliskrc,.bazelproject,.buckconfig{.*,},.buckversion,.buckjavaargs,.plzconfig{.*,},.watchmanconfig}", "build script"),
    rule("**/{{.,}pants{.*,}.{toml,rc},.pants.rc,pants-plugins/**}", "build script"),
    rule("**/tools/bazel{.*,}", "build script"),
    rule_except("**/{buck{.v2,},targets{.v2,},snakefile{.*,},*.smk}", "build script", SOURCES),
    rule("**/*.{bzl,bxl,star,starlark}", "build script"),
    rule("**/{sconstruct{.py,},sconscript{.py,},site_scons/**}", "build script"),
    rule("**/{wscript{_build,},waf,xmake.lua,premake{4,5,}.lua,fabricate.py}", "build script"),
    rule("**/*.{gn,gni,gyp,gypi,qbs,jam}", "build script"),
    rule("**/{.gn,.gclient,deps}", "build script"),
    rule("**/jam{root,file,rules}{.v2,.jam,}", "build script"),
    rule("**/*.pr{o,i,f}", "build script"),
    rule("**/{tupfile{.lua,.ini,},tuprules.{tup,lua}}", "build script"),
    rule("**/{android.bp,*.bb,*.bbappend,*.bbclass}", "build script"),
    rule("**/build.{ps1,sh,cmd,bat}", "build script"),
    // Below the top these are modules of the application.
    rule("build.{py,js,mjs,cjs,ts}", "build script"),
    rule("**/{nextflow.config,mlproject,dvc.yaml,.dvc/config{.*,}}", "build script"),
    // File watchers start the commands that these name as soon as a file is saved.
    rule("**/{{.,}air.toml,modd.conf,reflex.conf,lsyncd.conf,.realize.y{a,}ml}", "task settings"),
    // Packages for distributions run as root where they are installed.
    rule("**/debian/{*,{source,patches,tests}/**}", "package build"),
    rule("**/{pkgbuild,apkbuild,portfile,*.spec,*.ebuild,*.eclass,*.install,snapcraft.yaml}", "package build"),
    // Templates of projects.
    rule("**/hooks/{pre,post}_{gen_project,prompt}.*", "build script"),
    rule("**/{copier.y{a,}ml,.copier-answers.yml}", "build script"),
    // Documents: filters, preprocessors and hooks are programs.
    rule("**/{doxyfile{.in,},book.toml,mkdocs{.*,}.y{a,}ml,{.,}latexmkrc,arararc.yaml,.arararc.yaml,tectonic.toml,texmf.cnf,antora-playbook.y{a,}ml}", "build script"),
    rule("**/hugo.{toml,yaml,yml,json}", "build script"),
];
