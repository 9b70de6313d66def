//! The trace context of an event, which its `traceparent` says:
//! <https://www.w3.org/TR/trace-context/#traceparent-header>.

/// The header with the trace context of an event.
const TRACEPARENT: &str = "traceparent";

/// The trace context of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace; not 0.
    pub trace_id: u128,
    /// The id of the span that wrote the event; not 0.
    pub span_id: u64,
    /// The trace flags.
    pub flags: u8,
}

impl TraceContext {
    /// Reads a `traceparent`; `None` where the text is none.
    pub fn parse(text: &[u8]) -> Option<TraceContext> {
        let mut parts = std::str::from_utf8(text).ok()?.trim().split('-');
        let mut number = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = part
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            u128::from_str_radix(part, 16).ok().filter(|_| is_hex)
        };
        let version = number(2)?;
        let trace_id = number(32)?;
        let span_id = number(16)?;
        let flags = number(2)?;
        // Later versions may have more parts.
        let fits = version != 0xff && (version > 0 || parts.next().is_none());
        let span_id = u64::try_from(span_id).ok()?;
        let flags = u8::try_from(flags).ok()?;
        (fits && trace_id != 0 && span_id != 0).then_some(TraceContext {
            trace_id,
            span_id,
            flags,
        })
    }

    /// Reads the header of a record.
    pub fn of_headers(headers: &[(&str, Option<&[u8]>)]) -> Option<TraceContext> {
        let (_, value) = headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT))?;
        TraceContext::parse((*value)?)
    }

    /// The id of the trace, as `traceparent` has it.
    pub(crate) fn hex_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

#[cfg(test)]
mod tests {
    use walrelay_fuzz::fuzz;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_traceparent_is_read_as_w3c_has_it() {
        let good = format!("00-{TRACE}-b7ad6b7169203331-01");
        let read = TraceContext::parse(good.as_bytes()).unwrap();
        assert_eq!(
            (read.hex_id(), read.span_id, read.flags),
            (TRACE.to_owned(), 0xb7ad_6b71_6920_3331, 1)
        );
        let headers = [
            ("id", Some(&b"1"[..])),
            ("Traceparent", Some(good.as_bytes())),
        ];
        assert_eq!(TraceContext::of_headers(&headers), Some(read));
        let later = format!("cc-{TRACE}-b7ad6b7169203331-01-what-later");
        assert_eq!(TraceContext::parse(later.as_bytes()), Some(read));
        for text in [
            String::new(),
            format!("{good}-x"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
            format!("00-+{}-b7ad6b7169203331-01", &TRACE[1..]),
            format!("00-{TRACE}-b7ad6b7169203331"),
            "\u{fffd}".repeat(20),
        ] {
            assert_eq!(TraceContext::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(TraceContext::parse(b"\xff"), None);
        assert_eq!(TraceContext::of_headers(&[("traceparent", None)]), None);
    }

    #[test]
    fn fuzzed_traceparents() {
        let corpus = [
            format!("00-{TRACE}-b7ad6b7169203331-01"),
            format!("cc-{TRACE}-b7ad6b7169203331-01-what-later"),
        ];
        fuzz("traceparents", 64 << 10, &corpus, |bytes| {
            if let Some(read) = TraceContext::parse(bytes) {
                assert!(
                    bytes
                        .windows(32)
                        .any(|part| part == read.hex_id().as_bytes())
                );
            }
        });
    }
}
