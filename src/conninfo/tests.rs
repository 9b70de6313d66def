use super::*;

fn parse_with(text: &str, variables: &[(&str, &str)]) -> Result<ConnInfo> {
    let env = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    ConnInfo::parse(Some(text), &env)
}

fn parse(text: &str) -> ConnInfo {
    parse_with(text, &[]).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    match parse_with(text, &[]) {
        Ok(info) => panic!("{text} was taken as {info:?}"),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Config);
            format!("{} / {}", error.cause(), error.what_to_do().unwrap_or_default())
        }
    }
}

#[test]
fn both_forms_say_the_same() {
    let forms = [
        "postgres://ann:s%40:crt@db.example:6432/orders",
        "postgresql://ann@db.example:6432/orders?password=s%40%3Acrt",
        "host=db.example port=6432 user=ann password='s@:crt' dbname=orders",
        r"host = db.example  port =6432 user= ann password=s@\:crt dbname='ord''ers'",
    ];
    for form in &forms[..3] {
        let info = parse(form);
        assert_eq!(info.describe(), "db.example:6432/orders as ann", "{form}");
        let password = info.password_for(&info.targets[0]).unwrap().unwrap();
        assert_eq!(password.expose(), "s@:crt", "{form}");
    }
    // A doubled quote ends the value in this form, and what follows is no key.
    assert!(refusal(forms[3]).contains("no value"));
}

#[test]
fn hosts_are_kept_in_order_with_their_ports() {
    for (text, described) in [
        ("postgres://u@h1:1,h2:2/d", "h1:1,h2:2/d as u"),
        ("postgres://u@h1,h2:7/d", "h1:5432,h2:7/d as u"),
        ("host=h1,h2 port=7 user=u dbname=d", "h1:7,h2:7/d as u"),
        ("host=h1,h2 port=7,8 user=u dbname=d", "h1:7,h2:8/d as u"),
        ("postgres://u@[::1]:6000,[fe80::2]/d", "[::1]:6000,[fe80::2]:5432/d as u"),
        ("postgres://u@%2Fvar%2Frun:6000/d", "/var/run:6000/d as u"),
        ("postgres:///d?host=/run/pg&user=u", "/run/pg:5432/d as u"),
        ("user=u hostaddr=10.0.0.1 dbname=d", "10.0.0.1:5432/d as u"),
        ("postgres://u@h", "h:5432/u as u"),
    ] {
        assert_eq!(parse(text).describe(), described, "{text}");
    }
    let target = parse("postgres:///d?host=/run/pg&user=u&port=77").targets[0].clone();
    assert_eq!(target.socket_path(), Some(PathBuf::from("/run/pg/.s.PGSQL.77")));
}

#[test]
fn an_address_replaces_the_lookup_and_not_the_name() {
    let info = parse("host=db.example hostaddr=10.0.0.1 user=u");
    let address = Some("10.0.0.1".parse().unwrap());
    assert_eq!(info.targets[0].host, Host::Tcp { name: "db.example".into(), address });
}

#[test]
fn variables_fill_in_what_is_missing_and_nothing_else() {
    let variables = [
        ("PGHOST", "env.example"),
        ("PGPORT", "77"),
        ("PGUSER", "env_user"),
        ("PGPASSWORD", "env_password"),
        ("PGDATABASE", "env_db"),
        ("PGSSLMODE", "require"),
        ("PGOPTIONS", "-c work_mem=1MB"),
        ("PGCONNECT_TIMEOUT", "3"),
    ];
    let info = parse_with("", &variables).unwrap();
    assert_eq!(info.describe(), "env.example:77/env_db as env_user");
    assert_eq!(info.password_for(&info.targets[0]).unwrap().unwrap().expose(), "env_password");
    assert_eq!(info.tls.mode, SslMode::Require);
    assert_eq!(info.options.as_deref(), Some("-c work_mem=1MB"));
    assert_eq!(info.connect_timeout, Duration::from_secs(3));
    let info = parse_with("postgres://ann:x@h:1/d?sslmode=disable", &variables).unwrap();
    assert_eq!(info.describe(), "h:1/d as ann");
    assert_eq!(info.tls.mode, SslMode::Disable);
    let info = parse_with("host=h", &[("PGHOSTADDR", "10.9.9.9"), ("PGUSER", "u")]).unwrap();
    assert_eq!(info.targets[0].host, Host::Tcp { name: "h".into(), address: None });
}

#[test]
fn a_text_without_keys_is_a_database() {
    assert_eq!(parse_with("orders", &[("PGUSER", "u"), ("PGHOST", "h")]).unwrap().describe(), "h:5432/orders as u");
}

#[test]
fn a_key_that_is_known_and_without_effect_is_taken() {
    parse("host=h user=u keepalives=1 gssencmode=disable sslsni=0 client_encoding=auto krbsrvname=postgres");
}

#[test]
fn what_cannot_be_obeyed_is_refused_by_name() {
    for key in ["service", "sslcrl", "requirepeer", "require_auth", "replication", "sslnegotiation"] {
        assert!(refusal(&format!("host=h user=u {key}=x")).contains(key));
    }
    assert!(refusal("host=h user=u hots=x").contains("hots"));
    assert!(refusal("postgres://u@h/d?hots=x").contains("hots"));
}

