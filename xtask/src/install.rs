//! `cargo xtask install --prefix P [--destdir D]`: libraries, links, the `anyverbs` command, its man page, headers and the pkg-config file.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::stage;

/// The version that the pkg-config file tells: rdma-core's whose interface this is.
const INTERFACE: &str = "1.18.65.0";

/// Installs below `destdir` + `prefix`.
pub fn install(args: &[String]) -> Result<(), String> {
    let (mut prefix, mut destdir) = (None, String::new());
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = |w: Option<&String>| w.cloned().ok_or(format!("{word} needs a folder"));
        match word.as_str() {
            "--prefix" => prefix = Some(value(words.next())?),
            "--destdir" => destdir = value(words.next())?,
            other => return Err(format!("unknown option {other}")),
        }
    }
    let prefix = prefix.ok_or("usage: cargo xtask install --prefix P [--destdir D]")?;
    if !prefix.starts_with('/') {
        return Err("--prefix must be absolute".into());
    }
    stage::library()?;
    let base = PathBuf::from(format!("{destdir}{prefix}"));
    put(&base, &prefix).map_err(|e| format!("installing in {}: {e}", base.display()))?;
    println!("installed in {}", base.display());
    Ok(())
}

fn put(base: &Path, prefix: &str) -> io::Result<()> {
    stage::lay_out(&stage::target().join("release/libibverbs.so"), &base.join("lib"))?;
    stage::lay_out_tools(&stage::target().join("release"), base)?;
    let root = stage::root();
    copy_tree(&root.join("include"), &base.join("include"))?;
    copy_tree(&root.join("docs/man"), &base.join("share/man/man1"))?;
    let pc = base.join("lib/pkgconfig");
    fs::create_dir_all(&pc)?;
    for entry in fs::read_dir(root.join("pkgconfig"))? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".in")) else {
            continue;
        };
        fs::write(pc.join(name), fill(&fs::read_to_string(&path)?, prefix))?;
    }
    Ok(())
}

/// Replaces the @NAMES@ of a `.pc.in`.
fn fill(template: &str, prefix: &str) -> String {
    let pairs = [
        ("@prefix@", prefix),
        ("@VERSION@", INTERFACE),
        ("@libdir@", "${prefix}/lib"),
        ("@includedir@", "${prefix}/include"),
    ];
    pairs.iter().fold(template.to_string(), |text, (name, value)| text.replace(name, value))
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
