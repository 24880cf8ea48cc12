# The commands one types. `make help` lists them.
CARGO ?= cargo
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

.DEFAULT_GOAL := help
.PHONY: help build test lint fmt demo bench e2e manifests docker-build release

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build the release binary, target/release/karpenter
	$(CARGO) build --release -p karpenter

test: ## run every test that needs Rust only
	$(CARGO) test --workspace

lint: ## check format and lints as CI does
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fmt: ## format the code
	$(CARGO) fmt --all

demo: ## play the demo story once, in an embedded control plane
	$(CARGO) run --release -- demo --once

bench: ## measure scheduling
	$(CARGO) bench -p karpenter-engine

e2e: build ## run the tier on a real control plane (needs Go)
	$(CARGO) run --release -q -p karpenter-e2e

manifests: ## write generated files anew: CRDs and reference pages
	UPDATE_CRDS=1 UPDATE_DOCS=1 $(CARGO) test -q -p karpenter --test crds --test kinds_reference

docker-build: ## build the controller's image (needs a Docker engine)
	docker build -t karpenter:$(VERSION) .

release: build ## put the binary, the charts and their checksums into dist/
	rm -rf dist && mkdir -p dist
	cp target/release/karpenter dist/karpenter-$(VERSION)-$(shell uname -s | tr A-Z a-z)-$(shell uname -m)
	tar -czf dist/karpenter-$(VERSION).tgz -C charts karpenter
	tar -czf dist/karpenter-crd-$(VERSION).tgz -C charts karpenter-crd
	cd dist && sha256sum * > SHA256SUMS
