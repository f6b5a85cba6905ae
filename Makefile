# Forwards to CMake; the presets in CMakePresets.json are the build.
PREFIX ?= /usr/local
SOURCES = $(shell find src include tests examples bench -name '*.[ch]' 2>/dev/null)

.PHONY: release setup test demo check bench install format lint clean

release: build/release/build.ninja
	cmake --build --preset release

build/%/build.ninja: CMakeLists.txt CMakePresets.json | setup
	cmake --preset $*

# Installs what is missing; does nothing the second time.
setup:
	tools/setup

test: release
	ctest --preset release

demo: release
	examples/demo build/release/accrue build/demo build/models

check: build/dev/build.ninja
	cmake --build --preset dev
	ctest --preset dev

# Against the peer: make bench PEER=.../bin/python, a Python that has speculators.
bench: release
	cmake --build --preset release --target bench_step bench_kernels
	build/release/bench/bench_kernels
	$(if $(PEER),bench/compare build/release/bench/bench_step $(PEER))

install: release
	cmake --install build/release --prefix $(PREFIX)

format:
	clang-format -i $(SOURCES)

lint: build/release/build.ninja
	tools/style
	clang-format --dry-run --Werror $(SOURCES)
	clang-tidy --quiet -p build/release $(filter src/%.c,$(SOURCES))

clean:
	rm -rf build/release build/dev build/tsan build/fuzz build/demo
