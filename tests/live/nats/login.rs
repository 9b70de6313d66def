//! P9, P11: the ways in which a client logs in to NATS, and rights that change while the relay runs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::{ALL, BUS_REFUSED, STREAM, all_delivered, logged, ready, with, world};
use crate::support::relay::{EXIT, fresh_path, last_words};
use crate::support::servers::Nats;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

const CONFIG: Option<i32> = Some(2);

/// A file that its owner alone can read.
fn secret(text: &str) -> PathBuf {
    let path = fresh_path("secret");
    std::fs::write(&path, text).expect("a file");
    allow(&path, 0o600);
    path
}

fn allow(path: &PathBuf, mode: u32) {
    let rights = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, rights).expect("rights");
}

fn seed(user: &KeyPair) -> String {
    user.seed().expect("a seed")
}

/// An event is delivered by a relay with these settings, and no log has `secret`.
#[track_caller]
fn delivers(world: &World, nats: &Nats, toml: &str, secret: &str) {
    world.emit(&world.sql(), "a");
    let mut relay = ready(&with(world, nats, toml));
    all_delivered(world, nats);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
    assert!(!relay.log().contains(secret), "{}", relay.log());
}

/// A relay with these settings ends so, and says why.
#[track_caller]
fn ends(world: &World, nats: &Nats, toml: &str, code: Option<i32>, cause: &str) {
    world.emit(&world.sql(), "a");
    let mut relay = with(world, nats, toml).start();
    assert_eq!(relay.wait_exit(EXIT), code, "{}", relay.log());
    let log = relay.log();
    let words = last_words(&log);
    assert!(words.0.contains(cause), "{words:?}");
}

#[test]
fn a_relay_logs_in_with_the_seed_of_an_nkey() {
    let (user, other) = (KeyPair::new_user(), KeyPair::new_user());
    let lines = format!(
        "authorization {{ users = [{{user: admin, password: admin}}, {{nkey: {}}}] }}",
        user.public_key()
    );
    let Some(nats) = Nats::configured(&lines, &json!({"user": "admin", "pass": "admin"})) else {
        return;
    };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    let of = |path: &PathBuf| format!("nkey_file = \"{}\"\n", path.display());
    let path = secret(&format!("{}\n", seed(&user)));
    delivers(&world, &nats, &of(&path), &seed(&user));
    allow(&path, 0o644);
    ends(&world, &nats, &of(&path), CONFIG, "can be read by others");
    for seed in [seed(&other), "no seed".to_owned()] {
        ends(&world, &nats, &of(&secret(&seed)), BUS_REFUSED, "refuses");
    }
}

#[test]
fn a_relay_logs_in_with_a_token() {
    let lines = "authorization { token: canary }";
    let Some(nats) = Nats::configured(lines, &json!({"auth_token": "canary"})) else {
        return;
    };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    delivers(&world, &nats, "token = \"canary\"\n", "canary");
    ends(&world, &nats, "token = \"other\"\n", BUS_REFUSED, "refuses");
}

/// A JWT as `nsc` signs it.
fn jwt(issuer: &KeyPair, subject: &str, nats: Value) -> String {
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let claims = json!({"jti": subject, "iat": 1_700_000_000, "iss": issuer.public_key(),
        "sub": subject, "name": subject, "nats": nats});
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&header), part(&claims));
    let signature = issuer.sign(text.as_bytes()).expect("a signature");
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

fn account(operator: &KeyPair, account: &KeyPair, storage: i64) -> String {
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
        "wildcards": true, "conn": -1, "leaf": -1, "mem_storage": storage, "disk_storage": storage,
        "streams": storage, "consumer": storage});
    let nats = json!({"limits": limits, "type": "account", "version": 2});
    jwt(operator, &account.public_key(), nats)
}

fn user(account: &KeyPair, user: &KeyPair, is_bearer: bool) -> String {
    let nats = json!({"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1,
        "bearer_token": is_bearer, "type": "user", "version": 2});
    jwt(account, &user.public_key(), nats)
}

/// As `nsc generate creds` writes it.
fn credentials(jwt: &str, seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

#[test]
fn a_relay_logs_in_with_a_credentials_file() {
    let operator = KeyPair::new_operator();
    let (team, system, foreign) = (
        KeyPair::new_account(),
        KeyPair::new_account(),
        KeyPair::new_account(),
    );
    let operators_own = json!({"type": "operator", "version": 2});
    let lines = format!(
        "operator: \"{}\"\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{\n  {}: \
         \"{}\"\n  {}: \"{}\"\n}}",
        jwt(&operator, &operator.public_key(), operators_own),
        system.public_key(),
        system.public_key(),
        account(&operator, &system, 0),
        team.public_key(),
        account(&operator, &team, -1),
    );
    let admin = json!({"jwt": user(&team, &KeyPair::new_user(), true)});
    let Some(nats) = Nats::configured(&lines, &admin) else {
        return;
    };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    let of = |text: &str| format!("credentials_file = \"{}\"\n", secret(text).display());
    let relay = KeyPair::new_user();
    let key = seed(&relay);
    let good = credentials(&user(&team, &relay, false), &key);
    delivers(&world, &nats, &of(&good), &key);
    let of_nobody = credentials(&user(&foreign, &relay, false), &key);
    ends(&world, &nats, &of(&of_nobody), BUS_REFUSED, "refuses");
    ends(&world, &nats, &of("no creds"), CONFIG, "no user JWT");
    let missing = "credentials_file = \"/nonexistent/relay.creds\"\n";
    ends(&world, &nats, missing, CONFIG, "cannot be read");
}

/// P3: the events of the subject wait, and no others.
#[test]
fn a_right_that_is_revoked_meanwhile_holds_up_its_subject_alone() {
    let users = |deny: &str| {
        format!(
            "authorization {{ users = [{{user: admin, password: admin}}, {{user: relay, password: \
             relay, permissions: {{publish: {{allow: \"outbox.event.>\", deny: \"{deny}\"}}, \
             subscribe: \"_INBOX.>\"}}}}] }}"
        )
    };
    let admin = json!({"user": "admin", "pass": "admin"});
    let Some(mut nats) = Nats::configured(&users("none"), &admin) else {
        return;
    };
    nats.add_stream(STREAM, &ALL, json!({}));
    let world = world();
    let command = with(&world, &nats, "user = \"relay\"\n");
    let mut relay = ready(&command.variable("WALRELAY_NATS_PASSWORD", "relay"));
    let sql = world.sql();
    world.emit_to(&sql, 0, "a");
    all_delivered(&world, &nats);

    nats.reload(&users("outbox.event.*.kind0"));
    let denied = || {
        world.emit_to(&sql, 0, "a");
        relay.log().contains("Permissions Violation for Publish")
    };
    eventually("the right is revoked", ARRIVAL, denied, |denied| *denied);
    let refused = logged(&relay, "record_refused");
    assert!(refused.contains("allow this user to publish"), "{refused}");
    let before = nats.count(STREAM);
    (0..5).for_each(|_| world.emit_to(&sql, 1, "b"));
    let count = || nats.count(STREAM);
    eventually("others flow", ARRIVAL, count, |count| *count == before + 5);

    nats.reload(&users("none"));
    let found = all_delivered(&world, &nats);
    assert_eq!(found.duplicates, 0);
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());
}
