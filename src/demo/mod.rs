//! demo

pub mod binaries;
pub mod postgres;

mod fetch;
mod os_user;
mod watchdog;

pub use postgres::PrivatePostgres;
