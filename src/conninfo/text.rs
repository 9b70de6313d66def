//! The two forms of a connection string, taken apart into keys and values.

use std::collections::BTreeMap;

use super::{bad, keys};
use crate::error::Result;

type Map = BTreeMap<&'static str, String>;

/// Keys and values of `text`. Errors show no part of it but the name of a key.
pub(super) fn settings(text: &str) -> Result<Map> {
    let text = text.trim();
    match ["postgresql://", "postgres://"].iter().find_map(|scheme| text.strip_prefix(scheme)) {
        Some(rest) => uri(rest),
        None if text.contains('=') => keywords(text),
        // What libpq makes of `psql orders`.
        None if text.is_empty() => Ok(Map::new()),
        None => Ok(Map::from([("dbname", text.to_owned())])),
    }
}

/// `[user[:password]@][host[:port],…][/database][?key=value&…]`
fn uri(rest: &str) -> Result<Map> {
    let mut map = Map::new();
    let user_info = rest.find(['@', '/']).filter(|at| rest.get(*at..).is_some_and(|tail| tail.starts_with('@')));
    let rest = match user_info.and_then(|at| rest.split_at_checked(at)) {
        None => rest,
        Some((credentials, tail)) => {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            map.insert("user", decode(user)?);
            map.insert("password", decode(password)?);
            tail.strip_prefix('@').unwrap_or(tail)
        }
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for server in authority.split(',') {
        let (host, port) = host_and_port(server)?;
        hosts.push(decode(host)?);
        ports.push(decode(port)?);
    }
    // A comma within a decoded host would add a server the ports know nothing of.
    if hosts.iter().any(|host| host.contains(',')) {
        return Err(bad("a host of the Postgres connection contains a comma"));
    }
    map.insert("host", if hosts.iter().all(String::is_empty) { String::new() } else { hosts.join(",") });
    map.insert("port", if ports.iter().all(String::is_empty) { String::new() } else { ports.join(",") });
    map.insert("dbname", decode(database)?);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| bad("a parameter of the Postgres connection has no value"))?;
        match (decode(key)?.as_str(), decode(value)?) {
            // JDBC's way to say it, which libpq takes as well.
            ("ssl", value) if value == "true" => keys::put(&mut map, "sslmode", "require".to_owned())?,
            (key, value) => keys::put(&mut map, key, value)?,
        }
    }
    Ok(map)
}

fn host_and_port(server: &str) -> Result<(&str, &str)> {
    let Some(bracketed) = server.strip_prefix('[') else {
        return Ok(server.split_once(':').unwrap_or((server, "")));
    };
    let (address, rest) = bracketed
        .split_once(']')
        .ok_or_else(|| bad("a bracket of an IPv6 address in the Postgres connection is not closed"))?;
    match rest.strip_prefix(':') {
        Some(port) => Ok((address, port)),
        None if rest.is_empty() => Ok((address, "")),
        None => Err(bad("there is something between the IPv6 address and the port of the Postgres connection")),
    }
}

fn decode(text: &str) -> Result<String> {
    let error = || bad("a percent sign in the Postgres connection is not followed by two hexadecimal digits of UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push(u8::try_from(high * 16 + low).map_err(|_| error())?),
            _ => return Err(error()),
        }
    }
    String::from_utf8(bytes).map_err(|_| error())
}

/// `key = value key='quoted value'`, with backslash escapes in both.
fn keywords(text: &str) -> Result<Map> {
    let mut map = Map::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or_else(|| bad("a key of the Postgres connection has no value"))?;
        let (value, after) = value(after.trim_start())?;
        keys::put(&mut map, key.trim_end(), value)?;
        rest = after.trim_start();
    }
    Ok(map)
}

/// One value off the front of `text`.
fn value(text: &str) -> Result<(String, &str)> {
    let (quoted, body) = text.strip_prefix('\'').map_or((false, text), |body| (true, body));
    let mut value = String::new();
    let mut chars = body.chars();
    loop {
        let before = chars.as_str();
        match chars.next() {
            Some('\'') if quoted => return Ok((value, chars.as_str())),
            None if quoted => return Err(bad("a quote in the Postgres connection is not closed")),
            None => return Ok((value, "")),
            Some(space) if !quoted && space.is_whitespace() => return Ok((value, before)),
            Some('\\') => value.extend(chars.next()),
            Some(char) => value.push(char),
        }
    }
}
