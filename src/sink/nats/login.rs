//! How a session logs in. Files are read at each connection: their contents may change.

use async_nats::ConnectOptions;
use tokio_rustls::rustls::ClientConfig;

use crate::config::NatsConfig;
use crate::sink::login;
use walrelay_core::error::{Error, Kind, Result};

/// The options with the login.
pub(super) async fn options(config: &NatsConfig) -> Result<ConnectOptions> {
    let options = ConnectOptions::new();
    if !config.credentials_file.is_empty() {
        let key = "nats.credentials_file";
        let credentials = login::read(key, &config.credentials_file).await?;
        return options.credentials(credentials.expose()).map_err(|_| {
            let cause = format!(
                "{key}: {} has no user JWT and seed",
                config.credentials_file
            );
            Error::new(Kind::Config, cause)
                .remedy("write it with nsc generate creds, or take it from who runs the servers")
        });
    }
    if !config.nkey_file.is_empty() {
        let seed = login::read("nats.nkey_file", &config.nkey_file).await?;
        return Ok(options.nkey(seed.expose().trim().to_owned()));
    }
    if let Some(token) = &config.token {
        return Ok(options.token(token.expose().to_owned()));
    }
    if config.user.is_empty() {
        return Ok(options);
    }
    let given = config.password.as_ref();
    let password = login::password(given, "nats.password_file", &config.password_file).await?;
    Ok(options.user_and_password(config.user.clone(), password.expose().to_owned()))
}

/// The configuration of TLS, for servers that ask for it. None where nobody does, and this system
/// trusts no authority.
pub(super) fn tls(config: &NatsConfig) -> Result<Option<ClientConfig>> {
    let is_wanted = !config.ca_file.is_empty()
        || config
            .each_server()
            .any(|server| server.starts_with("tls://"));
    match login::tls("nats", &config.ca_file, true) {
        Err(_) if !is_wanted => Ok(None),
        tls => tls.map(Some),
    }
}
