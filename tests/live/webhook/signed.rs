//! docs/reference/webhook.md: signatures of Standard Webhooks, which another program verifies.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{OK, Post, Receiver, relay};
use crate::support::relay::{EXIT, fresh_path};
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD4vsm3nGzz5s=";
/// How far the clocks of sender and receiver may differ, as receivers ask it.
const TOLERANCE_S: u64 = 300;

/// The specification, in a language and with a library that are not ours.
const VERIFIER: &str = "
import base64, hashlib, hmac, json, sys

def is_signed(request, secret):
    key = base64.b64decode(secret.removeprefix('whsec_'))
    signed = (request['id'] + '.' + request['timestamp'] + '.').encode()
    digest = hmac.new(key, signed + base64.b64decode(request['body']), hashlib.sha256).digest()
    expected = base64.b64encode(digest).decode()
    given = [part.split(',', 1) for part in request['signature'].split(' ')]
    return any(version == 'v1' and hmac.compare_digest(text, expected) for version, text in given)

for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps([is_signed(request, secret) for secret in request['secrets']]), flush=True)
";

/// Writes these secrets into a file of ours alone.
pub(super) fn write_secrets(path: &Path, secrets: &[&str]) {
    std::fs::write(path, secrets.join("\n")).expect("a file");
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("a file of ours");
}

/// What the verifier is asked of a request.
fn asked(post: &Post) -> Value {
    json!({
        "id": post.headers["webhook-id"],
        "timestamp": post.headers["webhook-timestamp"],
        "signature": post.headers["webhook-signature"],
        "body": BASE64_STANDARD.encode(&post.body),
        "secrets": [OLD, NEW],
    })
}

/// Whether each request is signed with the old secret, and with the new one.
#[track_caller]
fn verified(requests: &[Value]) -> Vec<[bool; 2]> {
    let mut python = Command::new("python3")
        .args(["-c", VERIFIER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut stdin = python.stdin.take().expect("its input");
    for request in requests {
        writeln!(stdin, "{request}").expect("it reads");
    }
    drop(stdin);
    let output = python.wait_with_output().expect("its output");
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let answers = lines.lines();
    answers
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

#[test]
fn another_program_verifies_signatures_through_a_rotation_of_secrets() {
    let world = World::new();
    let sql = world.sql();
    sql.run("alter table outbox alter column payload type text");
    let (receiver, port) = Receiver::listen(|_| OK);
    let path = fresh_path("whsec");
    let rounds: [(&[&str], [bool; 2]); 3] = [
        (&[OLD], [true, false]),
        (&[NEW, OLD], [true, true]),
        (&[NEW], [false, true]),
    ];
    let payloads = [
        "'{\"a\": 1}'",
        "'gr\u{fc}\u{df}e \u{20ac}\r\n '",
        "''",
        "null",
    ];
    let kind = world.kind(0);
    for (round, (secrets, signed)) in (1..).zip(rounds) {
        write_secrets(&path, secrets);
        let file = path.display().to_string();
        let command = relay(&world, port);
        let mut running = command
            .variable("WALRELAY_WEBHOOK_SIGNING_SECRETS_FILE", &file)
            .start();
        running.wait_ready();
        for payload in payloads {
            sql.run(&format!(
                "insert into outbox values (gen_random_uuid(), '{kind}', 'a', 'T', {payload})"
            ));
        }
        let kept = || receiver.with(|state| state.kept.len());
        let expected = round * payloads.len();
        eventually("all arrive", ARRIVAL, kept, |kept| *kept == expected);
        assert_eq!(running.terminate(EXIT), Some(0), "{}", running.log());
        let posts = receiver.with(|state| state.kept.split_off(expected - payloads.len()));
        let requests: Vec<Value> = posts.iter().map(asked).collect();
        assert_eq!(verified(&requests), vec![signed; payloads.len()]);
        receiver.with(|state| state.kept.extend(posts));
    }
    let posts = receiver.kept();
    let bodies = posts.iter().take(payloads.len()).map(|post| &*post.body);
    let expected: [&[u8]; 4] = [
        b"{\"a\": 1}",
        "gr\u{fc}\u{df}e \u{20ac}\r\n ".as_bytes(),
        b"",
        b"",
    ];
    assert!(bodies.eq(expected), "{posts:?}");
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    for post in &posts {
        let at: u64 = post.headers["webhook-timestamp"].parse().expect("seconds");
        assert!(now.abs_diff(at) < TOLERANCE_S, "{at}");
    }
    // What is altered on its way is not signed.
    let altered = |name: &str, text: &str| {
        let mut request = asked(&posts[0]);
        request[name] = text.into();
        request
    };
    let altered = [
        altered("id", "another"),
        altered("timestamp", "1614265330"),
        altered("body", &BASE64_STANDARD.encode(b"{\"a\": 2}")),
    ];
    assert_eq!(verified(&altered), [[false, false]; 3]);
}
