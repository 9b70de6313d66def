//! What would be published and what was, for people and as JSON. Ids, topics and times only, never a payload.

use serde::Serialize;

use crate::cli::text::{aligned, counted, listed, notes};
use crate::error::{Error, Kind};
use crate::event::Shown;
use crate::replay::{Published, Survey, Wanted};

/// What was found, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    dry_run: bool,
    #[serde(flatten)]
    survey: Survey,
    /// How many of the rows were acked.
    published: u64,
    /// The last that was acked with all before it.
    up_to: Option<UpTo>,
    notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct UpTo {
    outbox: String,
    id: String,
}

impl Report {
    /// Before anything is published.
    pub fn new(survey: Survey, dry_run: bool) -> Report {
        Report { dry_run, survey, ..Report::default() }
    }

    /// Adds a remark.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Takes what was published.
    pub fn published(&mut self, published: Published) {
        self.published = published.acked;
        self.up_to = published.up_to.map(|(outbox, id)| UpTo { outbox, id });
    }

    /// `1 row`, `2 rows`.
    pub fn rows(&self) -> String {
        counted(self.survey.rows, "row")
    }

    /// Why nothing can be published.
    pub fn fault(&mut self, wanted: &Wanted) -> Option<Error> {
        if self.survey.rows == 0 {
            let error = Error::new(Kind::NothingMatched, "no row is what was asked for");
            return Some(error.remedy(
                "all conditions have to hold at once; rows that were deleted after they were published cannot come again",
            ));
        }
        let given = wanted.ids.len();
        if self.survey.rows < given as u64 {
            self.note(format!("{given} ids were given, and {} found", self.rows()));
        }
        (self.survey.unroutable > 0).then(|| {
            let cause =
                format!("{} cannot be routed, and nothing was published", counted(self.survey.unroutable, "row"));
            Error::new(Kind::Event, cause).remedy(
                "correct the rows, or the template if it is not the one that was meant; or leave them out with --where",
            )
        })
    }

    /// What was published, in one line.
    pub fn said(&self) -> String {
        let (published, rows) = (self.published, self.survey.rows);
        if published == rows {
            return format!("Published {} again.", self.rows());
        }
        let up_to = self
            .up_to
            .as_ref()
            .map(|row| format!("; all up to row {} of {} are", Shown::of(row.id.as_bytes()), row.outbox));
        format!("{published} of {} were published{}.", self.rows(), up_to.unwrap_or_default())
    }

    /// It was told to stop before its end.
    pub fn stopped(&self) -> Error {
        let said = self.said();
        Error::new(Kind::ShutdownTimeout, format!("told to stop: {}", said.trim_end_matches('.'))).remedy(
            "for the rest, give the same conditions and with --where what is behind that row; rows that come twice carry \
             their id twice",
        )
    }

