//! `walrelay config import`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::config::{self, FileArgs};
use crate::cli::output::{Grid, Outcome, Target};
use crate::cli::sql::column;
use crate::config::layers::Flags;
use crate::config::model::tables;
use crate::postgres::sql::SqlSession;
use crate::postgres::table;
use crate::sink::check_properties;
use crate::source::preflight::{self, judge_version};
use walrelay_core::config::TableName;
use walrelay_core::config::name::quoted;
use walrelay_core::error::{Error, Kind, Result};
use walrelay_core::printable::counted;
use walrelay_core::secret::Secret;
use walrelay_debezium::{Connector, Effect, Found, Import, Left};

const HEADING: &str = "Made by `walrelay config import` of a Debezium connector's configuration.";
const PUBLISHED: &str = include_str!("../../sql/published.sql");

/// No configuration is longer.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The connector's configuration: Kafka Connect's JSON or properties, a KafkaConnector of
    /// Strimzi as YAML or JSON, or Debezium Server's application.properties or application.yaml; -
    /// is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Read the tables and the types of their columns from the connector's database: each captured
    /// table becomes an outbox. The file does not get the URL
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,
    #[command(flatten)]
    pub target: Target,
}

pub(super) const HELP: &str = "\
Examples:
  walrelay config import connector.json > walrelay.toml
  walrelay config import application.properties --output walrelay.toml
  walrelay config import connector.json --database-url postgres://me@db/shop
  curl -s connect:8083/connectors/outbox/config | \\
    walrelay config import - --json
  kubectl get kafkaconnector outbox -o yaml | walrelay config import -

The command connects to --database-url only, and reads its catalogs. It writes no password into \
the file. Standard error has a line for each option without an equivalent: whether consumers \
notice, why, and what to do. docs/how-to/move-from-debezium.md describes the whole migration.

Exit codes:
  0   consumers notice no difference; never without --database-url
  1   the file is written, without an option that consumers notice, or may notice
  2   the file cannot be read, or has no connector of an outbox in Postgres
  4   the output cannot be written
  10  Postgres cannot be reached (11: refuses)
  15  the publication lacks the connector's tables, or filters their rows";

pub(crate) async fn import(args: &ImportArgs) -> Outcome {
    let path = args.file.display().to_string();
    let connector = Connector::read(&path, &read(&args.file)?)?;
    let tables = match &args.database_url {
        Some(url) => outboxes(&connector, url).await?,
        None => Vec::new(),
    };
    let import = connector.import(&tables, &check_property);
    let mut about = if import.left.is_empty() {
        String::new()
    } else {
        table(&import.left) + "\n"
    };
    let noticed = noticed(&import);
    if noticed.is_none() {
        about.push_str("Consumers notice no difference.");
    }
    let toml = toml_of(&import);
    args.target.write(
        &toml,
        about.trim_end(),
        &Report {
            toml: &toml,
            left: &import.left,
        },
    )?;
    noticed.map_or(Ok(()), |noticed| Err(noticed.into()))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    toml: &'a str,
    left: &'a [Left],
}

fn toml_of(import: &Import) -> String {
    import.draft.toml(HEADING, &tables())
}

fn check_property(name: &str, value: &str) -> Result<()> {
    check_properties(&BTreeMap::from([(name.to_owned(), Secret::new(value))]))
}

