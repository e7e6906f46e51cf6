//! Text and messages from the environment, from the kernel, and from other processes of this user.
use ibverbs::soft::device;
use ibverbs::soft::link::faults::spec::Spec;
use ibverbs::soft::verbs::desk::message::{BYTES, Message};
use ibverbs::sys::{interfaces, log, netlink};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// One text for one reader.
pub fn run(data: &[u8]) {
    let Some((&reader, bytes)) = data.split_first() else { return };
    let text = || String::from_utf8_lossy(bytes).into_owned();
    match reader % 9 {
        0 => attributes(bytes, 3),
        1 => {
            let _ = (interfaces::default_ipv4(&text()), interfaces::default_ipv6(&text()));
        }
        2 => assert!(interfaces::unusable_ipv6(&text()).len() <= bytes.len()),
        3 => drop(log::parse_level(OsString::from_vec(bytes.to_vec()))),
        4 => {
            let count = device::count(Some(&text()));
            assert!((1..=device::MAX_DEVICES as u32).contains(&count));
        }
        5 => {
            let text = text();
            if device::is_name(&text) {
                let names: Vec<String> = (0..4).map(|n| device::nth_name(&text, n)).collect();
                assert!(names[0] == text || !text.ends_with(|c: char| c.is_ascii_digit()), "{names:?}");
                assert!((1..4).all(|n| !names[..n].contains(&names[n])), "{names:?}");
            }
        }
        6 => drop(device::is_infiniband(Some(&text()))),
        7 => drop(text().parse::<Spec>()),
        _ => desk(bytes),
    }
}

/// Attributes within attributes.
fn attributes(bytes: &[u8], depth: u32) {
    let mut total = 0;
    for (_, value) in netlink::Attributes(bytes) {
        netlink::word(value);
        total += value.len() + 4;
        if depth > 0 {
            attributes(value, depth - 1);
        }
    }
    assert!(total <= bytes.len(), "attributes overlap");
}

/// A message is read as it was written.
fn desk(bytes: &[u8]) {
    if bytes.len() >= BYTES
        && let Some(message) = Message::decode(&bytes[..BYTES])
    {
        let again = message.encode();
        let twice = Message::decode(&again).map(|m| m.encode());
        assert_eq!(twice, Some(again));
    }
    assert!(bytes.len() == BYTES || Message::decode(bytes).is_none());
}
