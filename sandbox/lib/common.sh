# shellcheck shell=bash disable=SC2034
# Names, places and messages that every part of the sandbox shares.

NAME=${SLURMCKPT_SANDBOX:-slurmckpt}
STATE_ROOT=/run/slurmckpt-sandbox               # what is running: gone with `down` and with a reboot
STATE=$STATE_ROOT/$NAME
CACHE=${SLURMCKPT_SANDBOX_CACHE:-/var/cache/slurmckpt-sandbox}
DATA=$CACHE/sandboxes/$NAME                     # this sandbox's disks, homes, store and product layer
SWITCH=sandbox-$NAME                            # the network namespace that holds the bridge
CGROUP=slurmckpt-sandbox-$NAME                  # this sandbox's directory in every cgroup hierarchy
SOURCE=$(dirname "$HERE")

say() { printf 'sandbox: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
bad() { say "$*"; exit 2; }

# await SECONDS WHAT COMMAND...: until the command succeeds, or die saying what never came
await() {
    local limit=$1 what=$2 deadline
    shift 2
    deadline=$((SECONDS + limit))
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || die "gave up after $limit s: $what"
        nap
    done
}

# A tenth of a second without starting a process. The descriptor never has anything to read.
nap() {
    [ -n "${NEVER:-}" ] || exec {NEVER}<> <(:)
    read -r -t 0.1 -u "$NEVER" _ || :
}

# Pid 1 of a host as seen from here, only if it is still the process that we started.
# Its file holds "PID PIDNS"; a recycled pid is in another namespace.
pid_of() {
    local pid pidns
    read -r pid pidns 2>/dev/null <"$STATE/hosts/$1/pid" || return 1
    [ "$(readlink "/proc/$pid/ns/pid" 2>/dev/null)" = "$pidns" ] || return 1
    PID=$pid
}
