# make            build the C parts
# make install    install everything for a Slurm node (DESTDIR, PREFIX, VENV)
# make demo       see it work (root)
# make test       unit and cluster tests (root); make test-unit needs no root
# make test-trixie, make test-linuxproc    the cluster tests on Slurm 24.11, and with proctrack/linuxproc
# make test-all   also those that wait for time limits, preemptions and nodes given up (root; half as long again)
# make soak       200 jobs under random failures (root)
# make mutants    faults put into the gate and the capture of GPU state: does a test notice each? (an hour)
# make bench      the numbers of docs/performance.md (root)
# make check      linters and types of Python and shell
# make docs       bring the generated parts of docs/ up to date

PREFIX ?= /usr
DESTDIR ?=
VENV ?= /opt/slurmckpt
SYSCONFDIR ?= /etc/slurmckpt
LIBEXEC = $(PREFIX)/libexec/slurmckpt
PYTHON ?= python3
# The environment of the developers' tools; the product is installed into VENV instead.
TOOLS := build/venv
PYTEST := $(TOOLS)/bin/python -m pytest
# Cluster tests mostly wait for Slurm: several clusters side by side, one for each worker, wait at the same time. A file stays
# together.
WORKERS ?= 4
PARALLEL = --numprocesses $(WORKERS) --dist loadfile

.PHONY: all install install-hooks install-package deps check test test-all test-unit test-cluster test-trixie test-linuxproc demo soak bench mutants docs proto clean

# The plugin first: it alone needs Slurm's headers, and where they are missing nothing is built or written.
all:
	$(MAKE) -C spank
	$(MAKE) -C pod
	$(MAKE) -C gate
	$(MAKE) -C gpu

install:
	$(MAKE) -C spank install PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)
	$(MAKE) -C pod install PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)
	$(MAKE) -C gate install PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)
	$(MAKE) -C gpu install PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)
	$(MAKE) install-hooks DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) VENV=$(VENV)
	$(MAKE) install-package DESTDIR=$(DESTDIR) VENV=$(VENV)
	install -d -m 0755 $(DESTDIR)$(LIBEXEC)/criu-plugins
	install -d -m 0755 $(DESTDIR)$(SYSCONFDIR) $(DESTDIR)$(PREFIX)/bin
	test -e $(DESTDIR)$(SYSCONFDIR)/slurmckpt.toml || install -m 0644 etc/slurmckpt.toml $(DESTDIR)$(SYSCONFDIR)/slurmckpt.toml
	ln -sf $(VENV)/bin/slurmckpt $(DESTDIR)$(PREFIX)/bin/slurmckpt
	install -d -m 0755 $(DESTDIR)$(PREFIX)/lib/systemd/system
	for unit in register prune selftest; do \
		sed 's|/usr/bin/|$(PREFIX)/bin/|' etc/systemd/slurmckpt-$$unit.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/slurmckpt-$$unit.service || exit 1; \
	done
	install -m 0644 etc/systemd/slurmckpt-register.timer etc/systemd/slurmckpt-prune.timer $(DESTDIR)$(PREFIX)/lib/systemd/system/
	install -D -m 0644 etc/logrotate/slurmckpt $(DESTDIR)/etc/logrotate.d/slurmckpt

# What slurmd and slurmctld run: the sources run as they are, with the default paths.
install-hooks:
	install -d -m 0755 $(DESTDIR)$(LIBEXEC)
	for script in prolog/prolog prolog/hand-over epilog/epilog epilog/epilog-slurmctld; do \
		target=$(DESTDIR)$(LIBEXEC)/$${script#*/} && \
		sed 's|^LIBEXEC=.*|LIBEXEC=$(LIBEXEC)|; s|^VENV=.*|VENV=$(VENV)|' $$script >$$target && chmod 0755 $$target || exit 1; \
	done

# The virtual environment with the package. pip and venv write the place where they run, as an absolute path, into what they
# make: with DESTDIR it is taken out again.
HERE = $(abspath $(DESTDIR)$(VENV))
install-package:
	test -x $(HERE)/bin/python || $(PYTHON) -m venv $(HERE)
	$(HERE)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) .
	test $(HERE) = $(abspath $(VENV)) || grep -lrIF $(HERE) $(HERE)/bin $(HERE)/pyvenv.cfg | xargs -r sed -i 's|$(HERE)|$(abspath $(VENV))|g'

# What tests and demo need on a Debian or Ubuntu machine.
deps: $(TOOLS)/ready
$(TOOLS)/ready: pyproject.toml tools/deps
	tools/deps $(TOOLS)
	touch $@

SCRIPTS := prolog/prolog prolog/hand-over epilog/epilog epilog/epilog-slurmctld examples/train.sbatch tools/deps .ci/run \
	sandbox/cluster sandbox/selftest sandbox/node/boot sandbox/node/init $(wildcard sandbox/lib/*.sh) \
	tests/device/prepare $(wildcard tests/cluster/programs/*.sh)

# C is checked where it is built: every warning is an error.
check: deps
	$(TOOLS)/bin/ruff check .
	$(TOOLS)/bin/ruff format --check .
	$(TOOLS)/bin/mypy
	$(TOOLS)/bin/shellcheck --external-sources --source-path=SCRIPTDIR $(SCRIPTS)

test: deps
	@test "$$(id -u)" = 0 || { echo "make test needs root (namespaces, mounts, cgroups); make test-unit does not" >&2; exit 1; }
	$(PYTEST) $(PARALLEL) tests -m "not soak and not long"

test-all: deps
	$(PYTEST) $(PARALLEL) tests -m "not soak"

test-unit: deps
	$(MAKE) -C pod
	$(PYTEST) tests/unit

test-cluster: deps
	$(PYTEST) $(PARALLEL) tests/cluster

# The sandbox reads these variables.
test-trixie: export SLURMCKPT_SUITE := trixie
test-linuxproc: export SLURMCKPT_PROCTRACK := linuxproc
test-trixie test-linuxproc: test-cluster

demo: deps
	@test "$$(id -u)" = 0 || { echo "make demo needs root: it builds a throwaway cluster out of namespaces" >&2; exit 1; }
	$(TOOLS)/bin/python sandbox/demo.py

# Every fault of docs/reliability.md, then many jobs under random failures for 20 minutes. SECONDS, JOBS and SEED try the latter quickly, or again.
soak: deps
	$(if $(SECONDS),,sandbox/cluster up --nodes 2 && $(PYTEST) tests/cluster/test_faults.py)
	$(TOOLS)/bin/python tests/soak/run.py --seconds $(or $(SECONDS),1200) --jobs $(or $(JOBS),200) $(if $(SEED),--seed $(SEED))

bench: deps
	$(TOOLS)/bin/python tests/bench/gate.py
	$(TOOLS)/bin/python tests/bench/run.py

docs: deps
	$(TOOLS)/bin/python -m tests.cluster.faults
	$(TOOLS)/bin/python -m tests.unit.modulemap

mutants: deps
	$(TOOLS)/bin/python tests/mutants/run.py

# The generated modules are committed, so that an installation needs no compiler for them. grpcio-tools 1.74 writes code of protobuf 6.31.
proto:
	cd src/slurmckpt/capture && $(PYTHON) -m grpc_tools.protoc -I. --python_out=. --mypy_out=. criu_rpc.proto criu_files.proto

clean:
	$(MAKE) -C pod clean
	$(MAKE) -C gate clean
	$(MAKE) -C tests/doubles/libnccl clean
	$(MAKE) -C gpu clean
	-$(MAKE) -C spank clean
	rm -rf build
