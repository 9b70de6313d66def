//! Lists of servers, separated by commas, of `[nats]` and `[rabbitmq]`.

/// The servers of a list, as they are written.
pub(crate) fn each(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// One server of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Server<'a> {
    /// The scheme; none of `HOST:PORT`.
    pub(crate) scheme: Option<&'a str>,
    /// A name or an address; one of IPv6 in brackets.
    pub(crate) host: &'a str,
    pub(crate) port: Option<u16>,
}

impl<'a> Server<'a> {
    /// None where this is no host with an optional scheme, of these, and port. User and password
    /// have keys of their own.
    pub(crate) fn parse(text: &'a str, schemes: &[&str]) -> Option<Server<'a>> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, text),
        };
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (rest, None),
        };
        let port = port.map(str::parse).transpose().ok()?;
        let is_host = !host.is_empty()
            && host
                .chars()
                .all(|char| char.is_ascii_alphanumeric() || "._-:[]".contains(char));
        let fits =
            is_host && port != Some(0) && scheme.is_none_or(|scheme| schemes.contains(&scheme));
        fits.then_some(Server { scheme, host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_host_and_no_password() {
        for (text, fits) in [
            ("localhost", true),
            ("nats://a.b-c:4222", true),
            ("tls://[::1]:4222", true),
            ("[::1]", true),
            ("nats://u:p@a:4222", false),
            ("ws://a:80", false),
            ("a:x", false),
            ("a:0", false),
            ("a:65536", false),
            ("nats://", false),
            ("a/b", false),
        ] {
            let server = Server::parse(text, &["nats", "tls"]);
            assert_eq!(server.is_some(), fits, "{text}");
        }
        let server = Server::parse("tls://[::1]:4222", &["tls"]).unwrap();
        let expected = Server {
            scheme: Some("tls"),
            host: "[::1]",
            port: Some(4222),
        };
        assert_eq!(server, expected);
    }
}
