# synclater's build, tests and installation. `make` alone lists the targets.
#
# Everything here is a thin wrapper: what a target does is in tools/, benches/ or cargo's own words.

PREFIX  ?= /usr/local
DESTDIR ?=

SHELL      := /bin/bash
CARGO      ?= cargo
TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
BIN        := $(TARGET_DIR)/release/synclater
HOST        = $(shell rustc -vV | sed -n 's/^host: //p')
SKIP_LOG   := $(TARGET_DIR)/skipped.log
TESTS_LOG  := $(TARGET_DIR)/tests.log

BINDIR  := $(DESTDIR)$(PREFIX)/bin
LIBDIR  := $(DESTDIR)$(PREFIX)/lib/synclater
MANDIR  := $(DESTDIR)$(PREFIX)/share/man/man1
BASHDIR := $(DESTDIR)$(PREFIX)/share/bash-completion/completions
ZSHDIR  := $(DESTDIR)$(PREFIX)/share/zsh/site-functions
FISHDIR := $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d

# `record --system` needs clang, and libelf and zlib to link with; it is left out without them.
HAS_BPF  = command -v clang >/dev/null && command -v pkg-config >/dev/null && \
  printf '\043include <libelf.h>\n\043include <zlib.h>\nint main(void) { return 0; }' | \
  cc -x c $(1) - -o /dev/null -lelf -lz 2>/dev/null || echo --no-default-features
FEATURES = $(shell $(call HAS_BPF))
FEATURES_STATIC = $(shell $(call HAS_BPF,-static))

