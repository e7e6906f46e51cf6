//! Where our libraries lie, seen from this program.
use std::{
    env, io,
    path::{Path, PathBuf},
};

/// The drop-in libibverbs, by the name under which programs load it.
pub const VERBS: &str = "libibverbs.so.1";
/// The library that shows urxe0 under /sys and /dev.
pub const VIEW: &str = "libanyverbs-view.so";

/// The folder that holds both: `../lib` of this program, or the one that it lies in.
///
/// # Errors
/// NotFound, naming where they were looked for.
pub fn folder() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let own = program.parent().unwrap_or(Path::new("/"));
    let places = [own.join("../lib"), own.join("lib"), own.to_path_buf()];
    let complete = |place: &&PathBuf| [VERBS, VIEW].iter().all(|name| place.join(name).is_file());
    match places.iter().find(complete) {
        Some(place) => place.canonicalize(),
        None => {
            let looked = places.map(|place| place.display().to_string()).join(", ");
            let why = format!("{VERBS} and {VIEW} are not in any of {looked}");
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
    }
}
