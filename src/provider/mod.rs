//! The ops table that every provider overlays; each slot defaults to EOPNOTSUPP.
