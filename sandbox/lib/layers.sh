# shellcheck shell=bash
# shellcheck disable=SC2153
# The root file system of the hosts, in layers, each built once and then only read:
#   base      Debian with Slurm and CRIU         shared, keyed by the package list
#   programs  what else the tests run            shared, keyed by its package list; only with `up --programs`
#   deps      the venv with the dependencies     shared, keyed by the dependency list
#   product   `make install` of this tree        per sandbox, keyed by the sources
# Above them every host has a writable disk of its own (overlayfs).

PACKAGES=(
    criu slurmctld slurmd slurm-client munge libslurm-dev
    python3 python3-venv python3-dev python3-torch python3-numpy python3-pycriu
    gcc make libc6-dev iproute2 iputils-ping procps psmisc passt strace util-linux mount login less libcap2-bin ca-certificates
)
# Real programs whose jobs the tests checkpoint. The demo, and whoever tries the product, does not pay for them.
PROGRAMS=(
    openmpi-bin libopenmpi-dev r-base-core default-jre-headless nodejs redis-server
    python3-h5py python3-ipykernel python3-jupyter-client libopenblas0-pthread
)
SOURCES=(spank pod gpu gate prolog epilog etc src pyproject.toml Makefile)
NOT_SOURCE=(.git .venv build dist __pycache__ '*.o' '*.so' '*.egg-info' '.*_cache')

short_hash() { sha256sum | cut -c1-12; }

# build LAYER COMMAND...: the command fills $LAYER.new, which becomes LAYER only when it succeeded
build() {
    local layer=$1 log=$1.log start=$SECONDS
    shift
    rm -rf "$layer.new"
    mkdir -p "${layer%/*}"
    if ! "$@" "$layer.new" >"$log" 2>&1; then
        tail -15 "$log" >&2
        die "building ${layer##*/} failed; all of it: $log"
    fi
    mv -T "$layer.new" "$layer"
    say "  done in $((SECONDS - start)) s"
}

# --- base
base_layer() {
    BASE=$CACHE/$SUITE/base-$(printf '%s\n' "${PACKAGES[@]}" | short_hash)
    [ -d "$BASE" ] && return
    say "building the base root: Debian $SUITE with Slurm and CRIU (about a minute)"
    if ! command -v mmdebstrap >/dev/null; then
        say "  installing mmdebstrap"
        DEBIAN_FRONTEND=noninteractive apt-get install -y mmdebstrap >/dev/null 2>&1 ||
            { apt-get update && apt-get install -y mmdebstrap; } >/dev/null 2>&1 || die "cannot install mmdebstrap"
    fi
    build "$BASE" debootstrap_base
}

