"""The processes of a campaign: Postgres, Kafka and relays, on loopback and free ports, and proxies between them."""

import asyncio
import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

from kafka import Connection
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
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
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
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
log.message.timestamp.type=LogAppendTime
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
broker.session.timeout.ms={session}
broker.heartbeat.interval.ms=500
# Where the disk is read far ahead, the kernel fills all of a mapped index with zeros.
log.index.size.max.bytes=262144
"""


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


class Postgres(Server):
    def __init__(self, folder, major, name="postgres"):
        # Postgres does not run as root.
        root = os.geteuid() == 0
        self.user = next((user for user in pwd.getpwall() if root and user.pw_name in ("postgres", "nobody")), None)
        super().__init__(os.path.join(folder, f"{name}.log"), self.user)
        places = [f"/usr/lib/postgresql/{major}/bin", os.path.join(SERVERS, f"postgres-{major}/bin")]
        self.programs = next((place for place in places if os.path.exists(f"{place}/postgres")), None)
        if self.programs is None:
            raise RuntimeError(f"there is no Postgres {major}: run scripts/prerequisites, or choose another major")
        self.data, self.port = os.path.join(folder, name), free_port()
        self.url = self.url_at(self.port)

    def create(self):
        os.mkdir(self.data, 0o700)
        self.give(self.data)
        initdb = ["initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync", "-A", "trust"]
        initdb[0] = f"{self.programs}/initdb"
        with open(self.log, "ab") as log:
            subprocess.run(initdb, check=True, stdout=log, stderr=log, cwd="/", **self.identity)
        self.write("postgresql.conf", CLUSTER_CONF + f"port = {self.port}\n")
        self.start()
        self.wait()

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
        self.write("postgresql.conf", CLUSTER_CONF + f"port = {self.port}\n" + STANDBY_CONF.format(port=primary.port))
        self.start()

    def url_at(self, port):
        return f"postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable"

    def start(self):
        self.spawn([f"{self.programs}/postgres", "-D", self.data], cwd="/")

    def answers(self):
        # Processes of a postmaster that was killed may still have its memory when the next one starts.
        if self.ended():
            self.start()
        return self.sql("select 1") == ["1"]

    def wait(self):
        eventually("Postgres answers", START_SECONDS, self.answers)

    def sql(self, statements):
        """The lines of the answer; none if it did not come."""
        command = ["psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", statements, self.url]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=15, check=False, env={**os.environ, "PGCONNECT_TIMEOUT": "3"},
            )
        except subprocess.TimeoutExpired:
            return []
        return done.stdout.decode().splitlines() if done.returncode == 0 else []


class Broker(Server):
    def __init__(self, folder, doors, session_ms):
        super().__init__(os.path.join(folder, "kafka.log"))
        self.port, self.doors = free_port(), [free_port() for _ in doors]
        self.log_dir, self.properties = os.path.join(folder, "kafka"), os.path.join(folder, "kafka.properties")
        shutil.copytree(os.path.join(SERVERS, "kafka/formatted-1"), self.log_dir)
        names = [f"DOOR{number}" for number in range(len(doors))]
        with open(self.properties, "w", encoding="utf-8") as file:
            file.write(BROKER_CONF.format(
                port=self.port, controller=free_port(), log=self.log_dir, session=session_ms,
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
        ], cwd=os.path.dirname(self.log_dir))

    def answers(self):
        if self.ended():
            raise RuntimeError(f"Kafka ended: {self.log}")
        connection = Connection(("127.0.0.1", self.port))
        try:
            connection.partitions()
            return True
        except (OSError, EOFError):
            return False
        finally:
            connection.close()

    def wait(self):
        eventually("Kafka answers", START_SECONDS, self.answers)


class Relay(Server):
    def __init__(self, folder, number, binary, settings):
        super().__init__(os.path.join(folder, f"relay-{number}.log"))
        self.number, self.binary = number, binary
        self.configuration = os.path.join(folder, f"relay-{number}.toml")
        with open(self.configuration, "w", encoding="utf-8") as file:
            file.write(settings)
        self.is_wanted, self.started = False, 0

    def setup(self):
        command = [self.binary, "setup", "--config", self.configuration]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=self.environment())

    def environment(self):
        """Without variables that are settings."""
        return {name: value for name, value in os.environ.items() if not name.startswith(("WALRELAY_", "PG"))}

    def start(self):
        self.is_wanted, self.started = True, time.monotonic()
        self.spawn([self.binary, "run", "--config", self.configuration], env=self.environment())

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
