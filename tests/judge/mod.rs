//! The outside judge of `scripts/campaign`, which shares no code with this program.

use std::process::Command;

use crate::ROOT;

#[test]
fn the_judge_finds_each_fault_in_logs_and_no_other() {
    let output = Command::new("python3")
        .arg("tests/judge/test_judge.py")
        .current_dir(ROOT)
        .output()
        .expect("python3");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
}
