//! P9, P11: TLS and authentication to both sides: what is set up right delivers, what is not ends
//! at once with its exit code and the setting to look at, and no secret reaches an output.

use std::path::Path;
use std::sync::OnceLock;

use crate::support::certificates::{Authority, Identity, LOOPBACK};
use crate::support::guardian::run_directory;
use crate::support::relay::{EXIT, Relay, RelayCommand};
use crate::support::servers::kafka::Listener;
use crate::support::servers::postgres::GUARDED_ROLE;
use crate::support::servers::{Kafka, Postgres};
use crate::support::topic;
use crate::support::wait::eventually;
use crate::support::world::{ARRIVAL, World};

/// Exit codes of `docs/how-to/runbook.md`.
const CONFIG: i32 = 2;
const POSTGRES_REFUSED: i32 = 11;
const KAFKA_REFUSED: i32 = 31;

const PASSWORD: &str = "canary-password-81d3";
const WRONG_PASSWORD: &str = "canary-mistyped-2b60";

/// The Kafka user.
const USER: &str = "relay";
/// The role that shows a password and a certificate with its name.
const CERTIFIED_ROLE: &str = "certified";
/// The role that shows nothing but a certificate with its name.
const PASSWORDLESS_ROLE: &str = "passwordless";

/// Listeners of the broker: by password; by client certificate; certified by nobody we know; under
/// another name.
const BY_PASSWORD: &str = "PASSWORD";
const BY_CERTIFICATE: &str = "CERTIFICATE";
const STRANGER: &str = "STRANGER";
const MISNAMED: &str = "MISNAMED";

/// Whom servers and relay trust, somebody they do not, and two clients.
struct Certificates {
    trusted: Authority,
    untrusted: Authority,
    certified: Identity,
    passwordless: Identity,
}

fn certificates() -> &'static Certificates {
    static MADE: OnceLock<Certificates> = OnceLock::new();
    MADE.get_or_init(|| {
        let trusted = Authority::new("trusted");
        let certified = trusted.certify(CERTIFIED_ROLE, &[]);
        let passwordless = trusted.certify(PASSWORDLESS_ROLE, &[]);
        Certificates {
            trusted,
            untrusted: Authority::new("untrusted"),
            certified,
            passwordless,
        }
    })
}

/// One broker for all tests of this file.
fn kafka() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(|| {
        let Certificates {
            trusted, untrusted, ..
        } = certificates();
        let known = trusted.certify("kafka", &LOOPBACK);
        let stranger = untrusted.certify("kafka", &LOOPBACK);
        let misnamed = trusted.certify("elsewhere", &["elsewhere.example"]);
        let listener =
            |name, protocol, identity: &Identity, others: Vec<(&'static str, String)>| {
                let mut settings = vec![
                    ("ssl.keystore.type", "PEM".to_owned()),
                    (
                        "ssl.keystore.location",
                        identity.keystore.display().to_string(),
                    ),
                    ("ssl.truststore.type", "PEM".to_owned()),
                    (
                        "ssl.truststore.location",
                        trusted.root().display().to_string(),
                    ),
                ];
                settings.extend(others);
                Listener {
                    name,
                    protocol,
                    settings,
                }
            };
        let module = "org.apache.kafka.common.security";
        let plain = format!("{module}.plain.PlainLoginModule required user_{USER}=\"{PASSWORD}\";");
        let scram = format!("{module}.scram.ScramLoginModule required;");
        let mechanisms = vec![
            ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-512".to_owned()),
            ("plain.sasl.jaas.config", plain),
            ("scram-sha-512.sasl.jaas.config", scram),
        ];
        let client_wanted = vec![("ssl.client.auth", "required".to_owned())];
        let kafka = Kafka::secured(&[
            listener(BY_PASSWORD, "SASL_SSL", &known, mechanisms),
            listener(BY_CERTIFICATE, "SSL", &known, client_wanted),
            listener(STRANGER, "SSL", &stranger, vec![]),
            listener(MISNAMED, "SSL", &misnamed, vec![]),
        ]);
        kafka.add_scram_user(USER, PASSWORD);
        kafka
    })
}