debootstrap_base() {
    local root=$1 mirror from hook=()
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' | awk '$2 == "Debian" {print $1; exit}')
    mirror=${mirror:-http://deb.debian.org/debian}
    mirror=${mirror:-http://deb.debian.org/debian}
    from=("$mirror")
    if [ "$SUITE" = trixie ]; then
        # Its CRIU 4.1 fails on any TCP socket from Linux 6.16 on. That of forky runs here with one library more;
        # it is unpacked over the other, as apt would pull half of forky along.
        from=("deb $mirror trixie main" "deb $mirror forky main")
        # shellcheck disable=SC2016
        hook=(--customize-hook='chroot "$1" sh -euc "cd /tmp; apt-get download criu/forky libnet9/forky;
              for deb in *.deb; do dpkg-deb -x \$deb /; done; rm *.deb; ldconfig; criu --version"')
    fi
    mmdebstrap --variant=apt --include="$(IFS=,; echo "${PACKAGES[*]}")" "${hook[@]}" \
        --aptopt="APT::Default-Release \"$SUITE\"" \
        --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$SUITE" "$root" "${from[@]}" || return
    chroot "$root" useradd --uid 1000 --shell /bin/bash --no-create-home alice &&
        chroot "$root" useradd --uid 1001 --shell /bin/bash --no-create-home bob &&
        mkdir -p "$root/store" "$root/etc/slurmckpt" "$root/src" &&
        rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
}

# --- programs
# Sets PROGRAMS_LAYER to its directory, or to nothing when it is not wanted.
programs_layer() {
    PROGRAMS_LAYER=
    [ "$WITH_PROGRAMS" = yes ] || return 0
    PROGRAMS_LAYER=$CACHE/$SUITE/programs-$(printf '%s\n' "$BASE" "${PROGRAMS[@]}" | short_hash)
    [ -d "$PROGRAMS_LAYER" ] && return
    say "installing the programs of the tests: ${PROGRAMS[*]} (200 MB, about a minute)"
    build "$PROGRAMS_LAYER" install_programs
}

install_programs() {
    local layer=$1
    # Java registers a manual page, which is left out here, and fails without the directory. No package starts its daemon.
    # shellcheck disable=SC2016
    in_layers "$layer" "$BASE" /var/empty sh -euc '
        export DEBIAN_FRONTEND=noninteractive
        mkdir -p /usr/share/man/man1
        printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
        apt-get -qq update
        apt-get -qq install --yes --no-install-recommends "$@"
        apt-get -qq clean
        rm -rf /usr/sbin/policy-rc.d /var/lib/apt/lists/* /var/cache/apt/*.bin' _ "${PROGRAMS[@]}"
}

# --- deps
# The names that pyproject.toml lists, for running and for building, read with the root's own Python.
dependencies() {
    chroot "$BASE" python3 -c '
import sys, tomllib
project = tomllib.loads(sys.stdin.read())
names = project.get("build-system", {}).get("requires", []) + project.get("project", {}).get("dependencies", [])
# The GPU side runs over doubles of the driver here, but with the real bindings.
names += project.get("project", {}).get("optional-dependencies", {}).get("cuda", [])
print("\n".join(sorted(set(names))))' <"$SOURCE/pyproject.toml"
}

deps_layer() {
    local list
    list=$(dependencies) || die "cannot read pyproject.toml"
    DEPS=$CACHE/$SUITE/deps-$(printf '%s\n' "$BASE" "$list" | short_hash)
    [ -d "$DEPS" ] && return
    say "installing the dependencies into /opt/slurmckpt: $(echo "$list" | paste -sd' ')"
    build "$DEPS" install_deps "$list"
}

install_deps() {
    local list=$1 layer=$2
    # shellcheck disable=SC2016
    in_layers "$layer" "$BASE" /var/empty \
        sh -c 'python3 -m venv /opt/slurmckpt && printf "%s\n" "$1" >/tmp/list &&
               /opt/slurmckpt/bin/pip install --no-input --no-cache-dir -r /tmp/list && rm /tmp/list' _ "$list"
}

# --- product
source_hash() {
    (cd "$SOURCE" && copy_of_sources | short_hash)
}

copy_of_sources() { # a tar stream that depends only on what is in the files
    local skip=() name present=()
    for name in "${NOT_SOURCE[@]}"; do skip+=(--exclude="$name"); done
    for name in "${SOURCES[@]}" "$@"; do [ -e "$name" ] && present+=("$name"); done
    tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner "${skip[@]}" "${present[@]}"
}

product_layer() {
    PRODUCT=$DATA/product-$(printf '%s\n' "$DEPS" "$(source_hash)" | short_hash)
    [ -d "$PRODUCT" ] && return
    say "installing slurmckpt from $SOURCE"
    build "$PRODUCT" install_product
}

install_product() {
    local layer=$1 src=$DATA/src
    rm -rf "$src" && mkdir -p "$src" &&
        (cd "$SOURCE" && copy_of_sources README.md LICENSE) | tar --extract --directory "$src" &&
        in_layers "$layer" "$DEPS:$BASE" "$src" make -C /src install PREFIX=/usr VENV=/opt/slurmckpt
}

# in_layers UPPER LOWER SRC COMMAND...: run a command as root in the layers LOWER, with what it writes kept in UPPER,
# SRC as /src, and this machine's network and certificates. The command is never pid 1 of its namespace: there a signal
# that should end it does nothing, and make, which sends it to itself to end, does so for ever.
in_layers() {
    local upper=$1 lower=$2 src=$3
    shift 3
    mkdir -p "$upper" "$upper.work" "$upper.root"
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -euc '
        upper=$1 lower=$2 src=$3 root=$1.root
        shift 3
        mount -t overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$upper.work" build "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs tmp "$root/tmp"
        mount -t tmpfs run "$root/run"
        if [ -d "$src" ]; then mount --bind "$src" "$root/src"; fi
        mkdir -p "$root/run/host"
        for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
            [ -e "$file" ] || continue
            [ -e "$root$file" ] || { mkdir -p "$root${file%/*}"; : >"$root$file"; }
            mount --bind "$(readlink -f "$file")" "$root$file"
        done
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
            chroot "$root" "$@" || exit
    ' _ "$upper" "$lower" "$src" "$@" </dev/null
    local status=$?
    rm -rf "$upper.work" "$upper.root"
    rm -f "$upper/etc/resolv.conf" "$upper/etc/pip.conf"
    return $status
}

# --- all of them
# Sets LAYERS to what the hosts' root is made of now.
build_layers() {
    local cache_lock
    mkdir -p "$CACHE/$SUITE" "$DATA"
    exec {cache_lock}>"$CACHE/$SUITE/lock"
    flock "$cache_lock"
    base_layer
    programs_layer
    if [ -e "$SOURCE/Makefile" ] && [ -e "$SOURCE/pyproject.toml" ]; then
        deps_layer
        exec {cache_lock}>&-
        product_layer
        LAYERS=$PRODUCT:$DEPS:${PROGRAMS_LAYER:+$PROGRAMS_LAYER:}$BASE
    else
        exec {cache_lock}>&-
        say "no Makefile and pyproject.toml in $SOURCE yet: a bare cluster without slurmckpt"
        LAYERS=${PROGRAMS_LAYER:+$PROGRAMS_LAYER:}$BASE
    fi
}

drop_old_products() {
    local dir
    for dir in "$DATA"/product-*; do
        [[ ":$LAYERS:" == *":${dir%.log}:"* ]] || rm -rf "$dir"
    done
}
