# shellcheck shell=bash
# `cluster run`: tests call this hundreds of times, so it starts no process that it does not need.

run_in_host() {
    local user=alice host=login path=/usr/local/bin:/usr/bin:/bin home hierarchy fd
    while [ $# -gt 0 ]; do
        case $1 in
        --user) [ $# -ge 2 ] || bad "--user needs a name"; user=$2; shift 2 ;;
        --node) [ $# -ge 2 ] || bad "--node needs a host"; host=$2; shift 2 ;;
        --user=*) user=${1#*=}; shift ;;
        --node=*) host=${1#*=}; shift ;;
        --) shift; break ;;
        -*) bad "run: unknown option '$1'" ;;
        *) break ;;
        esac
    done
    [ $# -gt 0 ] || bad "run: a command is missing"
    [ -d "$STATE/hosts" ] || die "the cluster is not up; run: sandbox/cluster up"
    [ -d "$STATE/hosts/$host" ] || bad "run: no host '$host' in this cluster"
    pid_of "$host" || die "$host is not running; run: sandbox/cluster start $host"

    home=/home/$user
    if [ "$user" = root ]; then
        home=/root path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    fi
    # A fresh login has three descriptors; what the caller had open stays outside.
    for fd in /proc/self/fd/*; do
        fd=${fd##*/}
        if [ "$fd" -gt 2 ] && [ "$fd" -lt 255 ]; then exec {fd}>&-; fi
    done
    # The command belongs to the host's cgroups, like everything else on it.
    while read -r hierarchy; do
        echo 0 >"$hierarchy/cgroup.procs"
    done <"$STATE/hosts/$host/cgroups"
    exec nsenter -t "$PID" -m -u -i -n -p -C -T \
        setpriv --reuid "$user" --regid "$user" --init-groups --pdeathsig TERM \
        env -i -C "$home" HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/bash PATH="$path" \
        LANG=C.UTF-8 TERM="${TERM:-dumb}" "$@"
}