/// One Postgres for all tests of this file: whoever is not the tests themselves has to encrypt.
fn postgres() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(|| {
        let Certificates { trusted, .. } = certificates();
        let rules = format!(
            "hostssl all {CERTIFIED_ROLE} 127.0.0.1/32 scram-sha-256 clientcert=verify-full\n\
             hostssl all {PASSWORDLESS_ROLE} 127.0.0.1/32 cert\n\
             hostssl all all 127.0.0.1/32 scram-sha-256\n"
        );
        let postgres = Postgres::secured(
            15,
            &trusted.certify("postgres", &LOOPBACK),
            trusted.root(),
            &rules,
        );
        let sql = postgres.sql();
        for role in [GUARDED_ROLE, CERTIFIED_ROLE] {
            sql.run(&format!(
                "create role {role} login replication password '{PASSWORD}'"
            ));
        }
        sql.run(&format!(
            "create role {PASSWORDLESS_ROLE} login replication"
        ));
        postgres
    })
}

/// A world on both. What is not asked for it does without: encryption and passwords.
fn world() -> World {
    World::on(postgres(), kafka().brokers())
}

/// A world's relay, sent to a listener with these Kafka properties.
fn to_listener(world: &World, listener: &str, properties: &[(&str, &str)]) -> RelayCommand {
    let lines: String = properties
        .iter()
        .map(|(name, value)| format!("{name} = \"{value}\"\n"))
        .collect();
    let command = world
        .run()
        .option("--brokers", &kafka().brokers_of(listener));
    command.config_file(&format!("[kafka.properties]\n{lines}"))
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// How a role reaches a world's database: `postgres://…?` and these parameters, without a password.
fn url(world: &World, role: &str, parameters: &str) -> String {
    let url = postgres().url_as(role, &world.name);
    let (server, _) = url.split_once('?').expect("parameters");
    format!("{server}?{parameters}")
}

/// The parameters that verify the server.
fn verified() -> String {
    format!(
        "sslmode=verify-full&sslrootcert={}",
        shown(certificates().trusted.root())
    )
}

/// The parameters that show a certificate.
fn showing(identity: &Identity) -> String {
    format!(
        "&sslcert={}&sslkey={}",
        shown(&identity.certificate),
        shown(&identity.key)
    )
}

/// `command` with another connection string, and the password where libpq finds it.
fn with_url(command: RelayCommand, url: &str) -> RelayCommand {
    command
        .option("--database-url", url)
        .variable("PGPASSWORD", PASSWORD)
}

#[track_caller]
fn assert_no_secret(text: &str) {
    assert!(
        !text.contains(PASSWORD) && !text.contains(WRONG_PASSWORD),
        "a password is in the output:\n{text}"
    );
}

/// An event arrives; so does another one after a restart, which finds the position of the first.
#[track_caller]
fn assert_delivers(world: &World, command: &RelayCommand) {
    let sql = world.sql();
    for expected in 1..=2 {
        let mut relay = command.start();
        relay.wait_ready();
        world.emit(&sql, "a");
        eventually(
            "the event arrives",
            ARRIVAL,
            || world.delivered(),
            |records| *records == expected,
        );
        world.wait_confirmed();
        assert_eq!(relay.terminate(EXIT), Some(0));
        assert_no_secret(&relay.log());
    }
    assert_eq!(world.assert_all_delivered().duplicates, 0);
}

/// The relay ends with `code`; its last words hold `cause`, and what to do names all of `settings`.
#[track_caller]
fn assert_refused(mut relay: Relay, code: i32, cause: &str, settings: &[&str]) {
    let exit = relay.wait_exit(EXIT);
    assert_explained(exit, &relay.log(), code, cause, settings);
}

#[track_caller]
fn assert_explained(exit: Option<i32>, words: &str, code: i32, cause: &str, settings: &[&str]) {
    assert_eq!(exit, Some(code), "{words}");
    let line = |start: &str| {
        words
            .lines()
            .rev()
            .find(|line| line.starts_with(start))
            .unwrap_or_default()
    };
    assert!(
        line("error: ").contains(cause),
        "the error does not say {cause:?}:\n{words}"
    );
    for setting in settings {
        assert!(
            line("fix: ").contains(setting),
            "the fix does not name {setting}:\n{words}"
        );
    }
    assert_no_secret(words);
    assert!(!words.contains("panicked"), "{words}");
}

#[test]
fn kafka_over_tls_with_a_password_stores_events_and_position() {
    let file = run_directory().join("kafka-password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let passwords = [
        ("sasl.password", PASSWORD),
        ("sasl.password.location", shown(&file)),
    ];
    for (mechanism, password) in ["SCRAM-SHA-512", "PLAIN"].into_iter().zip(passwords) {
        let world = world();
        let relay = to_listener(
            &world,
            BY_PASSWORD,
            &[
                ("security.protocol", "SASL_SSL"),
                ("ssl.ca.location", shown(certificates().trusted.root())),
                ("sasl.mechanism", mechanism),
                ("sasl.username", USER),
                password,
            ],
        );
        assert_delivers(&world, &relay);
        let positions = topic::read(kafka().brokers(), "walrelay-state");
        assert!(
            positions
                .iter()
                .any(|record| record.key_text() == world.name),
            "{mechanism}: no position is stored"
        );
    }
}

#[test]
fn kafka_over_tls_requires_the_client_certificate() {
    let world = world();
    let root = shown(certificates().trusted.root());
    let client = &certificates().certified;
    let without = [("security.protocol", "SSL"), ("ssl.ca.location", root)];
    let with = |certificate, key| {
        let shown = [
            ("ssl.certificate.location", certificate),
            ("ssl.key.location", key),
        ];
        to_listener(&world, BY_CERTIFICATE, &[&without[..], &shown[..]].concat())
    };
    let stranger = certificates().untrusted.certify("stranger", &[]);
    let refused = [
        to_listener(&world, BY_CERTIFICATE, &without).start(),
        with(shown(&stranger.certificate), shown(&stranger.key)).start(),
    ];
    for relay in refused {
        assert_refused(
            relay,
            KAFKA_REFUSED,
            "certificate",
            &["ssl.certificate.location", "ssl.key.location"],
        );
    }
    assert_delivers(
        &world,
        &with(shown(&client.certificate), shown(&client.key)),
    );
}

#[test]
fn certificates_that_were_replaced_on_disk_are_used_at_the_next_connection() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let install = |name: &str| {
        let authority = Authority::new(name);
        let server = authority.certify("kafka", &LOOPBACK);
        let client = authority.certify("relay", &[]);
        let files = [
            (authority.root(), "root.crt"),
            (&server.keystore, "server.pem"),
            (&client.certificate, "client.crt"),
            (&client.key, "client.key"),
        ];
        for (from, to) in files {
            std::fs::copy(from, path(to)).expect("a certificate is installed");
        }
    };
    install("first");
    let settings = vec![
        ("ssl.keystore.type", "PEM".to_owned()),
        ("ssl.keystore.location", path("server.pem")),
        ("ssl.truststore.type", "PEM".to_owned()),
        ("ssl.truststore.location", path("root.crt")),
        ("ssl.client.auth", "required".to_owned()),
    ];
    let kafka = Kafka::secured(&[Listener {
        name: BY_CERTIFICATE,
        protocol: "SSL",
        settings,
    }]);
    let world = World::on(Postgres::shared(), kafka.brokers());
    let files = [
        ("ca", "root.crt"),
        ("certificate", "client.crt"),
        ("key", "client.key"),
    ];
    let files: String = files
        .map(|(kind, file)| format!("ssl.{kind}.location = {:?}\n", path(file)))
        .concat();
    let relay = world
        .run()
        .option("--brokers", &kafka.brokers_of(BY_CERTIFICATE));
    let mut relay = relay
        .config_file(&format!(
            "[kafka.properties]\nsecurity.protocol = \"ssl\"\n{files}"
        ))
        .start();
    relay.wait_ready();
    world.emit(&world.sql(), "before");
    world.wait_confirmed();

    install("second");
    kafka.kill_hard();
    kafka.start();
    world.emit(&world.sql(), "after");
    eventually(
        "the event arrives",
        ARRIVAL,
        || world.delivered(),
        |records| *records == 2,
    );
    assert!(relay.log().contains("has changed"), "{}", relay.log());
    assert_eq!(relay.terminate(EXIT), Some(0));
}

