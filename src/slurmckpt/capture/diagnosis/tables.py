"""What CRIU's errors mean, for a user.

Pattern -> sentence. The groups of the pattern fill in {0}, {1} ..., the named group `pid` says whose error it is. {who}
is the process, as far as it is known, {needs} who needs a file, {line} the error itself. The first pattern that fits an
error counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Table = Sequence[tuple[re.Pattern[str], str]]

# Said in runs that succeed, or only that it failed.
HARMLESS = re.compile(
    r"rlimit: Can't setup RLIMIT_NOFILE for self"
    r"|(?:Dumping|Pre-dumping|Restoring) FAILED\."
    r"|cuda-checkpoint|cuda_plugin"
    r"|cg: cgroupd: recv req error"
    r"|CRIU was built without libnftables support"
)

# Said because of an error before; told only when there is no other.
CONSEQUENCE = re.compile(
    r"\d+ (?:exited, status=|killed by signal )\d+"
    r"|with parasite|Can't cure \(pid: \d+\)"
    r"|(?:Dump (?:core|files|mappings|fs)|Collect mappings) \(pid: \d+\) failed"
    r"|Failed to wait (?:for|on) helpers"
    # A process that ended just then, whom CRIU forgets; or that somebody else traces, which is then all it says.
    r"|Unseizable non-zombie \d+ found"
)

# Of a process that ends, begins, or is just connected with: a moment later the same dump succeeds.
MOMENT = re.compile(
    r"In-flight connection|[Nn]on-empty write queue on an in-flight"
    r"|[Ii]ndividually stopped threads|Zombies? (?:with )?threads? (?:is |are )?not supported|Zombie with children"
    r"|zombie \d+ \(comm .*\) found while seizing|A root task is dead"
    r"|Unable to detach from \d+: No such process|Task pid reused while suspending|task not stopped after seize"
)


def _table(*rows: tuple[str, str]) -> Table:
    return [(re.compile(pattern), sentence) for pattern, sentence in rows]


COMMON = _table(
    (
        r"No space left on device",
        "the staging disk is full: free some space, or let staging.path point to a larger disk",
    ),
    (
        r"Cannot allocate memory|Can't allocate memory|[Oo]ut of memory",
        "there is not enough memory for CRIU beside the job: ask for more memory, or set no ulimit -v or -d",
    ),
    (
        r"[Cc]an't get rlimit (\d+)",
        "root may not read the limits of the job's processes (no CAP_SYS_RESOURCE): set capture.real_id to auto",
    ),
    (
        r"vdso|vDSO",
        "this CRIU does not know the vdso of the running kernel: install a newer CRIU",
    ),
    (
        r"Can't get (\d+:\d+) opt",
        "this CRIU does not know a socket option of the running kernel ({0}): install CRIU 4.2 or newer",
    ),
    (
        r"(?:kerndat|kdat)",
        "CRIU could not examine the kernel: run `criu check` once as root on this node",
    ),
)

DUMP = _table(
    (
        # The ring cannot be handed over as a descriptor, from Linux 6.7 on.
        r"\[io_uring\]|send_fds failed",
        "{who} uses io_uring, which cannot be captured: set USE_LIBUV=0 for PyTorch, or let slurmckpt deny it"
        ' (capture.io_uring = "deny")',
    ),
    (
        r"Can't handle non-regular mapping on (?P<pid>\d+)'s map",
        "{who} has a device mapped, as InfiniBand does: set NCCL_IB_DISABLE=1 so that the ranks talk over TCP",
    ),
    (
        r"Can't dump file \d+ of that type \[\d+\] \(chr 10:229\)",
        "{who} serves a FUSE file system, which cannot be captured: unmount it before a checkpoint",
    ),
    (
        r"Net namespace is required to dump tun link",
        "{who} has a network device of its own (/dev/net/tun), which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Can't dump file (\d+) of that type \[\d+\] \(chr (\d+:\d+)\)",
        "{who} has a device (number {1}) open as descriptor {0}, which cannot be captured:"
        " close it before a checkpoint",
    ),
    (
        r"Can't dump file (\d+) of that type \[\d+\] \(\w+ (.*)\)",
        "{who} has descriptor {0} open ({1}), which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Can't lookup mount=\d+ for fd=-\d+ path=(.*)",
        "{who} runs a program ({0}) that was started outside the pod: start it inside",
    ),
    (
        r"Can't lookup mount=\d+ for fd=(\d+) path=(.*)",
        "{who} holds {1} (descriptor {0}), which was opened outside the pod: close it, or open it in the program",
    ),
    (
        r"Open files on overmounted mounts are not supported yet; mount=\d+ fd=\d+ path=(.*)",
        "{who} holds {0}, over which something else has been mounted since: close it before a checkpoint",
    ),
    (
        r"Can't dump half of stream unix connection. name: (.*); peer name: (.*)",
        "{who} is connected by a unix socket ({1}) to a process outside the pod: do not use that service",
    ),
    (
        r"External socket is used|Can't dump name-less external socket|with unreachable peer|without peer",
        "{who} is connected by a unix socket to one outside the pod: close the connection before a checkpoint",
    ),
    (
        r"In-flight connection \(l\)|In-flight connection on non-listening|[Nn]on-empty write queue on an in-flight",
        "{who} was just making a connection, or being connected with: the next checkpoint will do",
    ),
    (
        r"Unsupported proto 262 ",
        "{who} has a multipath TCP socket open: for a Go program set GODEBUG=multipathtcp=0",
    ),
    (
        r"Unsupported proto (\d+) for socket",
        "{who} has a socket of the IP protocol {0} open, which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Unix socket \d+ not found",
        "{who} has a socket of another network namespace open: close it before a checkpoint",
    ),
    (
        r"Unsupported socket family: (\d+)|Unknown pair family (\d+)|Unknown socket collected \(family (\d+)\)",
        "{who} has a socket of an address family open that cannot be captured: close it before a checkpoint",
    ),
    (
        r"The socket has data to read|netlink socket 0x\w+ ",
        "{who} has a netlink socket in use, which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Connected TCP socket, consider",
        "{who} has a TCP connection and CRIU was not told to keep it: this is a fault of slurmckpt",
    ),
    (
        r"Can't dump ghost file (.*) of (\d+) size, increase limit",
        "{who} has the deleted file {0} of {1} bytes open: delete it later, or raise capture.ghost_limit",
    ),
    (
        r"Can't link remap to (.*): File exists",
        "{who} uses {0}, which was deleted, and a link of an earlier checkpoint is in its way: remove the stale"
        " link_remap.* beside it",
    ),
    (
        r"Can't link remap to (.*): |Can't create link remap for (.*)\. ",
        "{who} uses {0}, a file or directory that was deleted or replaced since and cannot be kept: close it, leave the"
        " directory, or do not delete what is in use",
    ),
    (
        r"Can't dump nested (\w+) namespace for (?P<pid>\d+)",
        "{who} is in a {0} namespace of its own: start it without a container or sandbox inside the job",
    ),
    (
        r"A session leader of (?:zombie process )?(?P<pid>\d+)",
        "the session of {who} was made outside the pod: start it with setsid inside the job",
    ),
    (
        r"Found dangling tty|Found slave peer index|Don't have tty|[Tt]ty .* (?:external|peer)",
        "{who} uses a terminal from outside the pod: run it without a terminal",
    ),
    (
        r"Some file locks are hold by dumping tasks",
        "{who} holds file locks and CRIU was not told to keep them: this is a fault of slurmckpt",
    ),
    (
        r"Unseizable non-zombie (?P<pid>\d+) found",
        "{who} is being traced: detach the debugger or tracer first",
    ),
    (
        r"can't seize task|Unable to seize|[Pp]trace.*Operation not permitted",
        "{who} is being traced, or may not be: detach the debugger or tracer first",
    ),
    (
        r"[Ii]ndividually stopped threads|Zombies? (?:with )?threads? (?:is |are )?not supported",
        "{who} was just ending or being stopped: the next checkpoint will do",
    ),
    (
        r"zombie \d+ \(comm .*\) found while seizing|A root task is dead",
        "the tasks ended while the checkpoint began: the next one will do if the job goes on",
    ),
    (
        r"criu itself is within dumped tree",
        "the checkpoint was started from inside the job: this is a fault of slurmckpt",
    ),
    (
        r"Timeout reached",
        "the dump took longer than capture.timeout: raise it",
    ),
    (
        r"[Ii]ptables configuration failed|Locking network failed",
        "the network could not be locked (iptables is missing): this is a fault of slurmckpt, which should not lock it",
    ),
    (
        r"Unable to freeze cgroup",
        "the processes could not be stopped in time, as one of them waits for a device or a file system: a later"
        " checkpoint will do when that answers",
    ),
    (
        r"seccomp",
        "{who} has a seccomp filter that root may not read here (no CAP_SYS_ADMIN): run the coordinator with all"
        " capabilities",
    ),
    (
        r"map_files.*(?:Permission denied|Operation not permitted)",
        "the memory of {who} may not be read: root needs CAP_CHECKPOINT_RESTORE, and the process must be dumpable",
    ),
    (
        r"has uprobes vma",
        "{who} is being traced with uprobes: stop the tracer first",
    ),
    (
        r"Can't find suitable path for handle|Can't dump that handle",
        "{who} watches a file (inotify) that cannot be found again: it was deleted, or its file system knows no way"
        " back to it: end the watch before a checkpoint",
    ),
    (
        r"secretmem",
        "{who} has secret memory (memfd_secret), which nobody but itself can read: release it before a checkpoint",
    ),
    (
        r"pidfd pid (\d+) is not a part of process tree",
        "{who} holds a descriptor (a pidfd) of process {0}, which is not captured: close it before a checkpoint",
    ),
    (
        r"PIDFD_THREAD",
        "{who} holds a descriptor of a single thread (a pidfd), which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Task (?P<pid>\d+) with SysVIPC shmem map",
        "{who} has System V shared memory of another IPC namespace: start it without a container or sandbox",
    ),
    (
        r"doesn't have a proper root mount",
        "{who} is in a mount namespace of its own: start it without a container or sandbox inside the job",
    ),
    (
        r"Permission denied",
        "CRIU was denied access ({line}): staging must be a local disk that root can write to",
    ),
)

RESTORE = _table(
    (
        r"Can't fork for (\d+): File exists|Pid \d+ do not match expected (\d+)",
        "the process number {0} is in use in the new pod: this is a fault of slurmckpt",
    ),
    (
        r"Can't fork for (\d+): Invalid argument",
        "it has a process {0}, and kernel.pid_max is lower on this node: set it to 4194304",
    ),
    (
        r"Can't chose service_fd_base: (\d+) (\d+)",
        "{who} has descriptors with numbers near {1}, and this node allows {0}: raise the limit of open files of"
        " slurmd (LimitNOFILE)",
    ),
    (
        r"Can't restore sub-task in NS",
        "{who} was in a namespace of its own",
    ),
    (
        r"File /?(.*) has bad size (\d+) \(expect (\d+)\)",
        "the file /{0} has {1} bytes and had {2} at the checkpoint{needs}",
    ),
    (
        r"File /?(.*) has bad mode (0\d+) \(expect (0\d+)\)",
        "the file /{0} has mode {1} and had {2} at the checkpoint{needs}",
    ),
    (
        r"File /?(.*) has bad build-ID",
        "the program or library /{0} was updated since the checkpoint{needs}",
    ),
    (
        r"Build-ID .* could not be obtained for file /?(.*) because",
        "the program or library /{0} cannot be read on this node{needs}",
    ),
    (
        r"Can't open file /?(.*) on restore: (.*)|Can't open file /?(.*): (.*)",
        "the file /{0} cannot be opened on this node ({1}){needs}",
    ),
    (
        r"Can't link (.*) -> /?(.*): ",
        "the file /{1}, which was deleted or replaced after it had been opened, cannot be brought back",
    ),
    (
        r"Can't bind inet socket .*: Cannot assign requested address",
        "a socket is bound to an address of the old node, which this pod does not have",
    ),
    (
        r"Can't bind inet socket .*: Address already in use",
        "a port that the job listens on is in use on this node",
    ),
    (
        r"Can't connect inet socket back",
        "a connection of the job cannot be brought back on this node",
    ),
    (
        r"CPU (?:instruction )?capabilities do not match run time|FPU feature required by image|CPU xfeatures has",
        "this node's CPU lacks features that the job uses: restore on a node with the same CPU",
    ),
    (
        r"No PTY data found|tty",
        "a terminal of the job cannot be brought back: run it without a terminal",
    ),
    (
        r"External socket found in image|FATAL: Peer \d+ unresolved",
        "the image holds a unix socket whose other end was outside the pod",
    ),
    (
        r"[Tt]ime namespaces? (?:are|is) not supported|Unable to set a (?:monotonic|boottime) clock offset",
        "this kernel cannot continue the job's clocks (no time namespaces): restore on a newer kernel",
    ),
    (
        r"(?:[Ii]mage|[Ii]mages?) .*corrupt|Reached EOF unexpectedly|Unknown image format|Magic doesn't match"
        r"|Unexpected EOF on|Read \d+ bytes while \d+ expected from .*\.img",
        "the image is damaged",
    ),
    (
        r"Can't (?:open|read) .*\.img",
        "a file of the image is missing",
    ),
    (
        r"Setting loginuid for",
        "the login uid of the job cannot be set (no CAP_AUDIT_CONTROL)",
    ),
    (
        r"[Cc]group",
        "the cgroups of the job cannot be brought back: this is a fault of slurmckpt, which should not manage them",
    ),
    (
        r"Permission denied",
        "CRIU was denied access ({line})",
    ),
)
