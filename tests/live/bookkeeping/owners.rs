//! docs/how-to/upkeep.md: with a role of its own for upkeep, code of the table's owner does not run
//! with the rights of the relay's role.

use super::{EXIT, Outbox, WALLET};
use crate::support::servers::Postgres;
use crate::support::wait::eventually;
use crate::support::world::ARRIVAL;

#[test]
fn triggers_of_another_owner_run_as_the_role_of_upkeep_or_are_warned_of() {
    let outbox = Outbox::new(&WALLET);
    let sql = outbox.sql();
    let name = &outbox.world.name;
    sql.run(&format!(
        "create role {name}_owner; create role {name}_upkeep login; alter table outbox owner to \
         {name}_owner;
         grant select, update on outbox to {name}_upkeep;
         create table ran (as_role text); grant insert on ran to public;
         create function tells() returns trigger language plpgsql as
         $$ begin insert into public.ran values (current_user); return new; end $$;
         create trigger tells before update on outbox for each row execute function tells();
         create schema walrelay authorization {name}_owner"
    ));
    let mut relay = outbox.run("poll").start();
    relay.wait_ready();
    let log = relay.log();
    assert!(
        log.contains("trigger tells") && log.contains("[upkeep] database"),
        "{log}"
    );
    let fix = "alter schema walrelay owner to postgres;";
    assert!(log.contains(fix), "{log}");
    assert_eq!(relay.terminate(EXIT), Some(0), "{log}");
    let doctor = |config: &str| {
        let doctor = outbox
            .world
            .command("doctor")
            .config_file(config)
            .option("--brokers", &outbox.world.brokers);
        String::from_utf8(
            doctor
                .option("--mode", "poll")
                .flag("--json")
                .output()
                .stdout,
        )
        .unwrap()
    };
    assert!(doctor(&outbox.config).contains("trigger tells"));

    sql.run(fix);
    sql.run(&format!(
        "grant usage on schema walrelay to {name}_upkeep;
         grant select, insert, update, delete on walrelay.parked to {name}_upkeep"
    ));
    let url = Postgres::shared().url_as(&format!("{name}_upkeep"), name);
    let config = format!("{}\n[upkeep]\ndatabase = \"{url}\"\n", outbox.config);
    let told = doctor(&config);
    assert!(!told.contains("owners"), "{told}");
    let mut relay = outbox.run("poll").config_file(&config).start();
    relay.wait_ready();
    assert!(!relay.log().contains("trigger tells"), "{}", relay.log());
    (0..3).for_each(|_| outbox.emit("a"));
    eventually(
        "they are marked",
        ARRIVAL,
        || outbox.count(WALLET.sent),
        |rows| *rows == 3,
    );
    assert_eq!(
        sql.text("select string_agg(distinct as_role, ' ') from ran"),
        format!("{name}_upkeep")
    );
    assert_eq!(relay.terminate(EXIT), Some(0), "{}", relay.log());

    // Another database is refused: rows there have the same keys.
    let url = Postgres::shared().url_as(&format!("{name}_upkeep"), "postgres");
    let elsewhere = format!("{}\n[upkeep]\ndatabase = \"{url}\"\n", outbox.config);
    let told = doctor(&elsewhere);
    assert!(told.contains("lead to two servers or databases"), "{told}");
    sql.run(&format!(
        "drop owned by {name}_owner, {name}_upkeep; drop role {name}_owner, {name}_upkeep"
    ));
}
