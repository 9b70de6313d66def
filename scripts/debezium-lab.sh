# Debezium on Kafka Connect, a Postgres and a Kafka of their own, until the script that reads this ends. It needs
# scripts/prerequisites; Debezium and Kafka Connect come through Maven, by version, and stay beside the test servers.
# POSTGRES names another folder with Postgres' programs, and JAVA another Java.
# shellcheck shell=bash disable=SC2034

# shellcheck source=scripts/debezium-fetch.sh
. scripts/debezium-fetch.sh
fetch_connect
programs=$(realpath "${POSTGRES:-/usr/lib/postgresql/15/bin}")

# --- servers ------------------------------------------------------------------------------------------------------

run=$(mktemp -d)
chmod 755 "$run"
pids=()
end() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    if [ -n "${KEEP:-}" ]; then say "logs and data are in $run"; else rm -rf "$run"; fi
}
trap end EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
postgres_port=$(free_port)
kafka_port=$(free_port)
controller_port=$(free_port)
connect_port=$(free_port)

# Postgres does not run as root.
mkdir "$run/postgres"
as=()
if [ "$(id -u)" = 0 ]; then
    chown postgres "$run/postgres"
    as=(setpriv --reuid postgres --regid postgres --clear-groups)
fi
(cd / && "${as[@]}" "$programs/initdb" -U postgres -A trust -E UTF8 --no-locale -N -D "$run/postgres/data") >"$run/initdb.log"
"${as[@]}" "$programs/postgres" -D "$run/postgres/data" -c listen_addresses=127.0.0.1 -c port="$postgres_port" \
    -c unix_socket_directories= -c wal_level=logical -c max_replication_slots=300 -c max_wal_senders=300 \
    -c max_connections=900 -c fsync=off -c timezone=UTC >"$run/postgres.log" 2>&1 &
pids+=($!)
sql() { PGTZ=UTC psql -h 127.0.0.1 -p "$postgres_port" -U postgres -d postgres -qAt -v ON_ERROR_STOP=1 "$@"; }
for _ in $(seq 100); do
    sql -c 'select 1' >/dev/null 2>&1 && break
    sleep 0.2
done

cp -r "$servers/kafka/formatted-1" "$run/kafka"
cat >"$run/kafka.properties" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller_port
listeners=PLAINTEXT://127.0.0.1:$kafka_port,CONTROLLER://127.0.0.1:$controller_port
advertised.listeners=PLAINTEXT://127.0.0.1:$kafka_port
controller.listener.names=CONTROLLER
log.dirs=$run/kafka
num.partitions=8
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
log.retention.ms=-1
log.message.timestamp.after.max.ms=9223372036854775807
P
java=("${JAVA:-java}" -XX:+UseSerialGC -XX:-UsePerfData "-Dlog4j2.configurationFile=$servers/kafka/log4j2.xml")
"${java[@]}" -Xmx512m -cp "$servers/kafka/libs/*" kafka.Kafka "$run/kafka.properties" >"$run/kafka.log" 2>&1 &
pids+=($!)
for _ in $(seq 150); do
    grep -q 'Kafka Server started' "$run/kafka.log" && break
    sleep 0.2
done
grep -q 'Kafka Server started' "$run/kafka.log" || { tail -n 5 "$run/kafka.log" >&2; say "Kafka does not start"; exit 1; }
cat >"$run/worker.properties" <<P
bootstrap.servers=127.0.0.1:$kafka_port
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.storage.file.filename=$run/offsets
plugin.path=$peer/plugins
listeners=http://127.0.0.1:$connect_port
P

# Runs the connectors of these files; $connect is the process.
connect() {
    "${java[@]}" -Xmx2g -cp "$peer/libs/*" org.apache.kafka.connect.cli.ConnectStandalone "$run/worker.properties" "$@" \
        >>"$run/connect.log" 2>&1 &
    connect=$!
    pids+=("$connect")
}

# Whether the slots of these cases are all read, or their tasks have failed.
settled() {
    local case
    for case in $(sql -c "select slot_name from pg_replication_slots where not active and slot_name = any(string_to_array('$*', ' '))"); do
        is_failed "$case" || return 1
    done
}
is_failed() { # CASE
    curl -s "127.0.0.1:$connect_port/connectors/$1/status" | grep -q '"state":"FAILED"'
}
# Waits until these cases are at the end: settled, and nothing has been added to any log for ten seconds.
until_settled() { # CASE...
    local before='' now quiet_s=0
    for _ in $(seq 300); do
        sleep 2
        kill -0 "${connect:-$$}" || break
        now=$(find "$run/kafka" -name '*.log' -path '*/[cs][0-9]*' -printf '%s %f\n' | sort | md5sum)
        if [ "$now" = "$before" ] && settled "$@"; then quiet_s=$((quiet_s + 2)); else quiet_s=0; fi
        before=$now
        [ "$quiet_s" -lt 10 ] || return 0
    done
    say "not at the end after ten minutes, or Kafka Connect has ended: the files may lack records"
    tail -n 5 "$run/connect.log" >&2
}
# A slot, and the connector with the port of the Postgres here.
prepare() { # FOLDER CASE
    mkdir -p "$run/connectors"
    sed "s/database.port=.*/database.port=$postgres_port/" "$1/connectors/$2.properties" >"$run/connectors/$2.properties"
    sql -c "select 1 from pg_create_logical_replication_slot('$2', 'pgoutput')" >/dev/null
}
# Each table as the import reads it from the catalogs, and each row as Postgres prints it.
write_rows() { # FOLDER
    local table
    mkdir -p "$1/rows"
    for table in $(sql -c 'select distinct "of" from written'); do
        {
            echo '{"table":'
            # Types of extensions and tables have other OIDs in each database, and the import needs none of them.
            sql -c "$(sed "s/\$1/'public'/; s/\$2/'$table'/" sql/table.sql)" | sed -E 's/"((base_)?oid)": [0-9]{5,}/"\1": 0/g'
            sql -c "select ', \"rows\": [' || E'\n  ' || string_agg(array_to_json(line)::text, E',\n  ' order by place) || E'\n]}'
                from written where \"of\" = '$table'"
        } >"$1/rows/$table.json"
    done
}
write_records() { # FOLDER CASE STARTED_MS
    mkdir -p "$1/records"
    python3 -B tests/debezium/records.py "$run/kafka" "$2" "$3" >"$1/records/$2.jsonl"
}