SCRIPTS = tools/setup .ci/run $(wildcard tools/demo benches/run tests/*.sh)
FUZZ_SECONDS ?= 60
FUZZ_SECONDS_IN_TEST ?= 10

.DEFAULT_GOAL := help
.PHONY: help setup build demo check test tests soak bench pictures lint lint-rust \
        lint-rules lint-builds lint-c lint-scripts install uninstall fuzz audit clean

help: ## this list
	@echo 'make TARGET:'
	@sed -n 's/^\([a-z]*\):.* ## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  awk -F'|' '{ printf "%-11s %s\n", $$1, $$2 }'

# The tests' servers, and whatever else demo, tests and benchmarks run, those bring along.
setup: ## install what building needs (Debian, Ubuntu)
	@tools/setup build

# Linked statically: one file for every image, whatever its libc; and it starts 0.5 ms faster.
# Such flags must not reach proc-macros, which a --target keeps them from.
build: ## target/release/synclater
	$(CARGO) build --release --locked $(FEATURES_STATIC) --target $(HOST) \
	  --config 'target.$(HOST).rustflags=["-C", "target-feature=+crt-static"]'
	@install -D -m755 $(TARGET_DIR)/$(HOST)/release/synclater $(BIN)

demo: ## import this machine's package list into SQLite at each dial, print a table
	@tools/setup demo
	@$(MAKE) --no-print-directory build
	@tools/demo

# Prints how long a phase took where CI asks for it.
define phase
@begin=$$(date +%s); status=0; $(1) || status=$$?; \
  [ -z "$$CI" ] || echo "phase $(2): $$(( $$(date +%s) - begin )) s"; exit $$status
endef

# What victims can write while a recording is made is fuzzed in every run, the rest by `make fuzz`.
test: ## setup, lint and all tests; says at the end what was skipped and why
	$(call phase,tools/setup test,setup)
	$(call phase,$(MAKE) --no-print-directory lint-rules lint-c lint-scripts,lint)
	$(call phase,( $(tests_beside_builds) ),tests)
	$(call phase,$(call fuzz,rings,$(FUZZ_SECONDS_IN_TEST)),fuzz)

# The tests wait for two thirds of their time. What is fuzzed behind them is built meanwhile, and
# clippy and rustdoc look at everything, once the tests are built: cargo builds one thing at a time.
# Whether the fuzzer could be built is told by the phase that needs it.
SIDE_LOG := $(TARGET_DIR)/side.log
define tests_beside_builds
rm -f $(TESTS_LOG) $(SIDE_LOG); \
{ until grep -qs '^ *Running ' $(TESTS_LOG); do sleep 1; done; \
  nice $(fuzz_build) >/dev/null 2>&1; \
  nice $(MAKE) --no-print-directory lint-builds >$(SIDE_LOG) 2>&1; } & side=$$!; \
status=0; $(MAKE) --no-print-directory tests || status=$$?; \
grep -qs '^ *Running ' $(TESTS_LOG) || kill $$side 2>/dev/null; \
wait $$side || { cat $(SIDE_LOG) 2>/dev/null; [ $$status != 0 ] || status=1; }; \
exit $$status
endef

# Two tests to a processor: for two thirds of its time a test waits for a disk, a tick or a process.
export RUST_TEST_THREADS ?= $(shell echo $$(( $$(nproc) * 2 )))

# What to run before a commit; the rest is for CI.
check: ## fmt, clippy, unit tests, the repository's rules, a program of each route
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace $(FEATURES) --all-targets -- -D warnings
	$(CARGO) test --locked --quiet --workspace $(FEATURES) --lib --bins
	$(CARGO) test --locked --quiet --workspace $(FEATURES) --test integration -- tidy:: counting::

# A test that cannot run here appends `SKIPPED name: reason` to the file named by the variable.
# A failure in one crate leaves the tests of the others to run: one run tells all that fails.
tests: ## the tests alone
	@mkdir -p $(TARGET_DIR) && : >$(SKIP_LOG)
	@status=0; set -o pipefail; SYNCLATER_SKIP_LOG=$(SKIP_LOG) \
	$(CARGO) test --locked --no-fail-fast --workspace $(FEATURES) 2>&1 | tee $(TESTS_LOG) || \
	  { status=$$?; $(call print_failures); }; \
	$(call print_skipped); exit $$status

# Tests with a large count have soak_ in their names: `make test` runs them small, this in full.
soak: ## the tests with a large count, in full, one after the other
	@tools/setup test
	@mkdir -p $(TARGET_DIR) && : >$(SKIP_LOG)
	@status=0; begin=$$(date +%s); \
	SYNCLATER_SOAK=1 SYNCLATER_SKIP_LOG=$(SKIP_LOG) \
	$(CARGO) test --release --locked --workspace $(FEATURES) \
	  -- --include-ignored --nocapture --test-threads=1 soak_ || status=$$?; \
	$(call print_skipped); \
	echo "soak: $$(( $$(date +%s) - begin )) s, exit status $$status, kernel $$(uname -r);" \
	  "write it into docs/SOAK.md, also when it failed"; exit $$status

# What each test that failed has said, once more behind all the rest, without its stack.
define print_failures
awk '/^failures:$$/ { on = 0 } /^---- .* stdout ----$$/ { on = 1 } on' $(TESTS_LOG) | \
  grep -vE '^ +([0-9]+: |at )|^stack backtrace:|^$$' | cut -c 1-400
endef

define print_skipped
echo "skipped: $$(grep -c '^SKIPPED' $(SKIP_LOG)) tests"; sort -u $(SKIP_LOG) | sed 's/^/  /'
endef

bench: ## the speed targets, each beside its peer in one run
	@tools/setup bench
	@$(MAKE) --no-print-directory build
	@benches/run
	@benches/record
	@benches/crash
	@benches/attach
	@benches/follow
	@benches/net
	@benches/mail

pictures: ## make the pictures of the report in docs/ again, with Chromium
	$(CARGO) test --locked --quiet --test integration -- --ignored --exact \
	  cli::html::looks::the_pictures_of_the_report_are_made_again

lint: lint-rust lint-c lint-scripts ## fmt, clippy, docs, the repository's own rules, C with clang

lint-rust: lint-rules lint-builds

# `--workspace`: with other features half of it would be built once more.
lint-rules:
	$(CARGO) fmt --all --check
	$(CARGO) test --locked --quiet --workspace $(FEATURES) --test integration tidy::

lint-builds:
	$(CARGO) clippy --locked --workspace $(FEATURES) --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace $(FEATURES) --no-deps --quiet

# The library as a second compiler and a second machine see it; nothing is linked.
C_CHECK = -std=gnu11 -ffreestanding -fPIC -fsyntax-only -Wall -Wextra -Werror
NUMBERS = $(TARGET_DIR)/numbers
SHIM = crates/shim/c
lint-c:
	@set -e; for machine in x86_64 aarch64; do \
	  mkdir -p $(NUMBERS)/$$machine; \
	  $(CARGO) run --locked --quiet -p synclater-calls --example header -- $$machine \
	    >$(NUMBERS)/$$machine/numbers.h; \
	done; for file in $(SHIM)/*.c $(SHIM)/*/*.c; do \
	  for variant in -USL_IO -DSL_IO=1; do \
	    clang $(C_CHECK) -I$(SHIM) -I$(NUMBERS)/x86_64 $$variant $$file; \
	    ! command -v aarch64-linux-gnu-gcc >/dev/null || \
	      aarch64-linux-gnu-gcc $(C_CHECK) -I$(SHIM) -I$(NUMBERS)/aarch64 $$variant $$file; \
	  done; \
	done; clang $(C_CHECK) -I$(SHIM) -I$(NUMBERS)/x86_64 -DSL_GATE=1 -mgeneral-regs-only \
	  $(SHIM)/*.c $(SHIM)/*/*.c; \
	echo "lint-c: ok"

lint-scripts:
	@set -e; for file in $(SCRIPTS); do \
	  ! head -n 1 $$file | grep -q bash || bash -n $$file; done; echo "lint-scripts: ok"

$(BIN):
	$(CARGO) build --release --locked $(FEATURES)

# Run `make build` before a `sudo make install`, so that cargo need not run as root.
install: $(BIN) ## install below PREFIX (default /usr/local), staged under DESTDIR
	umask 022; \
	install -D -m 755 $(BIN) '$(BINDIR)/synclater' && \
	ln -sfn synclater '$(BINDIR)/eatmydata-synclater' && \
	mkdir -p '$(LIBDIR)' '$(MANDIR)' '$(BASHDIR)' '$(ZSHDIR)' '$(FISHDIR)' && \
	$(BIN) generate library '$(LIBDIR)' && \
	$(BIN) generate man '$(MANDIR)' && \
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(BIN) generate completions "$$dir" && \
	install -m 644 "$$dir/synclater.bash" '$(BASHDIR)/synclater' && \
	install -m 644 "$$dir/_synclater" '$(ZSHDIR)/_synclater' && \
	install -m 644 "$$dir/synclater.fish" '$(FISHDIR)/synclater.fish'

uninstall: ## remove what install put below PREFIX; ledger and sessions stay
	rm -f '$(BINDIR)/synclater' '$(BINDIR)/eatmydata-synclater'
	rm -f '$(MANDIR)/synclater.1' '$(MANDIR)'/synclater-*.1
	rm -f '$(BASHDIR)/synclater' '$(ZSHDIR)/_synclater' '$(FISHDIR)/synclater.fish'
	rm -rf '$(LIBDIR)'

# As the tests are built, so that what those have built already is not built again.
fuzz_build = $(CARGO) build --quiet --locked --workspace $(FEATURES) --bin synclater-fuzz
fuzz = $(fuzz_build) && $(TARGET_DIR)/debug/synclater-fuzz $(1) --seconds $(2)

# What libFuzzer needs of the code that it runs; as cargo-fuzz asks for it, on the stable toolchain.
# With a --target, so that build scripts are built as ever.
COVERAGE = -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
FUZZ_DIR = $(TARGET_DIR)/fuzz-corpus
fuzz: ## fuzz the parsers of what others can write by coverage, FUZZ_SECONDS each (60)
	@$(fuzz_build) && $(TARGET_DIR)/debug/synclater-fuzz --corpus $(FUZZ_DIR)
	@RUSTFLAGS='$(COVERAGE)' CXX="$${CXX:-clang++}" $(CARGO) build --quiet --locked --profile fuzz \
	  -p synclater-fuzz --features coverage --bin synclater-fuzz-covered --target $(HOST)
	@set -e -o pipefail; for dict in $(FUZZ_DIR)/*.dict; do \
	  name=$$(basename $$dict .dict); echo "== $$name"; \
	  SYNCLATER_FUZZ_TARGET=$$name $(TARGET_DIR)/$(HOST)/fuzz/synclater-fuzz-covered \
	    $(FUZZ_DIR)/$$name -dict=$$dict -max_total_time=$(FUZZ_SECONDS) -timeout=10 \
	    -print_final_stats=1 -artifact_prefix=$(FUZZ_DIR)/$$name- 2>&1 | \
	  grep -E '^(==|#.*DONE|Done|stat|artifact|Test unit|thread)|ERROR|panicked'; \
	done

audit: build ## what a reviewer wants to see first: unsafe code, library symbols, sizes, licences
	@echo '== unsafe code, by file'; \
	grep -rc --include='*.rs' -w 'unsafe' crates src | grep -v ':0$$' || echo none
	@echo '== the library: lines of C'; wc -l crates/shim/c/*.* crates/shim/c/*/*
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && $(BIN) generate library "$$dir" && \
	cd "$$dir" && find . -name 'libsynclater*.so' -print0 | sort -z | \
	while IFS= read -r -d '' file; do \
	  echo "== $$file: $$(stat -c %s "$$file") bytes"; \
	  echo "needs:";     readelf -d "$$file" | grep NEEDED || echo "  nothing"; \
	  echo "undefined:"; nm -D --undefined-only "$$file"; \
	  echo "defines:";   nm -D --defined-only "$$file" | awk '{ print $$NF }' | xargs | fold -s -w 90; \
	done
	@echo '== licences of dependencies'; \
	$(CARGO) tree --locked --workspace --edges normal,build --prefix none --format '{l}  {p}' | \
	  sed 's/ (.*//' | sort -u

clean: ## remove what was built
	$(CARGO) clean
