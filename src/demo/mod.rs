//! demo

pub mod binaries;
pub mod broker;
pub mod consumer;
pub mod postgres;
pub mod verify;
pub mod workload;

mod fetch;
mod os_user;
mod watchdog;

pub use postgres::PrivatePostgres;
