"""The processes of a campaign: Postgres, a bus, relays and proxies, on free ports of loopback."""

import asyncio
import ctypes
import glob
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

import kafka
import nats
import rabbitmq
from writers import Psql

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVERS = os.environ.get("WALRELAY_TEST_SERVERS", os.path.join(ROOT, "target/test-servers"))
START_SECONDS = 120
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
CLUSTER_CONF = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
dynamic_shared_memory_type = mmap
wal_level = logical
max_connections = 100
max_replication_slots = 20
max_wal_senders = 20
fsync = off
restart_after_crash = on
max_wal_size = 256MB
"""
TLS_CONF = """
ssl = on
"""
CERTIFICATES_CONF = """
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
[server]
subjectAltName = IP:127.0.0.1
"""
# Of a primary that has a standby. The relay gets no event, and no writer an answer, that the standby could lose.
PRIMARY_CONF = """
synchronous_standby_names = 'standby'
synchronized_standby_slots = 'standby'
"""
STANDBY_CONF = PRIMARY_CONF + """
primary_conninfo = 'host=127.0.0.1 port={port} user=postgres dbname=postgres application_name=standby'
primary_slot_name = 'standby'
hot_standby_feedback = on
sync_replication_slots = on
"""
BROKER_CONF = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
inter.broker.listener.name=DIRECT
listeners=DIRECT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners=DIRECT://127.0.0.1:{port}{advertised}
listener.security.protocol.map=DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
log.dirs={log}
num.partitions=3
auto.create.topics.enable=true
num.network.threads=1
num.io.threads=2
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=1
log.message.timestamp.type=LogAppendTime
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
broker.session.timeout.ms={session}
broker.heartbeat.interval.ms=500
# Where the disk is read far ahead, the kernel fills all of a mapped index with zeros.
log.index.size.max.bytes=262144
"""
# What is acked is on the disk.
NATS_CONF = """
listen: "127.0.0.1:{port}"
server_name: judged
jetstream {{ store_dir: "{store}", sync_interval: always }}
"""
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
RABBITMQ_CONF = """
listeners.tcp.1 = 127.0.0.1:{port}
log.console = true
log.file = false
vm_memory_high_watermark.relative = 0.8
disk_free_limit.absolute = 1MB
"""
# Of a bus without Kafka's topics: all events are in this one.
STREAM = "JUDGED"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(what, seconds, condition):
    """What the condition gives once that is true."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise RuntimeError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def with_us():
    """In a child before it runs: it ends with this process, however that ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A process with a log, which can be killed, frozen and started again."""

    def __init__(self, log, user=None):
        self.log = log
        self.identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.process = None
        self.is_frozen = False

    def spawn(self, command, **options):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=with_us,
                start_new_session=True, **self.identity, **options,
            )

    def ended(self):
        return self.process is None or self.process.poll() is not None

    def signal(self, which):
        if not self.ended():
            self.process.send_signal(which)

    def freeze(self):
        self.signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self):
        self.signal(signal.SIGCONT)
        self.is_frozen = False

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.is_frozen = False


class Clock:
    """The time of day of a process, which can jump; how long something took is measured as ever."""

    FOLDERS = glob.glob("/usr/lib*/faketime") + glob.glob("/usr/lib/*/faketime")
    LIBRARY = next((f"{folder}/libfaketimeMT.so.1" for folder in FOLDERS), None)

    def __init__(self, path):
        self.path = path
        self.jump(0)
        self.environment = {
            "LD_PRELOAD": self.LIBRARY, "FAKETIME_TIMESTAMP_FILE": path, "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
        } if self.LIBRARY else {}

    @classmethod
    def works_with(cls, binary):
        """False where the library waits for an allocator of the program that asks it for the time."""
        if cls.LIBRARY is None:
            return False
        environment = {**os.environ, "LD_PRELOAD": cls.LIBRARY}
        try:
            command = [binary, "--version"]
            return subprocess.run(command, capture_output=True, timeout=5, check=False, env=environment).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    @staticmethod
    def sweep():
        """Removes what the library leaves behind of processes that were killed."""
        for path in glob.glob("/dev/shm/*faketime_*"):
            process = path.rsplit("_", 1)[1]
            if process.isdigit() and not os.path.exists(f"/proc/{process}"):
                os.unlink(path)

    def jump(self, seconds):
        """To so many seconds after the true time."""
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            file.write(f"{seconds:+.0f}\n")
        os.replace(f"{self.path}.new", self.path)


class Postgres(Server):
    def __init__(self, folder, major, name="postgres", authority=None):
        # Postgres does not run as root.
        root = os.geteuid() == 0
        self.user = next((user for user in pwd.getpwall() if root and user.pw_name in ("postgres", "nobody")), None)
        super().__init__(os.path.join(folder, f"{name}.log"), self.user)
        self.authority, self.clock = authority, Clock(os.path.join(folder, f"{name}.clock"))
        places = [f"/usr/lib/postgresql/{major}/bin", os.path.join(SERVERS, f"postgres-{major}/bin")]
        self.programs = next((place for place in places if os.path.exists(f"{place}/postgres")), None)
        if self.programs is None:
            raise RuntimeError(f"there is no Postgres {major}: run scripts/prerequisites, or choose another major")
        self.data, self.port = os.path.join(folder, "disk", name), free_port()
        self.url = self.url_at(self.port)
        self.conf = CLUSTER_CONF + f"port = {self.port}\n" + (TLS_CONF if authority else "")

    def create(self):
        os.mkdir(self.data, 0o700)
        self.give(self.data)
        initdb = ["initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync", "-A", "trust"]
        initdb[0] = f"{self.programs}/initdb"
        with open(self.log, "ab") as log:
            subprocess.run(initdb, check=True, stdout=log, stderr=log, cwd="/", **self.identity)
        self.write("postgresql.conf", self.conf)
        self.certify()
        self.start()
        self.wait()

    def certify(self):
        """A new certificate, which counts once Postgres reads it."""
        if self.authority is not None:
            made = f"{self.data}/new"
            self.authority.certify(f"{made}.key", f"{made}.crt")
            for kind in ("key", "crt"):
                self.give(f"{made}.{kind}")
                os.rename(f"{made}.{kind}", f"{self.data}/server.{kind}")

    def give(self, path):
        if self.user is not None:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def write(self, name, text):
        path = os.path.join(self.data, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.give(path)

    def clone(self, primary):
        """Becomes a standby, with the data of a primary that has the slot for it."""
        shutil.rmtree(self.data, ignore_errors=True)
        with open(self.log, "ab") as log:
            session = Psql(primary.url, log)
            session.ask("select pg_backup_start('standby', true);")
            # Files that vanish meanwhile are in the WAL.
            subprocess.run(["cp", "-a", primary.data, self.data], stderr=log, check=False)
            label = session.ask("select labelfile from pg_backup_stop(false);")
            session.end()
        os.remove(f"{self.data}/postmaster.pid")
        for slot in os.listdir(f"{self.data}/pg_replslot"):
            shutil.rmtree(f"{self.data}/pg_replslot/{slot}")
        self.write("backup_label", "\n".join(label) + "\n")
        self.write("standby.signal", "")
        self.write("postgresql.conf", self.conf + STANDBY_CONF.format(port=primary.port))
        self.start()

    def url_at(self, port, tls="sslmode=disable"):
        return f"postgres://postgres@127.0.0.1:{port}/postgres?{tls}"

    def start(self):
        environment = {**os.environ, **self.clock.environment}
        self.spawn([f"{self.programs}/postgres", "-D", self.data], cwd="/", env=environment)

    def answers(self):
        # Processes of a postmaster that was killed may still have its memory when the next one starts.
        if self.ended():
            self.start()
        return self.sql("select 1") == ["1"]

    def wait(self):
        eventually("Postgres answers", START_SECONDS, self.answers)

    def sql(self, *statements):
        """The lines of the answers; none if they did not all come."""
        command = ["psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", self.url]
        command += [argument for each in statements for argument in ("-c", each)]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=15, check=False, env={**os.environ, "PGCONNECT_TIMEOUT": "3"},
            )
        except subprocess.TimeoutExpired:
            return []
        return done.stdout.decode().splitlines() if done.returncode == 0 else []


class Authority:
    """Makes certificates for 127.0.0.1."""

    def __init__(self, folder):
        self.key, self.crt = os.path.join(folder, "authority.key"), os.path.join(folder, "authority.crt")
        self.conf = os.path.join(folder, "certificates.conf")
        with open(self.conf, "w", encoding="utf-8") as file:
            file.write(CERTIFICATES_CONF)
        self.make("authority", self.key, self.crt)

    def certify(self, key, crt):
        self.make("server", key, crt, "-CA", self.crt, "-CAkey", self.key)

    def make(self, name, key, crt, *by):
        command = ["openssl", "req", "-config", self.conf, "-x509", "-newkey", "ec", "-pkeyopt"]
        command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj", f"/CN={name}"]
        command += ["-extensions", name, "-keyout", key, "-out", crt, *by]
        subprocess.run(command, check=True, capture_output=True)


class Broker(Server):
    """Of a bus: is asked by what `connect` gives."""

    def kill(self):
        super().kill()
        self.process = None

    def ask(self, question, otherwise=None):
        """The answer, or `otherwise`."""
        connection = self.connect()
        try:
            return question(connection)
        except (OSError, EOFError):
            return otherwise
        finally:
            connection.close()

    def run_on(self):
        """Starts it if it was killed."""
        if self.process is None:
            self.start()
        if self.ended():
            raise RuntimeError(f"a broker ended: {self.log}")


class Kafka(Broker):
    """One of those with these controllers. A door is a port of its own for each relay, behind a proxy."""

    def __init__(self, folder, number, controllers, doors, session_ms):
        super().__init__(os.path.join(folder, f"kafka-{number}.log"))
        self.port, self.doors = free_port(), [free_port() for _ in doors]
        self.folder = os.path.join(folder, f"kafka-{number}")
        self.properties = f"{self.folder}.properties"
        shutil.copytree(os.path.join(SERVERS, "kafka/formatted-1"), self.folder)
        # The ids of a node: its number, and sixteen bytes.
        with open(f"{self.folder}/meta.properties", "w", encoding="utf-8") as file:
            file.write(f"version=1\ncluster.id=d2FscmVsYXktdGVzdHMtMQ\nnode.id={number}\n")
            file.write(f"directory.id={str(number) * 21}A\n")
        names = [f"DOOR{number}" for number in range(len(doors))]
        with open(self.properties, "w", encoding="utf-8") as file:
            file.write(BROKER_CONF.format(
                port=self.port, controller=controllers[number - 1], log=self.folder, session=session_ms, node=number,
                voters=",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1)),
                replicas=len(controllers), in_sync=min(2, len(controllers)),
                listeners="".join(f",{name}://127.0.0.1:{port}" for name, port in zip(names, self.doors)),
                advertised="".join(f",{name}://127.0.0.1:{port}" for name, port in zip(names, doors)),
                protocols="".join(f",{name}:PLAINTEXT" for name in names),
            ))
        self.start()

    def start(self):
        libraries = os.path.join(SERVERS, "kafka")
        self.spawn([
            "java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1",
            f"-XX:SharedArchiveFile={libraries}/classes.jsa", f"-Dlog4j2.configurationFile={libraries}/log4j2.xml",
            "-cp", f"{libraries}/libs/*", "kafka.Kafka", self.properties,
        ], cwd=os.path.dirname(self.folder))

    def connect(self):
        return kafka.Connection(("127.0.0.1", self.port))

    def limit(self, topic, most_bytes):
        """Whether the topic takes no larger records now; None is no limit."""
        return self.ask(lambda connection: connection.limit(topic, most_bytes))

    def is_whole(self, brokers):
        """Whether it answers, and all partitions are on all brokers."""
        self.run_on()
        count, topics = self.ask(kafka.Connection.metadata, (0, {}))
        found = [partition for partitions in topics.values() for partition in partitions.values()]
        return count == brokers and all(of.leader > 0 and of.in_sync == brokers for of in found)


class Nats(Broker):
    """The only one, with a stream in files. All relays have the same port of it, behind proxies."""

    def __init__(self, folder, prefix, doors, duplicate_seconds):
        super().__init__(os.path.join(folder, "nats.log"))
        self.port = free_port()
        self.doors = [self.port] * doors
        self.subjects, self.duplicate_seconds = [f"{prefix}>"], duplicate_seconds
        self.configuration = os.path.join(folder, "nats.conf")
        with open(self.configuration, "w", encoding="utf-8") as file:
            file.write(NATS_CONF.format(port=self.port, store=os.path.join(folder, "nats")))
        self.start()

    def start(self):
        self.spawn([os.path.join(SERVERS, "nats/nats-server"), "-c", self.configuration])

    def connect(self):
        return nats.Connection(("127.0.0.1", self.port))

    def make(self):
        """Whether there is a stream now."""
        return self.limit(None, None)

    def limit(self, topic, most_bytes):
        """The stream has one limit for all topics."""
        return self.ask(lambda connection: connection.keep(
            STREAM, self.subjects, most_bytes or -1, self.duplicate_seconds,
        ))

    def is_whole(self, brokers):
        """Whether it has the stream."""
        self.run_on()
        return bool(self.ask(lambda connection: connection.has(STREAM)))


class Rabbitmq(Broker):
    """The only one, with a stream. All relays have the same port of it, behind proxies."""

    def __init__(self, folder, doors):
        super().__init__(os.path.join(folder, "rabbitmq.log"))
        self.port, mapper = free_port(), free_port()
        self.doors = [self.port] * doors
        self.folder = os.path.join(folder, "rabbitmq")
        os.mkdir(self.folder)
        for name, text in (("rabbitmq.conf", RABBITMQ_CONF.format(port=self.port)), ("plugins", "[].")):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        places = {
            "RABBITMQ_MNESIA_BASE": "data", "RABBITMQ_LOG_BASE": "logs", "RABBITMQ_CONFIG_FILE": "rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "plugins", "RABBITMQ_CONF_ENV_FILE": "none",
            "RABBITMQ_GENERATED_CONFIG_DIR": "generated", "RABBITMQ_PID_FILE": "pid", "HOME": "",
        }
        self.environment = {
            **os.environ, **{name: os.path.join(self.folder, place) for name, place in places.items()},
            "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(mapper), "RABBITMQ_NODENAME": "judged@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            # The shell becomes the server, which is our child then.
            "RABBITMQ_ALLOW_INPUT": "1", "RABBITMQ_SERVER_START_ARGS": "-noinput",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS":
                "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }
        # Otherwise the server would start one that outlives it.
        self.mapper = Server(self.log)
        self.mapper.spawn(["epmd", "-address", "127.0.0.1", "-port", str(mapper)])
        self.start()

    def start(self):
        self.spawn([RABBITMQ], cwd=self.folder, env=self.environment)

    def connect(self):
        return rabbitmq.Connection(("127.0.0.1", self.port))

    def make(self):
        return self.ask(lambda connection: connection.make(STREAM))

    def is_whole(self, brokers):
        """Whether it has the stream."""
        self.run_on()
        return bool(self.ask(lambda connection: connection.has(STREAM)))


class Relay(Server):
    def __init__(self, folder, number, binary, settings):
        super().__init__(os.path.join(folder, f"relay-{number}.log"))
        self.number, self.binary = number, binary
        self.points = os.path.join(folder, "points.txt")
        self.configuration = os.path.join(folder, f"relay-{number}.toml")
        self.clock = Clock(os.path.join(folder, f"relay-{number}.clock"))
        with open(self.configuration, "w", encoding="utf-8") as file:
            file.write(settings)
        self.is_wanted, self.started = False, 0

    def command(self, *command):
        """The exit code of a command with this configuration; None if it takes too long."""
        with open(self.log, "ab") as log:
            command = [self.binary, *command, "--config", self.configuration]
            try:
                return subprocess.run(
                    command, stdout=log, stderr=log, timeout=10, check=False, env=self.environment(),
                ).returncode
            except subprocess.TimeoutExpired:
                return None

    def environment(self):
        """Without variables that are settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WALRELAY_", "PG"))}
        return {**kept, "FAILPOINTS_REACHED": self.points}

    def start(self):
        self.is_wanted, self.started = True, time.monotonic()
        environment = {**self.environment(), **self.clock.environment}
        self.spawn([self.binary, "run", "--config", self.configuration], env=environment)

    def kill(self):
        self.is_wanted = False
        super().kill()


