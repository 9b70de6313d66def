use clap::CommandFactory;

use super::*;

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_of_a_setting_exists_on_the_command_line() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for flag in setting::ALL.iter().filter_map(|setting| setting.flag) {
        let help = run.get_arguments().find(|argument| argument.get_long() == Some(flag)).and_then(clap::Arg::get_help);
        let variable = setting::ALL.iter().find(|setting| setting.flag == Some(flag)).unwrap().variable();
        let help = help.unwrap_or_else(|| panic!("run has no --{flag}")).to_string();
        assert!(help.contains(&format!("[env: {variable}]")), "--{flag} does not name {variable}");
    }
}

#[test]
fn no_flag_takes_a_password() {
    for command in Cli::command().get_subcommands() {
        for argument in command.get_arguments() {
            let long = argument.get_long().unwrap_or_default();
            assert!(!long.contains("password") && !long.contains("secret"), "--{long} would show on the command line");
        }
    }
}

#[test]
fn what_was_typed_becomes_settings() {
    let typed =
        ["walrelay", "run", "--slot", "orders", "--state-store", "slot", "--log-format", "json", "--http", "9187"];
    let Command::Run(args) = Cli::try_parse_from(typed).unwrap().command else { panic!("not run") };
    let flags = args.settings.flags();
    let read: Vec<_> = flags.iter().map(|(key, text)| (*key, text.as_str())).collect();
    assert_eq!(
        read,
        [("http.listen", "9187"), ("log.format", "json"), ("slot.name", "orders"), ("state.store", "slot")]
    );
}

#[test]
fn nonsense_is_refused_at_once() {
    for typed in [
        &["walrelay"][..],
        &["walrelay", "run", "--state-store", "redis"],
        &["walrelay", "setup", "--timeout", "60"],
        &["walrelay", "setup", "--timeout", "0s"],
        &["walrelay", "status", "--watch", "0"],
        &["walrelay", "status", "--max-lag-bytes", "1.5"],
        &["walrelay", "demo", "--writers", "0"],
        &["walrelay", "run", "--password", "x"],
    ] {
        let error = Cli::try_parse_from(typed).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{typed:?}");
    }
}

fn help(of: &str) -> String {
    let mut command = Cli::command().term_width(100);
    command.build();
    if of.is_empty() {
        return command.render_long_help().to_string();
    }
    command.find_subcommand_mut(of).unwrap().clone().term_width(100).render_help().to_string()
}

#[test]
fn the_overview_names_every_command_and_where_to_start() {
    insta::assert_snapshot!(help(""), @"");
}

#[test]
fn the_help_of_status_has_examples_and_exit_codes() {
    insta::assert_snapshot!(help("status"), @"");
}

#[test]
fn the_help_of_run_has_examples_and_exit_codes() {
    insta::assert_snapshot!(help("run"), @"");
}
