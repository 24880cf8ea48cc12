# The commands one types. `make help` lists them.
CARGO ?= cargo
HELM ?= $(shell command -v helm || echo $$(go env GOPATH)/bin/helm)
VERSION ?= v$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
IMG ?= ghcr.io/karpenter-rs/karpenter:$(VERSION)
PROVIDERS := bizflycloud cloudstack kwok ovhcloud
TARGET ?= $(shell uname -m)-unknown-linux-musl

.DEFAULT_GOAL := help
.PHONY: help build test lint fmt deny demo bench e2e manifests crds helm-lint helm-template helm-package docs static release \
	docker-build docker-push

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

deny: ## check licences, advisories and sources of dependencies (needs cargo-deny)
	$(CARGO) deny check

demo: ## play the demo story once, in an embedded control plane
	$(CARGO) run --release -- demo --once

bench: ## measure scheduling
	$(CARGO) bench -p karpenter-engine

# The runner as `make test` builds it: alone it would be built with fewer features, and most of its dependencies once more.
e2e: build ## run the tier on a real control plane (needs Go)
	$(CARGO) test -q --workspace --test cases --no-run
	target/debug/karpenter-e2e

manifests: ## write generated files anew: CRDs, reference pages, the chart's README, deploy/ (needs Helm)
	UPDATE_CRDS=1 $(CARGO) test -q -p karpenter --test crds
	for provider in $(PROVIDERS); do \
		$(HELM) template karpenter charts/karpenter --namespace karpenter --values deploy/values/$$provider.yaml \
			2>/dev/null > deploy/$$provider.yaml || exit 1; \
	done
	UPDATE_DOCS=1 $(CARGO) test -q -p karpenter --test kinds_reference --test reference

crds: ## print the CRDs
	@$(CARGO) run -q -- crds

helm-lint: ## check the charts for every provider (needs Helm)
	for provider in $(PROVIDERS); do \
		$(HELM) lint --strict charts/karpenter charts/karpenter-crd --values deploy/values/$$provider.yaml || exit 1; \
	done

helm-template: ## print the manifests of one provider: make helm-template PROVIDERS=ovhcloud (needs Helm)
	@for provider in $(PROVIDERS); do \
		$(HELM) template karpenter charts/karpenter --namespace karpenter --values deploy/values/$$provider.yaml || exit 1; \
	done

helm-package: ## put the packed charts into dist/ (needs Helm)
	mkdir -p dist
	$(HELM) package charts/karpenter charts/karpenter-crd --destination dist

docs: ## build the documentation into docs/book (needs mdbook)
	mdbook build docs

static: ## build a static binary for TARGET (needs that Rust target and musl-gcc)
	$(CARGO) build --release --locked -p karpenter --target $(TARGET)

docker-build: ## build the image IMG (needs a Docker engine)
	docker build -t $(IMG) .

docker-push: ## push the image IMG
	docker push $(IMG)

release: build ## put binary, manifests, charts, SBOM and checksums into dist/: all of a release but its publishing
	hack/release $(VERSION)
