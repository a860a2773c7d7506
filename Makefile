# make demo   asks the demo model a question through a small expert arena
# make test   the tests; `make ci` adds what only CI runs
GO      ?= go
BIN     := bin/terrace
MODEL   := testdata/tiny-moe-Q4_K.gguf
VERSION := $(shell git describe --always --dirty 2>/dev/null)
# There is a C compiler, or root has taken one.
TAKE_CC := { command -v $${CC:-cc} >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -q && apt-get install -qy gcc libc6-dev; }; }
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.DEFAULT_GOAL := build
.PHONY: man demo test conformance bench lint build exact race cross shaders check-vulkan check-glslang check-qemu test-arm64 generate generated fuzz release check-release pictures web ci check-go say-cgo check-cc check-node clean fuzz-long sbom vulncheck chaos get-cc web-test check-chromium soak invariants faults

check-go:
	@$(GO) version 2>/dev/null | grep -qE 'go1\.(2[6-9]|[3-9][0-9])' || { echo "Terrace needs Go 1.26 or newer; 'go version' says: $$($(GO) version 2>&1)"; exit 1; }

# What a build without cgo lacks, said rather than found out later.
say-cgo:
	@[ "$$($(GO) env CGO_ENABLED)" != 0 ] || echo "without cgo ($$(command -v $${CC:-cc} >/dev/null && echo CGO_ENABLED=0 || echo no C compiler)): there is no GPU backend, and its tests are left out" >&2

build: check-go say-cgo
	$(GO) build -trimpath -ldflags "-X main.version=$(VERSION) -X terrace/bench.version=$(VERSION)" -o $(BIN) ./cmd/terrace

# The manual page and the completions, beside the program.
man: build
	$(BIN) man > bin/terrace.1
	for s in bash zsh fish; do $(BIN) completion $$s > bin/terrace.$$s; done

# The answer, then what happened on the way: which tier each expert came from, what was read, what limited the speed.
# 30 % of the experts have a slot, which with alignment is a third of the expert bytes.
demo: build
	@echo '$$ terrace run -m $(MODEL) --expert-ram 30% --temp 0 --stats text "What is the capital of France?"'
	@$(BIN) run -m $(MODEL) --expert-ram 30% --temp 0 --stats text "What is the capital of France?"

# The tests of the GPU backend need a device; Mesa's software one will do. Without cgo, or with -tags novulkan, there is no backend.
check-vulkan:
	@[ "$$($(GO) env CGO_ENABLED)" = 0 ] || { ldconfig -p 2>/dev/null | grep -q libvulkan.so.1 && cat /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json 2>/dev/null | grep -q .; } || [ "$$(uname)" != Linux ] || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -qy libvulkan1 mesa-vulkan-drivers; else echo "the tests of the GPU backend need a Vulkan driver: install libvulkan1 and mesa-vulkan-drivers, or test with CGO_ENABLED=0"; exit 1; fi

# A C compiler brings the GPU backend and its tests; whoever may install one gets it, unless CGO_ENABLED=0 says otherwise.
get-cc: check-go
	@[ "$$CGO_ENABLED" = 0 ] || $(TAKE_CC) || echo "to test the GPU backend too, install gcc and the C library's headers" >&2

test: check-go get-cc say-cgo check-vulkan
	$(GO) vet ./...
	$(GO) test -timeout 20m ./...

# A build that checks itself at every step: what is freed is poisoned, leases and budgets add up.
invariants: check-go
	$(GO) vet -tags invariants ./internal/invariant ./tiers ./compute/cpu ./model ./engine
	$(GO) test -tags invariants -short ./tiers -run 'Invariants|Stress|Cache|Resize'
	$(GO) test -tags invariants -short ./engine -run 'Invariants|Pool|SchedulerCache|SchedulerSlots|SchedulerCancel'

