//! `anyverbs doctor`.
use std::process::ExitCode;
pub fn doctor() -> ExitCode {
    ExitCode::SUCCESS
}
