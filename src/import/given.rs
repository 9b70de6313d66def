//! The options of a file by one set of names, whichever form it has.
//!
//! Names are Kafka Connect's. Those of the Outbox Event Router start with `router.` instead of its alias, and those of
//! the producer with `producer.override.`.

/// Class of the transform that is carried.
const ROUTER: &str = "io.debezium.transforms.outbox.EventRouter";
/// Where an option of the router starts.
pub(super) const ROUTER_PREFIX: &str = "router.";
/// Where an option of the producer starts.
pub(super) const PRODUCER_PREFIX: &str = "producer.override.";

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Connect,
    Server,
}

/// An option of the file.
pub(super) struct Written {
    /// Its name by our set of names.
    pub(super) name: String,
    /// Its name in the file.
    pub(super) written: String,
    pub(super) value: String,
}

/// All of them. No `Debug`: any value may be a password.
pub(super) struct Given {
    pub(super) form: Form,
    pub(super) options: Vec<Written>,
    router: Option<String>,
}

impl Given {
    pub(super) fn new(options: Vec<(String, String)>) -> Given {
        let is_server = options.iter().any(|(name, _)| name.starts_with("debezium."));
        let form = if is_server { Form::Server } else { Form::Connect };
        let options = options.into_iter().map(|(written, value)| {
            let name = match form {
                Form::Connect => written.clone(),
                Form::Server => name_of_server(&written),
            };
            Written { name, written, value: value.trim().to_owned() }
        });
        let mut given = Given { form, options: options.collect(), router: None };
        let chain = given.get("transforms").unwrap_or_default();
        let aliases = chain.split(',').map(str::trim).filter(|alias| !alias.is_empty());
        let router = aliases.into_iter().find(|alias| given.get(&format!("transforms.{alias}.type")) == Some(ROUTER));
        given.router = router.map(str::to_owned);
        if let Some(alias) = &given.router {
            let prefix = format!("transforms.{alias}.");
            for option in &mut given.options {
                if let Some(rest) = option.name.strip_prefix(&prefix) {
                    option.name = format!("{ROUTER_PREFIX}{rest}");
                }
            }
        }
        given
    }

    /// The router's alias, if there is a router.
    pub(super) fn router(&self) -> Option<&str> {
        self.router.as_deref()
    }

    /// Whether the file has it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// An option's value, if the file says what it is: one that is filled in elsewhere is not known.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.find(name).filter(|option| !self.is_filled_in(option)).map(|option| option.value.as_str())
    }

    /// An option's value, whether something is still to be put into it or not.
    pub(super) fn as_written(&self, name: &str) -> Option<&str> {
        self.find(name).map(|option| option.value.as_str())
    }

    /// As [`Given::get`]; the default holds where the option is not in the file, not where its value is not known.
    pub(super) fn or<'g>(&'g self, name: &str, default: &'g str) -> Option<&'g str> {
        if self.has(name) { self.get(name).filter(|value| !value.is_empty()) } else { Some(default) }
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The option as the file has it.
    pub(super) fn written(&self, name: &str) -> String {
        match self.find(name) {
            Some(option) => option.written.clone(),
            None => format!("{} (not set)", self.would_be_written(name)),
        }
    }

    /// Where in the file an option stands that is `written` so; the end for one that does not.
    pub(super) fn place(&self, written: &str) -> usize {
        self.options.iter().position(|option| option.written == written).unwrap_or(usize::MAX)
    }

    /// Whether Kafka Connect's providers (`${file:…:…}`) or Quarkus (`${VARIABLE}`) put something in when it starts.
    pub(super) fn is_filled_in(&self, option: &Written) -> bool {
        // Groups of a regular expression look the same.
        if option.name == "router.route.topic.replacement" {
            return false;
        }
        let mut references = option.value.split("${").skip(1).filter_map(|rest| rest.split_once('}'));
        match self.form {
            Form::Connect => references.any(|(inside, _)| inside.contains(':')),
            Form::Server => references.next().is_some(),
        }
    }

    fn find(&self, name: &str) -> Option<&Written> {
        self.options.iter().find(|option| option.name == name)
    }

    fn would_be_written(&self, name: &str) -> String {
        let alias = self.router().unwrap_or("outbox");
        let rest = name.strip_prefix(ROUTER_PREFIX);
        let connect = rest.map_or(name.to_owned(), |rest| format!("transforms.{alias}.{rest}"));
        match (self.form, connect.strip_prefix(PRODUCER_PREFIX)) {
            (Form::Connect, _) => connect,
            (Form::Server, Some(rest)) => format!("debezium.sink.kafka.producer.{rest}"),
            (Form::Server, None) => match connect.strip_suffix(".converter") {
                Some(of) => format!("debezium.format.{of}"),
                None if connect.starts_with("transforms.") => format!("debezium.{connect}"),
                None => format!("debezium.source.{connect}"),
            },
        }
    }
}

fn name_of_server(written: &str) -> String {
    let Some(rest) = written.strip_prefix("debezium.") else { return written.to_owned() };
    if let Some(of_source) = rest.strip_prefix("source.") {
        return of_source.to_owned();
    }
    if let Some(of_producer) = rest.strip_prefix("sink.kafka.producer.") {
        return format!("{PRODUCER_PREFIX}{of_producer}");
    }
    if let Some((of, more)) = rest.strip_prefix("format.").map(|rest| rest.split_once('.').unwrap_or((rest, "")))
        && matches!(of, "key" | "value" | "header")
    {
        return if more.is_empty() { format!("{of}.converter") } else { format!("{of}.converter.{more}") };
    }
    rest.to_owned()
}