    /// For people.
    pub fn text(&self) -> String {
        let shown = |text: &Option<String>| text.as_deref().map(|text| Shown::of(text.as_bytes()).to_string());
        let plain = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let mut tables = vec![["outbox", "rows", "first", "last", "from", "to", "order"].map(str::to_owned)];
        let mut topics = vec![["topic", "rows", "outbox"].map(str::to_owned)];
        for found in &self.survey.tables {
            let id = |id| shown(id).unwrap_or_else(|| "-".to_owned());
            tables.push([
                found.outbox.clone(),
                found.rows.to_string(),
                id(&found.first),
                id(&found.last),
                plain(&found.from),
                plain(&found.to),
                plain(&found.order),
            ]);
            let rows = |(topic, rows): (&String, &u64)| [topic.clone(), rows.to_string(), found.outbox.clone()];
            topics.extend(found.topics.iter().map(rows));
        }
        let mut text = aligned(&tables) + "\n";
        if topics.len() > 1 {
            text += &format!("\n{}\n", aligned(&topics));
        }
        if self.survey.unroutable > 0 {
            let rows = self.survey.unroutable_rows.iter();
            let lines: Vec<_> = rows
                .map(|row| {
                    let id = Shown::of(row.id.as_bytes());
                    [format!("  {}", row.outbox), format!("id {id}"), row.why.clone()]
                })
                .collect();
            text += &listed("unroutable", self.survey.unroutable, &lines);
        }
        if !self.notes.is_empty() {
            text += "\n";
        }
        text += &notes(&self.notes);
        if self.dry_run {
            text += "\nDry run: nothing was published.\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Found;
    use crate::replay::Unroutable;

    fn survey(unroutable: u64) -> Survey {
        let text = |text: &str| Some(text.to_owned());
        let found = Found {
            outbox: "public.outbox".to_owned(),
            rows: 12,
            order: text("\"seq\""),
            first: text("a-1"),
            last: text("a-9\n"),
            from: text("2026-03-01 12:00:00+00"),
            to: text("2026-03-01 12:30:00+00"),
            topics: [("orders".to_owned(), 11), ("returns".to_owned(), 1)].into(),
        };
        let empty = Found { outbox: "b.events".to_owned(), ..Found::default() };
        let row =
            Unroutable { outbox: "public.outbox".to_owned(), id: "a-3".to_owned(), why: "column a is NULL".to_owned() };
        let unroutable_rows = if unroutable > 0 { vec![row] } else { Vec::new() };
        Survey { rows: 12, unroutable, tables: vec![found, empty], unroutable_rows }
    }

    #[test]
    fn what_would_be_published_is_told_by_table_and_topic() {
        let mut report = Report::new(survey(2), true);
        report.note("topic returns does not exist".to_owned());
        let error = report.fault(&Wanted::default()).unwrap();
        assert_eq!((error.kind(), error.cause()), (Kind::Event, "2 rows cannot be routed, and nothing was published"));
        insta::assert_snapshot!(report.text(), @r#"
        outbox         rows  first  last     from                    to                      order
        public.outbox  12    "a-1"  "a-9\n"  2026-03-01 12:00:00+00  2026-03-01 12:30:00+00  "seq"
        b.events       0     -      -        -                       -                       -

        topic    rows  outbox
        orders   11    public.outbox
        returns  1     public.outbox

        unroutable (1 of 2)
          public.outbox  id "a-3"  column a is NULL

        note: topic returns does not exist

        Dry run: nothing was published.
        "#);
        assert!(!Report::new(survey(0), false).text().contains("Dry run"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["rows"], &json["tables"][0]["topics"]["orders"]), (&12.into(), &11.into()));
        assert_eq!((&json["unroutable_rows"][0]["id"], &json["dry_run"]), (&"a-3".into(), &true.into()));
    }

    #[test]
    fn what_was_published_says_up_to_where() {
        let mut report = Report::new(survey(0), false);
        assert!(report.fault(&Wanted::default()).is_none());
        let up_to = |id: &str| Some(("public.outbox".to_owned(), id.to_owned()));
        report.published(Published { taken: 9, acked: 7, up_to: up_to("a-5") });
        assert_eq!(report.said(), "7 of 12 rows were published; all up to row \"a-5\" of public.outbox are.");
        assert_eq!(report.stopped().kind(), Kind::ShutdownTimeout);
        report.published(Published { taken: 12, acked: 12, up_to: up_to("a-9") });
        assert_eq!(report.said(), "Published 12 rows again.");
    }

    #[test]
    fn ids_without_a_row_are_counted_and_no_row_at_all_is_a_fault() {
        let wanted = Wanted { ids: vec![String::new(); 13], ..Wanted::default() };
        let mut report = Report::new(survey(0), false);
        assert!(
            report.fault(&wanted).is_none() && report.text().contains("note: 13 ids were given, and 12 rows found")
        );
        let none = Report::new(Survey::default(), false).fault(&wanted).unwrap();
        assert_eq!((none.kind(), none.kind().exit_code()), (Kind::NothingMatched, 1));
    }
}
