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
    scripts/dist --binary && cp -R target/dist /dist

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin walrelay
COPY --from=build /dist/walrelay /usr/local/bin/walrelay
COPY LICENSE /usr/share/doc/walrelay/LICENSE
COPY --from=build /dist/LICENSES.txt /usr/share/doc/walrelay/LICENSES.txt
LABEL org.opencontainers.image.title="walrelay" \
    org.opencontainers.image.description="Relays a transactional outbox from a Postgres replication slot to Kafka" \
    org.opencontainers.image.licenses="Apache-2.0"
USER 10001:10001
# SIGTERM, the default, drains; give the container longer than --shutdown-timeout before it is killed.
STOPSIGNAL SIGTERM
# For settings by variables or a file, which the command reads as well; Kubernetes has probes of its own.
# It asks the relay at http.listen whether it is ready. Without that, it waits up to 15 s for a confirmation.
HEALTHCHECK --interval=15s --timeout=25s --start-period=1m CMD ["walrelay", "status"]
ENTRYPOINT ["/usr/local/bin/walrelay"]
CMD ["run"]
