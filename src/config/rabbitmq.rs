//! `[rabbitmq]`: the servers of RabbitMQ, and how this client logs in.

use super::file::Layer;
use super::model::RabbitmqConfig;
use super::servers::Server;
use walrelay_core::error::Result;

/// The schemes of servers. AMQPS is AMQP over TLS.
pub(crate) const SCHEMES: [&str; 2] = ["amqp", "amqps"];
/// The greatest length of a name in AMQP.
const NAME_BYTES_MAX: usize = 255;

/// The checked table.
pub(super) fn rabbitmq(layer: &Layer) -> Result<RabbitmqConfig> {
    let rabbitmq = layer.model.rabbitmq.clone();
    let is_server = |server| Server::parse(server, &SCHEMES).is_some();
    layer.refuse_if(
        !rabbitmq.servers.is_empty() && !rabbitmq.each_server().all(is_server),
        "rabbitmq.servers",
        "has something that is no server",
        "write HOST:PORT, amqp://HOST:PORT or amqps://HOST:PORT, with commas between; user, \
         password and virtual host have keys of their own",
    )?;
    for (path, name) in [
        ("rabbitmq.exchange", &rabbitmq.exchange),
        ("rabbitmq.vhost", &rabbitmq.vhost),
    ] {
        layer.refuse_if(
            name.len() > NAME_BYTES_MAX,
            path,
            "has more than the 255 bytes of a name in AMQP",
            "write the name that the server has",
        )?;
    }
    let has_password = layer.has("rabbitmq.password") || layer.has("rabbitmq.password_file");
    layer.refuse_if(
        layer.has("rabbitmq.password") && layer.has("rabbitmq.password_file"),
        "rabbitmq.password",
        "is set, and rabbitmq.password_file, too",
        "remove one of the two",
    )?;
    layer.refuse_if(
        layer.has("rabbitmq.user") && !has_password,
        "rabbitmq.user",
        "is set, and no password",
        "set rabbitmq.password_file, or WALRELAY_RABBITMQ_PASSWORD",
    )?;
    Ok(rabbitmq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn of(lines: &str) -> Result<RabbitmqConfig> {
        let text = format!(
            "database.url = 'postgres://u@h/d'\nslot.name = 'orders'\nsink.kind = \
             'rabbitmq'\n[rabbitmq]\n{lines}"
        );
        let config = Settings::of(&text)?.config(false)?;
        Ok(config.rabbitmq)
    }

    #[test]
    #[cfg(feature = "rabbitmq")]
    fn a_user_has_one_password_and_a_server_none() {
        let config = of("servers = 'a:5672, amqps://b'\nuser = 'u'\npassword = 'canary'").unwrap();
        assert!(config.each_server().eq(["a:5672", "amqps://b"]));
        assert!(!format!("{config:?}").contains("canary"));
        let config = of("servers = 'a'").unwrap();
        assert_eq!(
            (config.user.as_str(), config.vhost.as_str()),
            ("guest", "/")
        );
        let long = format!("servers = 'a'\nexchange = '{}'", "x".repeat(256));
        for (lines, cause) in [
            ("", "rabbitmq.servers is not set"),
            ("servers = 'amqp://u:p@a'", "no server"),
            ("servers = 'a/vhost'", "no server"),
            ("servers = 'a'\nuser = 'u'", "no password"),
            (
                "servers = 'a'\npassword = 'p'\npassword_file = 'f'",
                "password_file, too",
            ),
            (long.as_str(), "255 bytes"),
        ] {
            let error = of(lines).unwrap_err();
            assert!(error.to_string().contains(cause), "{lines}: {error}");
        }
    }
}
