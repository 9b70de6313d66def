//! docs/how-to/move-from-debezium.md: `walrelay config import --database-url`: the tables that a
//! connector captures.

use std::process::Output;

use super::Seen;
use crate::support::relay::RelayCommand;

const COLUMNS: &str = "(id uuid primary key, aggregatetype text not null, aggregateid text not \
                       null, type text, payload jsonb)";

/// Tables in the schema of a world, and a connector that captures those whose names begin with
/// `outbox`.
fn seen() -> Seen {
    Seen::new(
        "outbox",
        &format!(
            "create table outbox {COLUMNS}; create table \"Outbox_Two\" {COLUMNS}; create table \
             other {COLUMNS};
             create table outbox_log (id int primary key)"
        ),
    )
}

fn imported(seen: &Seen, publication: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("connector.json");
    let schema = seen.world.name.to_uppercase();
    let connector = format!(
        r#"{{"connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput", "publication.name": "{publication}", "slot.name": "{}",
            "schema.include.list": "{schema}",
            "table.include.list": "{schema}\\.OUTBOX.*", "extended.headers.enabled": "false",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "io.debezium.converters.BinaryDataConverter",
            "value.converter.delegate.converter.type":
                "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.delegate.converter.type.schemas.enable": "false",
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter"}}"#,
        seen.world.name
    );
    std::fs::write(&path, connector).unwrap();
    let import = RelayCommand::new("config")
        .flag("import")
        .flag(&path.display().to_string());
    import
        .option("--database-url", &seen.world.database_url)
        .output()
}

#[test]
fn config_import_writes_an_outbox_for_each_table_that_is_captured() {
    let seen = seen();
    let name = &seen.world.name;
    seen.sql.run(&format!(
        "create publication {name}_pub for table outbox, \"Outbox_Two\", other, outbox_log"
    ));
    let output = imported(&seen, &format!("{name}_pub"));
    let told = String::from_utf8(output.stderr).unwrap();
    let toml = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        output.status.code(),
        Some(1),
        "tables that are created later: {told}"
    );
    let tables: Vec<_> = toml
        .lines()
        .filter(|line| line.starts_with("table = "))
        .collect();
    assert_eq!(
        tables,
        [
            format!("table = \"{name}.\\\"Outbox_Two\\\"\""),
            format!("table = \"{name}.outbox\"")
        ],
        "{toml}"
    );
    assert!(toml.contains("\nkey = \"{aggregateid}\"\n"), "{toml}");
    assert!(
        toml.contains("\nvalue = \"{payload|connect('json')|default('null')}\"\n"),
        "{toml}"
    );
    assert!(
        told.contains("table.include.list") && !told.contains("value.converter"),
        "{told}"
    );
}

#[test]
fn config_import_refuses_a_publication_that_filters_rows_has_no_outbox_or_does_not_exist() {
    let seen = seen();
    let name = &seen.world.name;
    seen.sql.run(&format!(
        "create publication {name}_filter for table outbox where (aggregatetype <> 'x');
         create publication {name}_other for table other"
    ));
    for (publication, cause) in [
        ("filter", format!("filters rows of {name}.outbox: ")),
        ("other", "has no outbox of the connector".to_owned()),
        (
            "missing",
            format!("publication {name}_missing does not exist in database "),
        ),
    ] {
        let output = imported(&seen, &format!("{name}_{publication}"));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(15), 0),
            "{told}"
        );
        assert!(told.contains(&cause), "{told}");
    }
}
