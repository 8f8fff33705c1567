# shellcheck shell=bash
# Starting and killing the hosts. A host is a set of namespaces; its life is that of their pid 1.

hosts() { # all of this cluster, controller first
    local i
    echo ctl
    echo login
    for ((i = 1; i <= $(cat "$STATE/nodes"); i++)); do echo "n$i"; done
}

need_host() { # VERB HOST
    [ $# -eq 2 ] || bad "$1 needs one host"
    [ -d "$STATE/hosts" ] || die "the cluster is not up; run: sandbox/cluster up"
    [[ $2 =~ ^[a-z0-9]+$ && -d $STATE/hosts/$2 ]] || bad "$1: no host '$2' in this cluster (have: $(hosts | paste -sd' '))"
}

# Uptime is the only clock that tells hosts apart. At first they look as if they had been up for different, long
# times; after a power cut a host starts from zero like a real one.
clock_offset() {
    local host=$1 up
    if [ -e "$STATE/hosts/$host/failed" ]; then
        read -r up _ </proc/uptime
        echo $((1 - ${up%.*}))
        return
    fi
    case $host in
    ctl) echo 1000000 ;;
    login) echo 1100000 ;;
    n*) echo $((${host#n} * 100000)) ;;
    esac
}

host_boot() {
    local host=$1 dir=$STATE/hosts/$1 began=$EPOCHSECONDS offset starter pid address layers
    mkdir -p "$dir"
    if [ -e "$dir/failed" ]; then declare_dead "$host"; fi
    cgroup_create "$host"
    link_remove "$host"
    offset=$(clock_offset "$host") address=$(address_of "$host") layers=$(cat "$STATE/layers")
    setsid unshare --mount --uts --ipc --net --time --monotonic "$offset" --boottime "$offset" --pid --fork \
        "$HERE/node/boot" "$host" "$address" "$SWITCH" "$STATE" "$DATA" "$layers" \
        </dev/null >"$dir/console" 2>&1 {LOCK}>&- &
    starter=$!
    pid=
    until [ -n "$pid" ]; do
        [ -d "/proc/$starter" ] || die "$host did not start: $(tail -1 "$dir/console")"
        read -r pid _ 2>/dev/null <"/proc/$starter/task/$starter/children"
    done
    echo "$pid $(readlink "/proc/$starter/ns/pid_for_children")" >"$dir/pid"
    # On a busy machine its daemons may have started before this.
    touch --date="@$began" "$dir/pid"
    rm -f "$dir/failed"
}

host_started() {
    pid_of "$1" || die "$1 died while starting: $(tail -1 "$STATE/hosts/$1/console")"
    [ -e "/proc/$PID/root/run/sandbox/started" ]
}

# All at once, as when the power goes: the cable first, so that no dying process can say goodbye.
host_kill() {
    local host=$1 mntns
    link_down "$host"
    if pid_of "$host"; then
        mntns=$(readlink "/proc/$PID/ns/mnt")
        kill -KILL "$PID"
        cgroup_thaw "$host"
        await 120 "processes of $host still there" gone "$PID"
        await 120 "something still holds the mounts of $host" unused "$mntns"
    fi
    await 120 "cgroups of $host still in use" cgroup_remove "$host"
    link_remove "$host"
    rm -f "$STATE/hosts/$host/pid"
}

gone() { [ ! -e "/proc/$1/ns/pid" ] || [ -z "$(readlink "/proc/$1/ns/pid" 2>/dev/null)" ]; }

# No process left with this mount namespace: its file systems are unmounted.
unused() { ! readlink /proc/[0-9]*/ns/mnt 2>/dev/null | grep -qxF "$1"; }

# Slurm's word for the state of a node, such as idle, mixed, down*
slurm_state() { in_host sinfo --noheader --Node --nodes "$1" --format %T | head -1; }

# The start of the host is the modification time of its pid file.
registered() {
    local start
    start=$(in_host scontrol show node "$1" | sed -n 's/.*SlurmdStartTime=\([^ ]*\).*/\1/p')
    [ "$(date -u -d "$start" +%s 2>/dev/null || echo 0)" -ge "$(stat -c %Y "$STATE/hosts/$1/pid")" ]
}

# A host here boots in less than a second, faster than Slurm notices that it was gone; Slurm would then believe
# for minutes that its jobs still run. Do what SlurmdTimeout would have done: node down, jobs NODE_FAIL.
declare_dead() {
    case $1 in n*) ;; *) return ;; esac
    [[ $(slurm_state "$1") == down* ]] || in_host scontrol update nodename="$1" state=down reason="power cut"
}

in_host() { "$HERE/cluster" run --user root --node ctl -- "$@" 2>/dev/null; }

# The controller has heard of the slurmd that runs now, and would give it a job.
usable() {
    registered "$1" || return 1
    case $(slurm_state "$1") in
    idle | mixed | allocated | completing) return 0 ;;
    down | drained) in_host scontrol update nodename="$1" state=resume ;;
    esac
    return 1
}
