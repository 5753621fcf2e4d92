# make alone prints the targets.

GO       ?= go
FUZZTIME ?= 10s
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT   ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
VULN     := golang.org/x/vuln/cmd/govulncheck@v1.8.0
STATIC   := honnef.co/go/tools/cmd/staticcheck@v0.8.2
MISSPELL := github.com/golangci/misspell/cmd/misspell@v0.8.0
APIDIFF  := golang.org/x/exp/cmd/apidiff@v0.0.0-20261014143641-f0251eb4aa3e
LDFLAGS  := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
SUDO     := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The race detector leaves out the Lua interpreter of the embedded engine: one goroutine at a time is
# in it, and tests on that engine take a quarter less.
RACE := -race -gcflags='github.com/yuin/gopher-lua/...=-race=false'
# The packages that take longest start first, so that the others fill the processors at the end.
LONGEST := ./queue ./worker ./cmd/sluice ./lua ./api
# Packages without tests are left out, because the compiler takes long for what they import.
WITH_TESTS = list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}'
TESTED = $(LONGEST) $(shell $(GO) $(WITH_TESTS) ./...)
# For the race detector: packages that import sync, because others have no goroutines. The commands
# run one after the other what other packages test. The suites whose scripts are sent twice, or whose
# texts are encrypted, have the goroutines of the suite beside them. What make test leaves out of
# those runs without it. SINGLE are tests of one goroutine that compute for long.
SINGLE = CostDoesNotGrowWithDepth|RegularsGiveWay|AnHourOfGrid
WITH_SYNC = list -f '{{if or .TestGoFiles .XTestGoFiles}}{{range .Imports}}{{if or (eq . "sync") (eq . "sync/atomic")}}{{println $$.ImportPath}}{{end}}{{end}}{{end}}'
COMMANDS = $(foreach command,audit cli jobs policies simulate,%/cmd/sluice/internal/$(command))
RACED = $(filter-out ./lua ./cmd/sluice,$(LONGEST)) $(filter-out %/sluice/cmd/sluice $(COMMANDS),$(sort $(shell $(GO) $(WITH_SYNC) ./...)))
# What measures and breaks Sluice is a module of its own.
TOOLS  = $(shell cd tools && $(GO) $(WITH_TESTS) ./...)
TEST   = -vet=off -short -shuffle=on -parallel 3 -timeout 20m

# Tests wait more than they compute, so three of a package run at once. With six, tests on the
# embedded engine reach timeouts on two cores. make lint vets all packages, so tests do not.
.PHONY: test
test: redis promtool clients ## run the tests that take less than ten seconds each (installs redis-server, promtool, curl, python3, node and openssl where they are missing)
	$(GO) test $(TEST) $(TESTED)

.PHONY: test-tools
test-tools: redis ## run the tests of what measures and breaks Sluice
	$(GO) test -C tools $(TEST) $(TOOLS)

.PHONY: test-race
test-race: redis promtool clients ## run the tests that have goroutines with the race detector
	SLUICE_TEST_LONG=1 $(GO) test $(RACE) $(TEST) -skip '(Conformance(SentTwice|Encrypted)|$(SINGLE))$$' $(RACED)
	SLUICE_TEST_LONG=1 $(GO) test $(TEST) -run '^Test(ConformanceEncrypted|Clients)$$' ./queue ./cmd/sluice

.PHONY: test-compile
test-compile:
	$(GO) list $(RACE) -test -deps -export $(RACED) >/dev/null

# The files whose tests are shorter with -short, as in make test. A random search is a fifth then.
.PHONY: test-long
test-long: test-race test-tools test-full ## run the tests with the race detector, and at full length what make test shortens

.PHONY: test-full
test-full: redis ## run at full length what make test shortens
	@for module in . tools; do ( cd $$module; \
	  files=$$(grep -rlE --include='*_test.go' --exclude-dir=tools '"pgregory.net/rapid"|testing\.Short' .); \
	  names=$$(grep -hoE '^func (Test|Example)[A-Za-z0-9_]+' $$files | cut -c6- | paste -sd '|'); \
	  $(GO) test -vet=off -parallel 6 -timeout 20m -run "^($$names)\$$" $$(dirname $$files | sort -u) ) || exit 1; done