class Network(threading.Thread):
    """The loop of all proxies."""

    def __init__(self):
        super().__init__(name="network", daemon=True)
        self.loop = asyncio.new_event_loop()
        self.start()

    def run(self):
        self.loop.run_forever()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)


class Proxy:
    """Between a relay and a server. All of it but `__init__` and what it calls is asked for through the network."""

    def __init__(self, network, port, target, seed):
        self.port, self.target, self.chance = port, target, random.Random(seed)
        self.writers = set()
        self.is_away = self.is_slow = False
        self.open = None
        self.network = network
        network.do(self.listen())

    async def listen(self):
        self.open = asyncio.Event()
        self.open.set()
        await asyncio.start_server(self.accept, "127.0.0.1", self.port)

    async def accept(self, reader, writer):
        if self.is_away:
            return writer.transport.abort()
        self.writers.add(writer)
        other = None
        try:
            await self.open.wait()
            back, other = await asyncio.open_connection("127.0.0.1", self.target)
            self.writers.add(other)
            await asyncio.gather(self.pump(reader, other), self.pump(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in filter(None, (writer, other)):
                one.transport.abort()
                self.writers.discard(one)

    async def pump(self, reader, writer):
        while True:
            data = await reader.read(1 << 16)
            await self.open.wait()
            if self.is_slow:
                await asyncio.sleep(self.chance.uniform(0.02, 0.3))
            if not data:
                return writer.close()
            writer.write(data)
            await writer.drain()

    async def change(self, is_away=False, is_silent=False, is_slow=False):
        """Cuts all connections where it is away; holds back what is under way while it is silent."""
        self.is_away, self.is_slow = is_away, is_slow
        if is_silent:
            self.open.clear()
        else:
            self.open.set()
        if is_away:
            self.abort()

    async def lead_to(self, target):
        self.target = target
        self.abort()

    async def cut(self):
        self.abort()

    def abort(self):
        for writer in list(self.writers):
            writer.transport.abort()
