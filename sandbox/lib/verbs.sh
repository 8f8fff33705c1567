# shellcheck shell=bash
# shellcheck disable=SC2153
# One function a verb.

# State in /run that a reboot of this machine left behind describes nothing that runs.
forget_state_of_an_earlier_boot() {
    local boot
    boot=$(cat /proc/sys/kernel/random/boot_id)
    if [ -e "$STATE/boot_id" ] && [ "$(cat "$STATE/boot_id")" != "$boot" ]; then rm -rf "$STATE"; fi
}

verb_up() {
    local nodes=2 proctrack=${SLURMCKPT_PROCTRACK:-cgroup} start=$SECONDS host wanted suite
    SUITE=${SLURMCKPT_SUITE:-forky}
    WITH_PROGRAMS=${SLURMCKPT_PROGRAMS:-no}
    while [ $# -gt 0 ]; do
        case $1 in
        --suite | --nodes | --proctrack) [ $# -ge 2 ] || bad "$1 needs a value" ;;&
        --suite) SUITE=$2; shift 2 ;;
        --nodes) nodes=$2; shift 2 ;;
        --proctrack) proctrack=$2; shift 2 ;;
        --programs) WITH_PROGRAMS=yes; shift ;;
        --suite=* | --nodes=* | --proctrack=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
        *) bad "up: unknown argument '$1'" ;;
        esac
    done
    [[ $SUITE =~ ^(forky|trixie)$ ]] || bad "up: --suite (or SLURMCKPT_SUITE) is forky or trixie, not '$SUITE'"
    [[ $WITH_PROGRAMS =~ ^(yes|no)$ ]] || bad "up: SLURMCKPT_PROGRAMS is yes or no, not '$WITH_PROGRAMS'"
    [[ $nodes =~ ^[1-8]$ ]] || bad "up: --nodes is a number from 1 to 8, not '$nodes'"
    [[ $proctrack =~ ^(cgroup|linuxproc)$ ]] || bad "up: --proctrack (or SLURMCKPT_PROCTRACK) is cgroup or linuxproc, not '$proctrack'"

    build_layers
    wanted="$SUITE $nodes $proctrack $LAYERS"
    if [ -d "$STATE/hosts" ] && [ "$(cat "$STATE/wanted" 2>/dev/null)" != "$wanted" ]; then
        say "restarting the cluster: $(what_changed "$nodes" "$proctrack")"
        read -r suite _ 2>/dev/null <"$STATE/wanted"
        stop_all
        # No Slurm reads the state of a newer one. And its jobs have the numbers again that are in the store.
        [ "${suite:-$SUITE}" = "$SUITE" ] || rm -rf "${DATA:?}"/{disks,store}
    fi
    mkdir -p "$STATE/hosts"
    cat /proc/sys/kernel/random/boot_id >"$STATE/boot_id"
    echo "$nodes" >"$STATE/nodes"
    echo "$proctrack" >"$STATE/proctrack"
    echo "$LAYERS" >"$STATE/layers"
    cgroup_hierarchies >"$STATE/hierarchies"
    if [ ! -e "$STATE/wanted" ]; then
        drop_old_products
        write_config
        echo "$wanted" >"$STATE/wanted"
    fi
    switch_create

    local started=()
    for host in $(hosts); do
        pid_of "$host" && continue
        host_boot "$host"
        started+=("$host")
    done
    [ ${#started[@]} -eq 0 ] || say "starting ${started[*]}"
    for host in "${started[@]}"; do await 120 "$host has not started its daemons" host_started "$host"; done
    for host in $(hosts); do
        link_is_up "$host" || link_up "$host"
        case $host in n*) await 240 "$host is not usable" usable "$host" ;; esac
    done
    say "up: $nodes nodes, Debian $SUITE ($((SECONDS - start)) s)"
}

what_changed() {
    local suite nodes proctrack layers
    read -r suite nodes proctrack layers <"$STATE/wanted" || { echo "it was not complete"; return; }
    [ "$suite" = "$SUITE" ] || echo -n "suite $suite -> $SUITE; "
    [ "$nodes" = "$1" ] || echo -n "$nodes -> $1 nodes; "
    [ "$proctrack" = "$2" ] || echo -n "proctrack $proctrack -> $2; "
    [ "$layers" = "$LAYERS" ] || echo -n "the installed software changed"
}

stop_all() {
    local dir
    for dir in "$STATE"/hosts/*/; do
        [ -d "$dir" ] || continue
        dir=${dir%/}
        host_kill "${dir##*/}"
    done
    rm -rf "$STATE"
}

verb_fail() {
    need_host fail "$@"
    pid_of "$1" || die "$1 is already off"
    : >"$STATE/hosts/$1/failed"
    host_kill "$1"
}

verb_cut() {
    need_host cut "$@"
    pid_of "$1" || die "$1 is off"
    link_down "$1"
}

verb_start() {
    local host=${1:-} node
    need_host start "$@"
    if pid_of "$host"; then
        link_up "$host"
    else
        host_boot "$host"
        await 120 "$host has not started its daemons" host_started "$host"
    fi
    case $host in
    ctl) for node in $(hosts); do await 240 "slurmctld does not know $node yet" settled "$node"; done ;;
    n*) await 240 "$host is not usable" usable "$host" ;;
    esac
}

# After a start of the controller: it has heard of this node again, whatever it heard.
settled() {
    local state
    case $1 in n*) ;; *) return 0 ;; esac
    state=$(slurm_state "$1")
    [[ -n $state && $state != unknown* ]]
}

verb_status() {
    local host state
    [ $# -eq 0 ] || bad "status takes no arguments"
    [ -d "$STATE/hosts" ] || { echo "down"; return; }
    for host in $(hosts); do
        if ! pid_of "$host"; then
            state=off
        elif ! link_is_up "$host"; then
            state="running, cut off"
        else
            state=running
        fi
        case $host in n*) state="$state, slurm: $(slurm_state "$host" || echo '?')" ;; esac
        printf '%-6s %-12s %s\n' "$host" "$(address_of "$host")" "$state"
    done
}

verb_down() {
    local purge=
    case $# in
    0) ;;
    *) [ "$*" = --purge ] || bad "down: unknown argument '$*'"; purge=1 ;;
    esac
    stop_all
    switch_remove
    await 60 "cgroups of the sandbox still in use" cgroup_remove
    rm -rf "${DATA:?}"/{disks,home,store,etc,src}
    rmdir "$STATE_ROOT" 2>/dev/null
    [ -z "$purge" ] || purge_cache
    rm -f "$STATE.lock"
    rmdir "$STATE_ROOT" 2>/dev/null
    say "down"
}

purge_cache() {
    local others
    rm -rf "$DATA"
    others=$(ls "$CACHE/sandboxes" 2>/dev/null)
    if [ -n "$others" ]; then
        say "the shared cache stays: it is used by $(echo "$others" | paste -sd' ')"
    else
        rm -rf "$CACHE"
    fi
}