#[test]
fn what_makes_no_sense_is_refused() {
    for text in [
        "host=h port=0 user=u",
        "host=h port=65536 user=u",
        "host=h port=x user=u",
        "host=a,b port=1,2,3 user=u",
        "host=a,b hostaddr=10.0.0.1 user=u",
        "hostaddr=name user=u",
        "host='h user=u",
        "host=h user",
        "host=@abstract user=u",
        "host=h user=u sslmode=full",
        "host=h user=u connect_timeout=soon",
        "host=h user=u channel_binding=maybe",
        "host=h user=u target_session_attrs=standby",
        "host=h user=u sslmode=verify-full",
        "host=h user=u sslrootcert=system sslmode=require",
        "host=h user=u sslcert=/x",
        "postgres://u@[::1/d",
        "postgres://u@[::1]x/d",
        "postgres://u@h/d%2",
        "postgres://u@h/%ff",
        "postgres://u@h/%00",
        "postgres://u@h/d?sslmode",
        "postgres://u@a%2Cb/d",
    ] {
        refusal(text);
    }
}

#[test]
fn no_error_and_no_debug_text_shows_a_secret() {
    const CANARY: &str = "canary-7f";
    let info = parse(&format!("postgres://u:{CANARY}@h/d"));
    assert!(!format!("{info:?} {info:#?} {}", info.describe()).contains(CANARY));
    for text in [
        format!("postgres://u:{CANARY}/x@h:1/d"),
        format!("postgres://u:p@{CANARY}:w@h/d"),
        format!("host=h password='{CANARY}"),
        format!("host=h password=a {CANARY}=b user=u"),
        format!("host=h password=a {CANARY}"),
        format!("postgres://u@h/d?password={CANARY}%"),
        format!("postgres://u@h/d?{CANARY}=1"),
    ] {
        assert!(!refusal(&text).contains(CANARY), "{text}");
    }
}

#[test]
fn trust_defaults_follow_libpq() {
    let tls = |text: &str| parse(text).tls.clone();
    assert_eq!(tls("host=h user=u").mode, SslMode::Prefer);
    assert_eq!(tls("host=h user=u sslmode=allow").mode, SslMode::Prefer);
    assert_eq!(tls("host=h user=u sslrootcert=system").mode, SslMode::VerifyFull);
    assert_eq!(tls("postgres://u@h/d?ssl=true").mode, SslMode::Require);
    assert!(tls("host=h user=u ssl_min_protocol_version=TLSv1.3").tls13_only);
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".postgresql")).unwrap();
    for file in ["root.crt", "postgresql.crt", "postgresql.key"] {
        std::fs::write(home.path().join(".postgresql").join(file), "").unwrap();
    }
    let info = parse_with("host=h user=u sslmode=verify-full", &[("HOME", home.path().to_str().unwrap())]).unwrap();
    assert_eq!(info.tls.root, Some(RootCert::File(home.path().join(".postgresql/root.crt"))));
    assert!(info.tls.client.is_some());
}

#[test]
fn a_connection_that_an_attacker_could_read_is_told_from_one_he_could_not() {
    for (text, weak) in [
        ("host=db user=u", true),
        ("host=db user=u sslmode=require", true),
        ("host=db user=u sslrootcert=system", false),
        ("host=localhost user=u", false),
        ("host=127.0.0.1 user=u sslmode=disable", false),
        ("host=/run user=u", false),
        ("host=/run,db user=u", true),
    ] {
        assert_eq!(parse(text).weakness().is_some(), weak, "{text}");
    }
}

#[test]
fn the_password_file_is_read_as_libpq_reads_it() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = "# h:5432:d:u:comment\nshort:line\nother:*:*:*:wrong\nh:5433:*:*:port\nh:*:d:a\\:b:colon\\:\\\\end\n\
                 h:*:d:u:first\nh:*:d:u:second\n*:*:*:w:wild:card\nlocalhost:*:d:s:socket\n";
    std::fs::write(file.path(), lines).unwrap();
    let path = file.path().to_str().unwrap();
    let look_up = |text: &str| {
        let info = parse(&format!("{text} passfile={path}"));
        info.password_for(&info.targets[0]).map(|found| found.map(|password| password.expose().to_owned()))
    };
    assert_eq!(look_up("host=h dbname=d user=u").unwrap().as_deref(), Some("first"));
    assert_eq!(look_up("host=h port=5433 dbname=d user=u").unwrap().as_deref(), Some("port"));
    assert_eq!(look_up("host=h dbname=d user=a:b").unwrap().as_deref(), Some(r"colon:\end"));
    assert_eq!(look_up("host=x dbname=y user=w").unwrap().as_deref(), Some("wild:card"));
    assert_eq!(look_up("host=/tmp dbname=d user=s").unwrap().as_deref(), Some("socket"));
    assert_eq!(look_up("host=x dbname=y user=z").unwrap(), None);
    assert_eq!(look_up("host=h dbname=d user=u password=given").unwrap().as_deref(), Some("given"));
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = look_up("host=h dbname=d user=u").unwrap_err();
    assert!(error.what_to_do().unwrap().starts_with("chmod 600"));
    assert!(!error.cause().contains("first"));
}

#[test]
fn a_server_that_was_guessed_is_told_from_one_that_was_named() {
    assert!(parse("host=db user=ann").names_server);
    assert!(parse("hostaddr=10.0.0.1 user=ann").names_server);
    assert!(parse_with("user=ann", &[("PGHOST", "db")]).unwrap().names_server);
    assert!(!parse("postgres://ann@/shop").names_server);
}
