//! The functions of templates that write values as Debezium and Kafka Connect do.

mod connect;
mod expand;

use std::borrow::Cow;
use std::sync::Arc;

use connect::Form;
use expand::expand;
use walrelay_core::template::{Extended, Extension, extend};

/// `connect` writes a value as a converter of Kafka Connect does; `expand` writes JSON in a text as
/// Debezium expands it.
static FUNCTIONS: [Extension; 2] = [
    Extension {
        name: "connect",
        usage: "connect('…',…)",
        make: connects,
    },
    Extension {
        name: "expand",
        usage: "expand",
        make: expands,
    },
];

/// Adds the functions to those of templates. Call before a template is parsed.
pub fn install() {
    extend(&FUNCTIONS);
}

fn connects(words: &[&str]) -> Result<Extended, String> {
    let form = Form::new(words)?;
    Ok(Extended {
        gives_json: form != Form::Text,
        apply: Arc::new(move |value, of| form.write(value, of)),
    })
}

fn expands(words: &[&str]) -> Result<Extended, String> {
    let nulls = match words {
        [] => false,
        ["nulls"] => true,
        _ => return Err("expand takes nothing, or 'nulls'".to_owned()),
    };
    let apply = move |text: &str| expand(text, nulls).map(Cow::Owned);
    Ok(Extended {
        gives_json: true,
        apply: Arc::new(move |value, _| value.map(|text| apply(&text)).transpose()),
    })
}
