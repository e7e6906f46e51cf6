//! How messages travel: local (same process), shm (same host), udp (RoCEv2).
pub mod shm;
pub mod udp;