/// The tables of the database that the connector captures and has records of.
async fn outboxes(connector: &Connector, url: &str) -> Result<Vec<Found>> {
    let publication = connector.publication()?;
    let database = config::settings(
        &Flags::from([("database.url", url.to_owned())]),
        &FileArgs::default(),
    )?
    .database()?;
    let session = SqlSession::connect(&database, "walrelay config import").await?;
    judge_version(&preflight::server(session.client()).await?)?;
    let mut found = Vec::new();
    for row in session
        .rows(
            "reading the publication's tables",
            PUBLISHED,
            &[&publication],
        )
        .await?
    {
        let name: String = column(&row, "name")?;
        let name: TableName = name
            .parse()
            .map_err(|error| Error::new(Kind::Bug, format!("{name}: {error}")))?;
        if !connector.captures(&name)? {
            continue;
        }
        let table = table::read(session.client(), &name)
            .await?
            .filter(|table| connector.fits(table));
        let Some(table) = table else { continue };
        if let Some(filter) = column::<Option<String>>(&row, "row_filter")? {
            return Err(preflight::filters_rows(
                publication,
                &quoted(publication),
                &name,
                &filter,
            ));
        }
        if let Some(whole) = &table.partition_of {
            let cause = format!(
                "publication {publication} publishes {name}, a partition of {whole}, under its own \
                 name"
            );
            let remedy = format!(
                "alter publication {} set (publish_via_partition_root = true);",
                quoted(publication)
            );
            return Err(Error::new(Kind::Publication, cause).remedy(remedy));
        }
        found.push(Found { name, table });
    }
    if found.is_empty() {
        return Err(no_outbox(&session, publication, &database.database).await?);
    }
    Ok(found)
}

/// Why the connector has no outbox in this database: there is no such publication, or it has none.
async fn no_outbox(session: &SqlSession, publication: &str, database: &str) -> Result<Error> {
    const IS_THERE: &str = "select from pg_catalog.pg_publication where pubname = $1::text";
    let found = session
        .rows("looking for the publication", IS_THERE, &[&publication])
        .await?;
    let (cause, remedy) = if found.is_empty() {
        (
            format!("publication {publication} does not exist in database {database}"),
            "name the connector's database, and in publication.name a publication of: select \
             pubname from pg_publication",
        )
    } else {
        (
            format!(
                "publication {publication} in database {database} has no outbox of the connector"
            ),
            "name the connector's database, and its publication in publication.name",
        )
    };
    Ok(Error::new(Kind::Publication, cause).remedy(remedy))
}

/// What consumers will notice, if they will or may notice something.
fn noticed(import: &Import) -> Option<Error> {
    if import.seen() == 0 {
        return None;
    }
    let of = |effect, verb: &str| {
        let options = import.options(effect);
        (!options.is_empty()).then(|| {
            format!(
                "{verb} {} ({})",
                counted(options.len() as u64, "option"),
                options.join(", ")
            )
        })
    };
    let told = [
        of(Effect::Differs, "notice"),
        of(Effect::MayDiffer, "may notice"),
    ];
    let told = told.into_iter().flatten().collect::<Vec<_>>();
    let error = Error::new(
        Kind::NotCarried,
        format!("consumers {}", told.join(", and ")),
    );
    Some(error.remedy(
        "see the lines `differs` and `may differ`, which are the first; the rest is as it was",
    ))
}

fn read(path: &Path) -> Result<String> {
    let cannot = |error: io::Error| {
        Error::new(
            Kind::Config,
            format!("{} cannot be read: {error}", path.display()),
        )
        .remedy("name the file with the connector's configuration, or - for standard input")
    };
    let mut bytes = Vec::new();
    let read = match path.to_str() {
        Some("-") => io::stdin()
            .lock()
            .take(BYTES_MAX + 1)
            .read_to_end(&mut bytes),
        _ => File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    if read.map_err(cannot)? as u64 > BYTES_MAX {
        return Err(cannot(io::Error::other(
            "it is larger than a configuration",
        )));
    }
    // Java reads properties that are not UTF-8 as Latin-1, whose characters are the first 256 of
    // Unicode.
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| error.into_bytes().into_iter().map(char::from).collect()))
}

