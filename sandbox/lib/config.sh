# shellcheck shell=bash
# What is the same on all hosts of one sandbox. /etc/slurm and /etc/slurmckpt are shared directories, so a test can
# change a file once and run `scontrol reconfigure`.

write_config() {
    local etc=$DATA/etc
    mkdir -p "$etc/slurm" "$etc/slurmckpt" "$DATA/home" "$DATA/store"
    chmod 1777 "$DATA/store"
    write_homes
    { echo "127.0.0.1 localhost"; for host in $(hosts); do echo "$(address_of "$host") $host"; done; } >"$etc/hosts"
    [ -s "$etc/munge.key" ] || (umask 077 && head -c 128 /dev/urandom >"$etc/munge.key")
    write_slurm_conf >"$etc/slurm/slurm.conf"
    write_cgroup_conf >"$etc/slurm/cgroup.conf"
    write_plugstack_conf >"$etc/slurm/plugstack.conf"
    write_slurmckpt_conf "$etc/slurmckpt"
}

write_homes() {
    local user uid
    for user in alice:1000 bob:1001; do
        uid=${user#*:} user=${user%:*}
        [ -d "$DATA/home/$user" ] && continue
        install -d -m 700 -o "$uid" -g "$uid" "$DATA/home/$user"
    done
}

installed() { # is this file part of the product?
    [[ -n ${PRODUCT:-} && -e $PRODUCT$1 ]]
}

write_slurm_conf() {
    local i n
    n=$(cat "$STATE/nodes")
    cat <<TEXT
ClusterName=$NAME
SlurmctldHost=ctl
SlurmUser=slurm
AuthType=auth/munge
$(auth_info)
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd.%n
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
MailProg=/usr/bin/true
SlurmctldDebug=verbose
SlurmdDebug=verbose

SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
ProctrackType=proctrack/$(cat "$STATE/proctrack")
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
MpiDefault=none
# four CPUs a node, however many this machine has
SlurmdParameters=config_overrides

# quick to notice, quick to go on
SlurmdTimeout=10
SlurmctldTimeout=30
MessageTimeout=6
InactiveLimit=0
KillWait=5
UnkillableStepTimeout=30
MinJobAge=3600
ReturnToService=2
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=$(scheduler_parameters)

PrologFlags=Alloc
TEXT
    if installed /usr/libexec/slurmckpt/prolog; then echo "Prolog=/usr/libexec/slurmckpt/prolog"; fi
    if installed /usr/libexec/slurmckpt/epilog; then echo "Epilog=/usr/libexec/slurmckpt/epilog"; fi
    if installed /usr/libexec/slurmckpt/epilog-slurmctld; then
        echo "EpilogSlurmctld=/usr/libexec/slurmckpt/epilog-slurmctld"
    fi
    echo
    for ((i = 1; i <= n; i++)); do
        echo "NodeName=n$i NodeAddr=$(address_of "n$i") CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4" \
            "ThreadsPerCore=1 RealMemory=9600 State=UNKNOWN"
    done
    echo "PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
}

# A requeued job waits 120 s. Since 25.11 that has a setting of its own; before, it is the life of a credential, which
# must be long enough for a busy machine to start a step in.
auth_info() {
    [ "$SUITE" != trixie ] || echo "AuthInfo=cred_expire=15"
}

scheduler_parameters() {
    local words=sched_interval=5,sched_min_interval=0,bf_interval=5,batch_sched_delay=0
    [ "$SUITE" = trixie ] || words=$words,requeue_delay=2
    echo "$words"
}

write_cgroup_conf() {
    if [ "$(cgroup_version)" = v1 ]; then
        echo "CgroupPlugin=cgroup/v1"
    else
        echo "CgroupPlugin=cgroup/v2"
        echo "IgnoreSystemd=yes"
    fi
    echo "CgroupMountpoint=/sys/fs/cgroup"
    echo "ConstrainRAMSpace=yes"
}

write_plugstack_conf() {
    if installed /usr/lib/slurmckpt/slurmckpt.so; then
        echo "optional /usr/lib/slurmckpt/slurmckpt.so"
    else
        echo "# slurmckpt is not installed"
    fi
}

write_slurmckpt_conf() {
    local dir=$1
    printf '[store]\npath = "/store"\nlease_watch = "2s"\n' >"$dir/slurmckpt.toml"
    if [ ! -s "$dir/site.key" ]; then
        (umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$dir/site.key")
        chmod 400 "$dir/site.key"
    fi
}
