//! docs/how-to/monitor.md: `walrelay status --nagios`, run as a monitoring system runs its plugins.

use crate::support::relay::RelayCommand;
use crate::support::servers::free_port;
use crate::support::world::World;

/// The exit code and the one line of a check.
#[track_caller]
fn checked(command: &RelayCommand) -> (i32, String) {
    let output = command.output();
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(
        (text.lines().count(), text.ends_with('\n')),
        (1, true),
        "{text}"
    );
    (
        output.status.code().expect("an exit code"),
        text.trim_end().to_owned(),
    )
}

/// The figures behind the bar, without their limits.
fn figure(line: &str, name: &str) -> Option<f64> {
    let (_, figures) = line.split_once(" | ")?;
    let value = figures
        .split(' ')
        .find_map(|figure| figure.strip_prefix(name)?.strip_prefix('='))?;
    value
        .split(';')
        .next()?
        .trim_end_matches(char::is_alphabetic)
        .parse()
        .ok()
}

#[test]
fn a_nagios_check_names_the_state_of_the_slot_on_one_line() {
    let world = World::keeping();
    let status = world.command("status").flag("--nagios");
    let (code, line) = checked(&status);
    assert_eq!(code, 2, "{line}");
    assert!(
        line.starts_with("WALRELAY CRITICAL - slot ") && line.contains("does not exist"),
        "{line}"
    );

    world.setup();
    let (code, line) = checked(&status);
    assert_eq!(code, 2, "{line}");
    let idle = format!(
        "WALRELAY CRITICAL - slot {}: no relay streams from the slot | lag_bytes=",
        world.name
    );
    assert!(line.starts_with(&idle), "{line}");

    let relay = world.relay();
    let sql = world.sql();
    world.emit(&sql, "a");
    world.wait_confirmed();
    let (code, line) = checked(
        &relay
            .asked_by(status.clone())
            .option("--max-lag-bytes", "1GiB"),
    );
    assert_eq!(code, 0, "{line}");
    assert!(
        line.starts_with(&format!(
            "WALRELAY OK - slot {}: streaming, lag ",
            world.name
        )),
        "{line}"
    );
    assert!(line.contains("B;1073741824;;0"), "{line}");
    for name in ["lag_bytes", "retained_bytes"] {
        assert!(
            figure(&line, name).is_some_and(|bytes| (0.0..1e9).contains(&bytes)),
            "{name}: {line}"
        );
    }
    drop(relay);
}

#[test]
fn a_nagios_check_that_fails_is_one_line_too() {
    let nobody = format!("postgres://postgres@127.0.0.1:{}/shop", free_port());
    let status = RelayCommand::new("status")
        .flag("--nagios")
        .option("--database-url", &nobody);
    let (code, line) = checked(&status.clone().option("--slot", "orders"));
    assert_eq!(code, 2, "{line}");
    assert!(
        line.starts_with("WALRELAY CRITICAL - ") && line.contains("127.0.0.1"),
        "{line}"
    );
    for unusable in [
        status.clone().option("--slot", "Not A Slot"),
        status.flag("--nope"),
    ] {
        let (code, line) = checked(&unusable);
        assert_eq!(code, 3, "{line}");
        assert!(line.starts_with("WALRELAY UNKNOWN - "), "{line}");
    }
}
