//! Files that a desktop, a file manager or the system starts: units, launchers, scheduled jobs, shortcuts.

use super::{RunsRule, rule, rule_except};

#[rustfmt::skip]
pub const RULES: &[RunsRule] = &[
    rule("**/*.{service,timer,socket,mount,automount,path,slice,swap}", "systemd unit"),
    rule("**/*.{container,kube,quadlet}", "systemd unit"),
    rule("**/*.desktop", "desktop launcher"),
    rule("**/{.directory,.diricon,apprun}", "desktop launcher"),
    // An application's own Info.plist describes it; the others are what launchd and defaults read.
    rule_except("**/*.plist", "launch agent", &["info.plist"]),
    rule("**/*.{command,scpt,workflow}", "desktop launcher"),
    rule("**/*.{scptd,workflow,app}/**", "desktop launcher"),
    rule("**/{crontab,anacrontab,*.crontab,*.cron}", "cron table"),
    rule("**/cron.{d,daily,hourly,weekly,monthly}/**", "cron table"),
    rule("**/{init.d,rc.d,rc.local,udev,rules.d,sudoers,sudoers.d,modprobe.d,modules-load.d,tmpfiles.d,sysusers.d,binfmt.d,logrotate.d,ld.so.preload,ld.so.conf}{/**,}", "system settings"),
    rule("**/*.{reg,pkla}", "system settings"),
    // Explorer obeys these when it shows the directory, or on a double click that looks like opening a document.
    rule("**/{autorun.inf,desktop.ini,thumbs.db.lnk}", "desktop launcher"),
    rule("**/*.{lnk,scf,url,pif,scr,hta,cpl,msc,library-ms,search-ms,searchconnector-ms,settingcontent-ms,appref-ms}", "desktop launcher"),
    // Documents whose macros an office program offers to run.
    rule("**/*.{docm,dotm,xlsm,xlam,xltm,pptm,potm,ppsm,ppam}", "document with macros"),
    // Machines that are set up from a file.
    rule("**/{user-data,cloud-config.y{a,}ml,cloud-init.y{a,}ml,preseed.cfg,autounattend.xml,unattend.xml}", "machine set-up"),
    rule("**/*.{ks,ign,bu}", "machine set-up"),
];