fn table(left: &[Left]) -> String {
    let mut table = Grid::headed("effect, option, why; what to do");
    for Left {
        effect,
        option,
        why,
        what_to_do,
    } in left
    {
        let separator = if what_to_do.is_empty() { "" } else { "; " };
        table.row([
            &effect.word(),
            option,
            &format_args!("{why}{separator}{what_to_do}"),
        ]);
    }
    table.text().trim_end().to_owned()
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod connectors;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_options_has_aligned_columns() {
        let left = |option: &str, effect, what_to_do: &str| Left {
            option: option.to_owned(),
            effect,
            why: "why".to_owned(),
            what_to_do: what_to_do.to_owned(),
        };
        let rows = [
            left("a.b\nc", Effect::MayDiffer, "do"),
            left("longer.name", Effect::NoEffect, ""),
        ];
        insta::assert_snapshot!(table(&rows), @r"
        effect      option       why; what to do
        may differ  a.b c        why; do
        no effect   longer.name  why
        ");
    }

    #[test]
    fn the_last_line_counts_each_option_once() {
        let left = |option: &str, effect| Left {
            option: option.to_owned(),
            effect,
            why: "why".to_owned(),
            what_to_do: String::new(),
        };
        let of = |left: &[Left]| {
            noticed(&Import {
                left: left.to_vec(),
                ..Import::default()
            })
            .map(|error| error.cause().to_owned())
        };
        let one = [
            left("a", Effect::Differs),
            left("a", Effect::Differs),
            left("b", Effect::ToDo),
        ];
        assert_eq!(of(&one).as_deref(), Some("consumers notice 1 option (a)"));
        let both = [
            left("a", Effect::Differs),
            left("b", Effect::MayDiffer),
            left("c", Effect::MayDiffer),
        ];
        assert_eq!(
            of(&both).as_deref(),
            Some("consumers notice 1 option (a), and may notice 2 options (b, c)")
        );
        assert_eq!(
            of(&both[1..]).as_deref(),
            Some("consumers may notice 2 options (b, c)")
        );
        assert_eq!(of(&one[2..]), None);
    }

    #[tokio::test]
    async fn an_import_that_does_not_see_the_table_writes_the_file_and_ends_with_1() {
        let folder = tempfile::tempdir().unwrap();
        let [file, output] =
            ["connector.properties", "walrelay.toml"].map(|name| folder.path().join(name));
        let same = "connector.class=PostgresConnector\nplugin.name=pgoutput\n\
                    table.include.list=public.outbox\nextended.headers.enabled=false\n\
                    key.converter=StringConverter\nvalue.converter=StringConverter\n\
                    transforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\n";
        std::fs::write(&file, same).unwrap();
        let target = Target {
            output: Some(output.clone()),
            force: false,
            json: false,
        };
        let ended = import(&ImportArgs {
            file,
            database_url: None,
            target,
        })
        .await;
        let Err(crate::cli::output::Failure::Error(error)) = ended else {
            panic!("nothing is known of the columns")
        };
        assert_eq!(
            (error.kind(), error.kind().exit_code()),
            (Kind::NotCarried, 1)
        );
        assert!(
            std::fs::read_to_string(&output)
                .unwrap()
                .contains("[route]")
        );
    }

    #[test]
    fn a_missing_or_too_large_file_is_refused_and_latin_1_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("connector.json");
        assert!(
            read(&path)
                .unwrap_err()
                .cause()
                .contains("connector.json cannot be read")
        );
        std::fs::write(&path, vec![b' '; BYTES_MAX as usize + 1]).unwrap();
        assert!(read(&path).unwrap_err().cause().contains("larger"));
        std::fs::write(&path, b"a=\xe4").unwrap();
        assert_eq!(read(&path).unwrap(), "a=ä");
    }

    #[test]
    fn what_is_carried_exists_in_librdkafka() {
        for (java, ours) in walrelay_debezium::properties()
            .filter(|(java, _)| !matches!(*java, "sasl.mechanism" | "ssl.truststore.certificates"))
        {
            let value = match java {
                "security.protocol" => "SASL_SSL",
                "compression.type" => "zstd",
                "client.dns.lookup" => "use_all_dns_ips",
                "client.id" | "sasl.kerberos.service.name" => "kafka",
                _ => "5000",
            };
            assert_eq!(check_property(ours, value), Ok(()), "{ours}");
        }
    }
}