#[test]
fn an_untrusted_kafka_certificate_ends_with_31() {
    let world = world();
    let properties = [
        ("security.protocol", "SSL"),
        ("ssl.ca.location", shown(certificates().trusted.root())),
    ];
    for relay in
        [STRANGER, MISNAMED].map(|listener| to_listener(&world, listener, &properties).start())
    {
        assert_refused(
            relay,
            KAFKA_REFUSED,
            "verif",
            &["ssl.ca.location", "name in the broker's certificate"],
        );
    }
}

#[test]
fn a_wrong_kafka_password_or_mechanism_ends_with_31() {
    let world = world();
    let root = shown(certificates().trusted.root());
    let refused = [
        ("SCRAM-SHA-512", WRONG_PASSWORD),
        ("PLAIN", WRONG_PASSWORD),
        ("SCRAM-SHA-256", PASSWORD),
    ];
    let refused = refused.map(|(mechanism, password)| {
        let properties = [
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", root),
            ("sasl.mechanism", mechanism),
            ("sasl.username", USER),
        ];
        let relay = to_listener(&world, BY_PASSWORD, &properties);
        relay
            .variable("WALRELAY_KAFKA_PROPERTY_SASL_PASSWORD", password)
            .start()
    });
    for relay in refused {
        let settings = ["sasl.mechanism", "sasl.username", "sasl.password"];
        assert_refused(relay, KAFKA_REFUSED, "credentials", &settings);
    }
}

