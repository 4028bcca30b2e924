# Two commands on a fresh machine: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo

.PHONY: help demo test lint format bench endurance docs site wheel supply audit clean
help:
	@echo "make demo    train on Gaussian sets for about five minutes and draw the figures"
	@echo "make test    run the tests"
	@echo "make lint    check style, types, import layers and wording"
	@echo "make bench   measure speed, as ratios, into results/benchmarks"
	@echo "make endurance  kill, starve and feed it hostile files for an hour, into results/reliability"
	@echo "make docs    write the tables and figures of README and docs from results/"
	@echo "make site    build the documentation into build/site"
	@echo "make wheel   build wheel and source distribution, test the wheel in a clean environment"
	@echo "make supply  write the bill of materials and the table of licences into build/supply"
	@echo "make audit   look up known vulnerabilities of everything in constraints.txt"

# torch comes first and by its version: a plain 'torch' may pull gigabytes for a GPU that is not there.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("setwise needs Python 3.11 or newer, got " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]' --constraint constraints.txt
	touch $@

demo: .venv/installed
	$(BIN)/setwise run gaussian --sweep 0.5 0.8 0.95 0.99 --training.steps 5000 --resume --out $(DEMO) --results $(DEMO)/results
	$(BIN)/setwise table gaussian --results $(DEMO)/results
	$(BIN)/setwise figure gaussian --results $(DEMO)/results --out $(DEMO)/figures
	@echo "Open the two pictures above. More training, closer to the limit: setwise run gaussian --help"

test: .venv/installed
	$(BIN)/python -m pytest --quiet --numprocesses auto

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell -D - -D docs/vocabulary.txt src docs tests benchmarks endurance examples *.md

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What we are compared with; where it cannot be installed, the rest is measured without.
.venv/peers: .venv/installed
	-$(BIN)/pip install --quiet --editable '.[peers]' --constraint constraints.txt && touch $@

bench: .venv/installed .venv/peers
	$(BIN)/python -m benchmarks.dense_step
	$(BIN)/python -m benchmarks.loop_overhead
	$(BIN)/python -m benchmarks.counting_step
	$(BIN)/python -m benchmarks.pointcloud_step
	$(BIN)/python -m benchmarks.histology_step
	$(BIN)/python -m benchmarks.padding
	$(BIN)/python -m benchmarks.prediction_rate
	$(BIN)/python -m benchmarks.distributed_step
	$(BIN)/python -m benchmarks.scale_ratios
	$(BIN)/python -m benchmarks.scale

# About an hour. full_disk mounts a small disk, for which one must be an administrator.
endurance: .venv/installed
	$(BIN)/python -m endurance.equality
	$(BIN)/python -m endurance.kills
	$(BIN)/python -m endurance.sweeps
	$(BIN)/python -m endurance.hostile --out results/reliability/hostile.json
	$(BIN)/python -m endurance.bytes_moved
	-$(BIN)/python -m endurance.full_disk
	$(BIN)/python -m endurance.long_run

docs: .venv/installed
	$(BIN)/setwise figure gaussian --out docs/figures
	$(BIN)/setwise figure counting --out docs/figures
	$(BIN)/setwise figure pointcloud --out docs/figures
	$(BIN)/setwise figure diffusion --out docs/figures
	$(BIN)/setwise figure smoothing --out docs/figures
	$(BIN)/setwise figure histology --out docs/figures
	$(BIN)/setwise figure mil --out docs/figures
	$(BIN)/python -m benchmarks.scale_figure
	$(BIN)/python -m docs.refresh

site: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html"

# Tools for releases have environments of their own.
build/%/installed: constraints.txt
	$(PYTHON) -m venv build/$*
	build/$*/bin/pip install --quiet $(TOOLS_$*) --constraint constraints.txt
	touch $@
TOOLS_builder := build hatchling
TOOLS_auditor := pip_audit
TOOLS_inventory := cyclonedx-bom pip-licenses

# build makes the wheel from the source distribution, which must thus be complete.
wheel: build/builder/installed
	rm -rf dist
	build/builder/bin/python -m build --no-isolation
	build/builder/bin/python supply/smoke.py

# Both describe build/clean, which make wheel fills with the wheel, its extras and nothing else.
supply: wheel build/inventory/installed
	mkdir -p build/supply
	build/inventory/bin/cyclonedx-py environment build/clean/bin/python --pyproject pyproject.toml \
		--output-reproducible --sv 1.6 --of JSON -o build/supply/sbom.cdx.json
	build/inventory/bin/pip-licenses --python build/clean/bin/python --format markdown --order license \
		--partial-match --fail-on 'GPL;SSPL;UNKNOWN' --output-file build/supply/licences.md

audit: build/auditor/installed
	build/auditor/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
