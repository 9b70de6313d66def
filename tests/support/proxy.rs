//! A TCP proxy with faults on request.
//!
//! There are two threads per connection, one per direction. All conditions can change while
//! connections are open.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The longest read of a pump before it checks the conditions again.
const TICK: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Conditions {
    /// No byte passes, and no connection is closed.
    pub(crate) blackhole: bool,
    pub(crate) latency: Duration,
    /// The greatest size of a piece, in bytes; 0 for no limit.
    pub(crate) slice_bytes: usize,
    /// The greatest number of bytes per second; 0 for no limit.
    pub(crate) bytes_per_second: usize,
}

/// A proxy before one server address. Dropping it resets every connection.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    upstream: String,
    up: Mutex<Conditions>,
    down: Mutex<Conditions>,
    refusing: AtomicBool,
    closing: AtomicBool,
    accepted: AtomicUsize,
    connections: Mutex<Vec<Arc<Connection>>>,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    cut: AtomicBool,
}

impl Proxy {
    /// Listens on a free port, for `upstream`, a `host:port`.
    pub(crate) fn before(upstream: &str) -> Proxy {
        Proxy::listen(0, upstream)
    }

    /// Listens on `port`, for `upstream`. Port 0 is any free one.
    pub(crate) fn listen(port: u16, upstream: &str) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the proxy's port");
        let address = listener.local_addr().expect("the proxy's address");
        let state = Arc::new(State {
            upstream: upstream.to_owned(),
            up: Mutex::default(),
            down: Mutex::default(),
            refusing: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || accepting.accept(&listener));
        Proxy { address, state }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Sets the conditions of one direction, for present and future connections.
    pub(crate) fn set(&self, way: Way, conditions: Conditions) {
        *self.state.conditions(way).lock().expect("conditions") = conditions;
    }

    /// Lets no byte pass on `way`, and closes no connection.
    pub(crate) fn blackhole(&self, way: Way) {
        self.set(
            way,
            Conditions {
                blackhole: true,
                ..Conditions::default()
            },
        );
    }

    /// Removes all conditions, and accepts new connections.
    pub(crate) fn resume(&self) {
        self.set(Way::Up, Conditions::default());
        self.set(Way::Down, Conditions::default());
        self.state.refusing.store(false, Ordering::Relaxed);
    }

    /// Resets every open connection (RST on both sides).
    pub(crate) fn cut(&self) {
        self.state.cut();
    }

    /// Resets every open connection and each new one.
    pub(crate) fn refuse(&self) {
        self.state.refusing.store(true, Ordering::Relaxed);
        self.state.cut();
    }

    /// Sends FIN on `way` of every open connection; the other direction stays open.
    pub(crate) fn half_close(&self, way: Way) {
        for connection in self.state.connections.lock().expect("connections").iter() {
            let to = match way {
                Way::Up => &connection.server,
                Way::Down => &connection.client,
            };
            // A connection that is already gone is no error.
            let _gone = to.shutdown(Shutdown::Write);
        }
    }

    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.closing.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then ends.
        let _woken = TcpStream::connect(self.address);
        self.state.cut();
    }
}

impl State {
    fn conditions(&self, way: Way) -> &Mutex<Conditions> {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.closing.load(Ordering::Relaxed) {
                return;
            }
            let Ok(client) = client else { continue };
            reset_on_close(&client);
            if self.refusing.load(Ordering::Relaxed) {
                continue;
            }
            let Ok(server) = TcpStream::connect(&self.upstream) else {
                continue;
            };
            reset_on_close(&server);
            self.accepted.fetch_add(1, Ordering::Relaxed);
            for stream in [&client, &server] {
                stream.set_read_timeout(Some(TICK)).expect("a timeout");
                stream.set_nodelay(true).expect("nodelay");
            }
            let connection = Arc::new(Connection {
                client,
                server,
                cut: AtomicBool::new(false),
            });
            self.connections
                .lock()
                .expect("connections")
                .push(Arc::clone(&connection));
            let pumps = [Way::Up, Way::Down].map(|way| {
                let state = Arc::clone(self);
                let connection = Arc::clone(&connection);
                std::thread::spawn(move || state.pump(way, &connection))
            });
            let state = Arc::clone(self);
            std::thread::spawn(move || {
                for pump in pumps {
                    pump.join().expect("a pump");
                }
                state
                    .connections
                    .lock()
                    .expect("connections")
                    .retain(|kept| !Arc::ptr_eq(kept, &connection));
            });
        }
    }

    fn cut(&self) {
        // The last owner closes the sockets; with a linger time of zero, that sends a reset.
        for connection in self.connections.lock().expect("connections").drain(..) {
            connection.cut.store(true, Ordering::Relaxed);
        }
    }

    fn pump(&self, way: Way, connection: &Connection) {
        let (mut from, mut to) = match way {
            Way::Up => (&connection.client, &connection.server),
            Way::Down => (&connection.server, &connection.client),
        };
        let mut buffer = vec![0; 64 * 1024];
        while !connection.cut.load(Ordering::Relaxed) {
            let conditions = *self.conditions(way).lock().expect("conditions");
            if conditions.blackhole {
                std::thread::sleep(TICK);
                continue;
            }
            let limit = if conditions.slice_bytes == 0 {
                buffer.len()
            } else {
                conditions.slice_bytes
            };
            let piece = buffer
                .get_mut(..limit)
                .expect("slices are smaller than the buffer");
            let length = match from.read(piece) {
                Ok(0) => {
                    let _gone = to.shutdown(Shutdown::Write);
                    return;
                }
                Ok(length) => length,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    continue;
                }
                Err(_) => return connection.cut.store(true, Ordering::Relaxed),
            };
            // The conditions may have changed during the read.
            let conditions = *self.conditions(way).lock().expect("conditions");
            let paced = match conditions.bytes_per_second {
                0 => Duration::ZERO,
                rate => Duration::from_secs_f64(length as f64 / rate as f64),
            };
            std::thread::sleep(conditions.latency + paced);
            // A piece that was read before the blackhole is kept until the proxy resumes, or the
            // connection is cut.
            while self.conditions(way).lock().expect("conditions").blackhole
                && !connection.cut.load(Ordering::Relaxed)
            {
                std::thread::sleep(TICK);
            }
            // The direction may have resumed right after a cut.
            if connection.cut.load(Ordering::Relaxed) {
                return;
            }
            if to
                .write_all(piece.get(..length).expect("what was read"))
                .is_err()
            {
                return connection.cut.store(true, Ordering::Relaxed);
            }
        }
    }
}

