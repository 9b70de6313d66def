//! Text to parts.

use super::function::Function;
use super::{Field, Part, TemplateError};

/// Characters of a column's name that needs no quotes.
pub(super) fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads one template from its start to its end.
pub(super) struct Parser<'t> {
    template: &'t str,
    rest: &'t str,
}

impl<'t> Parser<'t> {
    pub(super) fn new(template: &'t str) -> Self {
        Parser { template, rest: template }
    }

    pub(super) fn template(mut self) -> Result<Vec<Part>, TemplateError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        while let Some(c) = self.rest.chars().next() {
            if self.take("{{") {
                text.push('{');
            } else if self.take("}}") {
                text.push('}');
            } else if self.take("{") {
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(Part::Field(self.field()?));
            } else if c == '}' {
                return Err(self.wrong("a } without its {; write }} for the character"));
            } else {
                text.push(c);
                self.advance(c);
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(parts)
    }

    fn field(&mut self) -> Result<Field, TemplateError> {
        let column = self.name("a column")?;
        let mut field = Field { column, path: Vec::new(), functions: Vec::new() };
        while self.take(".") {
            field.path.push(self.name("a member of the JSON object")?);
        }
        loop {
            self.blanks();
            if self.take("}") {
                return Ok(field);
            }
            if !self.take("|") {
                return Err(self.wrong("a | or } is expected here"));
            }
            self.blanks();
            field.functions.push(self.function()?);
        }
    }

    fn function(&mut self) -> Result<Function, TemplateError> {
        let before = self.rest;
        let name = self.name("a function")?;
        let mut arguments = Vec::new();
        if self.take("(") {
            loop {
                self.blanks();
                arguments.push(self.quoted('\'', "a text in single quotes is expected here")?);
                self.blanks();
                if self.take(")") {
                    break;
                }
                if !self.take(",") {
                    return Err(self.wrong("a , or ) is expected here"));
                }
            }
        }
        Function::new(&name, arguments).map_err(|what| {
            self.rest = before;
            self.wrong(&what)
        })
    }

    /// A name, in double quotes where it is odd.
    fn name(&mut self, what: &str) -> Result<String, TemplateError> {
        self.blanks();
        if self.rest.starts_with('"') {
            return self.quoted('"', "a name is expected here");
        }
        let end = self.rest.find(|c| !is_plain(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return Err(self.wrong(&format!("the name of {what} is expected here")));
        }
        self.rest = rest;
        Ok(name.to_owned())
    }

    /// A text between quotes; two of them in a row are one.
    fn quoted(&mut self, quote: char, missing: &str) -> Result<String, TemplateError> {
        let before = self.rest;
        let mut quote_text = [0; 4];
        let quote: &str = quote.encode_utf8(&mut quote_text);
        if !self.take(quote) {
            return Err(self.wrong(missing));
        }
        let mut text = String::new();
        while let Some(c) = self.rest.chars().next() {
            if self.take(quote) {
                if !self.take(quote) {
                    return Ok(text);
                }
                text.push_str(quote);
            } else {
                text.push(c);
                self.advance(c);
            }
        }
        self.rest = before;
        Err(self.wrong("the quote that begins here does not end"))
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn advance(&mut self, c: char) {
        self.rest = self.rest.get(c.len_utf8()..).unwrap_or_default();
    }

    fn wrong(&self, what: &str) -> TemplateError {
        let passed = self.template.len() - self.rest.len();
        let at = self.template.get(..passed).map_or(0, |before| before.chars().count()) + 1;
        TemplateError { template: self.template.to_owned(), at, what: what.to_owned() }
    }
}
