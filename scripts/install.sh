#!/bin/bash
# Installs what `make all` built. Called by `make install`, which passes the directories; by itself
# it takes them from the environment. Everything goes below DESTDIR; the paths inside unit files are
# those without it. Configuration files that are already there are kept.
set -euo pipefail
cd "$(dirname "$0")/.."

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
BUILD=${BUILD:-build}
BINDIR=${BINDIR:-$PREFIX/bin}
LIBEXECDIR=${LIBEXECDIR:-$PREFIX/libexec/trainyard}
DATADIR=${DATADIR:-$PREFIX/share/trainyard}
SYSCONFDIR=${SYSCONFDIR:-/etc}
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
SYSUSERSDIR=${SYSUSERSDIR:-$PREFIX/lib/sysusers.d}
TMPFILESDIR=${TMPFILESDIR:-$PREFIX/lib/tmpfiles.d}

for dir in "$BINDIR" "$LIBEXECDIR" "$DATADIR" "$SYSCONFDIR" "$UNITDIR" "$SYSUSERSDIR" "$TMPFILESDIR"; do
    if [[ $dir != /* || $dir == *[[:space:]\|%\\]* ]]; then
        echo "install: \"$dir\" must be an absolute path without blanks, |, % or \\" >&2
        exit 2
    fi
done
for program in trainyardd trainyard-agent trainyard trainyard-shim trainyard-trainer; do
    if [[ ! -x $BUILD/$program ]]; then
        echo "install: $BUILD/$program is missing; run make first" >&2
        exit 1
    fi
done

# put MODE FILE TARGET: one file, its directories made as needed
put() {
    install -D -m "$1" "$2" "$DESTDIR$3"
    echo "  $DESTDIR$3"
}

# put_filled FILE.in TARGET: with the paths filled in
put_filled() {
    local text
    text=$(sed -e "s|@BINDIR@|$BINDIR|g" -e "s|@SYSCONFDIR@|$SYSCONFDIR|g" \
        -e "s|@LIBEXECDIR@|$LIBEXECDIR|g" -e "s|@DATADIR@|$DATADIR|g" "$1")
    if grep -n '@[A-Z]*DIR@' <<<"$text" >&2; then
        echo "install: $1 has a path that nothing fills" >&2
        exit 1
    fi
    install -D -m 0644 /dev/stdin "$DESTDIR$2" <<<"$text"
    echo "  $DESTDIR$2"
}

# put_config FILE.in TARGET: the same, unless there is one already
put_config() {
    if [[ -e $DESTDIR$2 ]]; then
        echo "  $DESTDIR$2 (kept as it is)"
    else
        put_filled "$1" "$2"
    fi
}

echo "Installing:"
for program in trainyardd trainyard-agent trainyard; do
    put 0755 "$BUILD/$program" "$BINDIR/$program"
done
for program in trainyard-shim trainyard-trainer; do
    put 0755 "$BUILD/$program" "$LIBEXECDIR/$program"
done
if [[ -x $BUILD/trainyard-trainer-cuda ]]; then
    put 0755 "$BUILD/trainyard-trainer-cuda" "$LIBEXECDIR/trainyard-trainer-cuda"
fi
for file in web/*.html web/*.js web/*.css; do
    put 0644 "$file" "$DATADIR/$file"
done
for file in examples/*.json; do
    put 0644 "$file" "$DATADIR/$file"
done
put_filled systemd/trainyardd.service.in "$UNITDIR/trainyardd.service"
put_filled systemd/trainyard-agent.service.in "$UNITDIR/trainyard-agent.service"
put_filled systemd/trainyard.sysusers.in "$SYSUSERSDIR/trainyard.conf"
put_filled systemd/trainyard.tmpfiles.in "$TMPFILESDIR/trainyard.conf"
put_config systemd/trainyardd.conf.in "$SYSCONFDIR/trainyard/trainyardd.conf"
put_config systemd/agent.conf.in "$SYSCONFDIR/trainyard/agent.conf"

if [[ -z $DESTDIR ]]; then
    cat <<MESSAGE
Next, as root:
  systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload
  systemctl enable --now trainyardd          on one machine
  systemctl enable --now trainyard-agent     on every machine that runs jobs
MESSAGE
fi
