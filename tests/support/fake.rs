//! A fake broker whose metadata a test controls, for states that a real broker has only for a
//! moment.
//!
//! It has one topic with one partition, and answers requests in versions with simple formats:
//! <https://kafka.apache.org/protocol>.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

const PRODUCE: i16 = 0;
const LIST_OFFSETS: i16 = 2;
const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const INIT_PRODUCER_ID: i16 = 22;
/// The supported requests, with one version each.
const APIS: [(i16, i16); 5] = [
    (PRODUCE, 3),
    (LIST_OFFSETS, 1),
    (METADATA, 1),
    (API_VERSIONS, 0),
    (INIT_PRODUCER_ID, 0),
];

const LEADER_NOT_AVAILABLE: i16 = 5;
const NOT_LEADER: i16 = 6;
const UNSUPPORTED_VERSION: i16 = 35;

const NODE: i32 = 1;

pub(crate) struct Fake {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    topic: String,
    /// Whether its metadata has no broker, not even itself.
    is_fenced: AtomicBool,
    /// The number of answers without a broker.
    told: AtomicUsize,
    next_offset: AtomicI64,
}

impl Fake {
    pub(crate) fn with(topic: &str) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let state = Arc::new(State {
            topic: topic.to_owned(),
            is_fenced: AtomicBool::new(false),
            told: AtomicUsize::new(0),
            next_offset: AtomicI64::new(0),
        });
        let address = listener.local_addr().expect("its address");
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = Arc::clone(&shared);
                // The client ends the connection.
                std::thread::spawn(move || state.serve(stream, address).ok());
            }
        });
        Fake { address, state }
    }

    pub(crate) fn brokers(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn fence(&self, is_fenced: bool) {
        self.state.is_fenced.store(is_fenced, Ordering::SeqCst);
    }

    pub(crate) fn taken(&self) -> i64 {
        self.state.next_offset.load(Ordering::SeqCst)
    }

    /// The number of answers without a broker.
    pub(crate) fn told(&self) -> usize {
        self.state.told.load(Ordering::SeqCst)
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
        loop {
            let mut size = [0; 4];
            stream.read_exact(&mut size)?;
            let mut request = vec![0; usize::try_from(i32::from_be_bytes(size)).expect("a length")];
            stream.read_exact(&mut request)?;
            let short = |at: usize| i16::from_be_bytes([request[at], request[at + 1]]);
            let body = self.answer((short(0), short(2)), address);
            let correlation = &request[4..8];
            let length = i32::try_from(correlation.len() + body.len()).expect("a short answer");
            stream.write_all(&[&length.to_be_bytes()[..], correlation, &body].concat())?;
        }
    }

    fn answer(&self, (api, version): (i16, i16), address: SocketAddr) -> Vec<u8> {
        let is_fenced = self.is_fenced.load(Ordering::SeqCst);
        let mut body = Body::default();
        match api {
            API_VERSIONS => {
                body.short(if version == 0 { 0 } else { UNSUPPORTED_VERSION })
                    .count(APIS.len());
                for (api, version) in APIS {
                    body.short(api).short(version).short(version);
                }
            }
            METADATA => {
                if is_fenced {
                    self.told.fetch_add(1, Ordering::SeqCst);
                    body.count(0).int(-1);
                } else {
                    body.count(1)
                        .int(NODE)
                        .text(&address.ip().to_string())
                        .int(address.port().into())
                        .short(-1)
                        .int(NODE);
                }
                let (error, leader) = if is_fenced {
                    (LEADER_NOT_AVAILABLE, -1)
                } else {
                    (0, NODE)
                };
                body.count(1)
                    .short(0)
                    .text(&self.topic)
                    .bytes(&[0])
                    .count(1);
                body.short(error)
                    .int(0)
                    .int(leader)
                    .count(1)
                    .int(NODE)
                    .count(1)
                    .int(NODE);
            }
            PRODUCE => {
                let error = if is_fenced { NOT_LEADER } else { 0 };
                let offset = if is_fenced {
                    -1
                } else {
                    self.next_offset.fetch_add(1, Ordering::SeqCst)
                };
                body.count(1)
                    .text(&self.topic)
                    .count(1)
                    .int(0)
                    .short(error)
                    .long(offset)
                    .long(-1)
                    .int(0);
            }
            LIST_OFFSETS => {
                let error = if is_fenced { NOT_LEADER } else { 0 };
                body.count(1)
                    .text(&self.topic)
                    .count(1)
                    .int(0)
                    .short(error)
                    .long(-1)
                    .long(0);
            }
            INIT_PRODUCER_ID => {
                body.int(0).short(0).long(1).short(0);
            }
            _ => panic!("nobody asks for {api}"),
        }
        body.0
    }
}

#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Body {
        self.0.extend_from_slice(bytes);
        self
    }

    fn short(&mut self, value: i16) -> &mut Body {
        self.bytes(&value.to_be_bytes())
    }

    fn int(&mut self, value: i32) -> &mut Body {
        self.bytes(&value.to_be_bytes())
    }

    fn long(&mut self, value: i64) -> &mut Body {
        self.bytes(&value.to_be_bytes())
    }

    fn count(&mut self, count: usize) -> &mut Body {
        self.int(i32::try_from(count).expect("a short list"))
    }

    fn text(&mut self, text: &str) -> &mut Body {
        self.short(i16::try_from(text.len()).expect("a short text"))
            .bytes(text.as_bytes())
    }
}
