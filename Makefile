# Everything that is done to rowferry by hand or by machine. `make` lists it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULE  := github.com/rowferry/rowferry
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE    ?= $(shell git log -1 --format=%cI 2>/dev/null)
LDFLAGS := -s -w -X $(MODULE)/internal/version.version=$(VERSION) \
	-X $(MODULE)/internal/version.commit=$(COMMIT) -X $(MODULE)/internal/version.date=$(DATE)

GOLANGCI := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.0
PACKAGES ?= ./...
FUZZTIME ?= 20s
KILL     ?=
DEMO_FLAGS ?=
BENCH_FLAGS ?=
RIVAL    ?=
GROWTH   ?=
CHAOS_FLAGS ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/rowferry
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/rowferry ./cmd/rowferry

.PHONY: demo
demo: build servers ## a flash sale on this machine; KILL=1 kills rowferry in the middle of it
	go run ./demo run --rowferry bin/rowferry $(if $(KILL),--kill) $(DEMO_FLAGS)

.PHONY: servers
servers: ## fetch MySQL, MariaDB and RocketMQ into .servers/, unless servers of your own are named
	@if [[ -z "$${FERRYTEST_MYSQL_DSN:-}" || -z "$${FERRYTEST_ROCKETMQ_NAMESRV:-}" ]]; then scripts/provision; fi

.PHONY: services-up
services-up: servers ## start a MySQL and a RocketMQ to play with, and say where they are
	go run ./internal/testservers/services up
	@go run ./internal/testservers/services env

.PHONY: services-down
services-down: ## stop them; their data stay
	go run ./internal/testservers/services down

.PHONY: test
test: servers ## run all tests with the race detector; PACKAGES=./pkg/... narrows it
	go test -race -timeout 20m $(PACKAGES)

.PHONY: lint
lint: format ## gofmt, go vet and golangci-lint (its first run builds it, which takes minutes)
	go vet ./...
	$(GOLANGCI) run

.PHONY: format
format: ## fail if a file is not formatted by gofmt
	@files=$$(gofmt -l $$(git ls-files '*.go')); if [[ -n "$$files" ]]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi

.PHONY: benchmarks
benchmarks: ## run the benchmarks of the hot paths once (BENCHTIME=1s to measure)
	go test -run '^$$' -bench 'Stream|GTIDAdd|Route|Encode|Watermark' -benchmem -benchtime $(or $(BENCHTIME),1x) \
		./pkg/binlog ./pkg/relay ./pkg/router ./pkg/router/rocketmq

.PHONY: bench
bench: servers ## measure beside ceilings and a bare loop; RIVAL=1: Debezium Server too; GROWTH=1: ten times more of everything
	go run ./bench $(if $(RIVAL),--rival) $(if $(GROWTH),--growth) $(BENCH_FLAGS)

.PHONY: chaos
chaos: servers ## 100,000 rows through 200 faults, chosen by a seed; CHAOS_FLAGS="--seed 7" replays one
	go run ./chaos $(CHAOS_FLAGS)

.PHONY: mutants
mutants: servers ## show that chaos catches bugs planted into copies of the sources
	go run ./chaos mutants $(CHAOS_FLAGS)

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (20s)
	FUZZTIME=$(FUZZTIME) scripts/fuzz

.PHONY: docs
docs: ## write the generated pages of docs/ again
	go test ./internal/config -run TestDocsAreUpToDate -update

.PHONY: ci
ci: ## what .ci/run runs
	.ci/run
