//! Settings by environment variables that are one of a few words. Not obeyed in a setuid program.
use super::log::explain;

/// The place among `words` of what the variable says. None where it is not set, is empty, or says something else, which is told.
pub fn choose(name: &str, words: &[&str]) -> Option<usize> {
    let said = if super::is_setuid() { None } else { std::env::var_os(name) }?;
    let chosen = words.iter().position(|word| said == *word);
    if chosen.is_none() && !said.is_empty() {
        explain(format_args!("{name}={said:?}: expected {}; it is ignored", words.join(" or ")));
    }
    chosen
}

/// The variable is 0; 1 says what holds anyway.
pub fn is_off(name: &str) -> bool {
    choose(name, &["0", "1"]) == Some(0)
}
