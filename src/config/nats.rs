//! `[nats]`: the servers of NATS, and how this client logs in.

use super::file::Layer;
use super::model::NatsConfig;
use super::servers::Server;
use walrelay_core::error::Result;

/// The schemes of servers. Without one, and with the first, a server may ask for TLS.
pub(crate) const SCHEMES: [&str; 2] = ["nats", "tls"];

/// The checked table.
pub(super) fn nats(layer: &Layer) -> Result<NatsConfig> {
    let nats = layer.model.nats.clone();
    layer.refuse_if(
        !nats.servers.is_empty()
            && !nats
                .each_server()
                .all(|server| Server::parse(server, &SCHEMES).is_some()),
        "nats.servers",
        "has something that is no server",
        "write HOST:PORT, nats://HOST:PORT or tls://HOST:PORT, with commas between; user and \
         password have keys of their own",
    )?;
    let logins = [
        "nats.credentials_file",
        "nats.nkey_file",
        "nats.user",
        "nats.token",
    ];
    let logins: Vec<&str> = logins.into_iter().filter(|path| layer.has(path)).collect();
    if let [one, other, ..] = logins.as_slice() {
        let cause = format!("is set, and {other}, too");
        let remedy = "remove one of the two: a client logs in once";
        layer.refuse_if(true, one, &cause, remedy)?;
    }
    for path in ["nats.password", "nats.password_file"] {
        let remedy = "set nats.user";
        layer.refuse_if(
            layer.has(path) && nats.user.is_empty(),
            path,
            "is set, and no user",
            remedy,
        )?;
    }
    layer.refuse_if(
        layer.has("nats.password") && layer.has("nats.password_file"),
        "nats.password",
        "is set, and nats.password_file, too",
        "remove one of the two",
    )?;
    Ok(nats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn of(lines: &str) -> Result<NatsConfig> {
        let text = format!(
            "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nsink.kind = 'nats'\n{lines}"
        );
        let config = Settings::of(&text)?.config(false)?;
        Ok(config.nats)
    }

    #[test]
    #[cfg(feature = "nats")]
    fn there_is_one_login() {
        let config = of("[nats]\nservers = 'a:4222, tls://b'\nuser = 'u'\npassword = 'canary'");
        let config = config.unwrap();
        assert!(config.each_server().eq(["a:4222", "tls://b"]));
        assert!(!format!("{config:?}").contains("canary"));
        for (lines, cause) in [
            ("", "nats.servers is not set"),
            ("user = 'u'\ntoken = 't'", "nats.token, too"),
            ("credentials_file = 'f'\nuser = 'u'", "nats.user, too"),
            ("nkey_file = 'f'\ntoken = 't'", "nats.token, too"),
            ("password = 'p'", "no user"),
            (
                "user = 'u'\npassword = 'p'\npassword_file = 'f'",
                "nats.password_file, too",
            ),
        ] {
            let servers = match lines {
                "" => "",
                _ => "servers = 'a'\n",
            };
            let error = of(&format!("[nats]\n{servers}{lines}")).unwrap_err();
            assert!(error.to_string().contains(cause), "{lines}: {error}");
        }
    }
}
