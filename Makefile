# Spillway: two commands set everything up on a fresh Debian-like machine: `make demo` and `make test`.
#
#   make demo    builds, runs real programs with embedded donors, shows the result (two to three minutes after the build)
#   make quick   unit tests of the libraries, layout, prose and lints: after a build, and with no package but Rust's
#   make test    the tests
#   make bench   side-by-side comparisons, into bench/results/
#   make soak    long runs of the failure tests (minutes each; SPILLWAY_SOAK_SECONDS sets their length), and what takes minutes in virtual machines
#   make vm-test TEST=NAME   one test in virtual machines (all of them without TEST)
#   make vm-shell            a shell in a virtual machine (KERNEL=6.1 for another kernel)
#   make package a Debian package and a tarball with the same files, into target/package
#   make check   subjects of commits, formatting, lints, documentation, unused items and dependencies

SHELL := /bin/bash
CARGO ?= cargo
PROFILE := --release

.PHONY: demo quick test test-binaries bench soak package check vm-test vm-shell packages-demo packages-test packages-machines packages-bench

demo: packages-demo
	$(CARGO) build $(PROFILE) -p spillway -p spillway-bench
	target/release/spillway-bench demo

# The end-to-end tests run the binaries, which are built with them; tests in virtual machines go on beside them.
test: packages-test
	CARGO="$(CARGO)" PROFILE="$(PROFILE)" .ci/test

# Unit tests that want a package say so and are skipped.
quick:
	PROPTEST_RNG_SEED=20261126 $(CARGO) test $(PROFILE) --workspace --lib --test layout --test tidy
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# As `.ci/test` builds them: another choice of packages has other features, and all is built anew.
test-binaries:
	$(CARGO) test $(PROFILE) --workspace --no-run --lib --bin spillway --test '*'

bench: packages-bench
	$(CARGO) build $(PROFILE) -p spillway -p spillway-bench
	target/release/spillway-bench run

soak: export SPILLWAY_SOAK_SECONDS ?= 180
soak: packages-test packages-bench test-binaries
	$(CARGO) test $(PROFILE) --workspace --test end_to_end -- --nocapture --include-ignored chaos overcommit stress cut_off redis_at java_
	$(CARGO) test $(PROFILE) --workspace --test pager -- --nocapture --include-ignored stress memory_that_moves overcommit chaos cut_off stopped_for_minutes hostile many_machines under_load redis_at java_ guest_in_half
	$(CARGO) test $(PROFILE) --workspace --test virtual_machine -- --nocapture --ignored
	$(CARGO) test $(PROFILE) --workspace --lib -- --nocapture --ignored mariadb
	PROPTEST_RNG_SEED=$$(date +%s) $(CARGO) test $(PROFILE) --workspace --lib --bins --no-fail-fast -- --nocapture fuzz_
	PROPTEST_RNG_SEED=$$(date +%s) PROPTEST_CASES=2000 $(CARGO) test $(PROFILE) --workspace --lib --no-fail-fast
	$(CARGO) test $(PROFILE) --workspace --test clusters -- --nocapture --ignored
	$(CARGO) run $(PROFILE) -p spillway-simulator -- --seed $$(date +%s) --runs 1000000 --seconds $(SPILLWAY_SOAK_SECONDS)
	$(CARGO) test $(PROFILE) --workspace --test frontend_nbd -- --nocapture --ignored the_newest_stock_kernel

vm-test: packages-test test-binaries
	CARGO="$(CARGO)" PROFILE="$(PROFILE)" .ci/vm-test $(TEST)

vm-shell: packages-machines test-binaries
	$(CARGO) run -q -p spillway-virtual-machine -- shell --kernel $(or $(KERNEL),6.12)

package:
	$(CARGO) build $(PROFILE) -p spillway
	packaging/build target/release/spillway target/package

check:
	.ci/commits
	$(CARGO) fmt --all --check
	rustfmt --check --edition 2024 crates/stub/src/preload/*.rs
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	$(CARGO) test $(PROFILE) --workspace --test layout --test tidy --test documents
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "cargo-deny is not installed: dependencies are not checked (cargo install cargo-deny)"; fi

packages-demo:
	.ci/packages demo

packages-test:
	.ci/packages test

packages-machines:
	.ci/packages machines

packages-bench:
	.ci/packages bench
