# The menu. On a bare Debian 12 the README's first line is: apt-get install -y git make
SEEDS ?= 500
SECONDS ?= 30
PREFIX ?= /usr/local
SAN_SEEDS ?= 20

menu:
	@echo 'make setup           install Debian packages and the Python environment .venv'
	@echo 'make build           build into build/'
	@echo 'make demo            run the main job: 8 daemons, 8 training ranks, two crashes, one table'
	@echo 'make test            lint, unit tests, fuzz corpora, simulation, end-to-end and Python tests'
	@echo 'make test-long       limits at their full size and damage at a thousand places; prints what it measured'
	@echo 'make crash           kill random daemons and ranks of a job that saves all the time: ROUNDS=300, SEED=7 chooses'
	@echo 'make soak            SAVES=500 saves with the last three kept and a node killed each 25th: nothing grows'
	@echo 'make namespaces      daemons in network namespaces: cuts, one-way cuts, silence, stopped coordinators, and healing'
	@echo 'make scenarios       play the scripts of faults: on real daemons, and under 300 seeds each in the simulator'
	@echo 'make unit ROOM=wire  build one room with what it includes and run its tests; ROOM="net pool", SAN=1, TSAN=1'
	@echo 'make san             unit tests, fuzz corpora and a short simulation under ASan and UBSan'
	@echo 'make tsan            the same under TSan'
	@echo 'make sim SEEDS=2000  simulate so many seeds; SEED=17 TRACE=1 replays one as a story'
	@echo 'make planted         plant each known bug, one after the other; the simulator must find each within 5,000 seeds'
	@echo 'make fuzz            fuzz every decoder for SECONDS=30 each; TARGET=frame for one'
	@echo 'make bench           build and run the benches; BENCH=hash for one'
	@echo 'make kth             let one allocation, file or socket call fail: each in a simulated history, RUNS=200 in real processes'
	@echo 'make crash-disk      cut IMAGES=10000 images of a crashed disk from a record, open each, miss nothing'
	@echo 'make lint            arrows, sizes, banned calls, format; DEEP=1 adds clang-tidy and cppcheck'
	@echo 'make fmt             apply .clang-format; DIR=src/wire to one folder'
	@echo 'make install         install below PREFIX=/usr/local (DESTDIR is honoured)'
	@echo 'make clean           remove what was built; .venv stays'

setup:
	@tools/setup

build: setup
	@tools/build build

demo: build
	.venv/bin/python demo/run.py

test: build lint
	@tools/test build --seeds $(SEEDS) --end-to-end

test-long: build
	FOREBAY_LONG=1 FOREBAY_BUILD=$(CURDIR)/build PYTHONPATH=python .venv/bin/python -m pytest -q -rfE -s --timeout=1800 \
		-p no:cacheprovider --durations=20 test/test_damage.py test/test_limits.py test/test_input.py

long = FOREBAY_LONG=1 FOREBAY_BUILD=$(CURDIR)/build PYTHONPATH=python .venv/bin/python -m pytest -q -rfE -s --timeout=14400 -p no:cacheprovider

crash: build
	FOREBAY_ROUNDS=$(ROUNDS) FOREBAY_SEED=$(SEED) $(long) test/test_kill.py

soak: build
	FOREBAY_SAVES=$(SAVES) $(long) test/test_soak.py

namespaces: build
	$(long) test/test_cut.py

scenarios: build
	$(long) test/test_scenarios.py

unit:
	@SAN=$(SAN) TSAN=$(TSAN) tools/unit "$(ROOM)"

san: setup
	@tools/build build-san -Db_sanitize=address,undefined
	@tools/test build-san --seeds $(SAN_SEEDS)

tsan: setup
	@tools/build build-tsan -Db_sanitize=thread
	@tools/test build-tsan --seeds $(SAN_SEEDS)

sim: build
	build/forebay-sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(TRACE),--trace)

.PHONY: planted
planted: build
	FOREBAY_BUILD=$(CURDIR)/build test/test_planted.sh all

fuzz: setup
	@tools/fuzz $(SECONDS) $(TARGET)

bench: build
	@tools/bench $(BENCH)

kth: build
	build/forebay-sim --kth all $(if $(SAMPLE),--sample $(SAMPLE) $(if $(SEED),--seed $(SEED)))
	FOREBAY_BUILD=$(CURDIR)/build PYTHONPATH=python:test .venv/bin/python test/kth.py $(or $(RUNS),200) $(SEED)

crash-disk: build
	FOREBAY_BUILD=$(CURDIR)/build PYTHONPATH=python:test .venv/bin/python test/crash_disk.py $(or $(IMAGES),10000) $(SEED)

lint: setup
	@tools/lint
	@$(if $(DEEP),tools/lint-deep)

fmt:
	@git ls-files -co --exclude-standard $(or $(DIR),.) | grep '\.[ch]$$' | xargs -r clang-format -i

install: build
	meson configure build --prefix $(PREFIX)
	meson install -C build --quiet

clean:
	rm -rf build build-* demo-run python/forebay/_forebay.abi3.so

.PHONY: menu setup build demo test test-long crash soak namespaces scenarios unit san tsan sim fuzz bench kth crash-disk lint fmt install clean