# The contract of the HTTP endpoint, judged from outside: a protocol model of random weights, then the demo model.
check-node:
	@{ command -v node && command -v npm; } >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -qy nodejs npm; else echo "this needs Node 20.10 or newer and npm: install nodejs and npm"; exit 1; fi
	@node -e 'const [a, b] = process.versions.node.split(".").map(Number); if (a < 20 || a == 20 && b < 10) { console.log("this needs Node 20.10 or newer, this is " + process.version); process.exit(1); }'

conformance: build check-node
	conformance/check.sh $(BIN) testdata/protocol-random/protocol-random.gguf '\] tiny model: ' REQUIRE_ALL=1 STRICT_TOOLS=1
	conformance/check.sh $(BIN) $(MODEL) 'template knows no tools|vocabulary has no FIM' REQUIRE_ALL=1 TINY_MOE=1

# One logits hash over arenas, stores, lookahead, threads and prompt batches, in fast and in exact mode, for every architecture.
exact: check-go
	TERRACE_EXACT=whole $(GO) test ./engine -run 'OneHash|Vulkan' -count=1 -v -timeout 60m
	TERRACE_EXACT=whole $(GO) test ./vulkan -run Suite -count=1 -timeout 60m

bench: build
	$(GO) test ./kernels -run '^$$' -bench . -benchtime 200ms
	$(BIN) bench predictor -m $(MODEL) --trace testdata/tiny-moe/routing.jsonl.gz --expert-ram 25%

# The race detector needs a C compiler.
check-cc:
	@$(TAKE_CC) || { echo "the race detector needs a C compiler: install gcc and the C library's headers"; exit 1; }

race: check-go check-cc check-vulkan
	CGO_ENABLED=1 $(GO) test -race -timeout 40m ./...

cross: check-go
	CGO_ENABLED=0 $(GO) build ./...
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) build ./...
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 $(GO) build ./...
	GOOS=windows GOARCH=amd64 CGO_ENABLED=0 $(GO) build ./...

# The arithmetic rooms as an arm64 build under emulation; `make test-arm64 ARM64_ROOMS=./engine ARM64_FLAGS='-run OneHash -v'`
# runs what you like, ARM64_CPU=cortex-a53 a processor without SDOT.
ARM64_ROOMS ?= ./internal/fmath ./quant ./kernels
ARM64_CPU   ?= max
ARM64_FLAGS ?=
check-qemu:
	@{ command -v qemu-aarch64-static || command -v qemu-aarch64; } >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -qy qemu-user-static; else echo "arm64 tests need QEMU's user emulation: install qemu-user-static (it has qemu-aarch64-static)"; exit 1; fi

test-arm64: check-go check-qemu
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) vet $(ARM64_ROOMS)
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) test -count=1 -timeout 60m -exec "$${QEMU:-$$(command -v qemu-aarch64-static || command -v qemu-aarch64)} -cpu $(ARM64_CPU)" $(ARM64_ROOMS) $(ARM64_FLAGS)

lint: check-go
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# Assembly is generated by a module of its own, so that users never download the generator.
generate: check-go
	$(GO) generate ./kernels

# Where Node is, the web page too.
generated: generate shaders sbom
	@if command -v node >/dev/null && command -v npm >/dev/null; then $(MAKE) --no-print-directory web; else echo "the web page is left as it is: there is no Node"; fi
	git diff --exit-code -- kernels vulkan/shaders web docs/sbom.cdx.json docs/licences.md

# The page that serve shows: web/src to web/dist, which is committed, so that nobody needs Node to build Terrace.
web: check-node
	@cd web && if [ ! -d node_modules ] || [ package-lock.json -nt node_modules ]; then npm ci --no-audit --no-fund && touch node_modules; fi
	cd web && node build.mjs

