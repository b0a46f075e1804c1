# The system's Python if it is new enough and can create environments: distributions build it with profile-guided
# optimization, unlike pyenv; without it Python code takes a quarter to a half longer. Another one, as in
# `make test PYTHON=python3.12`, is named to make, since many programs give a variable PYTHON a meaning of their own.
SYSTEM_PYTHON := /usr/bin/python3
PYTHON := $(shell $(SYSTEM_PYTHON) -I -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& echo $(SYSTEM_PYTHON) || echo python3)

# Options of `make run`, and of the tests.
ARGS :=
PYTEST_ARGS := -n auto --dist worksteal --reruns 1 -rR
# Without options of the caller's, what has failed beside other tests (exit status 1) is tried once more without them.
ALONE = test $$? -eq 1 && $(CLEAN) scripts/isolated $(BIN)/pytest --last-failed --last-failed-no-failures none --maxfail 1
# How long each fuzzer of `make fuzz` runs, and which: FUZZERS=tests/fuzz/test_argv.py.
FUZZ_SECONDS := 60
FUZZERS := tests/fuzz

BIN := .venv/bin
# Everything but the daemon runs the same in whatever environment the caller has.
CLEAN := $(PYTHON) -I scripts/clean.py
INSTALLED := .venv/installed-

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { gsub(" ", "|", $$1); printf "make %-23s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(INSTALLED)run ## Start the daemon; options in ARGS, as in: make run ARGS="--port 0"
	@exec $(BIN)/connmgr serve $(ARGS)

test: $(INSTALLED)test ## Run all tests; options in PYTEST_ARGS, as in: make test PYTEST_ARGS="-k vault"
	@$(CLEAN) scripts/isolated $(BIN)/pytest $(PYTEST_ARGS) $(if $(filter file,$(origin PYTEST_ARGS)),|| { $(ALONE); })

test-lowest test-newest: test-%: $(INSTALLED)% ## Run all tests with the lowest, or newest, versions that setup.cfg admits
	@$(CLEAN) scripts/isolated .venv/$*/bin/pytest $(PYTEST_ARGS)

fuzz: $(INSTALLED)test ## Try random input for FUZZ_SECONDS=60 a fuzzer; FUZZERS chooses, as in: make fuzz FUZZERS="-k socks tests/fuzz"
	@$(CLEAN) scripts/isolated $(BIN)/pytest -v --fuzz-seconds=$(FUZZ_SECONDS) $(FUZZERS)

check: $(INSTALLED)check ## Check style, formatting, types and shell scripts
	$(CLEAN) $(BIN)/ruff check .
	$(CLEAN) $(BIN)/ruff format --check .
	$(CLEAN) $(BIN)/mypy
	$(CLEAN) $(BIN)/python scripts/check_page.py
	$(CLEAN) $(BIN)/shellcheck connmgr/*/scripts/*.sh scripts/setup scripts/install-packages scripts/isolated

bench: $(INSTALLED)bench ## Measure the daemon beside what a user would pick instead
	@$(CLEAN) $(BIN)/python -m benchmarks

screenshots: $(INSTALLED)screenshots ## Take the pictures of the page in docs/screenshots anew
	@$(CLEAN) scripts/isolated $(BIN)/python -m scripts.screenshots

docs: $(INSTALLED)test ## Write the description of the commands, and check all documentation against the program
	@$(CLEAN) $(BIN)/python scripts/describe_cli.py
	@$(CLEAN) $(BIN)/pytest tests/test_docs.py tests/cli/test_description.py

clean: ## Remove everything that the other targets made
	rm -rf .venv build dist connmgr/page/vendor *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED)%: setup.cfg setup.py pyproject.toml connmgr/page/package-lock.json tests/components.py $(wildcard scripts/*)
	@$(CLEAN) scripts/setup $* '$(PYTHON)'
	@touch $@

.PHONY: help run test test-lowest test-newest fuzz check bench screenshots docs clean
.PRECIOUS: $(INSTALLED)%
