# shellcheck shell=bash
# Every host has a directory of its own in every cgroup hierarchy of this machine, v1, v2 or both.

# Lines "MOUNTPOINT TYPE OPTIONS" of this machine's hierarchies, options reduced to those that name the hierarchy.
cgroup_hierarchies() {
    local path type options word kept
    while read -r _ path type options _; do
        case $type in cgroup | cgroup2) ;; *) continue ;; esac
        kept=
        for word in ${options//,/ }; do
            case $word in
            rw | ro | nosuid | nodev | noexec | relatime | nsdelegate | favordynmods | memory_*) ;;
            xattr | clone_children | release_agent=*) ;;
            name=*) kept=$kept,none,$word ;;
            *) kept=$kept,$word ;;
            esac
        done
        printf '%s %s %s\n' "$path" "$type" "${kept#,}"
    done </proc/mounts
}

# v1 where Slurm's controllers are bound to v1 hierarchies, otherwise v2.
cgroup_version() {
    if [[ $(cgroup_hierarchies) == *' cgroup '*memory* ]]; then echo v1; else echo v2; fi
}

cgroup_create() {
    local host=$1 path type dir level
    : >"$STATE/hosts/$host/cgroups"
    while read -r path type _; do
        for level in "$CGROUP" "$CGROUP/$host"; do
            dir=$path/$level
            [ "$type" = cgroup2 ] && cgroup_enable_controllers "${dir%/*}"
            mkdir -p "$dir"
            if [ -e "$dir/cpuset.cpus" ] && [ "$type" = cgroup ]; then
                cat "${dir%/*}/cpuset.cpus" >"$dir/cpuset.cpus"
                cat "${dir%/*}/cpuset.mems" >"$dir/cpuset.mems"
            fi
        done
        # In v2 a cgroup that hands controllers down holds no process itself: the host's own live in a leaf.
        if [ "$type" = cgroup2 ] && [ "$(cgroup_version)" = v2 ]; then
            dir=$dir/init
            mkdir -p "$dir"
        fi
        echo "$dir" >>"$STATE/hosts/$host/cgroups"
    done < <(cgroup_hierarchies)
}

cgroup_enable_controllers() {
    local word
    local -a words
    read -ra words <"$1/cgroup.controllers"
    for word in "${words[@]}"; do
        echo "+$word" >"$1/cgroup.subtree_control" 2>/dev/null || :
    done
}

# A frozen v1 cgroup does not even die of SIGKILL.
cgroup_thaw() {
    local dir file
    while read -r dir; do
        while read -r file; do
            case $file in
            */freezer.state) echo THAWED >"$file" ;;
            */cgroup.freeze) echo 0 >"$file" ;;
            esac
        done < <(find "${dir%/init}" -name freezer.state -o -name cgroup.freeze)
    done <"$STATE/hosts/$1/cgroups" 2>/dev/null
}

# Remove the directories of one host, or of the sandbox when no host is named. They must be empty of processes.
cgroup_remove() {
    local path left=0
    while read -r path _; do
        path=$path/$CGROUP${1:+/$1}
        [ -d "$path" ] || continue
        find "$path" -depth -type d -exec rmdir {} \; 2>/dev/null
        [ -d "$path" ] && left=1
    done < <(cgroup_hierarchies)
    return $left
}