check-chromium:
	@[ -n "$$CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -qy chromium; else echo "the page is tested in Chromium: install chromium, or name one by CHROMIUM"; exit 1; fi

# The page in a headless browser, then the time of the monitor's own drawing.
web-test: build web check-chromium
	cd web && node --test-timeout=120000 test/run.mjs && node test/draw.mjs

check-glslang:
	@command -v glslangValidator >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -qy glslang-tools spirv-tools; else echo "shaders are compiled with glslangValidator: install Debian 12's glslang-tools"; exit 1; fi

# The compiler's version is fixed in vulkan/shaders/_gen: another writes other files.
shaders: check-go check-glslang
	cd vulkan/shaders && $(GO) run ./_gen

# Seeded faults under runs and under requests to a server; seeds that this code has done according to the file are left out. `make faults`
# is the small form, for CI, without a record: ten seeds of each, and the other tests of builds in which things may go wrong.
SEEDS ?= 1..100
OVER  ?= run serve
CHAOS_run   := ./cmd/terrace
CHAOS_serve := ./server
chaos: check-go
	for room in $(foreach o,$(OVER),$(CHAOS_$(o))); do \
		TERRACE_CHAOS=$(SEEDS) TERRACE_CHAOS_FILE=$(CURDIR)/bench/results/chaos.jsonl $(GO) test -tags faults $$room -run '^TestChaos$$' -count=1 -v -timeout 120m || exit 1; \
	done

faults: check-go
	$(GO) vet -tags faults ./internal/fault ./tiers ./vulkan ./engine ./server ./cmd/terrace
	$(GO) test -tags faults ./engine ./server ./cmd/terrace -run '^(TestChaos|TestStall.*)$$'

# Mixed load over HTTP at a starving budget that changes every few seconds; minutes that this code has done according to the file count.
# Nothing else should run beside it.
MINUTES ?= 60
SOAK_FILE ?= bench/results/soak.jsonl
soak: build
	$(BIN) bench load -m $(MODEL) --soak $(SOAK_FILE) --minutes $(MINUTES) --code "$$(git log -1 --format=%h -- tiers engine server model prefetch promptstore kernels compute internal/host)" \
		--resize 5s --clients 16 --server-log bin/soak.log -- --ram 300M -np 4 -c 1000 --cache-ram 8

# Each fuzz target for FUZZTIME in all, resumable (bench/fuzz-long.sh): make fuzz-long FUZZTIME=20m TARGETS="gguf chat/FuzzRender".
# `make fuzz` is the small form, for CI: what was found before, then a few seconds of each without a record.
fuzz-long: check-go
	FUZZTIME="$(or $(FUZZTIME),20m)" TARGETS="$(TARGETS)" GO="$(GO)" bench/fuzz-long.sh

FUZZ_SMALL := $(or $(FUZZTIME),2s)
fuzz: check-go
	rm -f bin/fuzz.jsonl; mkdir -p bin
	FUZZTIME="$(FUZZ_SMALL)" SLICE="$(FUZZ_SMALL)" TARGETS="$(TARGETS)" GO="$(GO)" OUT=bin/fuzz.jsonl bench/fuzz-long.sh

# What the program is made of and under which licences; a vulnerability that its code can reach fails.
sbom: check-go
	$(GO) run ./docs/_sbom

GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@latest
vulncheck: check-go
	$(GO) run $(GOVULNCHECK) ./...

ci: test invariants faults fuzz conformance web-test cross generated race

# Archives for users, with licences and checksums, in dist/. One of them has the GPU backend and needs a C compiler; RELEASE_FLAGS=-no-vulkan leaves it out.
RELEASE_VERSION ?= $(VERSION)
RELEASE_FLAGS   ?=
release: check-go $(if $(findstring -no-vulkan,$(RELEASE_FLAGS)),,check-cc)
	$(GO) run ./cmd/release -version "$(RELEASE_VERSION)" $(RELEASE_FLAGS)

# What the other systems' archives answer, under emulation: the demo question. WINE is asked where it is installed.
check-release: check-qemu
	.ci/check-release

# The pictures in docs/img: of terminals, and of the page (smaller where pngquant is installed).
pictures: build web check-chromium
	docs/_gen/pictures.sh
	node web/test/pictures.mjs

clean:
	rm -rf bin dist
