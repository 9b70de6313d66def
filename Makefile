# Everything goes through cargo; this names the usual runs. `make` alone lists them.

# One profile and one set of features for the demo, linting and testing: librdkafka is built once, and links the libraries of
# the system. `make build` builds these, too, into a binary that needs none of them.
FEATURES = --no-default-features --features system,jemalloc,failpoints,debezium,nats,rabbitmq,smtp,webhook
# All that have tests. Fewer would have other features of what they depend on, and build that again.
TESTED = -p walrelay -p walrelay-core -p walrelay-debezium -p walrelay-fuzz -p walrelay-lab -p walrelay-spec
# The demo does without the allocator: its first line comes sooner. macOS does not have all the libraries.
DEMO = --no-default-features --features $(if $(filter Darwin,$(shell uname -s)),vendored,system),failpoints

.PHONY: help prerequisites build dist check-deb demo check fmt size lint docs docs-site features deny compose alerts chart unit workflow examples test fuzz test-long page bench takeover exactly-once mutants

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 16

prerequisites: ## install what is missing and fetch the test servers, once
	@scripts/prerequisites

build: ## the release binary
	@scripts/prerequisites --build
	cargo build --locked --release

dist: ## a release in dist/: archive, Debian package, licences, bill of materials, checksums
	@scripts/prerequisites --build
	@scripts/dist

check-deb: ## install the package of dist/ with dpkg, use it and remove it; for root on a machine to throw away
	@scripts/check-deb

demo: ## the main job on a private, throw-away Postgres, verified
	@scripts/prerequisites --minimal
	cargo build --locked -p walrelay-lab --bin walrelay-demo $(DEMO)
	cargo run --locked --quiet -p walrelay-lab --bin walrelay-demo $(DEMO) -- $(OPTIONS)

check: fmt size compose alerts chart unit workflow examples lint docs docs-site deny ## what CI checks before it tests

fmt: ## formatting
	cargo fmt --check --all

size: ## how much code there is, by module, and what it may be at most
	@scripts/size

lint: ## clippy, warnings are errors
	cargo clippy --locked --workspace --all-targets $(FEATURES) -- -D warnings

# Who works here reads the private items as well, so that links to them lead somewhere.
docs: ## the documentation builds, and its links lead somewhere
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' cargo doc --locked --workspace --no-deps --document-private-items $(FEATURES)

# Links the libraries that a release carries, and those of Kerberos, without the time that its optimisation takes.
features: ## all features but `system` build together
	cargo build --locked --features gssapi,failpoints

docs-site: ## the pages of docs as a site in target/docs-site/book, with mdBook; its links lead somewhere
	@scripts/docs-site

deny: ## licences, sources and advisories of what is linked in
	@scripts/deny

compose: ## docker-compose.yml is what the Compose specification allows
	@scripts/check-compose

alerts: ## each alert fires where it is to, and nowhere else
	@scripts/check-alerts

chart: ## the Helm chart renders what Kubernetes accepts and the relay needs
	@scripts/check-chart

unit: ## systemd reads the units
	@scripts/check-unit

workflow: ## the workflows of the forge are what their schema allows
	@scripts/check-workflow

examples: ## the writers and consumers of examples compile
	@scripts/check-examples

# More for `cargo test`, such as a part of the names of tests (`make test TEST=parked`). RUST_TEST_THREADS says how many run at once.
TEST =

test: prerequisites ## all tests, on real servers
	@scripts/test $(TESTED) $(FEATURES) $(TEST)

fuzz: prerequisites ## hostile inputs for each parser, a minute each; the seed is printed
	WALRELAY_FUZZ_SECONDS=$${WALRELAY_FUZZ_SECONDS:-60} WALRELAY_FUZZ_SEED=$${WALRELAY_FUZZ_SEED:-$$(date +%s)} \
		cargo test --locked $(TESTED) $(FEATURES) --lib -- --nocapture fuzzed_

test-long: prerequisites ## tests of hours: more of everything, every major of Postgres, how long take-overs take, mutants
	WALRELAY_SIMULATION_RUNS=3000 WALRELAY_TEST_CHAOS_SECONDS=60 WALRELAY_TEST_CRASH_SECONDS=60 WALRELAY_TEST_RESTARTS=20 \
		WALRELAY_TEST_BROKER_RESTARTS=5 WALRELAY_TEST_EVENTS=20000 WALRELAY_TEST_BACKLOG=100000 \
		WALRELAY_TEST_ROWS=1000000 WALRELAY_TEST_PAUSE_MS=4 WALRELAY_TEST_MAJORS=all RUST_TEST_THREADS=2 \
		scripts/test -p walrelay -p walrelay-core -p walrelay-debezium $(FEATURES) --test walrelay --test simulation -- --include-ignored --nocapture \
		--skip starts_a_server --skip exactly_once_beside
	scripts/mutants

page: prerequisites alerts ## the pictures of status page and dashboard in docs; needs chromium
	WALRELAY_TEST_PICTURES=$(CURDIR)/target cargo test --locked $(FEATURES) --test walrelay -- --include-ignored \
		a_browser_shows_the_page each_query_of_the_dashboard
	cp target/status-page.png target/status-page-outage.png target/dashboard.png docs/pictures/

# What is measured, how often, and more options of the bench, or of the demo (`make bench BENCH=page`, `OPTIONS='--help'`).
BENCH =
ROUNDS = 3
OPTIONS =

bench: prerequisites build ## walrelay beside its peers: rate, latency, memory, kills; the page is target/bench/benchmarks.md
	scripts/bench-peer --fetch
	WALRELAY_TEST_BINARY=$(CURDIR)/target/release/walrelay \
		cargo bench --locked -p walrelay-benches --bench peers -- $(BENCH) --rounds $(ROUNDS) $(OPTIONS)

takeover: prerequisites ## how long a stand-by takes to take over: killed, stopped, cut off; slot and table
	cargo test --locked $(FEATURES) --test walrelay -- --test-threads=1 --ignored --nocapture a_stand_by_takes_over

exactly-once: prerequisites build ## what exactly-once costs, beside at-least-once: rate and latency (release build)
	WALRELAY_TEST_BINARY=$(CURDIR)/target/release/walrelay \
		cargo test --locked $(FEATURES) --test walrelay -- --ignored --nocapture exactly_once_beside

mutants: prerequisites ## break each promise once, and see that a test notices
	@scripts/mutants
