//! Settings of tools in general: credentials and hosts, and catch-alls for names that only tools use. Last, so that a rule that
//! knows the tool gives the reason.

use super::{RunsRule, rule, rule_except};

/// Lists of names to leave out, which start no program whatever their contents.
const HARMLESS_RC: &[&str] = &[".browserslistrc"];

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule("**/.{netrc,authinfo,curlrc,wgetrc,s3cfg,boto,mailcap,forward,procmailrc,lessfilter,lesskey,taskrc}", "settings of a tool"),
    rule("**/_netrc", "settings of a tool"),
    rule("**/.ssh/**", "ssh settings"),
    rule("**/.gnupg/**", "gpg settings"),
    rule("**/.config/**", "settings of a tool"),
    // `.NAMErc` is where tools keep settings, and a hidden script is there for a tool to load.
    rule_except("**/.*rc", "settings of a tool", HARMLESS_RC),
    rule("**/.*rc.{json,json5,yml,yaml,toml,js,cjs,mjs,ts}", "settings of a tool"),
    rule("**/.*.{js,cjs,mjs,ts,cts,mts,py,rb,lua,php,exs,el,sh,bash,zsh,fish,pl,jl,kts,groovy,vim,ps1,bat,cmd}", "hidden script"),
];