.PHONY: test-ui
test-ui: redis chromium ## test the dashboard in a browser, and keep pictures in build/ui/ (installs chromium where it is missing)
	$(GO) test -C tools -tags ui -vet=off -count=1 -timeout 15m ./browsertest

.PHONY: screenshots
screenshots: redis chromium ## make the pictures of docs/dashboard.md anew (seven minutes)
	$(GO) run -C tools ./screenshots -out ../docs

.PHONY: build
build: ## build the program into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice ./cmd/sluice

# PLATFORMS=linux_amd64 makes it shorter. VERSION is the tag, or the time and the commit.
.PHONY: release-snapshot
release-snapshot: ## make archives, packages, image, chart, SBOM and checksums in dist/ without a network (ten minutes)
	$(GO) run -C tools ./release -out ../dist -platforms '$(PLATFORMS)'

.PHONY: test-release
test-release: redis ## make the release twice and compare, start the image, install the package (needs root and dpkg)
	SLUICE_TEST_RELEASE=1 $(GO) test -C tools -count=1 -timeout 30m ./release

# The chart's tests are a module of their own: Helm and the types of Kubernetes take long to compile.
.PHONY: test-chart
test-chart: ## render the Helm chart, and check it against Kubernetes and the program
	$(GO) vet -C tools/chart ./...
	$(GO) test -C tools/chart ./...

# What encrypts, signs, verifies and speaks TLS. The program as a whole does not start where Go refuses
# SHA-1: asynq names its scripts by it.
FIPS = ./internal/sealed ./internal/operators ./internal/outbound ./api/internal/dashboard

.PHONY: fips
fips: test-fips ## build bin/sluice-fips for FIPS 140-3 mode, and test what encrypts and signs under its strict rules
	CGO_ENABLED=0 GOFIPS140=v1.0.0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/sluice-fips ./cmd/sluice

.PHONY: test-fips
test-fips:
	GODEBUG=fips140=only $(GO) test -vet=off -short $(FIPS)

.PHONY: fmt
fmt: ## format the code
	gofmt -w .

.PHONY: lint
lint: ## check format, spelling and mistakes that compile (gofmt, vet, staticcheck, misspell)
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	  if [ -n "$$unformatted" ]; then echo "not formatted; run make fmt:" >&2; echo "$$unformatted" >&2; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATIC) ./...
	cd tools && $(GO) vet -tags ui ./... && $(GO) run $(STATIC) -tags ui ./...
	@git ls-files '*.go' '*.lua' '*.md' '*.yaml' '*.html' '*.js' '*.css' | xargs $(GO) run $(MISSPELL) -error

.PHONY: fuzz
fuzz: redis ## run every fuzz target for FUZZTIME (10s)
	@set -e; for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
	  done; \
	done

.PHONY: battery
battery: redis ## break Sluice on purpose and check what it promises (eight minutes; see go run -C tools ./battery -h)
	$(GO) run -C tools ./battery -quick -keep

.PHONY: seeded
seeded: redis ## plant known bugs, one after the other, and see that the tests find them
	$(GO) run -C tools ./battery -full -only Q1

.PHONY: profile
profile: redis ## write processor profiles of the intake and of the drain to profiles/
	$(GO) run -C tools ./bench -runs 1 -profile ../profiles P1 P3
	@echo "now: $(GO) tool pprof -http 127.0.0.1:0 profiles/intake.pprof"

.PHONY: soak
soak: redis ## hold the scripts against their model over longer random histories, with a new seed
	SLUICE_PARITY_STEPS=500 $(GO) test -count=1 -timeout 30m -run "TestParity|TestPoolBounds/redis" ./lua

