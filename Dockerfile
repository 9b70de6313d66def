# The relay in a small image. librdkafka, OpenSSL, zstd and zlib are linked in: the runtime needs the C library,
# libgcc and the roots of trust.

FROM rust:1-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake perl python3 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# For walrelay --version: --build-arg WALRELAY_COMMIT=$(git rev-parse --short=12 HEAD).
ARG WALRELAY_COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    # Some arm64 kernels have pages of 64 KiB, and jemalloc has to know the largest.
    if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi \
    && cargo build --locked --release \
    && install -m 0755 target/release/walrelay /usr/local/bin/walrelay \
    && scripts/licences "$(uname -m)-unknown-linux-gnu" >/LICENSES.txt

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin walrelay
COPY --from=build /usr/local/bin/walrelay /usr/local/bin/walrelay
COPY LICENSE /usr/share/doc/walrelay/LICENSE
COPY --from=build /LICENSES.txt /usr/share/doc/walrelay/LICENSES.txt
LABEL org.opencontainers.image.title="walrelay" \
    org.opencontainers.image.description="Relays a transactional outbox from a Postgres replication slot to Kafka" \
    org.opencontainers.image.licenses="Apache-2.0"
USER 10001:10001
# SIGTERM, the default, drains; give the container longer than --shutdown-timeout before it is killed.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/walrelay"]
CMD ["run"]