fn reset_on_close(stream: &TcpStream) {
    socket2::SockRef::from(stream)
        .set_linger(Some(Duration::ZERO))
        .expect("linger");
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::support::wait::{eventually, throughout};

    fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(length @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&buffer[..length]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        address
    }

    fn through(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        stream
    }

    fn round_trip(stream: &mut TcpStream, bytes: &[u8]) -> Duration {
        let started = Instant::now();
        stream.write_all(bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, bytes);
        started.elapsed()
    }

    #[test]
    fn bytes_pass_unchanged_whatever_the_pieces() {
        let proxy = Proxy::before(&echo());
        let mut stream = through(&proxy);
        let bytes: Vec<u8> = (0..2000).map(|n| (n % 251) as u8).collect();
        round_trip(&mut stream, &bytes);
        proxy.set(
            Way::Down,
            Conditions {
                slice_bytes: 1,
                ..Conditions::default()
            },
        );
        round_trip(&mut stream, &bytes);
        assert_eq!(proxy.accepted(), 1);
    }

    #[test]
    fn a_cut_resets_the_connection_and_a_new_one_passes() {
        let proxy = Proxy::before(&echo());
        let mut stream = through(&proxy);
        round_trip(&mut stream, b"before");
        proxy.cut();
        assert_eq!(
            stream.read(&mut [0; 1]).unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
        round_trip(&mut through(&proxy), b"after");
    }

    #[test]
    fn while_it_refuses_no_connection_lives() {
        let proxy = Proxy::before(&echo());
        proxy.refuse();
        let mut stream = through(&proxy);
        eventually(
            "refused",
            Duration::from_secs(5),
            || stream.write_all(b"x").is_err(),
            |refused| *refused,
        );
        proxy.resume();
        round_trip(&mut through(&proxy), b"again");
    }

    #[test]
    fn a_blackhole_holds_one_way_back_and_loses_nothing() {
        let proxy = Proxy::before(&echo());
        let mut stream = through(&proxy);
        round_trip(&mut stream, b"before");
        proxy.blackhole(Way::Down);
        stream.write_all(b"held").unwrap();
        stream.set_nonblocking(true).unwrap();
        throughout("nothing comes", Duration::from_millis(200), || {
            stream.read(&mut [0; 1]).is_err()
        });
        stream.set_nonblocking(false).unwrap();
        proxy.resume();
        let mut back = [0; 4];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"held");
    }

    #[test]
    fn latency_and_bandwidth_take_their_time() {
        let proxy = Proxy::before(&echo());
        let mut stream = through(&proxy);
        proxy.set(
            Way::Up,
            Conditions {
                latency: Duration::from_millis(80),
                ..Conditions::default()
            },
        );
        assert!(round_trip(&mut stream, b"slow") >= Duration::from_millis(80));
        proxy.set(
            Way::Up,
            Conditions {
                bytes_per_second: 10_000,
                slice_bytes: 500,
                ..Conditions::default()
            },
        );
        assert!(round_trip(&mut stream, &[7; 3000]) >= Duration::from_millis(200));
    }

    #[test]
    fn a_half_closed_connection_ends_one_way_only() {
        let proxy = Proxy::before(&echo());
        let mut stream = through(&proxy);
        round_trip(&mut stream, b"before");
        proxy.half_close(Way::Down);
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
        stream.write_all(b"still open").unwrap();
    }
}
