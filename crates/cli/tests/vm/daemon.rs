//! The units of packaging/ under a live systemd: the system's daemon and a user's.

use crate::machine;

/// An installed unit, with the differences between the two.
struct Unit {
    install: &'static str,
    systemctl: &'static str,
    word: &'static str,
    socket: &'static str,
    cgroup: &'static str,
}

const SYSTEM: Unit = Unit {
    install: "install -m 644 /usr/local/packaging/cofferdam.service /etc/systemd/system/",
    systemctl: "systemctl",
    word: "",
    socket: "/var/lib/cofferdam/cofferdam.sock",
    cgroup: "/system.slice/cofferdam.service",
};

const USER: Unit = Unit {
    install: "as_ann mkdir -p /home/ann/.config/systemd/user && install -o ann -m 644 /usr/local/packaging/cofferdam-user.service /home/ann/.config/systemd/user/cofferdam.service",
    systemctl: "as_ann systemctl --user",
    word: "as_ann",
    socket: "/home/ann/.local/state/cofferdam/cofferdam.sock",
    cgroup: "/user.slice/user-1500.slice/user@1500.service/app.slice/cofferdam.service",
};

fn check(unit: &Unit) {
    let Unit { install, systemctl, word, socket, cgroup } = unit;
    // The two daemons run at the same time.
    let mark = cgroup.replace('/', "-");
    let owner = if word.is_empty() { "" } else { "chown 1500:1500 /srv/served-$$;" };
    let script = format!(
        "exec 2>&1; mkdir /srv/served-$$; {owner} cd /srv/served-$$
        {install} && {systemctl} daemon-reload && {systemctl} enable --now cofferdam || {{ {systemctl} status --no-pager cofferdam; exit 1; }}
        {word} cofferdam serve --check > /dev/null 2>&1; echo while it runs $?
        c() {{ {word} cofferdam --server {socket} \"$@\"; }}
        c create --name kept -m 128m --json > /dev/null || exit 2
        run=$(c exec -d kept -- sh -c 'i=0; : {mark}; while [ ! -e enough ]; do echo line $i; i=$((i+1)); sleep 0.2; done; exit 7') || exit 3
        until_true 'c logs '$run' | grep -q \"line 1\"' || exit 4
        at=$(cut -d: -f3 /proc/$(pgrep -fo '^sh -c i=0; : {mark};')/cgroup)
        case $at in {cgroup}/*) echo below the unit;; *) echo \"elsewhere: $at\";; esac
        cat /sys/fs/cgroup$at/memory.max
        before=$({systemctl} show -p MainPID --value cofferdam)
        {systemctl} restart cofferdam || {{ {systemctl} status --no-pager cofferdam; exit 5; }}
        [ $({systemctl} show -p MainPID --value cofferdam) != $before ] && echo another
        [ $(cat /sys/fs/cgroup$at/memory.max) = 134217728 ] && echo still limited
        n=$(c logs $run | wc -l); until_true '[ $(c logs '$run' | wc -l) -gt '$n' ]' && echo goes on
        c exec kept -- touch enough; c wait $run; echo status $?
        [ \"$(c logs $run | head -n 1)\" = 'line 0' ] && echo from the beginning
        c exec kept -- sh -c 'head -c 200000000 /dev/zero | tail -c 200000000 > /dev/null' > /dev/null 2>&1; echo memory $?
        {systemctl} stop cofferdam; echo stopped $?
        {word} cofferdam serve --check > /dev/null; echo check $?
        {systemctl} show -p Result --value cofferdam
        {word} cofferdam rm --force kept > /dev/null; echo removed $?
        find /sys/fs/cgroup{cgroup} -name 'cofferdam-*run_*' 2> /dev/null | wc -l
        rm -rf /srv/served-$$"
    );
    let said = machine::new().bash(&script).out;
    let expected = [
        "while it runs 125",
        "below the unit",
        "134217728",
        "another",
        "still limited",
        "goes on",
        "status 7",
        "from the beginning",
        "memory 137",
        "stopped 0",
        "check 0",
        "success",
        "removed 0",
        "0",
    ];
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("Created symlink")).collect();
    assert_eq!(lines, expected, "{said}");
}

// promise 25
#[test]
fn the_daemon_of_the_machine_is_restarted_and_loses_nothing() {
    check(&SYSTEM);
}

// promise 25
#[test]
fn a_users_daemon_is_restarted_and_loses_nothing() {
    check(&USER);
}
