//! `walrelay-demo`, as somebody runs it.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::process::{Command, Output};

use serde_json::Value;

fn demo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_walrelay-demo"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn a_run_on_a_mock_of_kafka_is_verified_and_its_report_is_one_object() {
    let ran = demo(&[
        "--seconds",
        "1",
        "--writers",
        "3",
        "--rate",
        "200",
        "--seed",
        "7",
        "--json",
    ]);
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{}: {told}", ran.status);
    assert!(told.contains("3 writers for 1 s, seed 7"), "{told}");
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(
        (&report["verified"], &report["broker"]),
        (&true.into(), &"mock".into()),
        "{report}"
    );
    assert!(report["committed"].as_u64() > Some(0), "{report}");
}

#[test]
fn flags_and_programs_that_do_not_fit_end_with_their_codes() {
    let ran = demo(&["--writers", "0"]);
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(2), 0));
    let ran = demo(&["--postgres-bin", "/nonexistent", "--json"]);
    let error: Value =
        serde_json::from_slice(ran.stderr.split(|byte| *byte == b'\n').nth(1).unwrap()).unwrap();
    assert_eq!(
        (ran.status.code(), &error["exit_code"]),
        (Some(2), &2.into()),
        "{error}"
    );
}
