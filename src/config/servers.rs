//! Lists of servers, separated by commas, of `[nats]` and `[rabbitmq]`; and hosts.

use std::net::IpAddr;

/// The servers of a list, as they are written.
pub(crate) fn each(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// Whether this host, an address of IPv6 with or without brackets, is this machine.
pub(crate) fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    host == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The first server of a list that is another machine and is reached without TLS, by the first of
/// these schemes or without one. The second is that with TLS.
#[cfg(any(feature = "nats", feature = "rabbitmq"))]
pub(crate) fn in_clear<'a>(list: &'a str, schemes: &[&str; 2]) -> Option<&'a str> {
    let [_, tls] = schemes;
    each(list).find(|text| {
        let server = Server::parse(text, schemes);
        server.is_some_and(|server| server.scheme != Some(tls) && !is_here(server.host))
    })
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
    fn what_is_here_has_the_name_or_an_address_of_loopback() {
        for host in ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"] {
            assert!(is_here(host), "{host}");
        }
        for host in ["localhost.example.org", "10.0.0.1", "[::2]", "a", ""] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    #[cfg(any(feature = "nats", feature = "rabbitmq"))]
    fn a_server_elsewhere_is_in_the_clear_without_the_scheme_of_tls() {
        let of = |list| in_clear(list, &["nats", "tls"]);
        assert_eq!(of("tls://a, localhost:1, nats://[::1]:2, 127.0.0.1"), None);
        assert_eq!(of("tls://a, nats://b:1, c"), Some("nats://b:1"));
        assert_eq!(of("c"), Some("c"));
    }

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
