//! `[smtp]`: the mail server, how this client logs in, and who sends.

use super::file::Layer;
use super::model::{SmtpConfig, SmtpTls};
use super::servers::is_here;
use walrelay_core::error::Result;

/// The checked table.
pub(super) fn smtp(layer: &Layer) -> Result<SmtpConfig> {
    let smtp = layer.model.smtp.clone();
    layer.refuse_if(
        !smtp.host.is_empty() && !is_host(&smtp.host),
        "smtp.host",
        "is no name of a host",
        "write the name or the address alone; smtp.port has the port",
    )?;
    layer.refuse_if(
        !smtp.helo_name.is_empty() && !is_host(&smtp.helo_name),
        "smtp.helo_name",
        "is no name of a host",
        "write the full name of this machine, or leave it out",
    )?;
    for path in ["smtp.password", "smtp.password_file"] {
        let is_alone = layer.has(path) && smtp.user.is_empty();
        layer.refuse_if(is_alone, path, "is set, and no user", "set smtp.user")?;
    }
    layer.refuse_if(
        layer.has("smtp.password") && layer.has("smtp.password_file"),
        "smtp.password",
        "is set, and smtp.password_file, too",
        "remove one of the two",
    )?;
    layer.refuse_if(
        !smtp.user.is_empty() && !layer.has("smtp.password") && !layer.has("smtp.password_file"),
        "smtp.user",
        "is set, and no password",
        "set smtp.password_file, or the variable WALRELAY_SMTP_PASSWORD",
    )?;
    layer.refuse_if(
        !smtp.user.is_empty() && smtp.tls == SmtpTls::Off && !is_here(&smtp.host),
        "smtp.tls",
        "is off, and the password would be sent in the clear",
        "set it to starttls or implicit",
    )?;
    Ok(smtp)
}

/// Whether this is a name or an address, without a port.
fn is_host(text: &str) -> bool {
    let is_name = |char: char| char.is_ascii_alphanumeric() || "._-:".contains(char);
    text.len() <= 255 && text.chars().all(is_name) && (text.matches(':').count() != 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn of(lines: &str) -> Result<SmtpConfig> {
        let text = format!(
            "database.url = 'postgres://u@h/d'\nslot.name = 'mails'\nsink.kind = 'smtp'\n{lines}"
        );
        let config = Settings::of(&text)?.config(false)?;
        Ok(config.smtp)
    }

    #[test]
    #[cfg(feature = "smtp")]
    fn a_password_goes_with_a_user_and_never_in_the_clear() {
        let login = "user = 'u'\npassword = 'canary'\n";
        let config = of(&format!("[smtp]\nhost = 'mail.example.org'\n{login}")).unwrap();
        assert_eq!(config.port(), 587);
        assert!(!format!("{config:?}").contains("canary"));
        assert_eq!(
            of("[smtp]\nhost = 'a'\ntls = 'implicit'").unwrap().port(),
            465
        );
        assert_eq!(of("[smtp]\nhost = 'a'\nport = 2525").unwrap().port(), 2525);
        for host in ["localhost", "127.0.0.1", "::1"] {
            let local = of(&format!("[smtp]\nhost = '{host}'\ntls = 'off'\n{login}"));
            assert_eq!(local.unwrap().port(), 25, "{host}");
        }
        for (lines, cause) in [
            ("", "smtp.host is not set"),
            ("host = 'a:25'", "no name of a host"),
            ("host = 'a b'", "no name of a host"),
            ("helo_name = 'a\\nb'", "no name of a host"),
            ("password = 'p'", "no user"),
            ("user = 'u'", "no password"),
            (
                "user = 'u'\npassword = 'p'\npassword_file = 'f'",
                "smtp.password_file, too",
            ),
            ("tls = 'off'\nuser = 'u'\npassword = 'p'", "in the clear"),
            ("port = 70000", "smtp.port"),
        ] {
            let host = match lines {
                "" => "",
                lines if lines.starts_with("host") => "",
                _ => "host = 'a'\n",
            };
            let error = of(&format!("[smtp]\n{host}{lines}")).unwrap_err();
            assert!(error.to_string().contains(cause), "{lines}: {error}");
        }
    }
}
