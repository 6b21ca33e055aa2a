//! Editors, language servers and development containers: tasks, servers, formatters and start-up code that the project names.

use super::{RunCondition, RunsRule, rule, rule_when};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule("**/.{vscode,vscode-insiders,vscodium,idea,run,fleet,zed,vs,helix,sublime,atom,lapce,nova,theia,c9,kdev4,codelite,kak,jetbrains,positron}/**", "editor settings"),
    rule("**/*.{code-workspace,run.xml,iml,ipr,iws,kdev4,geany,cbp,creator,creator.user,pro.user,tmproj}", "editor settings"),
    rule("**/*.sublime-{project,workspace,build,commands,settings,keymap,macro,menu}", "editor settings"),
    rule("**/{tasks,launch}.vs.json", "editor settings"),
    rule("**/{.vsconfig,cppproperties.json,cmakesettings.json,omnisharp.json}", "editor settings"),
    rule("**/.vscode-test.*", "editor settings"),
    // Eclipse and NetBeans run the builders and scripts that these name.
    rule("**/{.project,.cproject,.classpath,.factorypath,.settings/**,.externaltoolbuilders/**,*.launch}", "editor settings"),
    rule("**/{nbproject/**,nbactions*.xml}", "editor settings"),
    // vim sources a session and, with `exrc`, these; emacs evaluates directory variables.
    rule("**/{.,_}{exrc,vimrc,nvimrc,gvimrc,lvimrc,vimrc.local,ideavimrc}", "editor settings"),
    rule("**/{session.vim,.session.vim,.nvim.lua,.lazy.lua,.local.vimrc,.vimspector.json,.projections.json,coc-settings.json,.netrwhist}", "editor settings"),
    rule("**/.{vim,nvim,nlsp-settings,emacs.d,spacemacs.d,doom.d}/**", "editor settings"),
    rule("**/{.emacs,.spacemacs,.dir-locals{-2,}.el,.projectile,.kakrc,kakrc,.nanorc,.tern-project,.tern-config}", "editor settings"),
    rule("**/.kate{project{,.build,.d/**},config}", "editor settings"),
    rule("**/.{tm_properties,neoconf.json}", "editor settings"),
    // Language servers: which compiler, plug-in or build server they start.
    rule("**/{.ycm_extra_conf.py,.luarc.json{c,},.solargraph.yml,.clangd,.ccls,compile_flags.txt,compile_commands.json,.merlin,hie.yaml,rust-project.json,{.,}rust-analyzer.toml}", "settings of a language server"),
    rule("**/.{sourcekit-lsp,ruby-lsp,lsp,bsp,bloop,metals,elixir_ls,lexical,clj-kondo}/**", "settings of a language server"),
    rule("**/.ruby-lsp.yml", "settings of a language server"),
    rule_when("**/{ts,js}config{.*,}.json", "plug-ins of a language server",
        RunCondition::Words(&["plugin", "ts-node", "require", "transform", "extends", "\"name\"", "\\"])),
    // Development environments that are built and started from the tree.
    rule("**/{.,}devcontainer.json", "development container"),
    rule("**/.{devcontainer,gitpod,ona,idx,codesandbox,okteto,ddev,docksal}/**", "development container"),
    rule("**/.gitpod.{yml,yaml,dockerfile}", "development container"),
    rule("**/{.replit,.glitch,.stackblitzrc,.lando{.*,}.yml}", "development container"),
    rule("**/{.,}devfile.y{a,}ml", "development container"),
    // Game and design editors run code of a project as soon as it is opened.
    rule("**/{project.godot,addons/*/plugin.cfg,*.uproject,*.uplugin}", "editor settings"),
    rule("**/{assets/**/editor/**/*.cs,projectsettings/**,packages/manifest.json}", "editor settings"),
    // Terminal multiplexers start the commands of a layout.
    rule("**/{.tmux.conf,.screenrc,.tmuxinator.y{a,}ml,.tmuxp.{yaml,json,py},.teamocil.yml,.zellij/**}", "terminal layout"),
];