#[test]
fn a_kafka_listener_of_another_protocol_is_named_in_the_log() {
    let world = world();
    let root = shown(certificates().trusted.root());
    let tls = [("security.protocol", "SSL"), ("ssl.ca.location", root)];
    let waiting = [
        to_listener(&world, BY_PASSWORD, &[]),
        to_listener(&world, BY_PASSWORD, &tls),
        to_listener(&world, BY_PASSWORD, &tls).option("--brokers", kafka().brokers()),
    ];
    for mut relay in waiting.map(|command| command.start()) {
        let words = || relay.log();
        eventually("the protocol is named", EXIT, words, |log| {
            log.contains("security.protocol")
        });
        assert!(relay.process.exited().is_none(), "{}", relay.log());
    }
}

#[test]
fn a_missing_file_of_a_kafka_property_ends_with_2() {
    let world = world();
    let relay = to_listener(
        &world,
        STRANGER,
        &[
            ("security.protocol", "SSL"),
            ("ssl.ca.location", "/nowhere/ca.crt"),
        ],
    );
    assert_refused(
        relay.start(),
        CONFIG,
        "/nowhere/ca.crt",
        &["ssl.ca.location"],
    );
}

#[test]
fn every_session_uses_tls_to_a_verified_postgres() {
    let world = world();
    let command = with_url(world.run(), &url(&world, GUARDED_ROLE, &verified()));
    let mut relay = command.start();
    relay.wait_ready();
    let sessions = || {
        world.sql().text(&format!(
            "select string_agg(distinct backend_type || ' ' || ssl, ', ' order by backend_type || \
             ' ' || ssl)
             from pg_stat_activity join pg_stat_ssl using (pid) where usename = '{GUARDED_ROLE}'
             and datname = '{}'",
            world.name
        ))
    };
    eventually("both sessions", ARRIVAL, sessions, |found| {
        found == "client backend true, walsender true"
    });
    assert_eq!(relay.terminate(EXIT), Some(0));
    assert_delivers(&world, &command);
}

