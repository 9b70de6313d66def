//! Java's regular expressions, as those of the engine here. What is not known to mean the same is
//! refused.

/// What Java's `.` does not match: its line terminators.
const DOT: &str = r"[^\n\r\x{85}\x{2028}\x{2029}]";

/// An expression of `java.util.regex` in the syntax of the crate `regex`; `None` if it has
/// something whose meaning is, or may be, another here.
///
/// <https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/regex/Pattern.html>:
/// classes such as `\d` and the flag `i` are those of ASCII, and `.` matches no line terminator.
pub fn of_java(regex: &str) -> Option<String> {
    let mut reader = Reader {
        rest: regex,
        out: String::new(),
        flags: Flags::default(),
        outer: Vec::new(),
    };
    while let Some(c) = reader.next() {
        reader.piece(c)?;
    }
    Some(reader.out)
}

#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    /// `i`: letters of ASCII in either case.
    no_case: bool,
    /// `s`: the dot matches everything.
    dot_all: bool,
}

struct Reader<'r> {
    rest: &'r str,
    out: String,
    flags: Flags,
    /// The flags outside of each group that is open.
    outer: Vec<Flags>,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = self.rest.get(c.len_utf8()..)?;
        Some(c)
    }

    fn piece(&mut self, c: char) -> Option<()> {
        match c {
            '.' => self
                .out
                .push_str(if self.flags.dot_all { "(?s:.)" } else { DOT }),
            // Java's `$` also matches before a line terminator at the end, which nothing behind it
            // may consume.
            '$' if !self.rest.is_empty() || self.out.contains('|') => return None,
            '^' if !self.out.is_empty() => return None,
            '(' => self.group()?,
            ')' => {
                self.flags = self.outer.pop()?;
                self.out.push(c);
            }
            '[' => self.class()?,
            '\\' => {
                let escaped = self.escape()?;
                self.out.push_str(&escaped);
            }
            '*' | '+' | '?' | '}' => {
                self.out.push(c);
                // A possessive quantifier would be a repetition of a repetition here.
                if self.rest.starts_with('+') {
                    return None;
                }
                // A reluctant one.
                if let Some(rest) = self.rest.strip_prefix('?') {
                    self.rest = rest;
                    self.out.push('?');
                }
            }
            c if self.flags.no_case && c.is_ascii_alphabetic() => {
                self.out
                    .extend(['[', c.to_ascii_lowercase(), c.to_ascii_uppercase(), ']']);
            }
            c => self.out.push(c),
        }
        Some(())
    }

    /// Behind a bracket: a group, or flags.
    fn group(&mut self) -> Option<()> {
        let Some(special) = self.rest.strip_prefix('?') else {
            self.open("(");
            return Some(());
        };
        if let Some(name) = special.strip_prefix('<') {
            let (name, rest) = name.split_once('>')?;
            let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
            self.rest = rest;
            self.open(&format!("(?<{}>", Some(name).filter(|_| is_name)?));
            return Some(());
        }
        let end = special.find([':', ')'])?;
        let mut flags = self.flags;
        let mut is_on = true;
        for flag in special.get(..end)?.chars() {
            match flag {
                'i' => flags.no_case = is_on,
                's' => flags.dot_all = is_on,
                '-' => is_on = false,
                _ => return None,
            }
        }
        self.rest = special.get(end + 1..)?;
        if special.get(end..)?.starts_with(':') {
            self.open("(?:");
        }
        self.flags = flags;
        Some(())
    }

    fn open(&mut self, as_written: &str) {
        self.outer.push(self.flags);
        self.out.push_str(as_written);
    }

    /// Behind a backslash, inside and outside of a class.
    fn escape(&mut self) -> Option<String> {
        Some(match self.next()? {
            'd' => "[0-9]".to_owned(),
            'D' => "[^0-9]".to_owned(),
            'w' => "[0-9A-Za-z_]".to_owned(),
            'W' => "[^0-9A-Za-z_]".to_owned(),
            's' => r"[ \t\n\x0B\f\r]".to_owned(),
            'S' => r"[^ \t\n\x0B\f\r]".to_owned(),
            c @ ('t' | 'n' | 'r' | 'f' | 'a') => format!("\\{c}"),
            // Of a letter, the flag `i` would count.
            c @ ('x' | 'u') if !self.flags.no_case => format!("\\{c}"),
            // In the syntax here these are bounds of a word.
            c @ ('<' | '>') => c.to_string(),
            c if c.is_ascii_punctuation() || c == ' ' => format!("\\{c}"),
            _ => return None,
        })
    }

    /// Behind the bracket of a class. A class in a class, an intersection and the like have other
    /// rules in Java.
    fn class(&mut self) -> Option<()> {
        let mut inside = String::from("[");
        if self.rest.starts_with('^') {
            inside.extend(self.next());
        }
        let start = inside.len();
        loop {
            match self.next()? {
                ']' if inside.len() > start => break,
                '[' | ']' => return None,
                '\\' => inside.push_str(&self.escape()?),
                c if matches!(c, '&' | '-' | '~') && self.rest.starts_with(c) => return None,
                c if self.flags.no_case => self.in_either_case(c, &mut inside)?,
                c => inside.push(c),
            }
        }
        inside.push(']');
        self.out.push_str(&inside);
        Some(())
    }

    /// A character of a class, or the range that begins with it.
    fn in_either_case(&mut self, c: char, inside: &mut String) -> Option<()> {
        let end = self
            .rest
            .strip_prefix('-')
            .and_then(|rest| rest.chars().next())
            .filter(|end| *end != ']');
        let last = end.unwrap_or(c);
        let is_letters = |is: fn(&char) -> bool| is(&c) && is(&last);
        let has_case = is_letters(char::is_ascii_lowercase) || is_letters(char::is_ascii_uppercase);
        let is_plain =
            end.is_none() || is_letters(char::is_ascii_digit) || is_letters(|c| !c.is_ascii());
        if !has_case && !is_plain {
            return None;
        }
        if end.is_some() {
            self.next();
            self.next();
        }
        let range = if end.is_some() {
            format!("{c}-{last}")
        } else {
            c.to_string()
        };
        if has_case {
            inside.push_str(&range.to_ascii_uppercase());
        }
        inside.push_str(&if has_case {
            range.to_ascii_lowercase()
        } else {
            range
        });
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use regex::Regex;
    use walrelay_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn an_expression_matches_as_in_java() {
        // Found with Java 17: expression, texts that match as a whole, texts that do not.
        for (java, matching, other) in [
            (
                r"(.*)Created",
                &["OrderCreated", "\u{b}Created"][..],
                &["a\u{2028}Created", "a\rCreated", "\u{85}Created"][..],
            ),
            (
                r"(?s)(.*)Created",
                &["a\u{2028}Created", "a\nCreated"],
                &["created"],
            ),
            (
                r"(?i)(k)(elvin)_(.*)",
                &["Kelvin_x", "kELVIN_"],
                &["\u{212a}elvin_x", "kelvin_\u{2028}"],
            ),
            (r"(?i:[a-k\d]+)s", &["aK7s"], &["\u{212a}s", "aS"]),
            (
                r"(?i)[^.b-d]+[xä-]",
                &["aeX", "e\u{212a}-", "\nÄä"],
                &["aCx", ".x", "aÄ"],
            ),
            (r"a(?i)b|c", &["aB", "C"], &["AB"]),
            (r"(a(?i)b)c", &["aBc"], &["aBC"]),
            (r"(?i)a(?-i)b", &["Ab"], &["AB"]),
            (r"\w\d\s\S\W", &["a1 xä"], &["ä1 x-", "a1\u{a0}x-"]),
            (r"[\d.]*", &["1.2", ""], &["a"]),
            (r"[^a-c]", &["\n", "ä"], &["b"]),
            (r"a{2}b?c+?", &["aac", "aabcc"], &["abc"]),
            (r"^\<\>\.\x41\u0042$", &["<>.AB"], &["<>.AB\n"]),
        ] {
            let regex = of_java(java).unwrap_or_else(|| panic!("{java} is refused"));
            let regex = Regex::new(&format!("^(?:{regex})$")).unwrap();
            assert!(
                matching.iter().all(|text| regex.is_match(text)),
                "{java}: {regex}"
            );
            assert!(
                !other.iter().any(|text| regex.is_match(text)),
                "{java}: {regex}"
            );
        }
    }

    #[test]
    fn what_may_mean_something_else_is_refused() {
        for java in [
            "(?=a).*",
            "(?!a)b",
            "(?<=a)b",
            "(?>a)",
            "a++b",
            "[a]*+",
            "a{2}+",
            r"\bword",
            r"\p{Lower}",
            r"\h",
            r"\v",
            r"\R",
            r"(a)\1",
            r"\Qa.b\E",
            "(?u)a",
            "(?U)a",
            "(?x)a b",
            "(?d).",
            "(?m)^a",
            "[a&&b]",
            "[a--b]",
            "[a[b]]",
            "[]a]",
            "[[:alpha:]]",
            "(?i)[A-z]",
            "(?i)[0-_]",
            r"(?i)[a-\d]",
            r"(?i)\x4b",
            "a$b",
            "a^",
            "a|b$",
            "a)",
            "[a",
        ] {
            assert_eq!(of_java(java), None, "{java}");
        }
    }

    #[test]
    fn fuzzed_expressions() {
        let corpus = [
            "(?i)(k)(elvin)_(.*)",
            r"(a(?i)b)[^.b-d]+[xä-]",
            r"^\<\>\.\x41\u0042a{2}b?c+?$",
            r"(?<kind>Order|\w[\d.]*)(?-i:\s)",
        ];
        fuzz_text("expressions of Java", 64 << 20, &corpus, |text| {
            if let Some(Ok(regex)) = of_java(text).map(|regex| Regex::new(&regex)) {
                let _matches = regex.is_match("Kelvin_ab");
            }
        });
    }
}
