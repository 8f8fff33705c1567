"""CRIU's log in one sentence for a user. The log itself, kept beside the image, is for developers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmckpt.errors import one_line

LOG_TAIL = 256 * 1024
_QUOTED = 300

# `(00.012345)   100: Error (criu/files.c:93): text`: time and, at a restore, pid of the task come first (CRIU's log.c).
_ERROR = re.compile(r"^(?:\(\d+\.\d+\))?\s*(?:pie:)?\s*(?:-?\d+:)?\s*Error \([^()\n]*:\d+\): (.*)$", re.MULTILINE)

# Said in runs that succeed, or only that it failed.
_HARMLESS = re.compile(
    r"rlimit: Can't setup RLIMIT_NOFILE for self"
    r"|(?:Dumping|Pre-dumping|Restoring) FAILED\."
    r"|cuda-checkpoint|cuda_plugin"
    r"|cg: cgroupd: recv req error"
    r"|CRIU was built without libnftables support"
)

# Said because of an error before; told only when there is no other.
_CONSEQUENCE = re.compile(
    r"\d+ (?:exited, status=|killed by signal )\d+"
    r"|with parasite|Can't cure \(pid: \d+\)"
    r"|Dump (?:core|files|mappings|fs) \(pid: \d+\) failed"
    r"|Failed to wait (?:for|on) helpers"
)

# Pattern -> sentence. Groups of the pattern fill in the braces. The first pattern that fits an error counts.
_Table = Sequence[tuple[re.Pattern[str], str]]


def _table(*rows: tuple[str, str]) -> _Table:
    return [(re.compile(pattern), sentence) for pattern, sentence in rows]


_COMMON = _table(
    (
        r"No space left on device",
        "the staging disk is full: free some space, or let staging.path point to a larger disk",
    ),
    (
        r"Cannot allocate memory|Can't allocate memory|[Oo]ut of memory",
        "there is not enough memory for CRIU beside the job: ask for more memory",
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

_DUMP = _table(
    (
        r"\[io_uring\]",
        "a process uses io_uring, which cannot be captured: set USE_LIBUV=0 for PyTorch, or let slurmckpt deny it"
        ' (capture.io_uring = "deny")',
    ),
    (
        r"Can't handle non-regular mapping on (\d+)'s map",
        "process {0} has a device mapped, as InfiniBand does: set NCCL_IB_DISABLE=1 so that the ranks talk over TCP",
    ),
    (
        r"Can't dump file (\d+) of that type \[\d+\] \(chr (\d+:\d+)\)",
        "a process has a device (number {1}) open as descriptor {0}, which cannot be captured:"
        " close it before a checkpoint",
    ),
    (
        r"Can't dump file (\d+) of that type \[\d+\] \(\w+ (.*)\)",
        "a process has descriptor {0} open ({1}), which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Can't lookup mount=\d+ for fd=-\d+ path=(.*)",
        "a process runs a program ({0}) that was started outside the pod: start it inside",
    ),
    (
        r"Can't lookup mount=\d+ for fd=(\d+) path=(.*)",
        "a process holds {1} (descriptor {0}), which was opened outside the pod: close it, or open it in the program",
    ),
    (
        r"Open files on overmounted mounts are not supported yet; mount=\d+ fd=\d+ path=(.*)",
        "a process holds {0}, over which something else has been mounted since: close it before a checkpoint",
    ),
    (
        r"Can't dump half of stream unix connection. name: (.*); peer name: (.*)",
        "a process is connected by a unix socket ({1}) to a process outside the pod: do not use that service",
    ),
    (
        r"External socket is used|Can't dump name-less external socket|with unreachable peer|without peer",
        "a process is connected by a unix socket to one outside the pod: close the connection before a checkpoint",
    ),
    (
        r"In-flight connection \(l\)|In-flight connection on non-listening|[Nn]on-empty write queue on an in-flight",
        "a connection was just being made: the next checkpoint will do",
    ),
    (
        r"Unsupported proto 262 ",
        "a process has a multipath TCP socket open: for a Go program set GODEBUG=multipathtcp=0",
    ),
    (
        r"Unsupported proto (\d+) for socket",
        "a process has a socket of the IP protocol {0} open, which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Unsupported socket family: (\d+)|Unknown pair family (\d+)",
        "a process has a socket of an address family open that cannot be captured: close it before a checkpoint",
    ),
    (
        r"The socket has data to read|netlink socket 0x\w+ ",
        "a process has a netlink socket in use, which cannot be captured: close it before a checkpoint",
    ),
    (
        r"Connected TCP socket, consider",
        "a process has a TCP connection and CRIU was not told to keep it: this is a fault of slurmckpt",
    ),
    (
        r"Can't dump ghost file (.*) of (\d+) size, increase limit",
        "the deleted file {0} of {1} bytes is still open: delete it later, or raise capture.ghost_limit",
    ),
    (
        r"Can't link remap to (.*): File exists",
        "a link of an earlier checkpoint is in the way of the file {0}: remove the stale link_remap.* beside it",
    ),
    (
        r"Can't link remap to (.*): |Can't create link remap for (.*)\. ",
        "the file {0} has been deleted or replaced while it is open, and cannot be kept: do not replace open files",
    ),
    (
        r"Can't dump nested (\w+) namespace for (\d+)",
        "process {1} is in a {0} namespace of its own: start it without a container or sandbox inside the job",
    ),
    (
        r"A session leader of (?:zombie process )?(\d+)",
        "the session of process {0} was made outside the pod: start it with setsid inside the job",
    ),
    (
        r"Found dangling tty|Found slave peer index|Don't have tty|[Tt]ty .* (?:external|peer)",
        "a process uses a terminal from outside the pod: run it without a terminal",
    ),
    (
        r"Some file locks are hold by dumping tasks",
        "a process holds file locks and CRIU was not told to keep them: this is a fault of slurmckpt",
    ),
    (
        r"can't seize task|Unable to seize|[Pp]trace.*Operation not permitted",
        "a process is being traced, or may not be: detach the debugger or tracer first",
    ),
    (
        r"[Ii]ndividually stopped threads|Zombies? (?:with )?threads? (?:is |are )?not supported",
        "a process was just ending or being stopped: the next checkpoint will do",
    ),
    (
        r"zombie \d+ \(comm .*\) found while seizing|A root task is dead",
        "the tasks ended while the checkpoint began",
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
        "the processes could not be stopped in time: one of them waits for a device or a file system",
    ),
    (
        r"seccomp",
        "a process has a seccomp filter that root may not read here (no CAP_SYS_ADMIN): run the coordinator with all"
        " capabilities",
    ),
    (
        r"map_files.*(?:Permission denied|Operation not permitted)",
        "the memory of a process may not be read: root needs CAP_CHECKPOINT_RESTORE, and the process must be dumpable",
    ),
    (
        r"has uprobes vma",
        "process is being traced with uprobes: stop the tracer first",
    ),
    (
        r"Can't find suitable path for handle|Can't dump that handle",
        "a process watches a file that has been deleted (inotify): end the watch before deleting",
    ),
    (
        r"Permission denied",
        "CRIU was denied access ({line}): staging must be a local disk that root can write to",
    ),
)

_RESTORE = _table(
    (
        r"Can't fork for (\d+): File exists|Pid \d+ do not match expected (\d+)",
        "the process number {0} is in use in the new pod: this is a fault of slurmckpt",
    ),
    (
        r"File (.*) has bad size (\d+) \(expect (\d+)\)",
        "the file {0} has {1} bytes and had {2} at the checkpoint",
    ),
    (
        r"File (.*) has bad mode (0\d+) \(expect (0\d+)\)",
        "the file {0} has mode {1} and had {2} at the checkpoint",
    ),
    (
        r"File (.*) has bad build-ID",
        "the program or library {0} was updated since the checkpoint",
    ),
    (
        r"Build-ID .* could not be obtained for file (.*) because",
        "the program or library {0} cannot be read on this node",
    ),
    (
        r"Can't open file (.*) on restore: (.*)|Can't open file (.*): (.*)",
        "the file {0} cannot be opened on this node ({1})",
    ),
    (
        r"Can't link (.*) -> (.*): ",
        "the file {1}, which was deleted or replaced after it had been opened, cannot be brought back",
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
        r"(?:[Ii]mage|[Ii]mages?) .*corrupt|Reached EOF unexpectedly|Unknown image format|Magic doesn't match",
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


def explain_dump(log_text: str) -> str:
    """Why a dump failed, with the way out: one sentence. An error that is not known is quoted.

    Of a long log the last 256 KiB are read. Empty when the log tells of no error.
    """
    return _explain(log_text, [*_DUMP, *_COMMON])


def explain_restore(log_text: str) -> str:
    """Why a restore failed: one sentence. An error that is not known is quoted.

    Of a long log the last 256 KiB are read. Empty when the log tells of no error.
    """
    return _explain(log_text, [*_RESTORE, *_COMMON])


def _explain(text: str, table: _Table) -> str:
    errors = [match[1].strip() for match in _ERROR.finditer(text[-LOG_TAIL:])]
    told = [line for line in errors if line and not _HARMLESS.search(line)]
    real = [line for line in told if not _CONSEQUENCE.search(line)] or told
    # An unknown error is often the first half of a known one (what could not be opened, then what that was for).
    for line in real:
        for pattern, sentence in table:
            match = pattern.search(line)
            if match is not None:
                return _filled(sentence, match, line)
    return f"CRIU: {one_line(real[0], _QUOTED)}" if real else ""


def _filled(sentence: str, match: re.Match[str], line: str) -> str:
    groups = [one_line(group, _QUOTED) for group in match.groups() if group is not None]
    # str.format() looks at the braces of the sentence only, never at those of what it fills in.
    return sentence.format(*groups, line=one_line(line, _QUOTED))