#[test]
fn an_unverified_postgres_certificate_ends_with_11() {
    let world = world();
    let refused = |command: &str, parameters: &str, cause: &str| {
        let url = url(&world, GUARDED_ROLE, parameters);
        if command == "run" {
            return assert_refused(
                with_url(world.run(), &url).start(),
                POSTGRES_REFUSED,
                cause,
                &["sslrootcert"],
            );
        }
        let output = with_url(world.command(command), &url).output();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_explained(
            output.status.code(),
            &words,
            POSTGRES_REFUSED,
            cause,
            &["sslrootcert"],
        );
    };
    let unknown = format!(
        "sslmode=verify-full&sslrootcert={}",
        shown(certificates().untrusted.root())
    );
    let misnamed = format!("{}&host=elsewhere.example&hostaddr=127.0.0.1", verified());
    for command in ["run", "status", "setup"] {
        refused(command, &unknown, "certificate");
        refused(command, &misnamed, "elsewhere.example");
    }
}

#[test]
fn sslmode_require_uses_tls_without_a_root_certificate() {
    let world = world();
    assert_delivers(
        &world,
        &with_url(world.run(), &url(&world, GUARDED_ROLE, "sslmode=require")),
    );
}

#[test]
fn sessions_for_sql_and_walsenders_bind_their_login_to_the_certificate() {
    let world = world();
    let bound = url(
        &world,
        GUARDED_ROLE,
        "sslmode=require&channel_binding=require",
    );
    assert_delivers(&world, &with_url(world.run(), &bound));
}

#[test]
fn a_postgres_that_requires_tls_ends_a_relay_without_it_with_11() {
    let world = world();
    let relay = with_url(world.run(), &url(&world, GUARDED_ROLE, "sslmode=disable"));
    assert_refused(
        relay.start(),
        POSTGRES_REFUSED,
        "no encryption",
        &["sslmode", "pg_hba.conf"],
    );
}

#[test]
fn a_postgres_without_tls_ends_a_relay_that_requires_it_with_11() {
    let world = World::on(Postgres::shared(), kafka().brokers());
    let (plain, _) = world.database_url.split_once('?').expect("parameters");
    let relay = world
        .run()
        .option("--database-url", &format!("{plain}?{}", verified()));
    assert_refused(
        relay.start(),
        POSTGRES_REFUSED,
        "does not do TLS",
        &["ssl = on", "sslmode"],
    );
}

#[test]
fn postgres_over_tls_requires_the_roles_client_certificate() {
    let world = world();
    let Certificates {
        certified,
        passwordless,
        untrusted,
        ..
    } = certificates();
    let shows = |role: &str, shown: &str| {
        let command = world
            .run()
            .option("--database-url", &url(&world, role, &(verified() + shown)));
        if role == PASSWORDLESS_ROLE {
            command
        } else {
            command.variable("PGPASSWORD", PASSWORD)
        }
    };
    let stranger = untrusted.certify("unknown", &[]);
    for (role, shown, cause) in [
        (CERTIFIED_ROLE, String::new(), "certificate"),
        (CERTIFIED_ROLE, showing(passwordless), CERTIFIED_ROLE),
        (PASSWORDLESS_ROLE, showing(certified), PASSWORDLESS_ROLE),
        (CERTIFIED_ROLE, showing(&stranger), "TLS"),
    ] {
        assert_refused(
            shows(role, &shown).start(),
            POSTGRES_REFUSED,
            cause,
            &["sslcert"],
        );
    }
    assert_delivers(&world, &shows(CERTIFIED_ROLE, &showing(certified)));
    let mut relay = shows(PASSWORDLESS_ROLE, &showing(passwordless)).start();
    relay.wait_ready();
}

#[test]
fn setup_and_status_connect_as_run_does() {
    let world = World::bare(postgres(), kafka().brokers());
    let name = &world.name;
    world.sql().run(&format!(
        "alter database {name} owner to {GUARDED_ROLE}; alter table outbox owner to {GUARDED_ROLE}"
    ));
    let url = url(&world, GUARDED_ROLE, &verified());
    with_url(world.command("setup"), &url).succeed();
    let mut relay = with_url(world.run(), &url).start();
    relay.wait_ready();
    let status = with_url(world.command("status"), &url)
        .flag("--json")
        .succeed();
    assert!(status.contains(name.as_str()), "{status}");
    assert_no_secret(&status);
}
