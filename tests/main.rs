//! walrelay's tests.

#[path = "simulation/main.rs"]
mod simulation;
