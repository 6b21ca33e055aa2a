//! Start-up files of interpreters, debuggers and consoles, which read them from the directory that they are started in or from
//! the environment that they are part of.

use super::{RunsRule, rule};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule("**/{.rprofile{.site,},.renviron,.rdata,.lintr,renv/*,packrat/*}", "start-up file of an interpreter"),
    rule("**/{.ghci,.ghcid,.ocamlinit,.utoprc,.octaverc,.erlang,.guile,.gnuplot,.maxima,.tclshrc,.wishrc,.perldb,startup.m,finish.m}", "start-up file of an interpreter"),
    rule("**/.{irbrc,pryrc,rdbgrc,byebugrc}{.rb,}", "start-up file of an interpreter"),
    rule("**/{.juliarc.jl,startup.jl,.psysh.php,.psysh/**,user.clj{c,},data_readers.clj{c,}}", "start-up file of an interpreter"),
    rule("**/.{sbclrc,clisprc,eclrc,racketrc,gracketrc,swiplrc,plrc,gprc,sagerc,luarc,jshellrc,scalarc}", "start-up file of an interpreter"),
    // Python imports these before the first line of any program, or takes its search path from them.
    rule("**/*.{pth,_pth,egg-link}", "Python start-up file"),
    rule("**/{sitecustomize,usercustomize}{.py,.pyc,/**}", "Python start-up file"),
    rule("**/sitecustomize.pl", "start-up file of an interpreter"),
    rule("**/pyvenv.cfg", "Python start-up file"),
    rule("**/bin/activate*", "Python start-up file"),
    rule("**/scripts/activate{.bat,.ps1,}", "Python start-up file"),
    rule("**/{.pythonrc{.py,},.pythonstartup{.py,},.pdbrc{.py,},.pydistutils.cfg,distutils.cfg,matplotlibrc}", "Python start-up file"),
    rule("**/{jupyter,ipython}*_config.{py,json}", "settings that name programs"),
    rule("**/.{ipython,jupyter,streamlit}/**", "settings that name programs"),
    // Debuggers: gdb also loads scripts that are named for a program beside it.
    rule("**/.{gdbinit,gdbearlyinit,lldbinit,cuda-gdbinit,radare2rc,rizinrc,windbgrc}", "start-up file of a debugger"),
    rule("**/*-gdb.{py,gdb,scm}", "start-up file of a debugger"),
    // PHP and web servers read these in every directory that they serve.
    rule("**/.user.ini", "PHP settings"),
    rule("**/{.,}php{-*,}.ini", "PHP settings"),
    rule("**/{.htaccess,.htpasswd,web.config,caddyfile}", "settings of a web server"),
    // Consoles of frameworks, which people run by name every day.
    rule("**/{artisan,manage.py,wp-cli.y{a,}ml,wp-config.php}", "console of a framework"),
    rule("**/bin/{console,rails,rake,bundle,setup,dev,spring,update,cake}{.php,}", "console of a framework"),
    // Databases' command lines.
    rule("**/.{psqlrc,sqliterc,duckdbrc,redisclirc,usqlrc,my.cnf,mylogin.cnf,pgpass}", "settings of a tool"),
];