.PHONY: docs
docs: redis ## write what the docs take from the program: settings, metrics, OpenAPI
	$(GO) test ./internal/config -run TestReferencePage -update
	$(GO) test ./cmd/sluice/internal/process -run TestMetricsPage -update
	$(GO) test ./cmd/sluice -run TestOpenAPI -update
	$(GO) test ./cmd/sluice -run TestTypesOfTypeScript -update
	$(GO) test ./internal/httpmsg -run TestHeaderPage -update

# Not part of .ci: the database of vulnerabilities cannot be reached from every machine.
.PHONY: vuln
vuln: ## look for known vulnerabilities in what is imported (asks vuln.go.dev)
	@$(GO) run $(VULN) ./... || { \
	  echo "Either vulnerabilities were found, or, if it says so above, the database at https://vuln.go.dev cannot be reached from here;" >&2; \
	  echo "with a mirror of it: $(GO) run $(VULN) -db URL ./..." >&2; exit 1; }

# Packages that no other module can import, internal ones and programs, are left out.
.PHONY: apidiff
apidiff: ## print the changes of the Go packages since the last tag that break programs which import them
	@set -e; tag=$$(git describe --tags --abbrev=0 2>/dev/null) || { echo "there is no tag yet to compare with"; exit 0; }; \
	  module=$$($(GO) list -m); old=$$(mktemp -d); trap 'rm -rf "$$old"' EXIT; \
	  mkdir "$$old/tree"; git archive "$$tag" | tar -x -C "$$old/tree"; \
	  (cd "$$old/tree" && $(GO) run $(APIDIFF) -m -w "$$old/api" "$$module") 2>"$$old/log" || { cat "$$old/log" >&2; exit 1; }; \
	  $(GO) run $(APIDIFF) -m -incompatible "$$old/api" "$$module" >"$$old/changes" 2>"$$old/log" || { cat "$$old/log" >&2; exit 1; }; \
	  echo "incompatible changes since $$tag:"; grep -vE '^- \./(cmd|docs)/' "$$old/changes" || echo "none"

# The tests run real redis-servers of their own: the program is needed, a running service is not.
.PHONY: redis
redis:
	@command -v redis-server >/dev/null || { \
	  echo "installing redis-server"; \
	  if command -v apt-get >/dev/null; then \
	    $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null; \
	  elif command -v brew >/dev/null; then brew install redis; \
	  elif command -v dnf >/dev/null; then $(SUDO) dnf install -y redis || $(SUDO) dnf install -y valkey-compat-redis; \
	  elif command -v apk >/dev/null; then $(SUDO) apk add redis; \
	  else echo "install redis-server 6.2 or newer, then run make again" >&2; exit 1; fi; }

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { \
	  echo "installing chromium"; \
	  if command -v apt-get >/dev/null; then \
	    $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-inter >/dev/null; \
	  else echo "install chromium, then run make again" >&2; exit 1; fi; }

# The tests of the alerts evaluate them by Prometheus's own tool; a running Prometheus is not needed.
.PHONY: promtool
promtool:
	@command -v promtool >/dev/null || { \
	  echo "installing promtool"; \
	  if command -v apt-get >/dev/null; then \
	    $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null; \
	  elif command -v brew >/dev/null; then brew install prometheus; \
	  else echo "install promtool, which comes with Prometheus, then run make again" >&2; exit 1; fi; }

# The examples of docs/http.md run as tests.
.PHONY: clients
clients:
	@set -e; for tool in curl python3 node openssl; do command -v $$tool >/dev/null || { \
	  echo "installing $$tool"; package=$$tool; \
	  if [ $$tool = node ] && ! command -v brew >/dev/null; then package=nodejs; fi; \
	  if command -v apt-get >/dev/null; then \
	    $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$package >/dev/null; \
	  elif command -v brew >/dev/null; then brew install $$package; \
	  elif command -v dnf >/dev/null; then $(SUDO) dnf install -y $$package; \
	  elif command -v apk >/dev/null; then $(SUDO) apk add $$package; \
	  else echo "install $$tool, then run make again" >&2; exit 1; fi; }; done
